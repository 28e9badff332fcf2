"""A pipeline driven as Spark does it: micro-batches, a checkpoint, executors, tasks that are tried again.

Style "batch" is foreachBatch (connectors/spark/exactly_once.py): one process decides and commits, with one START per
run. Style "format" is the Python data source (connectors/spark/writer.py): one process opens and puts START for each
epoch, another one commits by the token that the messages bring, a third one aborts when the second failed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onceward.core.checkpoint import Admission, Backoff, CommitPolicy, Coordinator, OnLost
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.errors import FencedError, OncewardError, SinkError
from onceward.core.log import EpochInput
from onceward.core.transaction import Acknowledgement, WriteContext

from .world import Killed, Process, Task

if TYPE_CHECKING:
    from onceward.core.log import WriterToken

    from .audit import Audit
    from .plan import Config
    from .store import FakeStore
    from .world import World

ATTEMPTS = 3


class TaskFailedError(Exception):
    """An executor's task failed for a reason of its own."""


class QueryStoppedError(Exception):
    """Spark stopped the query."""


class Batch(list[int]):
    """Rows, with what SubtaskEpoch asks of an Arrow batch."""

    @property
    def num_rows(self) -> int:
        """How many."""
        return len(self)


@dataclass
class Checkpoint:
    """Spark's checkpoint folder: what each batch reads, and which batches are done."""

    query: str = "query"
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    commits: list[int] = field(default_factory=list)

    def older(self, back: int) -> Checkpoint:
        """A copy from `back` batches ago."""
        keep = sorted(self.offsets)[: max(0, len(self.offsets) - back)]
        kept = [epoch for epoch in self.commits if epoch in keep]
        return Checkpoint(self.query, {epoch: self.offsets[epoch] for epoch in keep}, kept)

    def next_batch(self) -> int:
        """The batch to run: the newest one if it is not done, else the one after it."""
        newest = max(self.offsets, default=-1)
        return newest if newest >= 0 and newest not in self.commits else newest + 1


@dataclass(eq=False)
class Attempt:
    """One try of one subtask, as its driver sees it."""

    subtask: int
    number: int
    task: Task
    given_up: bool = False

    @property
    def over(self) -> bool:
        """Whether the driver has stopped waiting for it."""
        return self.given_up or self.task.done or not self.task.process.alive

    @property
    def acknowledgement(self) -> Acknowledgement | None:
        """What it answered, if it counts."""
        result = self.task.result
        return result if isinstance(result, Acknowledgement) and not self.given_up else None


