"""What the coordinator needs of a sink. TwoPhaseCommitSink has all of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from ..errors import ExternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..names import Scope
    from ..transaction import AbortOutcome, CommitOutcome, Committable, ExternalState, Progress


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

    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        """What is open or prepared in the same target under this pipeline and log, whatever the sink's name."""
        ...

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[ExternalState]:
        """One state for each."""
        ...

    def check_claim(self, scope: Scope, newest: Progress) -> None:
        """Raise EpochConflictError if the target knows the names from another log, or more of this one."""
        ...

    def claim(self, scope: Scope) -> None:
        """Make this log the owner of the names."""
        ...

    def release(self, scope: Scope) -> None:
        """Forget other logs of these names, and how far this one had come."""
        ...

    def completed(self, scope: Scope, epoch: int) -> None:
        """Housekeeping."""
        ...


def by_urgency(sinks: Iterable[Participant]) -> list[Participant]:
    """The sinks, those first whose transactions expire soonest: they cannot wait for the others."""
    return sorted(sinks, key=_seconds_left)


def _seconds_left(sink: Participant) -> float:
    try:
        timeout = sink.transaction_timeout
    except ExternalError:  # it has a timeout, or there would be nobody to ask
        return 0.0
    return math.inf if timeout is None else timeout
