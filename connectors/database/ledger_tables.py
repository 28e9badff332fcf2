"""The ledger: tables in the target that prove which transactions were committed, written in the data's transactions.

The tables (see own_tables.py):

- `ledger`: a row for each committed transaction, keyed by its name. A key of (epoch, subtask) would make a retry wait
  for the lost attempt that holds the same key prepared. The newest row is never pruned: a decision log that has not
  come so far is an outdated copy.
- `pipelines`: the decision log that owns a pipeline's sink in this database, written with the log's first decision.
- `logs`: the decision logs whose writers have written here, noted before they wrote, and how far the ledger rows of
  each were pruned. Because of it, an absent row is a proof: this is the right database, and the row was not pruned. A
  rewind begins the epochs anew: the newest of the rows that it set aside tells, by generation and epoch, how far the
  log had come before it, so that row is never pruned either.
- `staged`: rows that were staged and are not merged yet, see merging.py.

What an answer about a transaction rests on:

1. A row in `ledger` proves a commit: it was written in the transaction that wrote the data.
2. An absent row proves that nothing was committed only in the database that the transaction was written into, which its
   writer has noted in `logs`, and only if the row cannot have been pruned.
3. Pruning is noted before rows are deleted, in one transaction with it. Who reads rows first and notes afterwards
   can therefore see a note too many, and never one too few.
4. The newest row stays, and so does the newest of those that a rewind set aside: an outdated copy of the log is
   recognized by the one, a transaction that may have been pruned since a rewind by the other. What is newer than all
   that was set aside was not committed before the rewind, so its absent row is a proof.
5. One log owns the names. Claims race by inserting the same key, and the loser reads who has won.
6. A server that may lag behind another one proves nothing by what it lacks.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, cast

import sqlalchemy as sa

from onceward.core.contract.ledger import Ledger
from onceward.core.contract.names import NOTHING, Progress, Reached, Remembered, Scope, other_log, outdated_log
from onceward.core.contract.transaction import Observation, abort_outcome, commit_outcome
from onceward.core.errors import SinkError

from .engines import dialect_for, reading, transaction
from .own_tables import ask_own_tables, ensure, exists, split_for_in, tables_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onceward.core.contract.transaction import AbortOutcome, CommitOutcome, Committable

    from .own_tables import Tables
    from .target import DatabaseTarget

_log = logging.getLogger("onceward.database")

PRUNE_EVERY: Final = 100
"""Epochs between two prunings; each costs a transaction."""
_PLACE: Final = "the ledger in the target database"


class DatabaseLedger(Ledger):
    """What a database remembers of decision logs.

    Args:
        target: The database.
        epochs: Number of completed epochs whose rows are kept.
    """

    records_transactions: ClassVar[bool] = True

    def __init__(self, target: DatabaseTarget, epochs: int) -> None:
        self.target, self.epochs = target, epochs

    def check_claim(self, scope: Scope, newest: Progress) -> Remembered | None:
        return check_progress(self.target, scope, newest)

    def claim(self, scope: Scope) -> None:
        claim(self.target, scope)

    def release(self, scope: Scope) -> None:
        release(self.target, scope)

    def completed(self, scope: Scope, epoch: int) -> None:
        if epoch % PRUNE_EVERY == 0 and epoch > self.epochs:
            prune(self.target, scope, epoch - self.epochs + 1)

    def forget(self, scope: Scope) -> None:
        delete_log_rows(self.target, scope)


@dataclass(frozen=True)
class LedgerFacts:
    """The facts that the ledger holds about some transactions of one sink, which are neither prepared nor staged.

    An absent row proves something only if the transaction was written into this very database. Its writer noted that
    before it wrote. The owner of the names proves nothing: a restart that was given another database claims them there.
    """

    behind: str
    """Why this server may lag behind another one; empty if it does not."""
    logs: Mapping[str, int] = field(default_factory=dict)
    """Decision logs whose writers noted that they write here, each with the newest epoch whose ledger rows may have
    been pruned. Empty if all transactions are committed."""
    committed: frozenset[str] = frozenset()
    """The transactions that are in the ledger."""
    set_aside: Mapping[str, Progress] = field(default_factory=dict)
    """Decision logs that were rewound, each with the newest of its ledger rows from before that."""

    def observe(self, committable: Committable) -> tuple[Observation, str]:
        """Return what the facts prove about one of the transactions, and why."""
        # (1) It counts whatever else is known.
        if committable.transaction in self.committed:
            return Observation.COMMITTED, "its row is in the ledger"
        # (6) The row may be on the server that this one follows.
        if self.behind:
            return Observation.NO_ANSWER, self.behind
        # (2) From here on, the absent row has to be explained before it counts as a proof.
        pruned = self.logs.get(committable.log)
        if pruned is None:
            return Observation.ABSENT, "no writer of this decision log has written here: is it another database?"
        if committable.epoch <= pruned:
            return Observation.UNKNOWN, f"ledger rows of epochs up to {pruned} were pruned"
        # (4) A rewind begins the epochs anew, so they tell nothing without the generation. Rows of the newest epoch
        # that was set aside are never pruned.
        if Progress(committable.generation, committable.epoch) < self.set_aside.get(committable.log, NOTHING):
            return Observation.UNKNOWN, "it is from before a rewind, and the ledger rows of that time may be pruned"
        return Observation.ABORTED, "neither prepared, nor staged, nor in the ledger"

    def commit_outcome(self, committable: Committable, words: str = "") -> CommitOutcome:
        observation, why = self.observe(committable)
        return commit_outcome(observation, f"{words}; {why}" if words else why)

    def abort_outcome(self, committable: Committable, words: str = "") -> AbortOutcome:
        observation, why = self.observe(committable)
        return abort_outcome(observation, f"{words}; {why}" if words else why)


def facts(target: DatabaseTarget, connection: sa.Connection, committables: Sequence[Committable]) -> LedgerFacts:
    """Look up transactions of one sink.

    The order of the queries counts: first the rows, then the notes of pruning, because pruning is noted before rows
    are deleted; last the rows that a rewind set aside, because a rewind takes such a note back.

    `connection` must see the newest state in each statement, as those of `reading` do.
    """
    if not committables:
        return LedgerFacts("")
    behind = dialect_for(target).behind(connection)
    return ask_own_tables(
        target, connection, lambda: _facts(target, connection, committables, behind), LedgerFacts(behind)
    )


def has(target: DatabaseTarget, connection: sa.Connection, committable: Committable) -> bool:
    """Return whether the ledger has the transaction's row."""
    of = tables_of(target).ledger.c
    return connection.scalar(sa.select(of.name).where(of.name == committable.transaction)) is not None


