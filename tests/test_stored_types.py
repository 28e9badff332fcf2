"""What `validate` accepts for SQLite, `write` and `commit` store exactly, or `write` refuses the value in words."""

from __future__ import annotations

import datetime as dt
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
import sqlalchemy as sa

from onceward import SqlAlchemySink
from onceward.connectors.database.conversions import UnfitError
from onceward.connectors.database.sqlite_types import TYPES
from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import OncewardError, SchemaError

from .arrays_kit import ARRAYS
from .sink_kit import context

if TYPE_CHECKING:
    from pathlib import Path

OLD, LATE = dt.datetime.fromisoformat("0001-01-01"), dt.datetime.fromisoformat("9999-12-31T23:59:59.999999")
EDGES: Final[tuple[tuple[pa.DataType, list[Any]], ...]] = (
    *((getattr(pa, f"int{bits}")(), [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0]) for bits in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{bits}")(), [2**bits - 1, 0]) for bits in (8, 16, 32, 64)),
    (pa.float64(), [0.1, 5e-324, -1e300, float("inf"), float("-inf"), -0.0, 2.0**53 + 2]),
    (pa.float64(), [float("nan")]),
    (pa.float32(), [pa.scalar(0.1, pa.float32()).as_py(), float("inf")]),
    (pa.float16(), [65504.0, -0.5]),
    *(
        (kind, ["007", "1e5", "", " x ", "1.50", "NaN", "a\0b", "ü€😀", "12:00"])
        for kind in (pa.string(), pa.string_view())
    ),
    (pa.binary(), [b"", b"\0\xff", b"007"]),
    (pa.date32(), [OLD.date(), LATE.date(), dt.date(1970, 1, 1)]),
    (pa.timestamp("us"), [OLD, LATE, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)]),  # noqa: DTZ001 - without a zone
    (pa.timestamp("us", "Asia/Tokyo"), [LATE.replace(tzinfo=dt.UTC), dt.datetime(1904, 1, 1, tzinfo=dt.UTC)]),
    (pa.time64("us"), [dt.time.min, dt.time.max]),
)
TABLE: Final = (
    *("INTEGER", "INT", "TINYINT", "SMALLINT", "BIGINT", "UNSIGNED BIG INT", "REAL", "DOUBLE PRECISION", "FLOAT"),
    *("TEXT", "VARCHAR(3)", "CHAR(4)", "CLOB", "STRING", "BLOB", "NUMERIC", "DECIMAL(10,2)", "BOOLEAN", "DATE"),
    *("DATETIME", "TIMESTAMP", "TIME", "JSON", "UUID", ""),
)


def stored(path: Path) -> list[tuple[Any, str]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = connection.execute("SELECT c, typeof(c) FROM t ORDER BY rowid").fetchall()
        connection.execute("DELETE FROM t")
    return rows


def is_exact(given: Any, found: tuple[Any, str]) -> bool:
    value, kind = found
    match given:
        case bool() | int() | float():
            return kind in {"integer", "real"} and value == given
        case str():
            return kind == "text" and value == given
        case bytes():
            return kind == "blob" and value == given
        case dt.datetime():
            utc = given.astimezone(dt.UTC).replace(tzinfo=None) if given.tzinfo is not None else given
            return kind == "text" and dt.datetime.fromisoformat(value) == utc
        case dt.date() | dt.time():
            return kind == "text" and type(given).fromisoformat(value) == given
    return given is None and value is None


@pytest.mark.slow
@pytest.mark.parametrize("column", TABLE)
def test_sqlite_stores_what_is_accepted_exactly(tmp_path: Path, column: str) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE t (c {column})")
    engine = sa.create_engine(f"sqlite:///{path}")
    [reflected] = sa.inspect(engine).get_columns("t")
    engine.dispose()
    arrays = [*ARRAYS, *(pa.array([value, None], kind) for kind, values in EDGES for value in values)]
    taken = 0
    for epoch, array in enumerate(arrays):
        try:
            TYPES.conversion(array.type, reflected["type"])
        except UnfitError:  # most of them, and a sink takes longer to say so
            continue
        sink = SqlAlchemySink("words", url=f"sqlite:///{path}", table="t")
        batch = pa.record_batch({"c": array})
        try:
            sink.validate(batch.schema)
        except SchemaError:
            continue
        transaction = sink.begin(context("words", epoch=epoch))
        try:
            sink.write(transaction, batch)
            committable = sink.pre_commit(transaction)
        except OncewardError:
            sink.discard(transaction)
            continue
        assert sink.commit(committable).status is CommitStatus.COMMITTED
        if array.type == pa.timestamp("us", "Asia/Tokyo"):
            array = array.cast(pa.timestamp("us", "UTC"))  # noqa: PLW2901 - Python has no year 10000
        given, found = array.to_pylist(), stored(path)
        assert len(found) == len(given)
        wrong = [(value, row) for value, row in zip(given, found, strict=True) if not is_exact(value, row)]
        assert wrong == [], f"{array.type} in {column}"
        taken += 1
    assert taken > 0, "not even a null was taken"
