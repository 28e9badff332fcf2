"""The ledger: in the target, in the data's own transaction, the fact that a transaction was committed.

Four tables, `onceward_…`, in the connection's default schema or the one that was asked for:

- `ledger`: a row for each committed transaction, keyed by its name. A key of (epoch, subtask) would make a retry wait
  for the lost attempt that holds the same key prepared.
- `pipelines`: which decision log owns a pipeline's sink in this database, and how far the ledger was pruned. With it
  an absent row is a proof (this is the right database, and the row was not pruned), and not just an absence.
- `staged`, `staged_rows`: rows that were staged and are not merged yet, see staging.py.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy import exc

from ...core.errors import EpochConflictError, SinkError
from ..database.verdict import Facts
from .engines import dialect_for, reading, transaction
from .failures import may_pass
from .own_tables import ensure, exists, parts, tables_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...core.names import Scope
    from .target import Target

_log = logging.getLogger("onceward.sql")

_PRUNE_EVERY: Final = 100


def facts(target: Target, connection: sa.Connection, pipeline: str, sink: str, names: Sequence[str]) -> Facts:
    """Look the names up. First the rows, then what may have made them disappear: pruning notes that before.

    `connection` must see the newest state in each statement, as those of `reading` do.
    """
    dialect, tables = dialect_for(target), tables_of(target)
    committed: set[str] = set()
    behind = dialect.behind(connection)
    try:
        for part in parts(names):
            query = sa.select(tables.ledger.c.name).where(tables.ledger.c.name.in_(part))
            committed |= set(
                connection.execute(query.with_for_update(read=True) if dialect.asks_with_lock else query).scalars()
            )
        owner = connection.execute(
            sa.select(tables.pipelines.c.log, tables.pipelines.c.pruned).where(*_mine(tables.pipelines, pipeline, sink))
        ).first()
    except exc.DBAPIError as error:
        if may_pass(error) or exists(target, connection):
            raise
        return Facts(behind, None, -1, frozenset())
    return Facts(behind, owner and owner[0], -1 if owner is None else owner[1], frozenset(committed))


def owner_of(target: Target, connection: sa.Connection, scope: Scope) -> str | None:
    """The decision log that owns the names; None if none does."""
    pipelines = tables_of(target).pipelines
    return connection.scalar(sa.select(pipelines.c.log).where(*_mine(pipelines, scope.pipeline, scope.sink)))


def claim(target: Target, scope: Scope) -> None:
    """Make `scope.log` the owner of the names, or see that it is.

    Raises:
        EpochConflictError: Another decision log is, or has written under these names.
    """
    ensure(target)
    with reading(target, "cannot claim") as connection:
        owner = owner_of(target, connection, scope)
        if owner is None:
            _check_no_other_rows(target, connection, scope)
    if owner is None:
        _insert_owner(target, scope)
        with reading(target, "cannot claim") as connection:
            owner = owner_of(target, connection, scope)
    if owner != scope.log:
        raise _conflict(scope, f"belongs to decision log {owner}")


def release(target: Target, scope: Scope) -> None:
    """Make `scope.log` the owner, whoever was."""
    ensure(target)
    pipelines = tables_of(target).pipelines
    with transaction(target, "cannot release") as connection:
        if owner_of(target, connection, scope) == scope.log:
            return
        mine = _mine(pipelines, scope.pipeline, scope.sink)
        changed = connection.execute(pipelines.update().where(*mine).values(log=scope.log, pruned=-1))
        if changed.rowcount == 0:
            connection.execute(pipelines.insert().values(**scope._asdict()))


def prune(target: Target, scope: Scope, below: int) -> None:
    """Delete rows of this log's epochs below `below`, noting durably that they may be missing.

    Call it only with epochs that are completed, and so no longer need to be asked for.
    """
    tables = tables_of(target)
    with transaction(target, "cannot prune") as connection:
        mine = [*_mine(tables.pipelines, scope.pipeline, scope.sink), tables.pipelines.c.log == scope.log]
        note = tables.pipelines.update().where(*mine, tables.pipelines.c.pruned < below - 1).values(pruned=below - 1)
        connection.execute(note)
        old = [*_mine(tables.ledger, scope.pipeline, scope.sink), tables.ledger.c.log == scope.log]
        connection.execute(tables.ledger.delete().where(*old, tables.ledger.c.epoch < below))


def prune_due(epoch: int) -> bool:
    """Whether to prune after this epoch: seldom, because it costs a transaction."""
    return epoch % _PRUNE_EVERY == 0


def _mine(table: sa.Table, pipeline: str, sink: str) -> list[sa.ColumnElement[bool]]:
    return [table.c.pipeline == pipeline, table.c.sink == sink]


def _insert_owner(target: Target, scope: Scope) -> None:
    try:
        with transaction(target, "cannot claim") as connection:
            connection.execute(tables_of(target).pipelines.insert().values(**scope._asdict()))
    except SinkError as error:
        with reading(target, "cannot claim") as connection:
            if owner_of(target, connection, scope) is None:
                raise
        _log.debug("somebody else claimed at the same time: %s", error)


def _check_no_other_rows(target: Target, connection: sa.Connection, scope: Scope) -> None:
    ledger = tables_of(target).ledger
    query = (
        sa.select(ledger.c.log, sa.func.max(ledger.c.epoch))
        .where(*_mine(ledger, scope.pipeline, scope.sink), ledger.c.log != scope.log)
        .group_by(ledger.c.log)
        .order_by(sa.func.max(ledger.c.committed_at).desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    if row is not None:
        raise _conflict(scope, f"holds rows of decision log {row[0]} up to its epoch {row[1]}")


def _conflict(scope: Scope, what: str) -> EpochConflictError:
    return EpochConflictError(
        f"the ledger in the target database {what} under this pipeline's and sink's name, but this is decision log "
        f"{scope.log}. Either the checkpoint folder was deleted or replaced (going on would write its input a second "
        "time), or another job runs under the same name. Choices: give back the old checkpoint; give this pipeline "
        "another name; or, if the target was emptied or a second writing is wanted, rewind explicitly, which releases "
        "the names to this log",
        pipeline=scope.pipeline,
        sink=scope.sink,
    )
