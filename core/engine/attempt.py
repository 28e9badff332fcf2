"""One attempt of a run: the tasks that the graph asks for, and the place where checkpoints' effects are carried out.

Without threads: threads.py runs it in some, and the simulator steps it itself.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from concurrent.futures import InvalidStateError
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from ..sink import TwoPhaseCommit
from ..source import ResettableSource
from .channels import Channel, Output, Partitioner, by_key, forward, rebalance
from .checkpoints import State, advance, initial
from .config import Mode
from .events import (
    Acknowledged,
    Answer,
    CheckpointRecord,
    Complete,
    Confirm,
    Discard,
    Effect,
    Event,
    GiveUp,
    Opened,
    Remember,
    ToTask,
    Trigger,
)
from .functions import ProcessLogic
from .gate import Gate
from .logic import BatchLogic, Guarded, Logic, RecordLogic
from .sink_logic import DirectLogic, TwoPhaseLogic
from .source_logic import LiveLogic, ResettableLogic
from .state.keyed import KeyScope
from .state.keys import groups_of
from .state.storage import CheckpointStorage, folder_of
from .task import Task, TaskWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..errors import OncewardError
    from ..transaction import WriteContext
    from .channels import Barrier, TaskId
    from .graph import Operator
    from .start import Started
    from .state.keys import KeyEncoder

_log = logging.getLogger("onceward.engine")
CHANNEL_CAPACITY = 8
"""Elements in a channel."""
_Channels = dict[tuple["TaskId", "TaskId", int], Channel]
"""By producer, consumer, and the number of the consumer's input."""


