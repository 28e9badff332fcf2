"""Writing by prepared transaction: INSERT into the table itself, prepare, commit by name.

Why a commit by name is exactly once:

1. A name is never used twice (else a late commit would take whatever the name holds then).
2. The ledger row is written in the same transaction, so it is visible exactly if the data is.
3. "It is gone", followed by a look into the ledger that waits for whoever is just ending it (MariaDB) or that
   begins after the rows became visible (PostgreSQL), is the truth; "busy" is not, and is asked again.
4. A lost answer is resolved by saying commit again: that is harmless because of 1, and asks because of 3.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from onceward.core.errors import ConfigurationError, OncewardError, RetryableSinkError
from onceward.core.names import parse_transaction_name
from onceward.core.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus

from ..retry import retry_until_known
from . import ledger, own_tables
from .dialect import Answer, TwoPhase
from .engines import autocommit_options, dialect_for, engine_of, reading
from .failures import code
from .postgresql import HOW_TO_ENABLE
from .target import PREPARED, make_committable
from .writing import NO_ANSWER, SLOWEST, Writing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from onceward.core.names import TransactionName
    from onceward.core.transaction import Committable

    from .plan import Plan
    from .target import Target

_LOCK_TIMEOUTS: Final = ("55P03", 1205)
_DISABLED: Final = "55000"
_USED_UP: Final = "53200"
_AT_ONCE: Final = 32
"""Commits on one borrowed connection, whose time for answers is limited as a whole."""


class PreparedWriting(Writing):
    """One attempt's transaction, which ends as a prepared one."""

    _held: sa.Connection | None = None

    def open(self) -> None:
        """Begin on a connection of this attempt alone."""
        commands = two_phase(self.target)
        with dialect_for(self.target).limited(self.target.answer_within):
            connection = engine_of(self.target).connect()
            self._held = connection.execution_options(**autocommit_options(self.target))
            commands.begin(self._held, self.name, self.target.lock_timeout)

    @property
    def connection(self) -> sa.Connection:
        """The connection that holds the transaction."""
        if self._held is None:
            raise sa.exc.InvalidRequestError("the transaction is over")
        return self._held

    def send(self, batch: pa.RecordBatch, plan: Plan) -> None:
        """INSERT into the table itself."""
        statement = plan.insert()
        for rows in plan.pieces(batch):
            with self._limited(len(rows)):
                self.connection.execute(statement, rows)

    def make_durable(self) -> Committable:
        """Write the ledger row and prepare."""
        table = own_tables.tables_of(self.target).ledger
        commands = two_phase(self.target)
        with self._limited(self.rows):  # deferred constraints are checked here, row by row
            self.connection.execute(table.insert().values(**own_tables.identity_row(self.name, self.rows)))
            commands.prepare(self.connection, self.name)
            connection, self._held = self.connection, None
            commands.hand_over(connection)
        return make_committable(PREPARED, self.name, self.rows)

    def discard(self) -> None:
        """Close the connection, on which the server rolls back."""
        if self._held is not None:
            held, self._held = self._held, None
            with suppress(sa.exc.SQLAlchemyError, OSError):
                held.invalidate()
            with suppress(sa.exc.SQLAlchemyError, OSError):
                held.close()

    def explain(self, error: OncewardError, cause: sa.exc.SQLAlchemyError) -> OncewardError:
        """What to do about locks and about prepared transactions that are disabled or used up."""
        known = code(cause)
        if known in _LOCK_TIMEOUTS:
            return RetryableSinkError(
                f"{error.message}: a lock was held for more than {self.target.lock_timeout:g} s (lock_timeout)"
                f"{self._own_prepared()}"
            )
        if known == _DISABLED:
            return ConfigurationError(f"{error.message}: {HOW_TO_ENABLE}")
        if known == _USED_UP:
            return RetryableSinkError(
                f"{error.message}. Raise max_prepared_transactions to at least twice the number of parallel subtasks, "
                "see in pg_prepared_xacts what lingers, or use commit='staging'"
            )
        return error

    def _limited(self, rows: int) -> AbstractContextManager[object]:
        """A block of one answer about so many rows."""
        seconds = self.target.answer_within + self.target.lock_timeout + rows / SLOWEST
        return dialect_for(self.target).limited(seconds, self.connection)

    def _own_prepared(self) -> str:
        scope = self.context.scope
        with suppress(OncewardError), reading(self.target, "cannot list what is prepared") as connection:
            own = two_phase(self.target).waiting(connection, scope.pipeline, scope.sink)
            if own:
                return (
                    f", probably by another attempt's prepared transaction over the same keys ({own[0]}). It ends with "
                    "its epoch's decision, or when the pipeline starts again and sweeps; this attempt must not end it. "
                    "commit='staging' does not have this wait"
                )
        return ""


