"""The merge of staged rows into their table, and their abort; see staging.py for why it is exactly once."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from onceward.core.errors import OncewardError, RetryableSinkError, SchemaError, SqlError
from onceward.core.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus

from ..epochs import epoch_by_epoch
from ..retry import retry_until_known
from . import ledger, own_tables
from .engines import dialect_for, reading, transaction
from .plan import make_plan
from .reflection import describe, forget
from .staging import decoded, remove
from .tables import TableName
from .writing import NO_ANSWER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.sql.dml import Insert

    from onceward.core.transaction import Committable

    from .plan import Plan
    from .target import Target

_SLOWEST_MERGE: Final = 500
"""Rows per second below which a merge is taken for hanging."""


def commit_staged(target: Target, committables: Sequence[Committable]) -> list[CommitOutcome]:
    """Merge in one transaction for each epoch, in order.

    Raises:
        SqlError: The table refuses the rows (a constraint, a missing table): the decision stands.
    """
    return epoch_by_epoch(committables, partial(_commit_epoch, target))


def _commit_epoch(target: Target, committables: list[Committable]) -> list[CommitOutcome]:
    outcomes: dict[str, CommitOutcome] = {}

    def round_trip() -> bool:
        merged = _merge(target, committables)
        outcomes.update({name: CommitOutcome(CommitStatus.COMMITTED) for name in merged})
        rest = [c for c in committables if c.transaction not in outcomes]
        outcomes.update(_look_up(target, rest))
        return True

    said = retry_until_known(round_trip)
    unanswered = CommitOutcome(CommitStatus.RETRY_LATER, said)
    return [outcomes.get(c.transaction, unanswered) for c in committables]


def _look_up(target: Target, committables: list[Committable]) -> dict[str, CommitOutcome]:
    if not committables:
        return {}
    first, names = committables[0], [c.transaction for c in committables]
    with reading(target, "cannot ask the ledger") as connection:
        facts = ledger.facts(target, connection, first.pipeline, first.sink, names)
    return {c.transaction: facts.commit_outcome(c) for c in committables}


def _merge(target: Target, committables: list[Committable]) -> list[str]:
    """Move what is staged and whole; the names of the transactions that this call moved."""
    names = [c.transaction for c in committables]
    with reading(target, "cannot merge") as connection:
        if not own_tables.exists(target, connection):
            return []
    try:
        slowest = sum(c.rows for c in committables) / _SLOWEST_MERGE
        with transaction(target, "cannot merge", more=slowest) as connection:
            heads = [head for head in lock(target, connection, names) if head.whole]
            for head in heads:
                _move(target, connection, head)
            if heads:
                _note(target, connection, heads)
                remove(target, connection, [head.name for head in heads])
    except RetryableSinkError:
        raise
    except OncewardError as error:
        forget(target, target.table)
        raise _refused(error, committables) from error.__cause__
    return [head.name for head in heads]


def lock(target: Target, connection: sa.Connection, names: list[str]) -> list[Any]:
    """The rows of `onceward_staged`, in the order of epochs and subtasks, waiting for whoever holds them."""
    staged = own_tables.tables_of(target).staged
    rows = [
        row
        for part in own_tables.parts(sorted(names))
        for row in connection.execute(
            sa.select(staged).where(staged.c.name.in_(part)).order_by(staged.c.name).with_for_update()
        )
    ]
    return sorted(rows, key=lambda row: (row.epoch, row.subtask, row.attempt, row.name))


def _move(target: Target, connection: sa.Connection, head: Any) -> None:
    rows = own_tables.tables_of(target).rows
    numbers = connection.scalars(sa.select(rows.c.number).where(rows.c.name == head.name).order_by(rows.c.number)).all()
    moved = 0
    for number in numbers:
        query = sa.select(rows.c.data).where(rows.c.name == head.name, rows.c.number == number)
        for batch in decoded(connection.scalar(query) or b""):
            plan, statement = _statement(target, connection, head, batch.schema)
            for rows_of_piece in plan.pieces(batch):
                connection.execute(statement, rows_of_piece)
            moved += batch.num_rows
    if moved != head.row_count:
        raise SqlError(f"{moved} rows of {head.row_count} are staged under {head.name}: somebody changed them")


def _statement(target: Target, connection: sa.Connection, head: Any, schema: Any) -> tuple[Plan, Insert]:
    name, key = TableName(*json.loads(head.target)), json.loads(head.key_columns)
    described = describe(target, name, connection=connection)
    if described is None:
        raise SchemaError(f"table {name} does not exist any more")
    plan = make_plan(schema, described.table, target.url.backend, key)
    return plan, plan.upsert(dialect_for(target), key) if key else plan.insert()


def _note(target: Target, connection: sa.Connection, heads: list[Any]) -> None:
    table = own_tables.tables_of(target).ledger
    columns = [column.name for column in table.columns if column.server_default is None]
    connection.execute(table.insert(), [{column: getattr(head, column) for column in columns} for head in heads])


def _refused(error: OncewardError, committables: list[Committable]) -> SqlError:
    first = committables[0]
    return SqlError(
        f"the decided rows of this epoch cannot be moved into the table: {error.message}. They are safe in the "
        "staging table and the decision stands: change the table so that it takes them, or delete the rows that are "
        "in their way, and start again",
        pipeline=first.pipeline,
        sink=first.sink,
        epoch=first.epoch,
    )


def abort_staged(target: Target, committable: Committable) -> AbortOutcome:
    """Delete exactly these staged rows; refused if they were merged."""
    outcome = NO_ANSWER

    def round_trip() -> bool:
        nonlocal outcome
        outcome = _abort_once(target, committable)
        return outcome.status is not AbortStatus.RETRY_LATER

    said = retry_until_known(round_trip)
    if outcome.status is AbortStatus.RETRY_LATER and said:
        return AbortOutcome(AbortStatus.RETRY_LATER, said)
    return outcome


def _abort_once(target: Target, committable: Committable) -> AbortOutcome:
    with reading(target, "cannot abort") as connection:
        if not own_tables.exists(target, connection):
            return AbortOutcome(AbortStatus.ABORTED, "this database has no ledger, so nothing is staged in it")
    names = [committable.transaction]
    with transaction(target, "cannot abort") as connection:
        taken = lock(target, connection, names)
        remove(target, connection, [head.name for head in taken])
    if taken:
        return AbortOutcome(AbortStatus.ABORTED)
    with reading(target, "cannot ask the ledger") as connection:
        facts = ledger.facts(target, connection, committable.pipeline, committable.sink, names)
    return facts.abort_outcome(committable)
