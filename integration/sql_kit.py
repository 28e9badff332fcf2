"""What the tests of SqlAlchemySink share: values of all types, and a database of a MariaDB server."""

from __future__ import annotations

import datetime as dt
import uuid
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pymysql
from sqlalchemy import make_url

from onceward.connectors.database.engines import close_idle
from onceward.connectors.database.sink import SqlAlchemySink
from onceward.core.checkpoint import Coordinator
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.log import DirectoryStore, EpochInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from onceward.connectors.database.sink import DatabaseSink


MOMENT = dt.datetime.fromisoformat("2024-02-29T23:59:59.999999")
VALUES: Final[tuple[tuple[pa.DataType, list[Any]], ...]] = (
    *((getattr(pa, f"int{bits}")(), [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0]) for bits in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{bits}")(), [2**bits - 1, 0]) for bits in (8, 16, 32, 64)),
    (pa.float64(), [1.239, 0.1, 5e-324, -1e300, -0.0, 2.0**53 + 2, 1e6]),
    (pa.float32(), [pa.scalar(0.1, pa.float32()).as_py(), 16777217.0, 1.239]),
    (pa.float16(), [65504.0, -0.5]),
    (pa.bool_(), [True, False]),
    (pa.decimal128(12, 4), [Decimal("1.2399"), Decimal("-99999999.9999")]),
    (pa.decimal128(5, 1), [Decimal("-0.5"), Decimal("9999.9")]),
    (
        pa.string(),
        [*("a", "a ", " a", "", "  ", "abc", "abc  ", "3", "c,a", "a,c", "a,a", "A", "a\tb\n", "ü€😀"), "x" * 255],
    ),
    (pa.string(), ["x" * 250 + " " * 10, "2024", "12:00:00", "\\'\"%s :x\0\x1a"]),
    (pa.binary(), [b"", b"a", b"abc", b"abc ", b"abc\0", b"\xff\\'\x1a\n"]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1)]),
    (pa.timestamp("us"), [MOMENT, MOMENT.replace(microsecond=0), MOMENT.replace(year=4)]),
    (pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=dt.UTC), dt.datetime(2038, 1, 19, tzinfo=dt.UTC)]),
    (pa.time64("us"), [dt.time.min, dt.time.max, dt.time(12)]),
)
"""Values of each Arrow type that one column or another would change."""


def write_lines_and_words(
    folder: Path,
    sinks: Sequence[DatabaseSink],
    count: int = 3,
    *,
    pipeline: str = "lines",
    apart: bool = False,
    **more: list[str],
) -> None:
    """Run epochs through a coordinator: a word, and in each other sink a line that refers to it.

    Args:
        folder: Of the decision log.
        sinks: The one of the words is called "words".
        count: How many epochs.
        pipeline: Name of the pipeline.
        apart: Whether each sink's lines have ids of their own.
        more: Further columns of one row.
    """
    coordinator = Coordinator(pipeline, DirectoryStore(folder), sinks)
    coordinator.open()
    names = tuple(sink.name for sink in sinks)
    for epoch in range(count):
        about = EpochInput(query="q", start=[str(epoch)], end=[str(epoch + 1)])
        coordinator.admit(epoch, about)
        committables = []
        for number, sink in enumerate(sinks, 1):
            other = "word" if sink.name == "words" else "word_id"
            id_ = epoch + 100 * number * apart
            batch = pa.record_batch({"id": [id_], other: ["w"] if sink.name == "words" else [epoch], **more})
            sink.validate(batch.schema)
            transaction = sink.begin(coordinator.context(sink.name, epoch, subtask=0))
            sink.write(transaction, batch)
            committables.append(sink.pre_commit(transaction))
        done = Acknowledgement(epoch=epoch, subtask=0, attempt=0, sinks=names, committables=tuple(committables))
        coordinator.commit(epoch, [done], about)


class MariaDatabase:
    """A fresh database of a MariaDB server, and a connection to look into it.

    Args:
        url: Of the server, with a user who may do everything.
    """

    def __init__(self, url: str) -> None:
        self.name = f"test_{uuid.uuid4().hex[:12]}"
        self.server = make_url(url)
        self.url = self.server.set(database=self.name).render_as_string(hide_password=False)
        self.connect("")
        self.run(f"CREATE DATABASE {self.name}")
        self.run(f"USE {self.name}")

    def connect(self, name: str | None = None) -> None:
        self.look = self.another(self.name if name is None else name)

    def another(self, name: str | None = None) -> pymysql.connections.Connection[Any]:
        """One more connection."""
        at = self.server
        database = (self.name if name is None else name) or None
        return pymysql.connect(
            host=at.host,
            port=at.port or 3306,
            user=at.username,
            password=at.password or "",
            database=database,
            autocommit=True,
        )

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with self.look.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def rows(self, table: str = "words") -> list[tuple[Any, ...]]:
        return sorted(self.run(f"SELECT * FROM {table}"))

    def prepared(self) -> list[str]:
        """Identifiers of all prepared transactions of the server, as XA commands take them."""
        return [row[3] for row in self.run("XA RECOVER FORMAT='SQL'")]

    def sink(self, how: str = "prepared", **settings: Any) -> SqlAlchemySink:
        """`how`: prepared, staging, or upsert."""
        chosen: dict[str, Any] = {"key": ["id"]} if how == "upsert" else {"commit": how}
        return SqlAlchemySink("words", **{"url": self.url, "table": "words", **chosen, **settings})


@contextmanager
def maria_database(url: str) -> Iterator[MariaDatabase]:
    """An empty database, dropped at the end with whatever is still prepared on the server."""
    database = MariaDatabase(url)
    try:
        yield database
    finally:
        close_idle()
        database.connect()
        for xid in database.prepared():
            database.run(f"XA ROLLBACK {xid}")
        database.run(f"DROP DATABASE {database.name}")
        database.look.close()