def two_phase(target: Target) -> TwoPhase:
    """The database's two-phase commands.

    Raises:
        ConfigurationError: It has none.
    """
    commands = dialect_for(target).two_phase
    if commands is None:
        raise ConfigurationError(f"{dialect_for(target).title} has no prepared transactions: use commit='staging'")
    return commands


def commit_prepared(target: Target, committables: Sequence[Committable]) -> list[CommitOutcome]:
    """Commit each; asks again for a short while where the answer was "busy" or lost.

    Raises:
        SqlError: The server refuses for a reason that asking again does not change.
    """
    outcomes: dict[str, CommitOutcome] = {}

    def round_trip() -> bool:
        waiting = [c for c in committables if not _settled(outcomes.get(c.transaction))]
        for start in range(0, len(waiting), _AT_ONCE):
            with reading(target, "cannot commit") as connection:
                for committable in waiting[start : start + _AT_ONCE]:
                    outcomes[committable.transaction] = _commit_once(connection, target, committable)
        return all(_settled(outcomes.get(c.transaction)) for c in committables)

    words = retry_until_known(round_trip)
    unanswered = CommitOutcome(CommitStatus.RETRY_LATER, words)
    return [outcomes.get(c.transaction, unanswered) for c in committables]


def _settled(outcome: CommitOutcome | None) -> bool:
    return outcome is not None and outcome.status is not CommitStatus.RETRY_LATER


def _commit_once(connection: sa.Connection, target: Target, committable: Committable) -> CommitOutcome:
    answer, words = two_phase(target).commit(connection, name_of(committable))
    if answer is Answer.DONE:
        return CommitOutcome(CommitStatus.COMMITTED)
    if answer is Answer.BUSY:
        return CommitOutcome(CommitStatus.RETRY_LATER, words)
    pipeline, sink = committable.pipeline, committable.sink
    facts = ledger.facts(target, connection, pipeline, sink, [committable.transaction])
    return facts.commit_outcome(committable, words)


def abort_prepared(target: Target, committable: Committable) -> AbortOutcome:
    """Roll back exactly this one; the ledger says who won if it is gone."""
    outcome = NO_ANSWER

    def round_trip() -> bool:
        nonlocal outcome
        with reading(target, "cannot abort") as connection:
            outcome = _abort_once(connection, target, committable)
        return outcome.status is not AbortStatus.RETRY_LATER

    words = retry_until_known(round_trip)
    if outcome.status is AbortStatus.RETRY_LATER and words:
        return AbortOutcome(AbortStatus.RETRY_LATER, words)
    return outcome


def _abort_once(connection: sa.Connection, target: Target, committable: Committable) -> AbortOutcome:
    answer, words = two_phase(target).rollback(connection, name_of(committable))
    if answer is Answer.DONE:
        return AbortOutcome(AbortStatus.ABORTED)
    if answer is Answer.BUSY:
        return AbortOutcome(AbortStatus.RETRY_LATER, words)
    pipeline, sink = committable.pipeline, committable.sink
    facts = ledger.facts(target, connection, pipeline, sink, [committable.transaction])
    return facts.abort_outcome(committable, words)


def name_of(committable: Committable) -> TransactionName:
    """The name behind a committable.

    Raises:
        ConfigurationError: It is none of ours.
    """
    name = parse_transaction_name(committable.transaction)
    if name is None:
        raise ConfigurationError(
            f"{committable.transaction!r} is not a name that SqlAlchemySink gives",
            pipeline=committable.pipeline,
            sink=committable.sink,
        )
    return name
