"""Staging by COPY: each attempt streams its rows into a staging table of the target's kind; see ../merging.py.

Epochs take turns with a few staging tables for each target. They are ordinary, logged tables: an unlogged one would
be emptied by a crash of the server after the subtask had acknowledged.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from onceward.core.errors import ConfigurationError, SchemaError
from onceward.core.kit.rows import has_nulls
from onceward.core.transaction import Committable

from ..engines import reading
from ..loader import Movement, StagedPart
from ..own_tables import identity_row, insert_into, staged_handle, tables_of
from ..plan import split_changes, without_change
from ..target import STAGED, TableName
from ..writing import HeldWriting
from .catalog import check_key, check_policies, read_checks, read_table
from .dialect import PostgreSql
from .partitions import partition_checks
from .session import DURABLE, CopyWriter, compiled, conversions_for, session
from .stage import DELETE, ID, ROW, create_stage, merge_statements, stage_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..dialect import RowWriter
    from .catalog import PgTable, Session

_OWN_FIELDS: Final = (pa.field(ID, pa.int64()), pa.field(ROW, pa.int64()))


class TableWriting(HeldWriting):
    """One attempt's transaction, which ends as committed rows of a staging table."""

    id: int = 0
    table: PgTable
    stage: TableName
    columns: tuple[str, ...] = ()

    def open_writer(self, schema: pa.Schema) -> RowWriter:
        """COPY into the staging table, with the attempt's id and each row's position beside the data."""
        self.table = self.lock_and_read(PostgreSql(), schema)
        check_policies(self.table)
        schema = without_change(schema, self.target.change)
        conversions_for(schema, self.table, self.target.key)
        self.id = secrets.randbits(62)
        self.columns = (*schema.names, *([DELETE] if self.target.change else []))
        hashed = schema.names if self.target.proof else ()
        with self.limited():
            return CopyWriter(self.connection, self._find_stage(), pa.schema([*schema, *self._own_fields()]), hashed)

    def _find_stage(self) -> PgTable:
        with session(self.connection) as lent:
            check_key(lent, self.target)
            checks = read_checks(lent, self.table)
            checks += partition_checks(self.target, lent, self.table, self._other_session)
            self.stage = stage_name(self.target, self.context.sink, self.table, checks, self.context.epoch)
            found = read_table(lent, self.stage)
        if found is not None:
            return found
        # On another connection: in this one, the others would wait for the end of this transaction.
        with reading(self.target, "cannot create a staging table") as other:
            create_stage(other, self.target, self.stage, self.table, checks)
        with session(self.connection) as lent:
            found = read_table(lent, self.stage)
        if found is None:
            raise ConfigurationError(f"the staging table {self.stage} was dropped while it was created")
        return found

    @contextmanager
    def _other_session(self) -> Iterator[Session]:
        with reading(self.target, "cannot read the constraints of partitions") as other, session(other) as lent:
            yield lent

    def send(self, batch: pa.RecordBatch) -> int:
        if self.writer is None:
            self.writer = self.open_writer(batch.schema)
        own: list[pa.Array] = []
        kept = batch
        if self.target.change:
            batch, deletes = split_changes(batch, self.target.change)
            kept, own = batch.filter(pc.invert(deletes)), [deletes]
        self._check_nulls(kept)
        for column in self.target.key:
            if has_nulls(batch.column(column)):
                raise SchemaError(f"key column {column!r} has nulls: an upsert cannot match them")
        own = [
            *own,
            pa.repeat(pa.scalar(self.id, pa.int64()), batch.num_rows),
            pa.array(np.arange(self.rows, self.rows + batch.num_rows)),
        ]
        schema = pa.schema([*batch.schema, *self._own_fields()])
        return super().send(pa.RecordBatch.from_arrays([*batch.columns, *own], schema=schema))

    def _check_nulls(self, rows: pa.RecordBatch) -> None:
        """Refuse nulls that the merge would refuse and the staging table takes, since its columns may be left out.

        Raises:
            SchemaError: A NOT NULL column with a default has a null: the default counts only where the column is not
                in the data.
        """
        for column in self.table.columns:
            if not (column.not_null and column.has_default and column.name in rows.schema.names):
                continue
            if has_nulls(rows.column(column.name)):
                raise SchemaError(
                    f"column {column.name!r} has nulls, and it is NOT NULL in table {self.target.table}; its default "
                    "counts only where the column is not in the data. Leave the column out, or fill it"
                )

    def _own_fields(self) -> list[pa.Field]:
        return [*([pa.field(DELETE, pa.bool_())] if self.target.change else []), *_OWN_FIELDS]

    def make_durable(self) -> Committable:
        how = {"stage": "", "movement": "{}"}
        if self.writer is not None:
            into = TableName(self.table.schema, self.table.name)
            movement = Movement(into, self.target.key, self.columns, self.id)
            how = {"stage": self.stage.table, "movement": movement.noted()}
        row = {**identity_row(self.name, self.rows), "whole": 1, **how}
        insert = compiled(insert_into(tables_of(self.target).staged), tuple(row))
        with self.limited(self.rows):
            self.finish_rows()
            if self.target.tries_rows and self.writer is not None:
                self._try_rows()
            with session(self.connection) as lent, lent.pipeline():
                lent.execute(DURABLE)
                lent.execute(insert, row)
                lent.execute("COMMIT")
            connection, self.held = self.connection, None
            connection.close()
        return Committable.named(
            STAGED, self.name, rows=self.rows, proof=self.proof, handle=staged_handle(self.rows, **how)
        )

    def _try_rows(self) -> None:
        """Merge them into a temporary table of the target's kind, see ../staging.py."""
        table = sa.table(self.table.name, schema=self.table.schema)
        with PostgreSql().trial(self.connection, table) as (place, has_keys):
            movement = Movement(place, self.target.key if has_keys else (), self.columns)
            part = StagedPart(self.id, 0, self.rows)
            with session(self.connection) as lent:
                for statement in merge_statements(lent, movement, [part], self.stage):
                    lent.execute(statement.encode())
