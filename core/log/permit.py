"""The permit to commit: only a durable decision makes one (invariant 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import LifecycleError

if TYPE_CHECKING:
    from ..transaction.committable import Committable
    from .entries import Decide

_MINT: Final = object()


class CommitPermit:
    """Proof that an epoch's decision was read back from, or durably put into, the decision log.

    Made by the log alone; a function that commits takes one, so that no path commits without a decision.
    """

    __slots__ = ("decision",)

    def __init__(self, decision: Decide, *, mint: object) -> None:
        if mint is not _MINT:
            raise LifecycleError("a commit permit is made by the decision log only")
        self.decision = decision

    def committables(self, sink: str) -> tuple[Committable, ...]:
        """What this permit allows to be committed in one sink."""
        return tuple(item for item in self.decision.committables if item.sink == sink)


def _mint(decision: Decide) -> CommitPermit:
    """For the modules of this package, right after the decision was seen to be durable."""
    return CommitPermit(decision, mint=_MINT)
