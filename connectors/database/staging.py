"""Staging Arrow batches, where a database takes no stream of rows; see merging.py for what happens to them.

Rows are kept as Arrow's IPC streams, a few megabytes each, and nothing is held open while rows arrive: on SQLite an
open transaction would keep every other writer out. A writer adds rows only while its row in `staged` is there: what
was swept stays swept.

Nobody can refuse a decided row, so the database tries the rows before they are staged (trial.py).
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import sqlalchemy as sa

from onceward.core.errors import OncewardError, SqlError

from . import ledger
from .engines import transaction
from .own_tables import identity_row, tables_of
from .plan import check_same
from .target import STAGED, make_committable
from .trial import try_rows
from .writing import SLOWEST, Writing, plan_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.core.transaction import Committable, WriteContext

    from .rows import Plan
    from .target import Target

CHUNK_BYTES: Final = 2 * 2**20
"""Size of a piece. Escaped it is up to twice as large, and MariaDB takes 16 MiB in a statement by default."""


class PieceWriting(Writing):
    """One attempt's rows, which end as committed pieces of the staging table."""

    def __init__(self, target: Target, context: WriteContext) -> None:
        self._waiting: list[pa.RecordBatch] = []
        self._plan: Plan | None = None
        self._bytes = 0
        self._pieces = 0
        self._over = False
        super().__init__(target, context)

    def open(self) -> None:
        ledger.note(self.target, self.context.scope)

    def send(self, batch: pa.RecordBatch) -> int:
        """Check every value; collect, and stage a piece when it is large enough."""
        if self._plan is None:
            self._plan = plan_for(self.target, batch.schema)
        check_same(batch.schema, self._plan.schema)
        self._plan.check(batch)
        for part in sliced(batch):
            if self._waiting and self._bytes + part.nbytes > CHUNK_BYTES:
                self._stage(whole=False)
            self._waiting.append(part)
            self._bytes += part.nbytes
        return int(batch.num_rows)

    def make_durable(self) -> Committable:
        """Stage the rest, and note that all is there."""
        self._stage(whole=True)
        self._over = True
        return make_committable(STAGED, self.name, self.rows)

    def discard(self) -> None:
        """Delete what was staged; if that fails, a sweep finds it by its name."""
        if self._pieces and not self._over:
            self._over = True
            with suppress(OncewardError), transaction(self.target, "cannot discard") as connection:
                for table in (tables_of(self.target).pieces, tables_of(self.target).staged):
                    connection.execute(table.delete().where(table.c.name == str(self.name)))

    def _stage(self, *, whole: bool) -> None:
        rows = self.rows if whole else 0
        slowest = sum(batch.num_rows for batch in self._waiting) / SLOWEST
        with transaction(self.target, f"cannot stage rows of table {self.target.table}", more=slowest) as connection:
            if self._plan is not None and self._waiting:
                try_rows(self.target, connection, self._plan, self._waiting)
            if self._pieces == 0:
                connection.execute(tables_of(self.target).staged.insert(), [self._head(rows, whole)])
            else:
                self._go_on(connection, rows, whole)
            if self._waiting:
                piece = {"name": str(self.name), "number": self._pieces, "data": encoded(self._waiting)}
                connection.execute(tables_of(self.target).pieces.insert(), [piece])
        self._pieces += 1
        self._waiting, self._bytes = [], 0

    def _head(self, rows: int, whole: bool) -> dict[str, object]:
        return {
            **identity_row(self.name, rows),
            "whole": int(whole),
            "stage": "",
            "movement": json.dumps({"target": self.target.table, "key": self.target.key}),
        }

    def _go_on(self, connection: sa.Connection, rows: int, whole: bool) -> None:
        staged = tables_of(self.target).staged
        mine = staged.c.name == str(self.name)
        if connection.scalar(sa.select(staged.c.whole).where(mine).with_for_update()) is None:
            raise SqlError("the rows staged so far were removed: a later start of the pipeline has swept this attempt")
        if whole:
            connection.execute(staged.update().where(mine).values(row_count=rows, whole=1))


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts of at most CHUNK_BYTES, or of one row."""
    if batch.nbytes <= CHUNK_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from sliced(batch.slice(0, half))
    yield from sliced(batch.slice(half))


def encoded(batches: list[pa.RecordBatch]) -> bytes:
    """Batches of one schema as an IPC stream."""
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    data: bytes = buffer.getvalue().to_pybytes()
    return data


def decoded(data: bytes) -> list[pa.RecordBatch]:
    """What `encoded` made."""
    with pa.ipc.open_stream(data) as stream:
        return list(stream)
