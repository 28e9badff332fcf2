"""How rows reach the tables of PostgreSQL: a COPY into the table itself, or into a staging table, and a merge by SQL.

A COPY stays open while rows arrive, in a transaction on a connection of its own. It ends as a prepared transaction, or
is committed to a staging table that has the columns of the target (staging.py).
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager, nullcontext, suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import exc

from onceward.core.contract.transaction import Committable
from onceward.core.errors import (
    ConfigurationError,
    OncewardError,
    RetryableSinkError,
    SchemaError,
    SqlError,
    refusing_rows,
)
from onceward.core.kit.rows import has_nulls

from ..column_matching import split_changes, without_change
from ..dialect import no_such_table
from ..engines import read_server, reading
from ..failures import cause_of, code
from ..loader import ChangedError, Loader, Movement, read_movement
from ..own_tables import identity_row, insert_into, staged_handle, tables_of
from ..tables import create_table
from ..target import STAGED, CommitPath, TableName
from ..writing import HeldWriting
from .catalog import (
    check_key,
    check_own_tables,
    check_policies,
    check_rules,
    check_writable,
    read_table,
    rules_query,
)
from .connection import DURABLE, CopyWriter, compiled, conversions_for, session
from .dialect import NO_SUCH_TABLE, PostgreSql
from .error_advice import LOCKS_ARE_USED_UP, REFUSES_PREPARE, USED_UP_ADVICE, refuses_prepare, used_up
from .partitions import warn_of_partitions
from .rehearsal import check_filled, check_planned, rehearse
from .staging import (
    DELETE,
    ID,
    ROW,
    STAGE,
    TURNS,
    StagedPart,
    casts_of_moved_columns,
    check_stage,
    condition_of_attempts,
    create_stage,
    drop_obsolete,
    merge_statements,
    read_layout,
    stage_name,
    truncated,
    types_query,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onceward.core.contract.transaction import WriteContext

    from ..dialect import RowWriter
    from ..target import DatabaseTarget
    from ..writing import Writing
    from .catalog import PgTable, Session

_DISABLED: Final = "55000"
_NOT_SUPPORTED: Final = "0A000"
_USED_UP: Final = "53200"
_PREPARED_LIMIT: Final = "max_prepared_transactions"
_REFERS: Final = (
    "SELECT 1 FROM pg_catalog.pg_constraint WHERE contype = 'f' AND conrelid = to_regclass(%s)"
    " AND confrelid IN (SELECT to_regclass(name) FROM unnest(%s::text[]) AS name) LIMIT 1"
)
_OWN_FIELDS: Final = (pa.field(ID, pa.int64()), pa.field(ROW, pa.int64()))


class CopyLoader(Loader):
    """Sends rows by COPY, and stages rows that wait for a merge in staging tables."""

    def check_table(self, sink: str, schema: pa.Schema | None, path: CommitPath, own: Sequence[str]) -> sa.TableClause:
        target = self.target
        if target.create_table and schema is not None:
            create_table(target, schema)
        place = sa.table(target.table.table, schema=target.table.schema)
        with reading(target, "cannot validate") as connection:
            with session(connection) as lent:
                check_own_tables(lent, target.ledger_schema or "", own)
                table = check_writable(lent, target, path)
                if schema is None:
                    return place
                schema = without_change(schema, target.change)
                conversions_for(schema, table, target.key)
                check_filled(lent, table, schema.names)
            if path is CommitPath.STAGING:
                self._make_stages(connection, sink, table, schema.names)
        return place

    def _make_stages(self, connection: sa.Connection, sink: str, table: PgTable, columns: Sequence[str]) -> None:
        target = self.target
        with session(connection) as lent:
            layout = read_layout(target, lent, table, lambda: nullcontext(lent))
        for epoch in range(TURNS):
            create_stage(connection, target, sink, layout, epoch)
        drop_obsolete(connection, target, sink, layout)
        with session(connection) as lent:
            warn_of_partitions(lent, table, layout.checks)
            check_planned(lent, _movement(target, table, columns), stage_name(target, sink, layout, 0))

    def begin_prepared(self, context: WriteContext) -> Writing:
        return CopyWriting(self.target, context)

    def begin_staged(self, context: WriteContext) -> Writing:
        return StagingWriting(self.target, context)

    def move(self, connection: sa.Connection, staged: Sequence[Any]) -> None:
        for stage, movement, parts in self._movements(staged):
            _move(connection, stage, movement, parts)

    def remove(self, connection: sa.Connection, staged: Sequence[Any]) -> None:
        ids: dict[TableName, list[int]] = {}
        for stage, _, parts in self._movements(staged):
            ids.setdefault(stage, []).extend(part.id for part in parts)
        for stage, of_stage in ids.items():
            # The table has no index: with few dead rows in it, reading all of it is the quickest way, and writing is
            # twice as fast.
            delete = f"DELETE FROM {stage.quoted} WHERE {condition_of_attempts(of_stage)}"  # noqa: S608 - quoted names
            with session(connection) as lent:
                if not truncated(lent, stage):
                    lent.execute(delete.encode())

    def _movements(self, staged: Sequence[Any]) -> list[tuple[TableName, Movement, list[StagedPart]]]:
        """Return the movements in their order: staging table, target, and the attempts that one statement moves.

        Attempts without rows are left out.
        """
        movements: list[tuple[str, Movement, StagedPart]] = []
        for order, row in enumerate(staged):
            if row.stage:
                how = read_movement(row)
                if STAGE.fullmatch(row.stage) is None:
                    raise ChangedError(
                        f"{row.stage!r} of {row.name} is no staging table: somebody changed its staged row"
                    )
                movements.append(
                    (row.stage, msgspec.structs.replace(how, id=0), StagedPart(how.id, order, row.row_count))
                )
        return [
            (TableName(self.target.ledger_schema, stage), movement, [part for *_, part in group])
            for (stage, movement), group in groupby(movements, key=itemgetter(0, 1))
        ]


def _move(connection: sa.Connection, stage: TableName, movement: Movement, parts: Sequence[StagedPart]) -> None:
    count = f"SELECT count(*) FROM {stage.quoted} WHERE {condition_of_attempts(part.id for part in parts)}"  # noqa: S608 - as above
    expected = sum(part.rows for part in parts)
    with session(connection) as lent:
        # The lock that the INSERT takes anyway. All in one round trip; as one text, for a merge may be small, and
        # a pipeline of psycopg's costs as much as the statements.
        lock = f"LOCK TABLE ONLY {movement.target.quoted} IN ROW EXCLUSIVE MODE"
        types_of, rules = types_query(stage, movement.target), rules_query(movement.target, upsert=bool(movement.key))
        answers = lent.execute(f"{lock}; {types_of}; {rules}; {count}".encode())
        answers.nextset()
        types = answers.fetchall()
        answers.nextset()
        check_rules(movement.target, answers.fetchall(), upsert=bool(movement.key))
        answers.nextset()
        (row,) = answers.fetchone() or (0,)
        if row != expected:
            raise ChangedError(f"staging table {stage.quoted} holds {row} rows of {expected}: somebody changed it")
        casts = casts_of_moved_columns(lent, movement, stage, types)
        for statement in merge_statements(lent, movement, parts, stage, casts=casts):
            lent.execute(statement.encode())


def _movement(target: DatabaseTarget, table: PgTable, columns: Sequence[str], attempt: int = 0) -> Movement:
    """Return the movement of rows with these columns, beside which a delete is marked if the sink has them."""
    marked = (DELETE,) if target.change else ()
    return Movement(TableName(table.schema, table.name), target.key, (*columns, *marked), attempt)


def lock_and_read(connection: sa.Connection, name: TableName) -> PgTable | None:
    """Lock a table against ALTER TABLE, and read it; None if it is missing, and then the transaction has failed."""
    # The lock is the one that inserting takes anyway, the only one that INSERT rights allow on every version. ONLY:
    # columns change through the table itself, never in one partition, whose lock the COPY takes when a row goes
    # there. Without it, maintenance on any partition would hold up all writing, and each of thousands would take a
    # place in the server's table of locks until the decision.
    try:
        with session(connection) as lent, lent.pipeline():
            lent.execute(f"LOCK TABLE ONLY {name.quoted} IN ROW EXCLUSIVE MODE".encode())
            return read_table(lent, name)
    except exc.DBAPIError as error:
        if code(error) not in NO_SUCH_TABLE:
            raise
        return None


class CopyWriting(HeldWriting):
    """An attempt that copies rows into the table itself, in a transaction that ends as a prepared one."""

    def open_writer(self, schema: pa.Schema) -> RowWriter:
        table = self.lock_and_read(schema)
        with self.limited():
            return CopyWriter(self.connection, table, schema, schema.names if self.target.proof else ())

    def lock_and_read(self, schema: pa.Schema) -> PgTable:
        """Lock the target's table and read it; create it first if that was requested."""
        with self.limited():
            table = lock_and_read(self.connection, self.target.table)
        if table is None and self.target.create_table:
            self.undo()
            create_table(self.target, schema)
            self.open()
            with self.limited():
                table = lock_and_read(self.connection, self.target.table)
        if table is None:
            raise no_such_table(self.target.table)
        return table

    def explain(self, error: OncewardError, cause: exc.SQLAlchemyError, what: str) -> OncewardError:
        state, driver_error = code(cause), cause_of(cause)
        if state == _USED_UP and (advice := self._raise_limit(used_up(driver_error))):
            return RetryableSinkError(f"{error.message}{advice}")
        if what == "cannot prepare" and state == _NOT_SUPPORTED and refuses_prepare(driver_error):
            return ConfigurationError(f"{error.message}. {REFUSES_PREPARE}")
        if what == "cannot prepare" and state == _DISABLED and (why := self._why_none()):
            return ConfigurationError(f"{error.message}: {why}")
        return super().explain(error, cause, what)

    def _raise_limit(self, setting: str) -> str:
        """Return how to raise the limit that PostgreSQL named, or how to need less; "" if it named none."""
        if setting == _PREPARED_LIMIT:
            return self._used_up()
        return LOCKS_ARE_USED_UP.format(setting) if setting else ""

    def _used_up(self) -> str:
        """Return what to do about a server that holds as many prepared transactions as it allows."""
        own, most = len(self.own_prepared()), 0
        with suppress(OncewardError):
            most = read_server(self.target).max_prepared
        return USED_UP_ADVICE.format(most=most or "only so many", own=own, half=max(most // 2, 1))

    def _why_none(self) -> str:
        """Return why the server prepares nothing; "" if it does, because a trigger's error may have the same code."""
        with suppress(OncewardError):
            return read_server(self.target).why_none
        return ""


class StagingWriting(CopyWriting):
    """An attempt that copies rows into a staging table, and commits them there."""

    table: PgTable
    stage: TableName
    movement: Movement

    def open_writer(self, schema: pa.Schema) -> RowWriter:
        """Open a COPY into the staging table, where each row has the attempt's id and its position in it."""
        self.table = self.lock_and_read(schema)
        check_policies(self.table)
        schema = without_change(schema, self.target.change)
        conversions_for(schema, self.table, self.target.key)
        self.movement = _movement(self.target, self.table, schema.names, secrets.randbits(62))
        hashed = schema.names if self.target.proof else ()
        with self.limited():
            return CopyWriter(self.connection, self._find_stage(), pa.schema([*schema, *self._own_fields()]), hashed)

    def explain(self, error: OncewardError, cause: exc.SQLAlchemyError, what: str) -> OncewardError:
        if what == "cannot prepare" and isinstance(error, SqlError) and error.remedy:
            what_to_do = "Correct the rows, or" if error.refuses_rows else "The merge would fail:"
            error.message = f"{error.message}. {what_to_do} {error.remedy}"
            return error
        return super().explain(error, cause, what)

    def _find_stage(self) -> PgTable:
        with session(self.connection) as lent:
            check_key(lent, self.target)
            target, upsert = self.movement.target, bool(self.target.key)
            check_rules(target, lent.execute(rules_query(target, upsert=upsert).encode()).fetchall(), upsert=upsert)
            layout = read_layout(self.target, lent, self.table, self._other_session)
            self.stage = stage_name(self.target, self.context.sink, layout, self.context.epoch)
            table = read_table(lent, self.stage)
        if table is None:
            # On another connection: in this one, the others would wait for the end of this transaction.
            with reading(self.target, "cannot create a staging table") as other:
                create_stage(other, self.target, self.context.sink, layout, self.context.epoch)
            with session(self.connection) as lent:
                table = read_table(lent, self.stage)
        if table is None:
            raise ConfigurationError(f"the staging table {self.stage} was dropped while it was created")
        check_stage(table, layout)
        return table

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
                raise refusing_rows(SchemaError(f"key column {column!r} has nulls: an upsert cannot match them"))
        own = [
            *own,
            pa.repeat(pa.scalar(self.movement.id, pa.int64()), batch.num_rows),
            pa.array(np.arange(self.rows, self.rows + batch.num_rows)),
        ]
        schema = pa.schema([*batch.schema, *self._own_fields()])
        return super().send(pa.RecordBatch.from_arrays([*batch.columns, *own], schema=schema))

    def _check_nulls(self, rows: pa.RecordBatch) -> None:
        """Refuse nulls that the merge would refuse, but the staging table takes, because its columns may be left out.

        Raises:
            SchemaError: A NOT NULL column with a default has a null. The default is for rows without the column.
        """
        for column in self.table.columns:
            if not (column.not_null and column.has_default and column.name in rows.schema.names):
                continue
            if has_nulls(rows.column(column.name)):
                why = f"column {column.name!r} has nulls, and it is NOT NULL in table {self.target.table}; its default"
                advice = "counts only where the column is not in the data. Leave the column out, or fill it"
                raise refusing_rows(SchemaError(f"{why} {advice}"))

    def _own_fields(self) -> list[pa.Field]:
        return [*([pa.field(DELETE, pa.bool_())] if self.target.change else []), *_OWN_FIELDS]

    def make_durable(self) -> Committable:
        how = {"stage": "", "movement": "{}"}
        if self.writer is not None:
            how = {"stage": self.stage.table, "movement": self.movement.noted()}
        row = {**identity_row(self.name, self.rows), "whole": 1, **how}
        insert = compiled(insert_into(tables_of(self.target).staged), tuple(row))
        with self.limited(self.rows):
            self.finish_rows()
            if self.writer is not None and self.rows:
                with session(self.connection) as lent:
                    rehearse(lent, self.table, self.movement, self.stage, self.rows)
                if self.target.tries_rows:
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

    def _merge_statements(self, lent: Session, movement: Movement) -> list[str]:
        return merge_statements(lent, movement, [StagedPart(self.movement.id, 0, self.rows)], self.stage)

    def _tries_in_table(self) -> bool:
        """Return whether rows can be tried: no foreign key refers to a table that the same epoch fills."""
        beside = self.target.tried_beside
        if not beside:
            return beside is not None
        with session(self.connection) as lent:
            question = (TableName(self.table.schema, self.table.name).quoted, [name.quoted for name in beside])
            reference = lent.execute(_REFERS, question).fetchone()
        return reference is None

    def _try_rows(self) -> None:
        """Merge the rows into the target and take that back, or into a temporary table like it; see ../pieces.py."""
        if self._tries_in_table():
            with session(self.connection) as lent:
                lent.execute(b"SAVEPOINT onceward_trial")
                for statement in self._merge_statements(lent, msgspec.structs.replace(self.movement, key=())):
                    lent.execute(statement.encode())
                lent.execute(b"SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK TO SAVEPOINT onceward_trial")
            return
        table = sa.table(self.table.name, schema=self.table.schema)
        with PostgreSql().trial(self.connection, table) as (place, has_keys):
            key = self.target.key if has_keys else ()
            with session(self.connection) as lent:
                for statement in self._merge_statements(
                    lent, msgspec.structs.replace(self.movement, target=place, key=key)
                ):
                    lent.execute(statement.encode())
