"""Staged rows: each attempt commits its rows beside the table, and one merge for each epoch moves them into it.

Why the merge is exactly once:

1. No reader's table contains staged rows. A row in `staged` with `whole` set, which is committed together with the last
   of them, proves that they are all there.
2. The merge locks that row, deletes it, moves the data and writes the ledger row in one transaction; an abort locks and
   deletes the row, and the data. The first to lock it wins; the other one waits, finds it gone, and asks the ledger.
3. So at any time exactly one of these holds: staged, in the ledger, or neither (aborted, or never whole).

A role or database with synchronous_commit=off would lose acknowledged commits in a crash, so these transactions switch
it on. Of several rows with the same key, the last one wins, in the order (epoch, subtask, position in the subtask).

Each call asks the database once. A transaction that is busy, or whose answer was lost, is RETRY_LATER, and the
coordinator asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from onceward.core.contract.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus
from onceward.core.errors import OncewardError, RetryableSinkError, SqlError

from . import ledger_tables
from .engines import SLOWEST, dialect_for, reading, transaction
from .loader import ChangedError
from .own_tables import delete_named, exists, split_for_in, staged_handle, tables_of
from .tables import forget_description
from .target import TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.core.contract.transaction import Committable

    from .loader import Loader
    from .target import DatabaseTarget


class _Handle(msgspec.Struct, frozen=True):
    sha256: str = ""
    """Digest of the row in `staged`, see staged_handle; empty if an earlier version staged the rows."""


def commit_staged(loader: Loader, committables: Sequence[Committable]) -> list[CommitOutcome]:
    """Merge in one transaction what is staged and whole, and look the other transactions up in the ledger.

    Raises:
        SqlError: The table refuses the rows (a constraint, a missing table): the decision stands.
    """
    try:
        outcomes = _merge(loader, committables)
    except RetryableSinkError as error:
        return [CommitOutcome(CommitStatus.RETRY_LATER, str(error))] * len(committables)
    return [outcomes[c.transaction] for c in committables]


def _merge(loader: Loader, committables: Sequence[Committable]) -> dict[str, CommitOutcome]:
    """Move staged rows, ask the ledger about the other transactions, and return the outcome of each.

    Both use the same connection, because another one may lead to a standby that was promoted meanwhile, where the rows
    are staged but not in the ledger.
    """
    target, slowest = loader.target, sum(c.rows for c in committables) / SLOWEST
    heads: list[Any] = []
    try:
        with transaction(target, "cannot merge", more=slowest, merges=True) as connection:
            heads = [head for head in _lock(target, connection, committables) if head.whole]
            if heads:
                _check_unchanged(heads, committables)
                # (2) One transaction deletes the rows of `staged`, moves the data and writes the ledger rows.
                _note(target, connection, heads)
                _delete_heads(target, connection, heads)
                loader.move(connection, heads)
                loader.remove(connection, heads)
            else:
                dialect_for(target).confirm(connection)  # what the ledger shows may be visible, and not yet replicated
            moved = {head.name: CommitOutcome(CommitStatus.COMMITTED) for head in heads}
            return {**moved, **_by_ledger(target, connection, [c for c in committables if c.transaction not in moved])}
    except RetryableSinkError:
        raise
    except OncewardError as error:
        forget_description(target)
        with reading(target, "cannot merge") as connection:
            if not exists(target, connection):
                return _by_ledger(target, connection, committables)
        raise _refused(target, error, committables[0], heads) from error.__cause__


def _by_ledger(
    target: DatabaseTarget, connection: sa.Connection, committables: Sequence[Committable]
) -> dict[str, CommitOutcome]:
    if not committables:
        return {}
    facts = ledger_tables.facts(target, connection, committables)
    return {c.transaction: facts.commit_outcome(c) for c in committables}


def _lock(target: DatabaseTarget, connection: sa.Connection, committables: Sequence[Committable]) -> list[Any]:
    """Lock the rows of `staged`, waiting for others that hold them, and return them in the order of the merge."""
    staged, rows = tables_of(target).staged, list[Any]()
    for part in split_for_in(sorted(c.transaction for c in committables)):
        query = sa.select(staged).where(staged.c.name.in_(part)).order_by(staged.c.name)
        rows += connection.execute(query.with_for_update())
    return sorted(rows, key=lambda row: (row.epoch, row.subtask, row.attempt, row.name))


def _check_unchanged(heads: list[Any], committables: Sequence[Committable]) -> None:
    """Check that each row of `staged`, which says how many rows go where, is the one that was decided."""
    decided = {c.transaction: c.read_handle(_Handle).sha256 for c in committables}
    for head in heads:
        if decided[head.name] not in {"", *staged_handle(head.row_count, head.stage, head.movement).values()}:
            raise ChangedError(f"the row of {head.name} is not the one that was decided: somebody changed it")


def _note(target: DatabaseTarget, connection: sa.Connection, heads: list[Any]) -> None:
    table = tables_of(target).ledger
    columns = [column.name for column in table.columns if column.server_default is None]
    connection.execute(table.insert(), [{column: getattr(head, column) for column in columns} for head in heads])


def _delete_heads(target: DatabaseTarget, connection: sa.Connection, heads: list[Any]) -> None:
    delete_named(connection, tables_of(target).staged, [head.name for head in heads])


def _refused(target: DatabaseTarget, error: OncewardError, first: Committable, heads: list[Any]) -> SqlError:
    tables = tables_of(target)
    if isinstance(error, ChangedError):
        todo = (
            "Nothing was moved and the decision remains valid: restore what was changed and start again, or delete the "
            f"row of {tables.staged}, and the transaction counts as lost"
        )
    else:
        stages = sorted({str(TableName(target.ledger_schema, head.stage)) for head in heads if head.stage})
        todo = (
            f"They are safe in the staging table {', '.join(stages) or tables.pieces} and the decision remains valid: "
            f"{_remedy(error, correctable=bool(stages))}; then start again"
        )
    return target.url.capabilities.refusal(
        f"the decided rows of this epoch cannot be moved into the table: {error.message}. {todo}",
        pipeline=first.pipeline,
        sink=first.sink,
        epoch=first.epoch,
    )


def _remedy(error: OncewardError, *, correctable: bool) -> str:
    remedy, of_rows = (error.remedy, error.of_rows) if isinstance(error, SqlError) else ("", True)
    change = remedy or "change the table so that it takes them"
    return f"{change}, or correct the rows in the staging table" if correctable and of_rows else change


def abort_staged(loader: Loader, committable: Committable) -> AbortOutcome:
    """Delete exactly these staged rows; the ledger tells if they were merged before."""
    target = loader.target
    try:
        with reading(target, "cannot abort") as connection:
            if not exists(target, connection):
                return AbortOutcome(AbortStatus.ABORTED, "this database has no ledger, so nothing is staged in it")
        with transaction(target, "cannot abort") as connection:  # (2)
            taken = _lock(target, connection, [committable])
            _delete_heads(target, connection, taken)
            loader.remove(connection, taken)
            if taken:
                return AbortOutcome(AbortStatus.ABORTED)
            return ledger_tables.facts(target, connection, [committable]).abort_outcome(committable)
    except RetryableSinkError as error:
        return AbortOutcome(AbortStatus.RETRY_LATER, str(error))
