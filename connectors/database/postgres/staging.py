"""Writing through a staging table: each attempt commits its rows aside, one merge per epoch moves them.

Why the merge is exactly once:

1. Staged rows are in no reader's table. A row in `staged`, committed together with them, says that they are whole.
2. The merge deletes that row, moves the data, and writes the ledger row in one transaction; an abort deletes that
   row and the data. Whoever deletes it wins; the other one waits, finds it gone, and asks the ledger.
3. So at any time exactly one of these holds: staged, in the ledger, or neither (aborted, or never staged).

Epochs take turns with a few staging tables for each target. They are ordinary, logged tables: an unlogged one would
be emptied by a crash of the server after the subtask had acknowledged. A role or database with
synchronous_commit=off would lose acknowledged commits in a crash likewise, so these transactions switch it on.

Within one epoch the last row of a key wins: the order is (subtask, position in the subtask).
"""

from __future__ import annotations

import array
import hashlib
import json
import secrets
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from psycopg import sql

from onceward.core.errors import ConfigurationError, SchemaError

from .catalog import Table, read_checks, read_table
from .changes import DELETE, split_changes, without_change
from .connections import borrowed
from .copy_writer import CopyWriter
from .ledger import CREATION_LOCK
from .listing import STAGED
from .plan import plan_copy
from .tables import TableName
from .target import make_committable
from .writing import Writing

if TYPE_CHECKING:
    from onceward.core.transaction import Committable

    from .connections import Connection
    from .target import Target

ID: Final = "onceward_id"
ROW: Final = "onceward_row"
TURNS: Final = 4
_OWN_FIELDS: Final = (pa.field(ID, pa.int64()), pa.field(ROW, pa.int64()))

Checks = tuple[tuple[str, str], ...]
"""Names and expressions of check constraints."""

DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)


class StagedWriting(Writing):
    """One attempt's transaction, which ends as committed rows of a staging table."""

    id: int = 0
    stage: TableName
    table: Table
    checks: Checks

    def open_copy(self, schema: pa.Schema) -> CopyWriter:
        """COPY into the staging table, with the transaction's id and each row's position beside the data."""
        self.table = self.lock_and_read(schema)
        schema = without_change(schema, self.target.change)
        plan_copy(schema, self.table)
        check_key(schema, self.target.key)
        self.id = secrets.randbits(62)
        self.checks = read_checks(self.connection, self.table)
        self.stage = stage_name(self.target, self.context.sink, self.table, self.checks, self.context.epoch)
        stage = read_table(self.connection, self.stage) or self._create_stage()
        extended = pa.schema([*schema, *self._own_fields()])
        return CopyWriter(self.connection, self.stage.identifier(), plan_copy(extended, stage))

    def _create_stage(self) -> Table:
        """On another connection: in this one, the others would wait for the end of this transaction."""
        with borrowed(
            self.target.dsn, "cannot create a staging table", answer_within=self.target.answer_within
        ) as other:
            create_stage(other, self.target, self.stage, self.table, self.checks)
        stage = read_table(self.connection, self.stage)
        if stage is None:
            raise ConfigurationError(f"the staging table {self.stage} was dropped while it was created")
        return stage

    def send(self, batch: pa.RecordBatch) -> None:
        """Add id, position and whether it deletes, and write."""
        assert self.copy is not None  # noqa: S101 - write opened it
        own: list[pa.Array] = []
        if self.target.change:
            batch, deletes = split_changes(batch, self.target.change)
            own = [deletes]
        for column in self.target.key:
            if batch.column(column).null_count:
                raise SchemaError(f"key column {column!r} has nulls: an upsert cannot match them")
        positions = array.array("q", range(self.copy.rows, self.copy.rows + batch.num_rows))
        own = [
            *own,
            pa.repeat(pa.scalar(self.id, pa.int64()), batch.num_rows),
            pa.Array.from_buffers(pa.int64(), batch.num_rows, [None, pa.py_buffer(positions)]),
        ]
        schema = pa.schema([*batch.schema, *self._own_fields()])
        self.copy.write(pa.RecordBatch.from_arrays([*batch.columns, *own], schema=schema))

    def _own_fields(self) -> list[pa.Field]:
        return [*([pa.field(DELETE, pa.bool_())] if self.target.change else []), *_OWN_FIELDS]

    def make_durable(self, rows: int) -> Committable:
        """Note that the rows are whole, and commit."""
        insert = self.target.ledger.query(
            "INSERT INTO {schema}.staged (gid, pipeline, sink, log, writer, epoch, subtask, attempt, rows, id, stage,"
            " target, columns, key) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
        )
        name = self.name
        row = [str(name), *name.scope, name.start, name.epoch, name.subtask, name.attempt, rows, self.id]
        row += self._movement()
        with self.connection.pipeline():
            self.connection.execute(DURABLE)
            self.connection.execute(insert, row)
            self.connection.execute("COMMIT")
        return make_committable(STAGED, name, rows)

    def _movement(self) -> list[object]:
        """What the merge is to move, and where; nothing if no rows came."""
        if self.copy is None:
            return ["", [], [], []]
        columns = [column for column in self.copy.columns if column not in (ID, ROW)]  # with DELETE if there is one
        return [self.stage.table, [self.table.schema, self.table.name], columns, list(self.target.key)]


