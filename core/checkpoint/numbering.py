"""How epochs are numbered: one after another as Spark's micro-batches, or as checkpoints of the embedded engine.

A micro-batch is written from its admission to its decision, and no subtask works between two of them. So its number is
the newest decided one plus 1, and whatever its writer still has prepared afterwards is left over.

A checkpoint may be given up before its decision, so numbers may be left out. Three things follow:

1. A decision names the epoch that it follows; otherwise a log that has lost a decision would look complete.
2. An acknowledgement carries what its subtask has prepared since the newest decision, for checkpoints given up, too.
3. Subtasks prepare the next checkpoint while one is decided and committed: a sweep between two starts touches only
   what an older writer has left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from ..log.view import NONE

if TYPE_CHECKING:
    from ..log import Decide, LogView, Rewound


class EpochNumbering(ABC):
    """Which epoch may be decided next, by whom, and with which transactions.

    Attributes:
        overlapping: True if subtasks write the next epoch while one is decided and committed.
        needs_sinks: True if a pipeline must have a sink that takes part in two-phase commit.
    """

    overlapping: ClassVar[bool]
    needs_sinks: ClassVar[bool]

    @abstractmethod
    def follows(self, view: LogView) -> int | None:
        """Return the epoch that the next decision must name as its predecessor; None if its number is enough."""

    @abstractmethod
    def acknowledged(self, view: LogView, epoch: int) -> range:
        """Return the epochs whose transactions an acknowledgement of `epoch` may carry."""

    @abstractmethod
    def may_be_first(self, epoch: int) -> bool:
        """Return whether an empty log may begin at `epoch`, or whether this shows that decisions are missing."""

    @abstractmethod
    def owner(self, view: LogView) -> str | None:
        """Return the query that may decide the next epoch; None if any may."""

    @abstractmethod
    def takes_back(self, rewind: Rewound, undone: Decide) -> bool:
        """Return whether a rewind covers a decision that waits for its commit, so that nobody commits it any more."""


class Consecutive(EpochNumbering):
    """Numbers without gaps: an epoch is offered after the one before is completed."""

    overlapping = False
    needs_sinks = True

    def follows(self, view: LogView) -> int | None:  # noqa: ARG002
        return None

    def acknowledged(self, view: LogView, epoch: int) -> range:  # noqa: ARG002
        return range(epoch, epoch + 1)

    def may_be_first(self, epoch: int) -> bool:
        return epoch == 0

    def owner(self, view: LogView) -> str | None:
        """Return the query that decided the newest epoch, or that went back since."""
        if view.rewound and view.rewind is not None:
            return view.rewind.query or None
        return _decided_by(view)

    def takes_back(self, rewind: Rewound, undone: Decide) -> bool:
        """Return whether the decision is of an epoch that the query will offer again."""
        return rewind.epoch == NONE or rewind.epoch <= undone.epoch


class Checkpoints(EpochNumbering):
    """Numbers with gaps: an epoch is the id of a checkpoint, and some of them are given up."""

    overlapping = True  # (3)
    needs_sinks = False

    def follows(self, view: LogView) -> int | None:
        return view.decided  # (1)

    def acknowledged(self, view: LogView, epoch: int) -> range:
        return range(view.decided + 1, epoch + 1)  # (2)

    def may_be_first(self, epoch: int) -> bool:  # noqa: ARG002
        return True  # the checkpoints before it may have been given up

    def owner(self, view: LogView) -> str | None:
        return _decided_by(view)

    def takes_back(self, rewind: Rewound, undone: Decide) -> bool:  # noqa: ARG002
        """Return True: the first epoch after a rewind has a higher number than all before, whatever it restores."""
        return True


def _decided_by(view: LogView) -> str | None:
    return view.before.query if view.before is not None else None


CONSECUTIVE: Final = Consecutive()
CHECKPOINTS: Final = Checkpoints()
