"""What the coordinator needs of a sink. TwoPhaseCommitSink has all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..names import Scope
    from ..transaction import AbortOutcome, CommitOutcome, Committable, ExternalState


class Participant(Protocol):
    """The driver's side of a sink. What each method must guarantee is said in sinks.base.TwoPhaseCommitSink."""

    name: str

    @property
    def transaction_timeout(self) -> float | None:
        """Seconds until the target aborts an open transaction by itself; None if never."""
        ...

    def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        """One outcome for each."""
        ...

    def abort(self, committable: Committable) -> AbortOutcome:
        """Abort exactly this transaction."""
        ...

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        """What is open or prepared under exactly this name."""
        ...

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[ExternalState]:
        """One state for each."""
        ...

    def claim(self, scope: Scope) -> None:
        """Raise EpochConflictError if the target knows the name from another log."""
        ...

    def release(self, scope: Scope) -> None:
        """Forget other logs of this name."""
        ...

    def completed(self, scope: Scope, epoch: int) -> None:
        """Housekeeping."""
        ...