def check_key(schema: pa.Schema, key: tuple[str, ...]) -> None:
    """Raise SchemaError unless every key column is in the data."""
    missing = [column for column in key if column not in schema.names]
    if missing:
        raise SchemaError(f"key columns {missing} are not in the data, which has {schema.names}")


def stage_name(target: Target, sink: str, table: Table, checks: Checks, epoch: int) -> TableName:
    """The staging table's name: another layout of the target makes another one, and epochs take turns.

    So while one epoch is merged, the next one is written elsewhere, and the merged one's table can be emptied whole.
    """
    layout = [[c.name, c.declared, c.collation, c.not_null and not c.has_default] for c in table.columns]
    more = [*([checks] if checks else []), *([DELETE] if target.change else [])]
    text = json.dumps([sink, table.schema, table.name, layout, *more])
    return TableName(target.ledger.schema, f"stage_{hashlib.sha256(text.encode()).hexdigest()[:24]}_{epoch % TURNS}")


def create_stage(connection: Connection, target: Target, stage: TableName, table: Table, checks: Checks) -> None:
    """Create a staging table for `table`, unless it is there.

    It has the table's check constraints and the collations that they compare by, so that a row which breaks one fails
    its epoch before the decision. A row that deletes needs nothing but its key.
    """
    taken = [name for name in (ID, ROW, DELETE) if table.column(name) is not None]
    if taken:
        raise ConfigurationError(f"table {target.table} has columns {taken}, which staging needs: rename them")
    columns: list[sql.Composable] = [sql.SQL("onceward_id bigint NOT NULL, onceward_row bigint NOT NULL")]
    spared = "onceward_delete OR " if target.change else ""
    if target.change:
        columns.append(sql.SQL("onceward_delete boolean NOT NULL"))
    for column in table.columns:
        if column.generated:
            continue
        needed = column.not_null and not column.has_default
        collation = f" COLLATE {column.collation}" if column.collation else ""
        declared = sql.SQL(column.declared + collation + (" NOT NULL" if needed and not spared else ""))
        columns.append(sql.SQL("{} {}").format(sql.Identifier(column.name), declared))
        if needed and spared:
            columns.append(sql.SQL("CHECK (onceward_delete OR {} IS NOT NULL)").format(sql.Identifier(column.name)))
    for name, check in checks:
        checked = sql.SQL(f"CHECK ({spared}({check}))")
        columns.append(sql.SQL("CONSTRAINT {} {}").format(sql.Identifier(name), checked))
    definition = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(stage.identifier(), sql.SQL(", ").join(columns))
    comment = f"onceward: rows on their way to {table.schema}.{table.name}"
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [CREATION_LOCK])
        if read_table(connection, stage) is not None:
            return  # it may be another role's, who alone may comment on it
        connection.execute(definition)
        connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(stage.identifier(), sql.Literal(comment)))
