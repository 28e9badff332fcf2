"""Recovery as one table (after TigerBeetle's): what the log says of a transaction, what the target shows, what to do.

The sweep runs on it, and the operator's commands read their advice from it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ..transaction import ANY_EPOCH, Committable, Observation

if TYPE_CHECKING:
    from ..log import LogView


class TransactionStatus(StrEnum):
    """What the decision log says of a transaction."""

    DECIDED = "decided"
    """A decision names it that is not completed: it will be committed."""
    COMPLETED = "completed"
    """A completed decision names it: it has ended."""
    IN_DOUBT = "in doubt"
    """No decision names it, and its writer may still be at work."""
    LINGERING = "lingering"
    """Certainly named by no decision, now and ever."""
    FOREIGN = "of another log"
    """It carries the name of the pipeline, and another decision log made it."""
    AHEAD = "ahead of the log"
    """Its writer or epoch is one that this log has not come to: the log is an outdated copy."""
    UNKNOWN = "log not given"


class Action(StrEnum):
    """What recovery does with a transaction."""

    COMMIT = "commit"
    ABORT = "abort"
    NOTHING = "nothing"
    REPORT = "report"
    """Tell the operator, touch nothing."""
    LOST = "lost"
    """Named by a decision, and can no longer be committed: on_lost applies (invariant 8)."""


_HELD: Final = {Observation.OPEN: Action.REPORT, Observation.PREPARED: Action.REPORT}
RECOVERY: Final[dict[TransactionStatus, dict[Observation, Action]]] = {
    TransactionStatus.DECIDED: {
        **dict.fromkeys(Observation, Action.COMMIT),  # what is not seen now, the commit's own answer tells
        Observation.COMMITTED: Action.NOTHING,
        Observation.ABORTED: Action.LOST,
        Observation.EXPIRED: Action.LOST,
    },
    TransactionStatus.LINGERING: {
        Observation.OPEN: Action.ABORT,
        Observation.PREPARED: Action.ABORT,
        Observation.COMMITTED: Action.REPORT,  # somebody committed it by hand, against invariant 1
    },
    TransactionStatus.COMPLETED: _HELD,
    TransactionStatus.IN_DOUBT: _HELD,
    TransactionStatus.FOREIGN: _HELD,
    TransactionStatus.AHEAD: _HELD,
    TransactionStatus.UNKNOWN: _HELD,
}
"""What is not listed needs nothing."""


def action(status: TransactionStatus, seen: Observation) -> Action:
    """The one action for what the log says and the target shows."""
    return RECOVERY[status].get(seen, Action.NOTHING)


def status_of(committable: Committable, view: LogView | None) -> TransactionStatus:
    """What the log says of a transaction to an onlooker; a log of None was not given.

    Unlike a sweeper, an onlooker has put no START. So what the newest writer made may be decided at any moment: it is
    in doubt, and only the START of a new writer settles that (invariant 4).
    """
    if view is None:
        return TransactionStatus.UNKNOWN
    if committable.log != view.log:
        return TransactionStatus.FOREIGN
    if view.named(committable):
        return TransactionStatus.DECIDED if view.undone is not None else TransactionStatus.COMPLETED
    if committable.writer > view.tail or _skips_an_epoch(committable, view):
        return TransactionStatus.AHEAD
    by_the_newest = committable.writer == ANY_EPOCH or committable.writer >= view.start
    if by_the_newest and (committable.epoch == ANY_EPOCH or committable.epoch > view.decided):
        return TransactionStatus.IN_DOUBT
    return TransactionStatus.LINGERING


def status_for_sweeper(committable: Committable, view: LogView, start: int) -> TransactionStatus:
    """What the log says of a transaction to the writer whose START is at `start`: older writers are fenced."""
    if committable.log != view.log:
        return TransactionStatus.FOREIGN
    if committable.writer > start:
        return TransactionStatus.AHEAD
    if view.named(committable):
        return TransactionStatus.DECIDED if view.undone is not None else TransactionStatus.COMPLETED
    if committable.writer == start and committable.epoch > view.decided:
        return TransactionStatus.IN_DOUBT
    return TransactionStatus.LINGERING


def _skips_an_epoch(committable: Committable, view: LogView) -> bool:
    """Whether there must have been a decision since that is not in this log; where epochs have gaps nobody can say."""
    if view.newest is None or view.newest.follows is not None:
        return False
    return committable.epoch > view.decided + 1
