"""The tasks of one attempt and their coordinator, without threads: the simulator steps them itself."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .checkpoints import CheckpointCoordinator, Roles
from .elements import Barrier, Kind, TaskId
from .pending import CheckpointFailedError
from .plan import Planner
from .state.storage import CheckpointStorage, folder_of
from .task import Confirm, GiveUp, Task, TaskWorld, Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..checkpoint import Coordinator
    from ..errors import OncewardError
    from ..transaction import WriteContext
    from .completion import Completer
    from .config import CheckpointConfig
    from .pending import Pending, TaskAck
    from .retained import Retained
    from .start import Started

_log = logging.getLogger("onceward.engine")


@dataclass(frozen=True)
class EngineWorld:
    """The world as the engine needs it; the simulator puts in its own.

    Attributes:
        monotonic: Seconds, for durations and deadlines.
        now: Seconds since 1970, for timers.
        between: A number between two others, at random.
        choose: How a gate picks among its channels; None: in turns.
    """

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    between: Callable[[float, float], float] = field(default=random.uniform)
    choose: Callable[[Sequence[int]], int] | None = None


class Machine:
    """The tasks of one attempt and their coordinator, without threads. Effects of checkpoints, reports of tasks.

    Args:
        started: What the attempt begins with.
        config: Settings of checkpoints.
        world: Clocks.
        run_later: Runs the asynchronous part of a snapshot.
        tell: Has a function called by whoever runs the coordinator.
        wake: Wakes a task that waits.
    """

    def __init__(
        self,
        started: Started,
        config: CheckpointConfig,
        world: EngineWorld,
        *,
        run_later: Callable[[Callable[[], None]], None],
        tell: Callable[[Callable[[], None]], None],
        wake: Callable[[TaskId], None],
    ) -> None:
        self._coordinator: Coordinator = started.coordinator
        self._completer: Completer = started.completer
        self._retained: Retained = started.retained
        self._own = started.backend.storage
        self._world = world
        self._tell = tell
        self._wake = wake
        self.failure: OncewardError | None = None
        self._open: set[TaskId] = set()
        self._exhausted: set[TaskId] = set()
        self._finished: set[TaskId] = set()
        self._draining: set[int] = set()
        self._final = False
        planner = Planner(
            graph=started.graph,
            backend=started.backend,
            storage=started.restored_storage,
            assigned=started.assigned,
            mode=config.mode,
            world=TaskWorld(self, world.monotonic, world.now, run_later, self._place, started.backend.most),
            context=self._context,
            first_epoch=started.next_id,
            positions=started.positions,
            writer=started.coordinator.writer.token.start,
            publish_failed=self._publish_failed,
            choose=world.choose,
        )
        self.tasks: dict[TaskId, Task] = planner.tasks()
        for task in self.tasks.values():
            self._connect(task)
        everybody = frozenset(self.tasks)
        sources = frozenset(id_ for id_, task in self.tasks.items() if task.gate is None)
        self.checkpoints = CheckpointCoordinator(
            config,
            Roles(sources, everybody, everybody),
            first=started.next_id,
            effects=self,
            now=world.monotonic(),
            first_delay=world.between,
            pipeline=started.coordinator.pipeline,
        )
        self.checkpoints.ready = False
        self._sources = sources

    def _connect(self, task: Task) -> None:
        """Have channels wake those who wait at either end."""
        for channel in task.gate.channels if task.gate is not None else ():
            channel.wake_reader = lambda: self._wake(task.id)
        for output in task.outputs:
            for channel in output.channels:
                channel.wake_writer = lambda: self._wake(task.id)

    def opened(self, task: TaskId) -> None:
        """A task takes barriers from now on. Called from any thread."""
        self._tell(lambda: self._is_open(task))

    def _is_open(self, task: TaskId) -> None:
        self._open.add(task)
        if self._open == self.tasks.keys():
            self.checkpoints.ready = True
            self.checkpoints.advance(self._world.monotonic())
            self._end_if_exhausted()

    @property
    def all_finished(self) -> bool:
        """Whether every task has ended."""
        return len(self._finished) == len(self.tasks)

    def failed(self, error: OncewardError) -> None:
        """A task failed; the first failure counts."""
        if self.failure is None:
            self.failure = error

    # Report: called by tasks, from any thread

    def acknowledged(self, ack: TaskAck) -> None:
        self._tell(lambda: self.checkpoints.acknowledge(ack, self._world.monotonic()))

    def declined(self, task: TaskId, checkpoint: int, reason: str) -> None:
        self._tell(lambda: self.checkpoints.decline(task, checkpoint, reason, self._world.monotonic()))

    def exhausted(self, task: TaskId) -> None:
        self._tell(lambda: self._input_ended(task))

    def finished(self, task: TaskId) -> None:
        self._tell(lambda: self._finished.add(task))

    def _input_ended(self, task: TaskId) -> None:
        """When every source has ended, a last checkpoint commits what there is and ends the tasks."""
        self._exhausted.add(task)
        self._end_if_exhausted()

    def _end_if_exhausted(self) -> None:
        everything = self._exhausted == self._sources and self._open == self.tasks.keys()
        if everything and not self._final:
            self._final = True
            self.checkpoints.request(Kind.FINAL, self._world.monotonic())

    # Effects: called by the coordinator of checkpoints

    def is_running(self, task: TaskId) -> bool:
        return task in self._open and task not in self._finished

    def trigger(self, task: TaskId, barrier: Barrier) -> None:
        if barrier.kind.drains:
            self._draining.add(barrier.checkpoint)
        self.tasks[task].post(Trigger(barrier))
        self._wake(task)

    def complete(self, pending: Pending) -> Any:
        return self._completer.complete(pending, self.checkpoints.pending)

    def completed(self, task: TaskId, checkpoint: int) -> None:
        self.tasks[task].post(Confirm(checkpoint))
        self._wake(task)

    def given_up(self, checkpoint: int, reason: str) -> None:
        for id_, task in self.tasks.items():
            task.post(GiveUp(checkpoint))
            self._wake(id_)
        if checkpoint in self._draining:
            # Operators have given what they held back: only a restart gets them back to where they were.
            self.failed(CheckpointFailedError(f"checkpoint {checkpoint}, which was to end the run, {reason}"))

    def discard(self, ack: TaskAck) -> None:
        try:
            if ack.target is None:
                self._retained.discard(ack.state)
            else:
                CheckpointStorage(ack.target).delete(ref.path for ref in ack.state.files)
        except OSError as error:
            _log.warning("files of a checkpoint that was given up are left: %s", error)

    def fail(self, error: OncewardError) -> None:
        self.failed(error)

    def _context(self, sink: str, subtask: int, epoch: int) -> WriteContext:
        return self._coordinator.context(sink, epoch, subtask=subtask)

    def _place(self, barrier: Barrier) -> tuple[CheckpointStorage | None, str]:
        if barrier.target is not None:
            return CheckpointStorage(barrier.target), ""
        return self._own, folder_of(barrier.checkpoint, self._coordinator.writer.token.start)

    def _publish_failed(self, error: OncewardError) -> None:
        _log.warning("a source could not publish its position: %s", error)
