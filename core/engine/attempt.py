"""One attempt of a run: the tasks that the graph asks for, and the place where checkpoints' effects are carried out.

Without threads: threads.py runs it in some, and the simulator steps it itself.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from concurrent.futures import InvalidStateError
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from ..contract.events import CheckpointEnded, OperatorsMeasured, tell
from ..contract.source import ResettableSource
from ..log.notes import tell_and_note
from .aggregate import AggregateLogic, Aggregation
from .batch_sizing import FIRST_ROWS
from .channels import Channel, CheckpointKind, Gate, TaskOutput, by_key, forward, rebalance
from .checkpoints import CheckpointsState, advance, initial
from .coordinator_events import (
    Acknowledged,
    Complete,
    Confirm,
    Discard,
    Effect,
    Event,
    GiveUp,
    Remember,
    Reply,
    TaskOpened,
    ToTask,
    Trigger,
)
from .functions import ProcessLogic
from .logic import BatchLogic, Guarded, Logic, RecordLogic, RowFilter
from .source_and_sink import LiveLogic, ResettableLogic, SinkLogic
from .state.key_types import KeyTypes
from .state.keyed import KeyScope
from .state.keys import groups_of
from .state.storage import CheckpointStorage, folder_of
from .task import Task, TaskWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..contract.sink import TwoPhaseCommitSink
    from ..errors import OncewardError
    from ..log.note_kinds import CheckpointRecord
    from .channels import Barrier, TaskId
    from .graph import Operator
    from .start import StartedAttempt

_log = logging.getLogger("onceward.engine")
CHANNEL_CAPACITY = 8
"""Elements in a channel."""


class Attempt(ABC):
    """Tasks and checkpoints from START until the attempt ends, fails or is stopped.

    Attributes:
        tasks: Tasks of the attempt, connected, sources first.
        state: State of the attempt's checkpoints.
        history: Records of the newest checkpoints that have ended.
    """

    def __init__(self, started: StartedAttempt) -> None:
        self._started = started
        self._graph, self._config = started.setup.graph, started.setup.config
        self.world, self.monotonic = started.setup.world, started.setup.policy.monotonic
        self.history: tuple[CheckpointRecord, ...] = ()
        # One for each sink, because checking a schema may create what is missing in its target.
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)
        self.tasks = self._make_tasks(
            TaskWorld(
                self.tell,
                self.monotonic,
                self.world.now,
                self.run_later,
                self._place,
                started.setup.most_rows,
                started.setup.linger,
                started.backend.most,
            )
        )
        self._measured = {id_: task.usage() for id_, task in self.tasks.items()}
        sources = frozenset(id_ for id_, task in self.tasks.items() if task.gate is None)
        self.state: CheckpointsState = initial(
            self._config,
            sources,
            frozenset(self.tasks),
            next_id=started.next_id,
            now=self.monotonic(),
            between=self.world.between,
            last=CheckpointKind.FINAL if started.again is None else started.again.kind,
        )

    @abstractmethod
    def tell(self, event: Event) -> None:
        """Pass an event to `handle`, one after another. Callable from any thread."""

    @abstractmethod
    def wake(self, task: TaskId) -> None:
        """Wake a task, for which there may be work. Callable from any thread."""

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
        self.tell(TaskOpened(task.id))

    def measure(self) -> None:
        """Report the work of the subtasks since the last call."""
        now = {id_: task.usage() for id_, task in self.tasks.items()}
        done = [usage.since(self._measured[id_]) for id_, usage in now.items()]
        self._measured = now
        tell(OperatorsMeasured(self._started.coordinator.pipeline, done))

    def handle(self, event: Event) -> None:
        """Apply an event, and carry out its effects."""
        self.state, effects = advance(self.state, event, self.monotonic())
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Trigger():
                self._post(effect, self.state.sources)
            case Confirm() | GiveUp():
                self._post(effect, self.tasks)
                if isinstance(effect, GiveUp):
                    self._started.completer.retained.discard(effect.checkpoint)
            case Complete(pending, under_way):
                self.handle(self._started.completer.complete(pending, under_way))
            case Discard(ack):
                self._discard(ack)
            case Reply(to, result, error):
                with suppress(InvalidStateError):  # whoever asked was told that the event loop has ended
                    if error is not None:
                        to.set_exception(error)
                    else:
                        to.set_result(result)
            case Remember(record, bad):
                most = self._config.history
                self.history = (*self.history, record)[-most:] if most else ()
                ended = CheckpointEnded(self._started.coordinator.pipeline, record, bad)
                tell_and_note(ended, self._started.setup.store)

    def _post(self, message: ToTask, to: Iterable[TaskId]) -> None:
        for task in to:
            self.tasks[task].post(message)
            self.wake(task)

    def _discard(self, ack: Acknowledged) -> None:
        try:
            if ack.target is None:
                self._started.completer.retained.discard(ack.checkpoint, ack.state)
            else:
                CheckpointStorage(ack.target).delete(ref.path for ref in ack.state.files)
        except OSError as error:
            # No decision names these files, so a run that is well does not fail for them.
            _log.warning("cannot delete the files of a checkpoint that was given up: %s", error)

    def _place(self, barrier: Barrier) -> tuple[CheckpointStorage | None, str]:
        """Return where a checkpoint's files go: the storage and the folder in it."""
        if barrier.target is not None:
            return CheckpointStorage(barrier.target), ""
        generation = self._started.coordinator.writer.token.start
        return self._started.backend.storage, folder_of(barrier.checkpoint, generation)

    # From the graph to tasks

    def _make_tasks(self, world: TaskWorld) -> dict[TaskId, Task]:
        inputs, outputs = self._connect()
        aligned = self._config.mode == "exactly-once"
        tasks: dict[TaskId, Task] = {}
        try:
            for operator in self._graph.operators:
                for id_ in operator.tasks():
                    gate = None
                    if operator.inputs:
                        gate = Gate(inputs[id_], aligned=aligned, clock=self.monotonic, choose=self.world.choose)
                    tasks[id_] = Task(id_, self._logic(operator, id_), gate, outputs[id_], world)
        except BaseException:
            # No attempt exists yet that would close what these hold.
            for built in tasks.values():
                with suppress(Exception):
                    built.logic.close()
            raise
        return tasks

    def _connect(self) -> tuple[dict[TaskId, list[Channel]], dict[TaskId, list[TaskOutput]]]:
        inputs: defaultdict[TaskId, list[Channel]] = defaultdict(list)
        outputs: defaultdict[TaskId, list[TaskOutput]] = defaultdict(list)
        edges = [(reader, *edge) for reader in self._graph.operators for edge in reader.inputs]
        for reader, operator, keys in edges:
            side_by_side = keys is None and operator.parallelism == reader.parallelism
            for producer in operator.tasks():
                channels = []
                for consumer in reader.tasks():
                    if not side_by_side or producer.subtask == consumer.subtask:
                        channel = Channel(CHANNEL_CAPACITY, most_rows=FIRST_ROWS)
                        channel.wake_reader = partial(self.wake, consumer)
                        channel.wake_writer = partial(self.wake, producer)
                        inputs[consumer].append(channel)
                        channels.append(channel)
                if keys is not None:
                    partitioner = by_key(keys, self._graph.max_parallelism)
                else:
                    partitioner = forward if side_by_side else rebalance(producer.subtask)
                outputs[producer].append(TaskOutput(channels, partitioner))
        return inputs, outputs

    def _logic(self, operator: Operator, task: TaskId) -> Logic:
        what, guarded = operator.what, Guarded(task, operator.schema)
        match operator.kind:
            case "source":
                return self._source(operator, task)
            case _ if operator.kind == "map_batches" or isinstance(what, RowFilter):
                return BatchLogic(guarded, what, operator.schema)
            case "process":
                return self._process(operator, task, guarded)
            case "union":
                return Logic()
            case "sink":
                return self._sink(what, task)
            case _:
                return RecordLogic(operator.kind, guarded, what)

    def _source(self, operator: Operator, task: TaskId) -> Logic:
        if isinstance(operator.what, ResettableSource):
            share = operator.what.share(task.subtask, operator.parallelism)
            again = self._started.again
            until = again.ends[task] if again is not None else None
            return ResettableLogic(share, task.subtask, self._started.positions[task], until)
        return LiveLogic(operator.what, task.subtask, operator.parallelism)

    def _sink(self, sink: TwoPhaseCommitSink[Any], task: TaskId) -> Logic:
        again = self._started.again
        # What this subtask wrote for the epoch is not lost: written again, it would be there twice.
        if again is not None and not again.writes(sink.name, task.subtask):
            return Logic()
        context = partial(self._started.coordinator.context, sink.name, subtask=task.subtask)
        skips = [] if again is None else again.skips(sink.name, task.subtask)
        return SinkLogic(sink, context, self._started.next_id, self._locks[sink.name], skips)

    def _process(self, operator: Operator, task: TaskId, guarded: Guarded) -> Logic:
        started, most = self._started, self._graph.max_parallelism
        assigned, scope, key_types = started.assigned[task], None, None
        if operator.keys is not None:
            types, all_new = assigned.key_types, assigned.all_new_types
            key_types = KeyTypes(task.uid, operator.keys.columns, types, all_new=all_new)
            groups = groups_of(task.subtask, operator.parallelism, most)
            generation = started.coordinator.writer.token.start
            table = started.backend.open(task, groups, assigned.keyed, started.restored_storage, generation)
            scope = KeyScope(table, groups, most, self.world.now)
        kind = AggregateLogic if isinstance(operator.what, Aggregation) else ProcessLogic
        return kind(
            operator.what,
            guarded,
            keys=operator.keys,
            scope=scope,
            parallelism=operator.parallelism,
            lists=assigned.lists,
            now=self.world.now,
            key_types=key_types,
            layouts=assigned.layouts,
        )
