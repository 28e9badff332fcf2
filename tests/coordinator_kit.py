"""A pipeline in memory whose epochs are committed by a coordinator."""

from __future__ import annotations

from onceward.core.checkpoint import Admission, Coordinator
from onceward.core.contract.transaction import CommitStatus, Committable
from onceward.core.log import EpochInput

from .core_fakes import MemoryStore, acknowledgement, policy, prepared
from .sink_kit import TargetSink

LATER, LOST, UNKNOWN = CommitStatus.RETRY_LATER, CommitStatus.LOST, CommitStatus.UNKNOWN


class Bench:
    """A pipeline `p` with one sink `a`, and epochs whose input is their number."""

    def __init__(self, sink: TargetSink | None = None, **changes: object) -> None:
        self.store = MemoryStore()
        self.sink = sink or TargetSink(name="a")
        self.changes = changes

    def coordinator(self, *others: TargetSink) -> Coordinator:
        return Coordinator("p", self.store, [self.sink, *others], policy(**self.changes))

    def opened(self, *others: TargetSink) -> Coordinator:
        coordinator = self.coordinator(*others)
        coordinator.open()
        return coordinator

    def committable(self, coordinator: Coordinator, epoch: int, subtask: int = 0) -> Committable:
        return prepared(coordinator.context("a", epoch, subtask=subtask))

    def run(self, coordinator: Coordinator, epoch: int) -> Committable:
        assert coordinator.admit(epoch, about(epoch)) is Admission.NEW
        committable = self.committable(coordinator, epoch)
        coordinator.commit(epoch, [acknowledgement(committable, epoch=epoch)], about(epoch))
        return committable


def about(epoch: int, query: str = "q") -> EpochInput:
    return EpochInput(query=query, digest=f"digest {epoch}", start=[epoch * 10], end=[epoch * 10 + 10])
