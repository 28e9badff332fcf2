"""Spark, as its drivers see it: a checkpoint folder, a session, tasks that are tried again, and what it pickles.

What is nasty, all of it measured on the real one: attempts fail, run twice, are taken for dead and go on; a stage that
is tried again counts its attempts from 0; an executor's Python process lives on across batches and queries; a task and
a writer reach another process as bytes, and whatever they remember stays behind.
"""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from onceward.connectors.spark.formats.formats import SinkFormat
from onceward.core.errors import FencedError, SinkError

from .audit import Audit
from .broker import Broker
from .database import Database
from .world import Killed, Process, Task, Violation, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .pipeline import Driver
    from .store import FakeStore

ATTEMPTS = 3
SCHEMA = StructType([StructField("row", LongType())])


class TaskFailedError(Exception):
    """An executor's task failed for a reason of its own."""


class FetchFailedError(TaskFailedError):
    """What the stage reads is gone: the whole stage is tried again."""


class QueryStoppedError(Exception):
    """Spark stopped the query."""


class Batch(list[int]):
    """Rows, with what is asked of an Arrow batch."""

    nbytes = 0
    schema = pa.schema([])

    @property
    def num_rows(self) -> int:
        """How many."""
        return len(self)


@dataclass(eq=False)
class Folder:
    """Spark's checkpoint folder: what each batch reads, which batches are done, and the decision log inside.

    Attributes:
        root: Its path.
        store: Of the decision log.
        query: Spark's query id.
        offsets: The text of each batch's file.
        commits: Batches that are done.
    """

    root: str
    store: FakeStore
    query: str = "query"
    offsets: dict[int, str] = field(default_factory=dict)
    commits: list[int] = field(default_factory=list)

    def older(self, back: int, root: str, store: FakeStore | None = None) -> Folder:
        """A copy from `back` batches ago."""
        keep = sorted(self.offsets)[: max(0, len(self.offsets) - back)]
        kept = [epoch for epoch in self.commits if epoch in keep]
        return Folder(root, store or self.store, self.query, {epoch: self.offsets[epoch] for epoch in keep}, kept)

    def next_batch(self) -> int:
        """The batch to run: the newest one if it is not done, else the one after it."""
        newest = max(self.offsets, default=-1)
        return newest if newest >= 0 and newest not in self.commits else newest + 1

    def range_of(self, batch: int) -> tuple[int, int]:
        """First record of a batch, and the first one after it."""
        return self.end_of(batch - 1), self.end_of(batch)

    def end_of(self, batch: int) -> int:
        """The first record after a batch."""
        return int(self.offsets[batch].splitlines()[-1]) if batch in self.offsets else 0

    def write_offsets(self, batch: int, end: int, when: int) -> None:
        """The file that Spark writes before it runs a batch."""
        self.offsets[batch] = f'v1\n{{"batchTimestampMs":{when}}}\n{end}'

    def read(self, name: str) -> str | None:
        """One of its files."""
        if name == "metadata":
            return json.dumps({"id": self.query})
        return self.offsets.get(int(name.removeprefix("offsets/")))


def read_file(world: World, url: str) -> str | None:
    """A file of any folder: file systems are the same for JVM and Python here."""
    _, _, number, name = url.split("/", 3)
    folder: Folder = world.folders[f"/c/{number}"]
    return folder.read(name)


# What Spark pickles


_OUTSIDE: dict[type, str] = {kind: kind.__name__ for kind in (World, Broker, Database)}


class _Pickler(pickle.Pickler):
    def persistent_id(self, thing: object) -> str | None:
        return f"Audit {thing.pipeline}" if isinstance(thing, Audit) else _OUTSIDE.get(type(thing))


class _Unpickler(pickle.Unpickler):
    world: World

    def persistent_load(self, pid: str) -> object:
        return self.world.outside[pid]


