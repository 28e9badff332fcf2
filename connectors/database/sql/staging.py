"""Writing through a staging table: each attempt commits its rows aside, one merge per epoch moves them.

Why the merge is exactly once:

1. Staged rows are in no reader's table. A row in `onceward_staged` that says `whole`, committed together with the
   last of them, says that they are all there.
2. The merge locks that row, moves the data, writes the ledger row and deletes what was staged, in one transaction; an
   abort locks and deletes it. Whoever locks it first wins; the other one waits, finds it gone, and asks the ledger.
3. So at any time exactly one of these holds: staged, in the ledger, or neither (aborted, or never whole).
4. A writer adds rows only while its row is there: what was swept stays swept.

Nobody can refuse a decided row, so the database tries the rows before they are staged (trial.py).

Rows are kept as Arrow's IPC streams, a few megabytes each, and nothing is held open while rows arrive: on SQLite an
open transaction would keep every other writer out.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import sqlalchemy as sa

from onceward.core.errors import OncewardError, SqlError

from . import own_tables
from .engines import transaction
from .target import STAGED, make_committable
from .trial import try_rows
from .writing import SLOWEST, Writing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.core.transaction import Committable, WriteContext

    from .plan import Plan
    from .target import Target

CHUNK_BYTES: Final = 2 * 2**20
"""Size of a piece. Escaped it is up to twice as large, and MariaDB takes 16 MiB in a statement by default."""


class StagedWriting(Writing):
    """One attempt's rows, which end as committed rows of a staging table."""

    def __init__(self, target: Target, context: WriteContext) -> None:
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_plan: Plan | None = None
        self._bytes = 0
        self._pieces = 0
        self._over = False
        super().__init__(target, context)

    def open(self) -> None:
        """Nothing yet: rows are collected."""

    def send(self, batch: pa.RecordBatch, plan: Plan) -> None:
        """Check every value; collect, and stage a piece when it is large enough."""
        plan.check(batch)
        for part in sliced(batch):
            if self._waiting and (part.schema != self._waiting[0].schema or self._bytes + part.nbytes > CHUNK_BYTES):
                self._stage(whole=False)
            self._waiting.append(part)
            self._waiting_plan = plan
            self._bytes += part.nbytes

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
                remove(self.target, connection, [str(self.name)])

    def _stage(self, *, whole: bool) -> None:
        rows = self.rows if whole else 0
        slowest = sum(batch.num_rows for batch in self._waiting) / SLOWEST
        with transaction(self.target, f"cannot stage rows of table {self.target.table}", more=slowest) as connection:
            if self._waiting_plan is not None:
                try_rows(self.target, connection, self._waiting_plan, self._waiting)
            if self._pieces == 0:
                connection.execute(own_tables.tables_of(self.target).staged.insert(), [self._head(rows, whole)])
            else:
                self._go_on(connection, rows, whole)
            if self._waiting:
                piece = {"name": str(self.name), "number": self._pieces, "data": encoded(self._waiting)}
                connection.execute(own_tables.tables_of(self.target).rows.insert(), [piece])
        self._pieces += 1
        self._waiting, self._waiting_plan, self._bytes = [], None, 0

    def _head(self, rows: int, whole: bool) -> dict[str, object]:
        return {
            **own_tables.identity_row(self.name, rows),
            "whole": int(whole),
            "target": json.dumps(self.target.table),
            "key_columns": json.dumps(self.target.key),
        }

    def _go_on(self, connection: sa.Connection, rows: int, whole: bool) -> None:
        staged = own_tables.tables_of(self.target).staged
        mine = staged.c.name == str(self.name)
        if connection.scalar(sa.select(staged.c.whole).where(mine).with_for_update()) is None:
            raise SqlError("the rows staged so far were removed: a later start of the pipeline has swept this attempt")
        if whole:
            connection.execute(staged.update().where(mine).values(row_count=rows, whole=1))


def remove(target: Target, connection: sa.Connection, names: list[str]) -> None:
    """Delete everything staged under these names."""
    tables = own_tables.tables_of(target)
    for part in own_tables.parts(names):
        connection.execute(tables.rows.delete().where(tables.rows.c.name.in_(part)))
        connection.execute(tables.staged.delete().where(tables.staged.c.name.in_(part)))


def staged_names(target: Target, connection: sa.Connection, pipeline: str, sink: str) -> list[tuple[str, int]]:
    """Names and rows of what is staged and not merged, whole or not."""
    staged = own_tables.tables_of(target).staged
    query = sa.select(staged.c.name, staged.c.row_count).where(staged.c.pipeline == pipeline, staged.c.sink == sink)
    return [(row[0], row[1]) for row in connection.execute(query.order_by(staged.c.name))]


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
