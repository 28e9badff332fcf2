"""Recovery as one exhaustive table (after TigerBeetle's).

Rows: what the log says of the transaction's epoch. Columns: what the external system says of the transaction. Every
pair has exactly one action; a test walks all of them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from .outcome import CommitStatus, ExternalState


class LogState(StrEnum):
    """What the decision log says of a transaction."""

    NO_START = "no start"
    """Not of this log: another log's writer made it, or a writer newer than the reader."""
    STARTED = "started"
    """Of this log, of a writer or epoch that can no longer be decided, and named by no decision."""
    DECIDED = "decided"
    """Named by a decision that is not completed."""
    COMPLETED = "completed"
    """Named by a decision that is completed."""


class Action(StrEnum):
    """What recovery does with a transaction."""

    COMMIT = "commit"
    ABORT = "abort"
    NOTHING = "nothing"
    REPORT = "report"
    """Tell the operator, touch nothing."""
    LOST = "lost"
    """Named by a decision and not to be had: on_lost decides, loudly (invariant 8)."""


_L, _X, _A = LogState, ExternalState, Action

RECOVERY: Final[dict[tuple[LogState, ExternalState], Action]] = {
    (_L.NO_START, _X.OPEN): _A.REPORT,
    (_L.NO_START, _X.PREPARED): _A.REPORT,
    (_L.NO_START, _X.COMMITTED): _A.NOTHING,
    (_L.NO_START, _X.ABORTED): _A.NOTHING,
    (_L.NO_START, _X.UNKNOWN): _A.NOTHING,
    (_L.NO_START, _X.EXPIRED): _A.NOTHING,
    (_L.STARTED, _X.OPEN): _A.ABORT,
    (_L.STARTED, _X.PREPARED): _A.ABORT,
    (_L.STARTED, _X.COMMITTED): _A.REPORT,  # somebody committed it by hand, against invariant 1
    (_L.STARTED, _X.ABORTED): _A.NOTHING,
    (_L.STARTED, _X.UNKNOWN): _A.NOTHING,
    (_L.STARTED, _X.EXPIRED): _A.NOTHING,
    (_L.DECIDED, _X.OPEN): _A.COMMIT,
    (_L.DECIDED, _X.PREPARED): _A.COMMIT,
    (_L.DECIDED, _X.COMMITTED): _A.NOTHING,
    (_L.DECIDED, _X.ABORTED): _A.LOST,
    (_L.DECIDED, _X.UNKNOWN): _A.COMMIT,  # the commit's own answer tells
    (_L.DECIDED, _X.EXPIRED): _A.LOST,
    (_L.COMPLETED, _X.OPEN): _A.REPORT,
    (_L.COMPLETED, _X.PREPARED): _A.REPORT,
    (_L.COMPLETED, _X.COMMITTED): _A.NOTHING,
    (_L.COMPLETED, _X.ABORTED): _A.NOTHING,
    (_L.COMPLETED, _X.UNKNOWN): _A.NOTHING,
    (_L.COMPLETED, _X.EXPIRED): _A.NOTHING,
}


def action(log: LogState, external: ExternalState) -> Action:
    """The one action for what the log and the external system say."""
    return RECOVERY[log, external]


class AfterCommit(StrEnum):
    """What to do after a commit attempt."""

    SETTLED = "settled"
    AGAIN = "again"
    LOST = "lost"


AFTER_COMMIT: Final[dict[CommitStatus, AfterCommit]] = {
    CommitStatus.COMMITTED: AfterCommit.SETTLED,
    CommitStatus.ALREADY_COMMITTED: AfterCommit.SETTLED,
    CommitStatus.RETRY_LATER: AfterCommit.AGAIN,
    CommitStatus.FENCED: AfterCommit.LOST,
    CommitStatus.LOST: AfterCommit.LOST,
    CommitStatus.UNKNOWN: AfterCommit.LOST,  # cannot be proven committed, so it is loud
}

PROVEN_NOT_COMMITTED: Final = frozenset({CommitStatus.LOST, CommitStatus.FENCED})
"""Outcomes that allow a decision to be voided: UNKNOWN is not among them."""
