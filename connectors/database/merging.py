"""Staged rows: each attempt commits its rows aside, one merge for each epoch moves them into their table.

Why the merge is exactly once:

1. Staged rows are in no reader's table. A row in `staged` that says `whole`, committed together with the last of them,
   says that they are all there.
2. The merge locks that row, deletes it, moves the data and writes the ledger row in one transaction; an abort locks and
   deletes it, and the data. Whoever locks it first wins; the other one waits, finds it gone, and asks the ledger.
3. So at any time exactly one of these holds: staged, in the ledger, or neither (aborted, or never whole).

A role or database with synchronous_commit=off would lose acknowledged commits in a crash, so these transactions switch
it on. Within one epoch the last row of a key wins: the order is (subtask, position in the subtask).

Each call asks once: whatever is busy or unanswered is RETRY_LATER, and the coordinator's to ask again.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from onceward.core.errors import OncewardError, RetryableSinkError, SchemaError, SqlError
from onceward.core.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus

from . import ledger
from .dialect import Movement, Part
from .engines import dialect_for, reading, transaction
from .failures import refusal
from .own_tables import exists, parts, tables_of
from .reflection import describe, forget
from .rows import make_plan
from .staging import decoded
from .target import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy.sql.dml import Insert

    from onceward.core.transaction import Committable

    from .rows import Plan
    from .target import Target

_SLOWEST_MERGE: Final = 500
"""Rows per second below which a merge is taken for hanging."""


def commit_staged(target: Target, committables: Sequence[Committable]) -> list[CommitOutcome]:
    """Merge in one transaction for each epoch, in order.

    Raises:
        SqlError: The table refuses the rows (a constraint, a missing table): the decision stands.
    """
    return epoch_by_epoch(committables, partial(_commit_epoch, target))


def epoch_by_epoch(
    committables: Sequence[Committable], commit_epoch: Callable[[list[Committable]], list[CommitOutcome]]
) -> list[CommitOutcome]:
    """Commit each epoch after those before it; what comes behind one that has to wait, waits too.

    Args:
        committables: In any order.
        commit_epoch: Commits transactions of one epoch; one outcome for each, in order.

    Returns:
        One outcome for each committable, in the order given.
    """
    outcomes: dict[str, CommitOutcome] = {}
    held = False
    ordered = sorted(committables, key=lambda c: (c.log, c.epoch))
    for _, group in groupby(ordered, key=lambda c: (c.log, c.epoch)):
        epoch = list(group)
        if held:
            answers = [CommitOutcome(CommitStatus.RETRY_LATER, "waits for an epoch before it")] * len(epoch)
        else:
            answers = commit_epoch(epoch)
        held = held or any(answer.status is CommitStatus.RETRY_LATER for answer in answers)
        outcomes |= {c.transaction: answer for c, answer in zip(epoch, answers, strict=True)}
    return [outcomes[c.transaction] for c in committables]


def _commit_epoch(target: Target, committables: list[Committable]) -> list[CommitOutcome]:
    try:
        outcomes = dict.fromkeys(_merge(target, committables), CommitOutcome(CommitStatus.COMMITTED))
        outcomes |= _look_up(target, [c for c in committables if c.transaction not in outcomes])
    except RetryableSinkError as error:
        return [CommitOutcome(CommitStatus.RETRY_LATER, str(error))] * len(committables)
    return [outcomes[c.transaction] for c in committables]


def _look_up(target: Target, committables: list[Committable]) -> dict[str, CommitOutcome]:
    if not committables:
        return {}
    first, names = committables[0], [c.transaction for c in committables]
    with reading(target, "cannot ask the ledger") as connection:
        facts = ledger.facts(target, connection, first.pipeline, first.sink, names)
    return {c.transaction: facts.commit_outcome(c) for c in committables}


def _merge(target: Target, committables: list[Committable]) -> list[str]:
    """Move what is staged and whole; the names of the transactions that this call moved."""
    slowest = sum(c.rows for c in committables) / _SLOWEST_MERGE
    try:
        with transaction(target, "cannot merge", more=slowest) as connection:
            heads = [head for head in lock(target, connection, [c.transaction for c in committables]) if head.whole]
            if heads:
                _note(target, connection, heads)
                _forget_staged(target, connection, [head.name for head in heads])
                _move(target, connection, heads)
    except RetryableSinkError:
        raise
    except OncewardError as error:
        forget(target, target.table)
        with reading(target, "cannot merge") as connection:
            if not exists(target, connection):
                return []
        raise _refused(target, error, committables) from error.__cause__
    return [head.name for head in heads]


def lock(target: Target, connection: sa.Connection, names: list[str]) -> list[Any]:
    """The rows of `staged`, in the order of epochs and subtasks, waiting for whoever holds them."""
    staged = tables_of(target).staged
    rows = [
        row
        for part in parts(sorted(names))
        for row in connection.execute(
            sa.select(staged).where(staged.c.name.in_(part)).order_by(staged.c.name).with_for_update()
        )
    ]
    return sorted(rows, key=lambda row: (row.epoch, row.subtask, row.attempt, row.name))


def _note(target: Target, connection: sa.Connection, heads: list[Any]) -> None:
    table = tables_of(target).ledger
    columns = [column.name for column in table.columns if column.server_default is None]
    connection.execute(table.insert(), [{column: getattr(head, column) for column in columns} for head in heads])


def _forget_staged(target: Target, connection: sa.Connection, names: list[str]) -> None:
    staged = tables_of(target).staged
    for part in parts(names):
        connection.execute(staged.delete().where(staged.c.name.in_(part)))


def _move(target: Target, connection: sa.Connection, heads: list[Any]) -> None:
    """Move the rows into their table; nothing of them stays staged."""
    bulk = dialect_for(target).bulk
    if bulk is None:
        for head in heads:
            _insert_pieces(target, connection, head)
    else:
        for movement, group in _by_movement(heads).items():
            bulk.move(connection, target.ledger_schema or "", movement, group)
    _remove(target, connection, heads)


def _remove(target: Target, connection: sa.Connection, heads: list[Any]) -> None:
    """Delete the rows of heads that are forgotten."""
    bulk, tables = dialect_for(target).bulk, tables_of(target)
    if bulk is None:
        for names in parts([head.name for head in heads]):
            connection.execute(tables.pieces.delete().where(tables.pieces.c.name.in_(names)))
        return
    ids: dict[str, list[int]] = {}
    for movement, group in _by_movement(heads).items():
        ids.setdefault(movement.stage, []).extend(part.id for part in group)
    for stage, of_stage in ids.items():
        bulk.remove(connection, target.ledger_schema or "", stage, of_stage)


def _by_movement(heads: Iterable[Any]) -> dict[Movement, list[Part]]:
    """What is moved in the same way, less attempts without rows."""
    found: dict[Movement, list[Part]] = {}
    for head in heads:
        if head.stage:
            how = json.loads(head.movement)
            movement = Movement(head.stage, TableName(*how["target"]), tuple(how["columns"]), tuple(how["key"]))
            found.setdefault(movement, []).append(Part(how["id"], head.subtask, head.row_count))
    return found


def _insert_pieces(target: Target, connection: sa.Connection, head: Any) -> None:
    pieces, how = tables_of(target).pieces, json.loads(head.movement)
    mine = pieces.c.name == head.name
    moved = 0
    for number in connection.scalars(sa.select(pieces.c.number).where(mine).order_by(pieces.c.number)).all():
        query = sa.select(pieces.c.data).where(mine, pieces.c.number == number)
        for batch in decoded(connection.scalar(query) or b""):
            plan, statement = _statement(target, connection, TableName(*how["target"]), how["key"], batch.schema)
            for rows in plan.pieces(batch):
                connection.execute(statement, rows)
            moved += batch.num_rows
    if moved != head.row_count:
        raise SqlError(f"{moved} rows of {head.row_count} are staged under {head.name}: somebody changed them")


def _statement(
    target: Target, connection: sa.Connection, name: TableName, key: list[str], schema: Any
) -> tuple[Plan, Insert]:
    described = describe(target, name, connection=connection)
    if described is None:
        raise SchemaError(f"table {name} does not exist any more")
    plan = make_plan(schema, described.table, target.url.backend, key)
    return plan, plan.upsert(dialect_for(target), key) if key else plan.insert()


def _refused(target: Target, error: OncewardError, committables: list[Committable]) -> SqlError:
    first = committables[0]
    return refusal(target)(
        f"the decided rows of this epoch cannot be moved into the table: {error.message}. They are safe in the "
        "staging table and the decision stands: change the table so that it takes them, or delete the rows that are "
        "in their way, and start again",
        pipeline=first.pipeline,
        sink=first.sink,
        epoch=first.epoch,
    )


def abort_staged(target: Target, committable: Committable) -> AbortOutcome:
    """Delete exactly these staged rows; refused if they were merged."""
    names = [committable.transaction]
    try:
        with reading(target, "cannot abort") as connection:
            if not exists(target, connection):
                return AbortOutcome(AbortStatus.ABORTED, "this database has no ledger, so nothing is staged in it")
        with transaction(target, "cannot abort") as connection:
            taken = lock(target, connection, names)
            _forget_staged(target, connection, [head.name for head in taken])
            _remove(target, connection, taken)
        if taken:
            return AbortOutcome(AbortStatus.ABORTED)
        with reading(target, "cannot ask the ledger") as connection:
            facts = ledger.facts(target, connection, committable.pipeline, committable.sink, names)
        return facts.abort_outcome(committable)
    except RetryableSinkError as error:
        return AbortOutcome(AbortStatus.RETRY_LATER, str(error))