def _facts(
    target: DatabaseTarget, connection: sa.Connection, committables: Sequence[Committable], behind: str
) -> LedgerFacts:
    known, tables = target.url.capabilities, tables_of(target)
    committed: set[str] = set()
    for part in split_for_in([c.transaction for c in committables]):
        query = sa.select(tables.ledger.c.name).where(tables.ledger.c.name.in_(part))
        committed |= set(connection.scalars(query))
        # A row that is there is proof. Asking for others with a lock waits for whoever prepared rows beside them.
        if known.asks_with_lock and (left := [name for name in part if name not in committed]):
            query = sa.select(tables.ledger.c.name).where(tables.ledger.c.name.in_(left))
            committed |= set(connection.scalars(query.with_for_update(read=True)))
    if committed.issuperset(c.transaction for c in committables):
        return LedgerFacts(behind, committed=frozenset(committed))
    # (3) After the rows: a prune between the two queries is seen, and turns a proof into "unknown".
    own = _of(tables.logs, committables[0].pipeline, committables[0].sink)
    query_logs = sa.select(tables.logs.c.log, tables.logs.c.pruned).where(*own)
    logs = {row.log: row.pruned for row in connection.execute(query_logs)}
    # Last, because a rewind sets rows aside and takes back the note of pruning in one transaction.
    scopes = {c.scope for c in committables}
    set_aside = {scope.log: _reached(target, connection, scope, rewound=1).progress for scope in scopes}
    return LedgerFacts(behind, logs, frozenset(committed), set_aside)


class Ownership(NamedTuple):
    """The owner of a sink's names, as seen by one decision log."""

    owner: str | None
    """The decision log that has claimed them, or another one that has committed under them; None if none has."""
    noted: bool
    """Whether a writer of this log has noted that it writes here."""
    rival: str | None = None
    """Another decision log that has claimed the pipeline's name for another sink; None if none has."""
    rivals_sink: str | None = None

    def refuse_others(self, scope: Scope) -> None:
        if self.owner not in (None, scope.log):
            raise other_log(scope, str(self.owner), _PLACE)
        # A name that this log owns already was checked when it was claimed.
        if self.owner is None and self.rival is not None:
            raise other_log(scope, self.rival, _PLACE, sink=self.rivals_sink or "")