class Attempt(ABC):
    """Tasks and checkpoints from START until the attempt ends, fails or is stopped.

    Attributes:
        tasks: Connected, sources first.
        state: Of the checkpoints.
        history: The newest checkpoints that have ended.
    """

    def __init__(self, started: Started) -> None:
        self._started = started
        self._graph, self._config = started.setup.graph, started.setup.config
        self.world = world = started.setup.world
        self.history: tuple[CheckpointRecord, ...] = ()
        self._task_world = TaskWorld(
            self.tell, world.monotonic, world.now, self.run_later, self._place, started.backend.most
        )
        self._locks: dict[str, Lock] = {}
        self.tasks = self._make_tasks()
        sources = frozenset(id_ for id_, task in self.tasks.items() if task.gate is None)
        self.state: State = initial(
            self._config,
            sources,
            frozenset(self.tasks),
            next_id=started.next_id,
            now=world.monotonic(),
            between=world.between,
        )

    @abstractmethod
    def tell(self, event: Event) -> None:
        """Have `handle` called with it, one event after another. Called from any thread."""

    @abstractmethod
    def wake(self, task: TaskId) -> None:
        """There may be something to do for a task. Called from any thread."""

    @abstractmethod
    def run_later(self, work: Callable[[], None]) -> None:
        """Run the asynchronous part of a snapshot."""

    @property
    def failure(self) -> OncewardError | None:
        return self.state.failure

    @property
    def all_finished(self) -> bool:
        return self.state.finished == self.state.tasks

    def open(self, task: Task) -> None:
        task.logic.open()
        self.tell(Opened(task.id))

    def handle(self, event: Event, at: float | None = None) -> None:
        """Take a step, and do what it asks for."""
        now = self.world.monotonic() if at is None else at
        self.state, effects = advance(self.state, event, now)
        for effect in effects:
            self._perform(effect, now)

    def _perform(self, effect: Effect, now: float) -> None:
        match effect:
            case Trigger():
                self._post(effect, self.state.sources)
            case Confirm() | GiveUp():
                self._post(effect, self.tasks)
            case Complete():
                self.handle(self._started.completer.complete(effect.pending, effect.under_way), now)
            case Discard():
                self._discard(effect.ack)
            case Answer():
                with suppress(InvalidStateError):  # whoever asked was told that nobody hears any more
                    if effect.error is not None:
                        effect.to.set_exception(effect.error)
                    else:
                        effect.to.set_result(effect.result)
            case Remember():
                most = self._config.history
                self.history = (*self.history, effect.record)[-most:] if most else ()
                level = logging.WARNING if effect.bad else logging.INFO
                _log.log(level, "pipeline %s: %s", self._started.coordinator.pipeline, effect.record)

    def _post(self, message: ToTask, to: Iterable[TaskId]) -> None:
        for task in to:
            self.tasks[task].post(message)
            self.wake(task)

    def _discard(self, ack: Acknowledged) -> None:
        try:
            if ack.target is None:
                self._started.completer.retained.discard(ack.state)
            else:
                CheckpointStorage(ack.target).delete(ref.path for ref in ack.state.files)
        except OSError as error:
            _log.warning("files of a checkpoint that was given up are left: %s", error)

    def _place(self, barrier: Barrier) -> tuple[CheckpointStorage | None, str]:
        """Where a checkpoint's files go: storage and folder in it."""
        if barrier.target is not None:
            return CheckpointStorage(barrier.target), ""
        writer = self._started.coordinator.writer.token.start
        return self._started.backend.storage, folder_of(barrier.checkpoint, writer)

    # From the graph to tasks

    def _make_tasks(self) -> dict[TaskId, Task]:
        channels = self._channels()
        made: dict[TaskId, Task] = {}
        try:
            for operator in self._graph.operators:
                for id_ in operator.tasks():
                    gate, outputs = self._gate(operator, id_, channels), self._outputs(operator, id_, channels)
                    made[id_] = Task(id_, self._logic(operator, id_), gate, outputs, self._task_world)
        except BaseException:
            for built in made.values():
                with suppress(Exception):
                    built.logic.close()
            raise
        for (producer, consumer, _), channel in channels.items():
            channel.wake_reader = self._waker(consumer)
            channel.wake_writer = self._waker(producer)
        return made

    def _waker(self, task: TaskId) -> Callable[[], None]:
        return lambda: self.wake(task)

    def _channels(self) -> _Channels:
        return {
            (producer, consumer, number): Channel(CHANNEL_CAPACITY)
            for reader in self._graph.operators
            for number, (source, keys) in enumerate(reader.inputs)
            for producer in source.tasks()
            for consumer in reader.tasks()
            if keys is not None or source.parallelism != reader.parallelism or producer.subtask == consumer.subtask
        }

    def _gate(self, operator: Operator, task: TaskId, channels: _Channels) -> Gate | None:
        mine = [channel for (_, consumer, _), channel in channels.items() if consumer == task]
        if operator.kind == "source":
            return None
        aligned = self._config.mode is Mode.EXACTLY_ONCE
        return Gate(mine, aligned=aligned, clock=self.world.monotonic, choose=self.world.choose)

    def _outputs(self, operator: Operator, task: TaskId, channels: _Channels) -> list[Output]:
        outputs = []
        for reader in self._graph.operators:
            for number, (source, keys) in enumerate(reader.inputs):
                if source is operator:
                    mine = [channels.get((task, consumer, number)) for consumer in reader.tasks()]
                    there = [channel for channel in mine if channel is not None]
                    outputs.append(Output(there, self._partitioner(operator, task, reader, keys)))
        return outputs

    def _partitioner(self, operator: Operator, task: TaskId, reader: Operator, keys: KeyEncoder | None) -> Partitioner:
        if keys is not None:
            return by_key(keys, self._graph.max_parallelism)
        same = operator.parallelism == reader.parallelism
        return forward if same else rebalance(task.subtask)

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
                return Logic()
            case "sink":
                return self._sink(operator, task)
            case kind:
                return RecordLogic(kind, guarded, operator.what)

    def _source(self, operator: Operator, task: TaskId) -> Logic:
        if isinstance(operator.what, ResettableSource):
            share = operator.what.share(task.subtask, operator.parallelism)
            return ResettableLogic(share, task.subtask, self._started.positions[task])
        return LiveLogic(operator.what, task.subtask, operator.parallelism)

    def _process(self, operator: Operator, task: TaskId, guarded: Guarded) -> Logic:
        started, most = self._started, self._graph.max_parallelism
        assigned, scope = started.assigned[task], None
        if operator.keys is not None:
            groups = groups_of(task.subtask, operator.parallelism, most)
            writer = started.coordinator.writer.token.start
            table = started.backend.open(task, groups, assigned.keyed, started.restored_storage, writer)
            scope = KeyScope(table, groups, most)
        return ProcessLogic(
            operator.what,
            guarded,
            keys=operator.keys,
            scope=scope,
            parallelism=operator.parallelism,
            lists=assigned.lists,
            now=self.world.now,
        )

    def _sink(self, operator: Operator, task: TaskId) -> Logic:
        sink = operator.what
        lock = self._locks.setdefault(sink.name, Lock())

        def context(epoch: int) -> WriteContext:
            return self._started.coordinator.context(sink.name, epoch, subtask=task.subtask)

        kind = TwoPhaseLogic if isinstance(sink, TwoPhaseCommit) else DirectLogic
        return kind(sink, context, self._started.next_id, lock)
