"""What an onlooker knows of a transaction: the decision log's word, the target's word, and what follows from both.

Unlike a sweeper, an onlooker has put no START. So what the newest writer made may be decided at any moment: it is in
doubt, and only the START of a new writer settles that (invariant 4).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ..transaction import ANY_EPOCH, Committable, ExternalState
from ..transaction.recovery import Action, LogState, action

if TYPE_CHECKING:
    from ..log import LogView


class Standing(StrEnum):
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
    UNKNOWN = "log not given"


_IN_THE_LOG: Final = {
    Standing.DECIDED: LogState.DECIDED,
    Standing.COMPLETED: LogState.COMPLETED,
    Standing.LINGERING: LogState.STARTED,
}
_REPORT: Final = {
    Standing.COMPLETED: "its decision is completed, and yet the target has it open: ask the target's operators",
    Standing.IN_DOUBT: "its writer may be at work. If it is not: the pipeline's next start ends it, or now `txn abort`",
    Standing.LINGERING: "committed, though no decision names it: somebody did it by hand, and its rows may be doubled",
    Standing.FOREIGN: "made under another decision log: find that one and give it as --store. Only if it is gone for "
    "good: `txn abort --orphaned`",
    Standing.UNKNOWN: "give its decision log as --store, to see whether it is decided",
}
_ADVICE: Final = {
    Action.COMMIT: "the pipeline's next start commits it, or now `txn commit`",
    Action.ABORT: "no decision names it: the pipeline's next start aborts it, or now `txn abort`",
    Action.NOTHING: "nothing",
    Action.LOST: "decided, and the target ended it otherwise: its rows are lost there. on_lost='replay' writes the "
    "epoch again where that is sound; `txn commit --skip-lost WHY` goes on without it",
}


def standing_of(committable: Committable, view: LogView | None) -> Standing:
    """What the log says of a transaction; a log of None was not given."""
    if view is None:
        return Standing.UNKNOWN
    if committable.log != view.log:
        return Standing.FOREIGN
    if view.named(committable):
        return Standing.DECIDED if view.undone is not None else Standing.COMPLETED
    by_the_newest = committable.writer == ANY_EPOCH or committable.writer >= view.start
    if by_the_newest and (committable.epoch == ANY_EPOCH or committable.epoch > view.decided):
        return Standing.IN_DOUBT
    return Standing.LINGERING


def advice(standing: Standing, state: ExternalState) -> str:
    """What happens with it, or what an operator can do."""
    what = action(_IN_THE_LOG.get(standing, LogState.NO_START), state)
    return _REPORT[standing] if what is Action.REPORT else _ADVICE[what]