@functools.cache
def ownership_query(tables: Tables) -> sa.Select[Any]:
    """Return a query for an Ownership; its parameters are the fields of a scope."""
    scope = Scope(*cast("list[str]", [sa.bindparam(name, type_=sa.String()) for name in Scope._fields]))
    pipelines, ledger, logs = tables.pipelines, tables.ledger, tables.logs
    claimed = sa.select(pipelines.c.log).where(*_of(pipelines, scope.pipeline, scope.sink))
    others = sa.select(ledger.c.log).where(*_of(ledger, scope.pipeline, scope.sink), ledger.c.log != scope.log)
    newest = others.order_by(ledger.c.committed_at.desc()).limit(sa.literal_column("1"))
    noted = sa.exists().where(*_mine(logs, scope))
    rivals = [pipelines.c.pipeline == scope.pipeline, pipelines.c.sink != scope.sink, pipelines.c.log != scope.log]
    first = [
        sa.select(column).where(*rivals).order_by(pipelines.c.sink).limit(sa.literal_column("1")).scalar_subquery()
        for column in (pipelines.c.log, pipelines.c.sink)
    ]
    question = sa.select(sa.func.coalesce(claimed.scalar_subquery(), newest.scalar_subquery()), noted, *first)
    return cast("sa.Select[Any]", question)


def _owned(target: DatabaseTarget, connection: sa.Connection, scope: Scope) -> Ownership:
    ownership = Ownership(*connection.execute(ownership_query(tables_of(target)), scope._asdict()).one())
    ownership.refuse_others(scope)
    return ownership


def note_writer(target: DatabaseTarget, scope: Scope) -> None:
    """Note that a writer of this log writes here, if no other log owns the names. This claims nothing.

    Raises:
        EpochConflictError: Another log owns them.
    """
    ensure(target)
    with reading(target, "cannot begin") as connection:
        noted = _owned(target, connection, scope).noted
    # (2) Before the first row is written: a note that comes later would not cover what was lost in between.
    if not noted:
        logs = tables_of(target).logs
        _insert(target, logs, scope, sa.select(logs.c.log).where(*_mine(logs, scope)))


def sinks_in_ledger(
    target: DatabaseTarget, connection: sa.Connection, pipeline: str, log: str | None = None
) -> list[str]:
    """Return the names of the sinks under which writers of this log, or of any log if it is None, have written here."""
    if not exists(target, connection):
        return []
    logs = tables_of(target).logs
    own = logs.c.pipeline == pipeline if log is None else sa.and_(logs.c.pipeline == pipeline, logs.c.log == log)
    query = sa.select(logs.c.sink).distinct().where(own)
    return list(connection.scalars(query.order_by(logs.c.sink)))


def written_rows(target: DatabaseTarget, scope: Scope) -> dict[int, int]:
    """Return how many rows each epoch of a log wrote since its last rewind, as far as the ledger was not pruned."""
    ledger = tables_of(target).ledger
    count = sa.func.sum(ledger.c.row_count)
    query = sa.select(ledger.c.epoch, count).where(*_mine(ledger, scope), ledger.c.rewound == 0)
    with reading(target, "cannot read the ledger") as connection:
        rows = ask_own_tables(target, connection, lambda: connection.execute(query.group_by(ledger.c.epoch)).all(), ())
    return {epoch: int(count) for epoch, count in rows}


def check_progress(target: DatabaseTarget, scope: Scope, newest: Progress) -> Remembered | None:
    """Check that no other log owns the names, and that this log has come as far as the ledger.

    Returns:
        What the ledger knows of this log; None if this server may lag behind another one.

    Raises:
        EpochConflictError: Another log owns the names, or this log is an outdated copy.
    """
    with reading(target, "cannot check who owns the names") as connection:
        behind = dialect_for(target).behind(connection)

        def look() -> tuple[str | None, Reached]:
            return _owned(target, connection, scope).owner, _reached(target, connection, scope)

        owner, known = ask_own_tables(target, connection, look, (None, Reached(*NOTHING)))
    # (4) The target has seen an entry that this log does not have.
    if known.progress > newest:
        raise outdated_log(scope, known.progress, newest, _PLACE)
    return None if behind else Remembered(owner == scope.log, known.progress, transactions=known.transactions)


def claim(target: DatabaseTarget, scope: Scope) -> None:
    """Make `scope.log` the owner of the names, unless it is the owner already. Of two logs at the same time, one wins.

    Raises:
        EpochConflictError: Another decision log owns the names, or has committed under them.
    """
    ensure(target)
    pipelines = tables_of(target).pipelines
    claimed = sa.select(pipelines.c.log).where(*_of(pipelines, scope.pipeline, scope.sink))
    with reading(target, "cannot claim") as connection:
        if _owned(target, connection, scope).owner is not None:
            return
    # (5) After the insertion the row that is there may be another log's, so it is read again.
    _insert(target, pipelines, scope, claimed)
    with reading(target, "cannot claim") as connection:
        _owned(target, connection, scope)