def dumps(thing: object) -> bytes:
    """As Spark sends it to another process; the outside world is the same for all of them."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(thing)
    return buffer.getvalue()


def loads(world: World, data: bytes) -> Any:
    """What arrives there."""
    unpickler = _Unpickler(io.BytesIO(data))
    unpickler.world = world
    return unpickler.load()


# Executors


@dataclass(frozen=True)
class TaskContext:
    """pyspark.TaskContext."""

    partition: int
    attempt: int
    stage: int
    properties: Mapping[str, str]

    def partitionId(self) -> int:  # noqa: N802 - Spark's names
        """See pyspark."""
        return self.partition

    def attemptNumber(self) -> int:  # noqa: N802
        """See pyspark."""
        return self.attempt

    def stageId(self) -> int:  # noqa: N802
        """See pyspark."""
        return self.stage

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802
        """See pyspark."""
        return self.properties.get(key)


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
    def answered(self) -> bool:
        """Whether it answered, and the answer counts."""
        return self.task.result is not None and not self.given_up


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


class Stage:
    """One stage: every partition of a batch until one attempt of each has answered.

    Args:
        driver: Whose.
        batch: Which.
        work: What an executor does with the rows of a partition.
        tasks: How many partitions there are.
    """

    def __init__(self, driver: Driver, batch: int, work: Callable[[Iterator[Batch]], object], tasks: int) -> None:
        self._driver = driver
        self._subtasks = range(tasks)
        self._world = driver.world
        self._batch = batch
        self._work = work
        self._attempts: list[Attempt] = []
        self.number = driver.session.new_stage(self)
        self.currentAttemptId = 0  # as in pyspark's SparkStageInfo
        self.numFailedTasks = 0
        self._failures = 0

    @property
    def messages(self) -> list[Any]:
        """What there is of answers, None for a partition that has none."""
        found = [[a.task.result for a in self._attempts if a.subtask == s and a.answered] for s in self._subtasks]
        return [mine[0] if mine else None for mine in found]

    def run(self) -> list[Any]:
        """The answers.

        Raises:
            QueryStoppedError: A task failed too often.
        """
        for subtask in self._subtasks:
            self._try(subtask, 0)
            if self._batch in self._driver.config.speculate:
                self._try(subtask, 1)
        while None in self.messages:
            self._world.wait(lambda: None not in self.messages or any(map(self._is_stuck, self._subtasks)))
            for subtask in filter(self._is_stuck, self._subtasks):
                self._try_again(subtask)
        self._over()
        return self.messages

    def _over(self) -> None:
        self._driver.collected = (self._world.tick, self._world.disturbed, self._driver.store.audit.start)

    def _is_stuck(self, subtask: int) -> bool:
        mine = [a for a in self._attempts if a.subtask == subtask]
        return all(a.over for a in mine) and not any(a.answered for a in mine)

    def _try_again(self, subtask: int) -> None:
        mine = [a for a in self._attempts if a.subtask == subtask]
        errors = [a.task.error for a in mine if a.task.error is not None]
        for error in errors:
            if not isinstance(error, SinkError | TaskFailedError | FencedError | Killed):
                raise error
        self._failures += 1
        number = mine[-1].number + 1
        if self._failures > ATTEMPTS:
            self._over()
            raise QueryStoppedError("a task failed too often")
        if errors and isinstance(errors[-1], FetchFailedError):
            self.currentAttemptId, self.numFailedTasks, number = self.currentAttemptId + 1, 0, 0
        else:
            self.numFailedTasks += 1
        self._try(subtask, number)

    def _try(self, subtask: int, number: int) -> None:
        driver = self._driver
        start, end = driver.folder.range_of(self._batch)
        rows = [row for row in range(start, end) if (row + driver.number) % len(self._subtasks) == subtask]
        properties = {"streaming.sql.batchId": str(self._batch), "spark.master": driver.session.master}
        properties |= driver.session.properties
        work, batches = self._work, iter([Batch([row]) for row in rows])

        def body() -> object:
            answer = work(batches)
            if next(batches, None) is not None:
                raise Violation("replay", "a task left rows of its partition unread")
            return answer

        task = driver.cluster.run(driver.app, body, f"epoch {self._batch} task {subtask}.{number}")
        task.context = TaskContext(subtask, number, self.number, properties)
        task.input, task.driver = driver.folder.offsets[self._batch], driver
        attempt = Attempt(subtask, number, task)
        self._attempts.append(attempt)
        driver.cluster.attempts.append(attempt)


# The driver's JVM


class Session:
    """SparkSession, SparkContext, status tracker and JVM in one: what the adapter asks of them.

    Args:
        driver: The query that runs in it.
    """

    master = "spark://simulated:7077"

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stages: list[Stage] = []
        query = SimpleNamespace(
            getClass=lambda: SimpleNamespace(getSimpleName=lambda: "MicroBatchExecution"),
            trigger=lambda: SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: "OneTimeTrigger")),
            outputMode=lambda: SimpleNamespace(toString=lambda: "Append"),
            resolvedCheckpointRoot=lambda: self._driver.folder.root,
        )
        stream = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: query))
        self.streams = SimpleNamespace(get=lambda _: stream)
        self.sparkContext = self

    def run_by(self, driver: Driver) -> None:
        """Another run of the query has begun."""
        self._driver = driver

    @property
    def properties(self) -> dict[str, str]:
        """Local properties of the query's thread, which its tasks inherit."""
        return {"sql.streaming.queryId": self._driver.folder.query, "spark.jobGroup.id": f"run {self._driver.number}"}

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - Spark's names
        """See pyspark."""
        return self.properties.get(key)

    def getConf(self) -> dict[str, str]:  # noqa: N802
        """See pyspark."""
        return {"spark.speculation": "true"} if self._driver.config.speculate else {}

    @property
    def defaultParallelism(self) -> int:  # noqa: N802
        """See pyspark; every other driver finds a task slot less."""
        return max(1, self._driver.config.subtasks - self._driver.number % 2)

    def statusTracker(self) -> Session:  # noqa: N802
        """See pyspark."""
        return self

    def getStageInfo(self, stage: int) -> Stage | None:  # noqa: N802
        """See pyspark."""
        return self._stages[stage]

    def new_stage(self, stage: Stage) -> int:
        """Number of a stage."""
        self._stages.append(stage)
        return len(self._stages) - 1


