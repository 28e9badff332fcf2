"""Pipelines whose targets lose transactions, or a part of an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from onceward.core.checkpoint import Coordinator, OnLost
from onceward.core.contract.proof import total
from onceward.core.contract.transaction import (
    Committable,
    Observation,
)
from onceward.core.log import EpochInput

from .coordinator_kit import about
from .core_fakes import MemoryStore, acknowledgement, policy, prepared
from .sink_kit import TargetSink

if TYPE_CHECKING:
    from collections.abc import Sequence


PREPARED, BEGUN, ABORTED, EXPIRED, COMMITTED = (
    Observation.PREPARED,
    Observation.BEGUN,
    Observation.ABORTED,
    Observation.EXPIRED,
    Observation.COMMITTED,
)


@dataclass
class Case:
    """A pipeline that writes to `kafka`, which expires, and to `table`, which does not."""

    on_lost: OnLost = OnLost.REPLAY
    subtasks: int = 1
    store: MemoryStore = field(default_factory=MemoryStore)

    def __post_init__(self) -> None:
        self.kafka, self.table = TargetSink(name="kafka", timeout=60.0), TargetSink(name="table")

    def coordinator(self, *, heals: bool = True) -> Coordinator:
        sinks = [self.table, self.kafka]
        return Coordinator("p", self.store, sinks, policy(on_lost=self.on_lost), heals=heals)

    def opened(self, *, heals: bool = True) -> Coordinator:
        coordinator = self.coordinator(heals=heals)
        coordinator.open()
        return coordinator

    def coordinator_of_an_older_start(self) -> Coordinator:
        """One that has put a START, and died."""
        coordinator = self.coordinator()
        coordinator.writer.start()
        return coordinator

    def written(self, coordinator: Coordinator, sinks: Sequence[str] = ("table", "kafka"), **rows: int) -> list[Any]:
        """One acknowledgement for each subtask, whose rows are a number."""
        return [
            acknowledgement(
                *(committable(coordinator, sink, subtask, rows.get(sink, 7)) for sink in sinks),
                subtask=subtask,
                sinks=tuple(sinks),
            )
            for subtask in range(self.subtasks)
        ]

    def decided(self) -> list[Committable]:
        """Epoch 0 is decided, and its writer dies before it commits anything."""
        coordinator = self.opened()
        coordinator.admit(0, ABOUT)
        acks = self.written(coordinator)
        named = [c for ack in acks for c in ack.committables]
        coordinator.writer.decide(0, named, sinks=["table", "kafka"], epoch_input=ABOUT, subtasks=self.subtasks)
        return named

    def made(self, other: TargetSink) -> list[Committable]:
        """As `decided`, with one more sink, and without a proof of what the table was handed."""
        coordinator = Coordinator("p", self.store, [self.table, other, self.kafka], policy(on_lost=self.on_lost))
        coordinator.open()
        coordinator.admit(0, ABOUT)
        names = ["table", "other", "kafka"]
        every = [c for ack in self.written(coordinator, names) for c in ack.committables]
        named = [msgspec.structs.replace(c, handed=msgspec.UNSET) if c.sink == "table" else c for c in every]
        coordinator.writer.decide(0, named, sinks=names, epoch_input=ABOUT, subtasks=self.subtasks)
        return named

    def of(self, sink: TargetSink, named: Sequence[Committable]) -> list[str]:
        return [c.transaction for c in named if c.sink == sink.name]


ABOUT = EpochInput(query="q", digest="d", start=[0], end=[10])


def committable(coordinator: Coordinator, sink: str, subtask: int, rows: int) -> Committable:
    context = coordinator.context(sink, 0, subtask=subtask)
    hashed = total(f"{(subtask + 1) * row:016x}{row:016x}" for row in range(rows))
    made = context.committable(kind="fake", transaction=str(context.transaction_name()), rows=rows)
    return msgspec.structs.replace(made, handed=hashed)


class Bench:
    """A pipeline `p` whose sink `a` keeps a ledger, after one completed epoch."""

    def __init__(self, seen: Observation, *, records_transactions: bool = True) -> None:
        self.store, self.sink = MemoryStore(), TargetSink(name="a")
        self.sink.records_transactions = records_transactions  # type: ignore[misc]
        coordinator = self.open()
        coordinator.admit(0, about(0))
        self.done: Committable = prepared(coordinator.context("a", 0, subtask=0), rows=7)
        coordinator.commit(0, [acknowledgement(self.done)], about(0))
        self.sink.target.states[self.done.transaction] = seen
        self.sink.target.commits.clear()

    def open(self, **changes: object) -> Coordinator:
        coordinator = Coordinator("p", self.store, [self.sink], policy(**changes))
        coordinator.open()
        return coordinator
