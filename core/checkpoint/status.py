"""What the decision log says of a transaction to an onlooker.

Unlike a sweeper, an onlooker has put no START. So what the newest writer made may be decided at any moment: it is in
doubt, and only the START of a new writer settles that (invariant 4).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from ..transaction import ANY_EPOCH, Committable

if TYPE_CHECKING:
    from ..log import LogView


class TransactionStatus(StrEnum):
    """Where a transaction stands."""

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


def status_of(committable: Committable, view: LogView | None) -> TransactionStatus:
    """What the log says of a transaction; a log of None was not given."""
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


def _skips_an_epoch(committable: Committable, view: LogView) -> bool:
    """Whether there must have been a decision since that is not in this log; where epochs have gaps nobody can say."""
    if view.newest is None or view.newest.follows is not None:
        return False
    return committable.epoch > view.decided + 1
