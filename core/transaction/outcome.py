"""What an attempt to commit or to abort proved. Outcomes are values; faults are exceptions.

Invariant 7: nothing is recorded as committed before the external system's answer. A lost answer is UNKNOWN or
RETRY_LATER, never COMMITTED.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class CommitStatus(StrEnum):
    """The possible results of one commit attempt."""

    COMMITTED = "committed"
    """This call committed the transaction, and the target said so."""
    ALREADY_COMMITTED = "already committed"
    """The target proves that it had been committed before."""
    RETRY_LATER = "retry later"
    """No answer, or a passing fault: ask again."""
    FENCED = "fenced"
    """Proven: a newer owner of the name ended this transaction by aborting it."""
    LOST = "lost"
    """Proven: it was never committed and never can be (expired, or aborted by somebody)."""
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
    """Gone, by this call or before; or never there."""
    COMMITTED = "committed"
    """Refused: the transaction had been committed. The commit won."""
    RETRY_LATER = "retry later"
    """No answer, or a passing fault: ask again."""
    UNKNOWN = "unknown"
    """The target cannot tell who won."""


class AbortOutcome(msgspec.Struct, frozen=True):
    """Result of one abort attempt, with the target's own words."""

    status: AbortStatus
    detail: str = ""

    @property
    def done(self) -> bool:
        """Whether the transaction is gone."""
        return self.status is AbortStatus.ABORTED


class ExternalState(StrEnum):
    """What the external system says of a transaction."""

    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
