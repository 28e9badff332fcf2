"""What a target showed of a transaction, and what an attempt to commit or to abort it proved: outcomes are values.

Invariant 7: nothing is recorded as committed before the external system's answer. A lost answer is UNKNOWN or
RETRY_LATER, never COMMITTED.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class CommitStatus(StrEnum):
    """The possible results of one commit attempt."""

    COMMITTED = "committed"
    """The target confirmed that this call committed the transaction."""
    ALREADY_COMMITTED = "already committed"
    """The target proves that it had been committed before."""
    RETRY_LATER = "retry later"
    """No answer, or a temporary fault: ask again."""
    FENCED = "fenced"
    """A newer owner of the name is proven to have aborted the transaction."""
    LOST = "lost"
    """The transaction is proven never to have been committed, and never can be (it expired, or somebody aborted it)."""
    UNKNOWN = "unknown"
    """The target cannot tell whether it was committed; asking again will not help."""


class CommitOutcome(msgspec.Struct, frozen=True):
    """Result of one commit attempt, with the target's own words."""

    status: CommitStatus
    detail: str = ""

    @property
    def settled(self) -> bool:
        """Whether the transaction's data is now visible, exactly once."""
        return self.status in (CommitStatus.COMMITTED, CommitStatus.ALREADY_COMMITTED)


class AbortStatus(StrEnum):
    """The possible results of one abort attempt."""

    ABORTED = "aborted"
    """The transaction is gone, by this call or before, or was never there."""
    COMMITTED = "committed"
    """Refused: the transaction had been committed. The commit won."""
    RETRY_LATER = "retry later"
    """No answer, or a temporary fault: ask again."""
    UNKNOWN = "unknown"
    """The transaction has left no trace, and the target cannot tell how it ended: asking again will not help."""


class AbortOutcome(msgspec.Struct, frozen=True):
    """Result of one abort attempt, with the target's own words."""

    status: AbortStatus
    detail: str = ""

    @property
    def done(self) -> bool:
        """Whether the transaction is certainly aborted."""
        return self.status is AbortStatus.ABORTED


class Observation(StrEnum):
    """The state of a transaction that a target showed when it was asked."""

    OPEN = "open"
    """The transaction is not prepared yet; it may still be written to."""
    PREPARED = "prepared"
    """The transaction waits to be committed or aborted; none of its rows are visible."""
    BEGUN = "begun"
    """The commit takes several steps and has taken one of them: rows may be visible, and it can only be finished."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    """The transaction is proven to have ended without its commit."""
    EXPIRED = "expired"
    """The transaction is proven to have been ended by its timeout or by a newer owner of its name."""
    ABSENT = "absent"
    """There is no trace of it, so it may have been committed; in any case nothing is left to abort."""
    UNKNOWN = "unknown"
    """There is no trace of it, and how it ended cannot be determined."""
    NO_ANSWER = "no answer"
    """The target could not be asked now."""


OUTCOMES: Final[dict[Observation, tuple[CommitStatus, AbortStatus]]] = {
    Observation.OPEN: (CommitStatus.RETRY_LATER, AbortStatus.RETRY_LATER),
    Observation.PREPARED: (CommitStatus.RETRY_LATER, AbortStatus.RETRY_LATER),
    Observation.BEGUN: (CommitStatus.RETRY_LATER, AbortStatus.COMMITTED),
    Observation.COMMITTED: (CommitStatus.ALREADY_COMMITTED, AbortStatus.COMMITTED),
    Observation.ABORTED: (CommitStatus.LOST, AbortStatus.ABORTED),
    Observation.EXPIRED: (CommitStatus.LOST, AbortStatus.ABORTED),
    Observation.ABSENT: (CommitStatus.UNKNOWN, AbortStatus.ABORTED),
    Observation.UNKNOWN: (CommitStatus.UNKNOWN, AbortStatus.UNKNOWN),
    Observation.NO_ANSWER: (CommitStatus.RETRY_LATER, AbortStatus.RETRY_LATER),
}
"""Results of a commit and of an abort that changed nothing, by the state that the target showed. Sinks report only the
state that they saw."""

PROVEN_NOT_COMMITTED: Final = frozenset({CommitStatus.LOST, CommitStatus.FENCED})
"""Outcomes that allow a decision to be voided: UNKNOWN is not among them."""
LOST_STATES: Final = frozenset({Observation.ABORTED, Observation.EXPIRED})
"""Answers of a look that prove that a transaction was not committed and never will be."""
VISIBLE_STATES: Final = frozenset({Observation.COMMITTED, Observation.BEGUN})
"""Answers of a look that show rows to be visible, or perhaps visible: nobody may write the whole epoch again."""


def commit_outcome(seen: Observation, detail: str = "") -> CommitOutcome:
    """Return the outcome of a commit that did not, or not provably, commit anything itself.

    Args:
        seen: State that the target shows now.
        detail: The target's own words.
    """
    return CommitOutcome(OUTCOMES[seen][0], detail)


def abort_outcome(seen: Observation, detail: str = "") -> AbortOutcome:
    """Return the outcome of an abort that did not, or not provably, abort anything itself.

    Args:
        seen: State that the target shows now.
        detail: The target's own words.
    """
    return AbortOutcome(OUTCOMES[seen][1], detail)
