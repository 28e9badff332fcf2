"""Writing by prepared transaction: rows go into the table itself; prepare, and commit by name.

Why a commit by name is exactly once:

1. A name is never used twice (invariant 1 would not survive it: COMMIT PREPARED takes whatever the name holds).
2. The ledger row is written in the same transaction, so it is visible exactly if the data is.
3. "It is gone", followed by a look into the ledger that waits for whoever is just ending it (MariaDB) or that
   begins after the rows became visible (PostgreSQL), is the truth; "busy" is not, and is asked again.
4. A lost answer is resolved by saying commit again: that is harmless because of 1, and asks because of 3.

Each call asks once: whatever is busy or unanswered is RETRY_LATER, and the coordinator's to ask again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceward.core.errors import RetryableSinkError
from onceward.core.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus

from . import ledger
from .dialect import TwoPhaseAnswer
from .engines import reading, two_phase_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from onceward.core.transaction import Committable

    from .target import DatabaseTarget

_AT_ONCE: Final = 32
"""Commits on one borrowed connection, whose time for answers is limited as a whole."""


def commit_prepared(target: DatabaseTarget, committables: Sequence[Committable]) -> list[CommitOutcome]:
    """Commit each.

    Raises:
        SqlError: The server refuses for a reason that asking again does not change.
    """
    outcomes: list[CommitOutcome] = []
    try:
        while len(outcomes) < len(committables):
            with reading(target, "cannot commit") as connection:
                some = committables[len(outcomes) : len(outcomes) + _AT_ONCE]
                outcomes.extend(_commit(connection, target, committable) for committable in some)
    except RetryableSinkError as error:
        unanswered = CommitOutcome(CommitStatus.RETRY_LATER, str(error))
        return outcomes + [unanswered] * (len(committables) - len(outcomes))
    return outcomes


def _commit(connection: sa.Connection, target: DatabaseTarget, committable: Committable) -> CommitOutcome:
    answer, words = two_phase_for(target).end(connection, "COMMIT", committable.read_name())
    if answer is TwoPhaseAnswer.DONE:
        return CommitOutcome(CommitStatus.COMMITTED)
    if answer is TwoPhaseAnswer.BUSY:
        return CommitOutcome(CommitStatus.RETRY_LATER, words)
    outcome = ledger.facts(target, connection, [committable]).commit_outcome(committable, words)
    if outcome.settled and (why := two_phase_for(target).unconfirmed(connection)):
        return CommitOutcome(CommitStatus.RETRY_LATER, f"committed here, but not confirmed: {why}")
    return outcome


def abort_prepared(target: DatabaseTarget, committable: Committable) -> AbortOutcome:
    """Roll back exactly this one; the ledger says who won if it is gone."""
    try:
        with reading(target, "cannot abort") as connection:
            answer, words = two_phase_for(target).end(connection, "ROLLBACK", committable.read_name())
            if answer is TwoPhaseAnswer.DONE:
                return AbortOutcome(AbortStatus.ABORTED)
            if answer is TwoPhaseAnswer.BUSY:
                return AbortOutcome(AbortStatus.RETRY_LATER, words)
            return ledger.facts(target, connection, [committable]).abort_outcome(committable, words)
    except RetryableSinkError as error:
        return AbortOutcome(AbortStatus.RETRY_LATER, str(error))