def release(target: DatabaseTarget, scope: Scope) -> None:
    """Make `scope.log` the owner, whoever was, and set aside how far it had come, and how far it was pruned.

    It also becomes the owner of the names that another log has claimed for other sinks of the pipeline: they may have
    been renamed.
    """
    ensure(target)
    tables = tables_of(target)
    owner = _of(tables.pipelines, scope.pipeline, scope.sink)
    with transaction(target, "cannot release") as connection:
        # (5) Locked: a claim that runs at the same time waits, and then finds this owner.
        log = connection.scalar(sa.select(tables.pipelines.c.log).where(*owner).with_for_update())
        if log is None:
            connection.execute(tables.pipelines.insert().values(**scope._asdict()))
        rivals = [tables.pipelines.c.pipeline == scope.pipeline, tables.pipelines.c.log != scope.log]
        connection.execute(tables.pipelines.update().where(*rivals).values(log=scope.log))
        set_aside = tables.ledger.update().where(*_mine(tables.ledger, scope), tables.ledger.c.rewound == 0)
        connection.execute(set_aside.values(rewound=1))
        connection.execute(tables.logs.update().where(*_mine(tables.logs, scope)).values(pruned=-1))


def prune(target: DatabaseTarget, scope: Scope, below: int) -> None:
    """Delete the rows of this log's epochs below `below`, and note durably that they may be missing.

    The newest rows stay, however old they are, because they show how far the log had come. So do the newest of the rows
    that a rewind set aside, because they show which transactions are from before it. All epochs below `below` must be
    completed: nobody asks about their transactions any more.
    """
    logs, table = tables_of(target).logs, tables_of(target).ledger
    with transaction(target, "cannot prune") as connection:
        own, done = _mine(logs, scope), logs.c.pruned >= below - 1
        # (3) The update also locks the row, so two prunings follow each other.
        noted = connection.execute(
            logs.update().where(*own).values(pruned=sa.case((done, logs.c.pruned), else_=below - 1))
        )
        # (4) The newest of each kind stays.
        newest = [
            sa.and_(table.c.rewound == rewound, table.c.epoch == kept.epoch)
            for rewound in (0, 1)
            for kept in [_reached(target, connection, scope, rewound)]
        ]
        # Without a row in `logs`, nothing would say afterwards that rows may be missing, so none is deleted.
        if noted.rowcount:
            old = [*_mine(table, scope), table.c.epoch < below, sa.not_(sa.or_(*newest))]
            connection.execute(table.delete().where(*old))


def delete_log_rows(target: DatabaseTarget, scope: Scope) -> None:
    """Delete all rows of a decision log that was deleted.

    If identifiers of transactions contain only a digest of the names, the row in `logs` stays: without it, nobody could
    find the transactions that a task which was presumed dead has prepared since.
    """
    known, tables = target.url.capabilities, tables_of(target)
    with reading(target, "cannot forget") as connection:
        if not exists(target, connection):
            return
    with transaction(target, "cannot forget") as connection:
        for table in (tables.ledger, tables.pipelines, *([tables.logs] if known.tells_names else [])):
            connection.execute(table.delete().where(*_mine(table, scope)))


def _of(table: sa.FromClause, pipeline: str, sink: str) -> list[sa.ColumnElement[bool]]:
    return [table.c.pipeline == pipeline, table.c.sink == sink]


def _mine(table: sa.FromClause, scope: Scope) -> list[sa.ColumnElement[bool]]:
    return [*_of(table, scope.pipeline, scope.sink), table.c.log == scope.log]


def _insert(target: DatabaseTarget, table: sa.Table, scope: Scope, there: sa.Select[Any]) -> None:
    """Insert the scope, unless another process does so at the same time: then the query `there` finds its row."""
    try:
        with transaction(target, f"cannot insert into {table}") as connection:
            connection.execute(table.insert().values(**scope._asdict()))
    except SinkError as error:
        with reading(target, f"cannot look into {table}") as connection:
            # (5) Whoever was first has inserted it; anything else was a real failure.
            if not connection.scalar(there):
                raise
        _log.debug("somebody else did it at the same time: %s", error)


def _reached(target: DatabaseTarget, connection: sa.Connection, scope: Scope, rewound: int = 0) -> Reached:
    """Return the newest epoch that this log has committed, and the number of its transactions.

    An epoch that was healed has transactions of several generations, all of which are counted.

    Args:
        target: The database.
        connection: Any connection.
        scope: The decision log and its names.
        rewound: 0 for the epochs since the last rewind, 1 for those from before one.
    """
    ledger = tables_of(target).ledger
    others = ledger.alias()
    own, same = ([*_mine(of, scope), of.c.rewound == rewound] for of in (ledger, others))
    count = sa.select(sa.func.count()).where(*same, others.c.epoch == ledger.c.epoch).scalar_subquery()
    query = sa.select(ledger.c.writer, ledger.c.epoch, count).where(*own)
    row = connection.execute(query.order_by(ledger.c.writer.desc(), ledger.c.epoch.desc()).limit(1)).first()
    return Reached(*NOTHING) if row is None else Reached(*row)