class Frame:
    """A micro-batch's DataFrame."""

    columns = ("n",)

    def __init__(self, driver: Driver, batch: int) -> None:
        self._driver = driver
        self._batch = batch
        self._work: Callable[[Iterator[Batch]], object] | None = None
        self._tasks = driver.config.subtasks
        self.ran = False
        """Whether its rows were computed: a stateful query misses a version of its state if they are not."""

    def coalesce(self, tasks: int) -> Frame:
        """See pyspark."""
        self._tasks = min(tasks, self._tasks)
        return self

    def where(self, _condition: str) -> Frame:
        return self

    def mapInArrow(self, task: Any, _schema: str) -> Frame:  # noqa: N802 - Spark's name
        """See pyspark."""
        world, pickled = self._driver.world, dumps(task)
        self._work = lambda batches: [row for out in loads(world, pickled)(batches) for row in out.to_pylist()]
        return self

    def collect(self) -> list[dict[str, Any]]:
        """See pyspark."""
        assert self._work is not None
        self.ran = True
        return [row for rows in Stage(self._driver, self._batch, self._work, self._tasks).run() for row in rows]

    def toArrow(self) -> SimpleNamespace:  # noqa: N802
        """See pyspark."""
        self._driver.world.point("to arrow")
        self.ran = True
        assert self._driver.world.current is not None
        self._driver.world.current.input = self._driver.folder.offsets[self._batch]
        rows = range(*self._driver.folder.range_of(self._batch))
        return SimpleNamespace(num_rows=0, to_batches=lambda: [Batch([row]) for row in rows])

    @property
    def write(self) -> Frame:
        """See pyspark."""
        return self

    def format(self, name: str) -> Frame:
        """See pyspark."""
        assert name == "noop"
        return self

    def mode(self, _name: str) -> Frame:
        """See pyspark."""
        return self

    def save(self) -> None:
        """Compute the rows and forget them."""
        self._driver.world.point("noop")
        self.ran = True


class SimulatedFormat(SinkFormat):
    """The real format's streamWriter, with a sink that is simulated."""

    format_name = "simulated"

    def __init__(self, options: Mapping[str, str], sink: Any) -> None:
        super().__init__(dict(options))
        self._simulated = sink

    def make_sink(self, options: Mapping[str, str]) -> Any:  # noqa: ARG002
        """The simulated one."""
        return self._simulated
