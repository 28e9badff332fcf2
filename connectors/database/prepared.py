"""Prepared transactions: rows are in the table itself, invisible, until the transaction is committed by its name.

Why a commit by name is exactly once:

1. A name is never used twice. Otherwise invariant 1 would not hold: COMMIT PREPARED commits whatever has the name.
2. The ledger row is written in the same transaction (HeldWriting), so it is visible if and only if the data is.
3. If the server says that the transaction is gone, the ledger tells what became of it. The query of the ledger waits
   for a session that is just ending the transaction (MariaDB), or begins after the rows became visible (PostgreSQL).
   If the server says that the transaction is busy, that proves nothing, and it is asked again.
   Nor does MariaDB's word that a transaction was committed: while the session that prepared it ends, it says so and
   does nothing (seen with 10.11). So prepare waits until that session has ended, and the ledger is asked, too.
4. A lost answer is resolved by sending the commit again, which is harmless because of 1, and is answered because of 3.

Each call asks the database once. A transaction that is busy, or whose answer was lost, is RETRY_LATER, and the
coordinator asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceward.core.contract.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus
from onceward.core.errors import RetryableSinkError

from . import ledger_tables
from .dialect import TwoPhaseAnswer
from .engines import reading, two_phase_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from onceward.core.contract.transaction import Committable

    from .target import DatabaseTarget

_AT_ONCE: Final = 32
"""Commits on one borrowed connection, all of which share one time limit."""


def commit_prepared(target: DatabaseTarget, committables: Sequence[Committable]) -> list[CommitOutcome]:
    """Commit each transaction by its name.

    Raises:
        SqlError: The server refuses for a reason that asking again does not change.
    """
    outcomes: list[CommitOutcome] = []
    try:
        while len(outcomes) < len(committables):
            with reading(target, "cannot commit") as connection:
                some = committables[len(outcomes) : len(outcomes) + _AT_ONCE]
                outcomes.extend(_commit(connection, target, committable) for committable in some)
    except RetryableSinkError as error:  # (4) what was answered before stays answered
        unanswered = CommitOutcome(CommitStatus.RETRY_LATER, str(error))
        return outcomes + [unanswered] * (len(committables) - len(outcomes))
    return outcomes


def _commit(connection: sa.Connection, target: DatabaseTarget, committable: Committable) -> CommitOutcome:
    answer, words = two_phase_for(target).end(connection, "COMMIT", committable.read_name())
    if answer is TwoPhaseAnswer.DONE:
        return _confirmed(connection, target, committable)
    if answer is TwoPhaseAnswer.BUSY:
        return CommitOutcome(CommitStatus.RETRY_LATER, words)
    # (3) The transaction is gone.
    outcome = ledger_tables.facts(target, connection, [committable]).commit_outcome(committable, words)
    if outcome.settled and (why := two_phase_for(target).unconfirmed(connection)):
        return CommitOutcome(CommitStatus.RETRY_LATER, f"committed here, but not confirmed: {why}")
    return outcome


def _confirmed(connection: sa.Connection, target: DatabaseTarget, committable: Committable) -> CommitOutcome:
    """Ask the ledger whether a commit that was answered took place, where the answer alone does not prove it."""
    if target.url.capabilities.asks_with_lock and not ledger_tables.has(target, connection, committable):
        return CommitOutcome(
            CommitStatus.RETRY_LATER,
            "the server answered that it committed, but the rows are not there: the session that prepared them was "
            "just ending. It keeps them, and their locks. Restart the server, and they are committed",
        )
    return CommitOutcome(CommitStatus.COMMITTED)


def abort_prepared(target: DatabaseTarget, committable: Committable) -> AbortOutcome:
    """Roll back exactly this transaction; if it is gone, the ledger tells whether it was committed."""
    try:
        with reading(target, "cannot abort") as connection:
            answer, words = two_phase_for(target).end(connection, "ROLLBACK", committable.read_name())
            if answer is TwoPhaseAnswer.DONE:
                return AbortOutcome(AbortStatus.ABORTED)
            if answer is TwoPhaseAnswer.BUSY:
                return AbortOutcome(AbortStatus.RETRY_LATER, words)
            return ledger_tables.facts(target, connection, [committable]).abort_outcome(committable, words)
    except RetryableSinkError as error:
        return AbortOutcome(AbortStatus.RETRY_LATER, str(error))
