"""From the graph to tasks: channels, gates, outputs, and what each task does."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from ..sink import TwoPhaseCommit
from ..source import ResettableSource
from .channels import ByKey, Channel, Forward, Output, Partitioner, Rebalance
from .config import Mode
from .gate import Gate
from .logic import BatchLogic, Guarded, Logic, RecordLogic, UnionLogic
from .process_logic import ProcessLogic
from .sink_logic import DirectLogic, TwoPhaseLogic
from .source_logic import LiveLogic, ResettableLogic
from .state.keys import groups_of
from .task import Task, TaskWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..errors import OncewardError
    from ..transaction import WriteContext
    from .elements import TaskId
    from .graph import Graph, Operator
    from .restore import Assigned
    from .state.keys import KeyEncoder
    from .state.storage import CheckpointStorage
    from .state.store import StateBackend

CHANNEL_CAPACITY = 8
"""Elements in a channel."""


@dataclass(frozen=True)
class Planner:
    """Builds the tasks of one attempt.

    Attributes:
        graph: The operators.
        backend: Where keyed state lives.
        storage: Where restored files are.
        assigned: What each task starts from.
        mode: Whether barriers are aligned.
        world: What tasks need of their surroundings.
        context: Of a sink's name, subtask and epoch, its context.
        first_epoch: Epoch of the first rows.
        positions: Where each subtask of a resettable source begins.
        writer: Position of the run's START.
        choose: How a gate picks among its channels; None: in turns.
        publish_failed: Told of a source that could not publish.
    """

    graph: Graph
    backend: StateBackend
    storage: CheckpointStorage | None
    assigned: Mapping[TaskId, Assigned]
    mode: Mode
    world: TaskWorld
    context: Callable[[str, int, int], WriteContext]
    first_epoch: int
    positions: Mapping[TaskId, Any]
    writer: int
    publish_failed: Callable[[OncewardError], None]
    choose: Callable[[Sequence[int]], int] | None = None
    capacity: int = CHANNEL_CAPACITY
    _locks: dict[str, Lock] = field(default_factory=dict)

    def tasks(self) -> dict[TaskId, Task]:
        """All tasks, connected, sources first."""
        channels = self._channels()
        made: dict[TaskId, Task] = {}
        try:
            for operator in self.graph.operators:
                for task in operator.tasks():
                    gate, outputs = self._gate(operator, task, channels), self._outputs(operator, task, channels)
                    made[task] = Task(task, self._logic(operator, task), gate, outputs, self.world)
        except BaseException:
            for built in made.values():
                with suppress(Exception):
                    built.logic.close()
            raise
        return made

    def _channels(self) -> dict[tuple[TaskId, TaskId, int], Channel]:
        """By producer, consumer, and the number of the consumer's input."""
        return {
            (producer, consumer, number): Channel(self.capacity)
            for reader in self.graph.operators
            for number, (source, keys) in enumerate(reader.inputs)
            for producer in source.tasks()
            for consumer in reader.tasks()
            if keys is not None or source.parallelism != reader.parallelism or producer.subtask == consumer.subtask
        }

    def _gate(
        self, operator: Operator, task: TaskId, channels: Mapping[tuple[TaskId, TaskId, int], Channel]
    ) -> Gate | None:
        mine = [channel for (_, consumer, _), channel in channels.items() if consumer == task]
        if operator.kind == "source":
            return None
        aligned = self.mode is Mode.EXACTLY_ONCE
        return Gate(mine, aligned=aligned, clock=self.world.monotonic, choose=self.choose)

    def _outputs(
        self, operator: Operator, task: TaskId, channels: Mapping[tuple[TaskId, TaskId, int], Channel]
    ) -> list[Output]:
        outputs = []
        for reader in self.graph.operators:
            for number, (source, keys) in enumerate(reader.inputs):
                if source is operator:
                    mine = [channels.get((task, consumer, number)) for consumer in reader.tasks()]
                    there = [channel for channel in mine if channel is not None]
                    outputs.append(Output(there, self._partitioner(operator, task, reader, keys)))
        return outputs

    def _partitioner(self, operator: Operator, task: TaskId, reader: Operator, keys: KeyEncoder | None) -> Partitioner:
        if keys is not None:
            return ByKey(keys, self.graph.max_parallelism)
        same = operator.parallelism == reader.parallelism
        return Forward(0) if same else Rebalance(task.subtask)

    def _logic(self, operator: Operator, task: TaskId) -> Logic:
        guarded = Guarded(task, operator.schema)
        match operator.kind:
            case "source":
                return self._source(operator, task)
            case "map_batches":
                return BatchLogic(guarded, operator.what)
            case "process":
                return self._process(operator, task, guarded)
            case "union":
                return UnionLogic()
            case "sink":
                return self._sink(operator, task)
            case kind:
                return RecordLogic(kind, guarded, operator.what)

    def _source(self, operator: Operator, task: TaskId) -> Logic:
        if isinstance(operator.what, ResettableSource):
            share = operator.what.share(task.subtask, operator.parallelism)
            return ResettableLogic(share, task.subtask, self.positions[task], self.publish_failed)
        return LiveLogic(operator.what, task.subtask, operator.parallelism)

    def _process(self, operator: Operator, task: TaskId, guarded: Guarded) -> Logic:
        groups = groups_of(task.subtask, operator.parallelism, self.graph.max_parallelism)
        assigned = self.assigned[task]
        table = None
        if operator.keys is not None:
            table = self.backend.open(task, groups, assigned.keyed, self.storage, self.writer)
        return ProcessLogic(
            operator.what,
            guarded,
            keys=operator.keys,
            table=table,
            groups=groups,
            max_parallelism=self.graph.max_parallelism,
            parallelism=operator.parallelism,
            lists=assigned.lists,
            now=self.world.now,
        )

    def _sink(self, operator: Operator, task: TaskId) -> Logic:
        sink = operator.what
        lock = self._locks.setdefault(sink.name, Lock())

        def context(epoch: int) -> WriteContext:
            return self.context(sink.name, task.subtask, epoch)

        kind = TwoPhaseLogic if isinstance(sink, TwoPhaseCommit) else DirectLogic
        return kind(sink, context, self.first_epoch, lock)


def start_positions(graph: Graph, assigned: Mapping[TaskId, Assigned], *, skip: bool) -> dict[TaskId, Any]:
    """Where each subtask of each resettable source begins.

    Args:
        graph: The operators.
        assigned: What was restored.
        skip: At most once: what came since is not read; each source goes on at its end.
    """
    found: dict[TaskId, Any] = {}
    for operator in graph.of_kind("source"):
        if not isinstance(operator.what, ResettableSource):
            continue
        for task in operator.tasks():
            share = operator.what.share(task.subtask, operator.parallelism)
            stored = assigned[task].positions
            if stored is None:
                found[task] = share.start()
            else:
                found[task] = share.end() if skip else share.merge(stored)
    return found