class Cluster:
    """Executors' Python workers. A worker runs one task at a time and lives on across batches and queries."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.workers: list[tuple[Process, int]] = []
        self.attempts: list[Attempt] = []

    def run(self, app: int, body: Any, name: str) -> Task:
        """Start a task on an idle worker of the application, or on a new one."""
        busy = {id(task.process) for task in self.world.tasks if task.role == "executor" and not task.done}
        for worker, owner in self.workers:
            if owner == app and worker.alive and id(worker) not in busy:
                break
        else:
            worker = Process(self.world, f"worker {len(self.workers)}")
            self.workers.append((worker, app))
        return self.world.start(worker, name, body, role="executor")


class Driver:
    """One incarnation of the query's driver.

    Args:
        number: Counts incarnations; other numbers see other amounts of data.
        app: Drivers of one application share executors.
    """

    def __init__(self, world: World, audit: Audit, config: Config, *, store: FakeStore) -> None:
        self.world = world
        self.audit = audit
        self.config = config
        self.store = store
        self.cluster = Cluster(world)
        self.sinks: list[Any] = []
        self.checkpoint = Checkpoint()
        self.number = 0
        self.app = 0
        self.coordinator_class: type[Coordinator] = Coordinator
        self.coordinators: list[Coordinator] = []
        self.process: Process = Process(world, "driver")
        self.finished = False

    def run(self) -> None:
        """Run batches until the input is used up."""
        while True:
            batch = self.checkpoint.next_batch()
            self.world.point("next batch")
            if not self._plan(batch):
                self.finished = True
                return
            start, end = self.checkpoint.offsets[batch]
            about = EpochInput(query=self.checkpoint.query, digest=f"{start}-{end}", start=start, end=end)
            if self.config.style == "batch":
                self._for_each_batch(batch, about)
            else:
                self._format(batch, about)
            self.world.point("commit log")
            self.audit.on_logged(self.store.audit, batch, start, end)
            self.checkpoint.commits.append(batch)

    def _plan(self, batch: int) -> bool:
        """Choose the batch's input and record it, as Spark does before it runs the batch."""
        if batch in self.checkpoint.offsets:
            return True
        start = self.checkpoint.offsets[batch - 1][1] if batch else 0
        if start >= self.config.records:
            return False
        steps = self.config.steps
        end = min(self.config.records, start + steps[(batch + self.number) % len(steps)])
        self.world.point("offsets log")
        if batch in self.checkpoint.offsets:
            raise QueryStoppedError("another query wrote this batch's offsets")
        self.checkpoint.offsets[batch] = (start, end)
        return True

    # foreachBatch

    def _for_each_batch(self, batch: int, about: EpochInput) -> None:
        if not self.coordinators:
            self._new_coordinator().open()
        coordinator = self.coordinators[0]
        if coordinator.admit(batch, about) is Admission.REPLAY:
            return
        contexts = [coordinator.context(sink.name, batch, subtask=-1) for sink in self.sinks]
        acks = self._stage(batch, about, contexts)
        coordinator.commit(batch, acks, about, sweep_after=batch in self.config.speculate)

    def _new_coordinator(self) -> Coordinator:
        coordinator = self.coordinator_class("orders", self.store, self.sinks, self._policy())
        self.coordinators.append(coordinator)
        return coordinator

    def _policy(self) -> CommitPolicy:
        world = self.world

        def backoff(attempts: int) -> Backoff:
            return Backoff(attempts=attempts, sleep=world.sleep, fraction=lambda: 0.0)

        return CommitPolicy(
            on_lost=OnLost(self.config.on_lost),
            commits=backoff(6),
            puts=backoff(self.config.tries),
            monotonic=lambda: float(world.tick),
            token=world.token,
            now=lambda: str(world.tick),
        )

    # the Python data source

    def _format(self, batch: int, about: EpochInput) -> None:
        opened = self._in_python("first", self._open_writer)
        assert isinstance(opened, Coordinator)
        token, view = opened.writer.token, opened.view
        replay = view.newest is not None and view.newest.epoch == batch
        if view.newest is not None and batch not in (view.newest.epoch, view.newest.epoch + 1):
            raise QueryStoppedError("the writer refuses this batch")
        contexts = [opened.context(sink.name, batch, subtask=-1) for sink in self.sinks]
        try:
            acks = [] if replay else self._stage(batch, about, contexts)
        except QueryStoppedError:
            self._in_python("third", lambda: self._abort(token, self._messages(batch)))
            raise
        try:
            self._in_python("second", lambda: self._commit(token, batch, acks, about))
        except (OncewardError, QueryStoppedError):
            self._in_python("third", lambda: self._abort(token, acks))
            raise

    def _in_python(self, name: str, body: Any) -> object:
        """Run something in a Python process of its own, beside the JVM, and wait for it."""
        process = Process(self.world, f"{self.process.name} {name}")
        task = self.world.start(process, name, body, role="python")
        self.world.wait(lambda: task.done or not process.alive)
        if task.error is not None or not task.done:
            raise task.error if isinstance(task.error, Exception) else QueryStoppedError("a Python process died")
        return task.result

    def _open_writer(self) -> Coordinator:
        coordinator = self._new_coordinator()
        coordinator.open()
        return coordinator

    def _commit(self, token: WriterToken, batch: int, acks: list[Acknowledgement], about: EpochInput) -> None:
        coordinator = self._new_coordinator()
        coordinator.resume(token)
        if coordinator.admit(batch, about) is Admission.NEW:
            coordinator.commit(batch, acks, about, sweep_after=batch in self.config.speculate)

    def _abort(self, token: WriterToken, acks: list[Acknowledgement]) -> None:
        coordinator = self._new_coordinator()
        try:
            coordinator.resume(token)
            coordinator.abandon([c for ack in acks for c in ack.committables])
        except FencedError:
            return

    # one stage of tasks

    def _stage(self, batch: int, about: EpochInput, contexts: list[WriteContext]) -> list[Acknowledgement]:
        """Run every subtask until one attempt of each has answered."""
        attempts: list[Attempt] = []
        for subtask in range(self.config.subtasks):
            attempts.append(self._try(batch, about, contexts, subtask, 0))
            if batch in self.config.speculate:
                attempts.append(self._try(batch, about, contexts, subtask, 1))
        while True:
            self.world.wait(lambda: self._news(attempts))
            acks: list[Acknowledgement] = []
            for subtask in range(self.config.subtasks):
                mine = [a for a in attempts if a.subtask == subtask]
                good = [a.acknowledgement for a in mine if a.acknowledgement is not None]
                if good:
                    acks.append(good[0])
                elif all(a.over for a in mine):
                    self._judge(mine)
                    number = max(a.number for a in mine) + 1
                    if number > ATTEMPTS:
                        raise QueryStoppedError("a task failed too often")
                    attempts.append(self._try(batch, about, contexts, subtask, number))
            if len(acks) == self.config.subtasks:
                return acks

    def _news(self, attempts: list[Attempt]) -> bool:
        by_subtask = {a.subtask: [b for b in attempts if b.subtask == a.subtask] for a in attempts}
        done = [any(a.acknowledgement is not None for a in mine) for mine in by_subtask.values()]
        stuck = [all(a.over for a in mine) and not ok for mine, ok in zip(by_subtask.values(), done, strict=True)]
        return all(done) or any(stuck)

    def _judge(self, attempts: list[Attempt]) -> None:
        """A task may fail for reasons that exist in the world; anything else is a bug."""
        for attempt in attempts:
            error = attempt.task.error
            if error is not None and not isinstance(error, (SinkError, TaskFailedError, FencedError, Killed)):
                raise error

    def _messages(self, batch: int) -> list[Acknowledgement]:
        found = [a.acknowledgement for a in self.cluster.attempts]
        return [ack for ack in found if ack is not None and ack.epoch == batch]

    def _try(self, batch: int, about: EpochInput, contexts: list[WriteContext], subtask: int, number: int) -> Attempt:
        rows = [row for row in range(about.start, about.end) if (row + self.number) % self.config.subtasks == subtask]
        session = f"run of {self.process.name}" if self.config.style == "format" else ""
        mine = [_with(context, subtask, number, session) for context in contexts]
        task = self.cluster.run(self.app, lambda: self._write(mine, rows), f"epoch {batch} task {subtask}.{number}")
        attempt = Attempt(subtask, number, task)
        self.cluster.attempts.append(attempt)
        return attempt

    def _write(self, contexts: list[WriteContext], rows: list[int]) -> Acknowledgement:
        """As connectors/spark/task.py: write every sink, pre-commit, acknowledge."""
        epochs: list[SubtaskEpoch] = [SubtaskEpoch(s, c) for s, c in zip(self.sinks, contexts, strict=True)]
        try:
            for row in rows:
                for epoch in epochs:
                    epoch.write(Batch([row]))
            prepared = [epoch.pre_commit() for epoch in epochs]
        except BaseException:
            for epoch in epochs:
                with suppress(SinkError, TaskFailedError):
                    epoch.discard()
            raise
        first = contexts[0]
        return Acknowledgement(
            epoch=first.epoch,
            subtask=first.subtask,
            attempt=first.attempt,
            sinks=tuple(sink.name for sink in self.sinks),
            committables=tuple(c for c in prepared if c is not None),
            retried=first.attempt > 0,
        )


def _with(context: WriteContext, subtask: int, attempt: int, session: str) -> WriteContext:
    values = {name: getattr(context, name) for name in context.__struct_fields__}
    return WriteContext(**{**values, "subtask": subtask, "attempt": attempt, "session": session})
