# ruff: noqa: N802 - Spark's names
"""What exactly_once and the formats need of Spark, without a JVM: a session, micro-batches, a checkpoint folder."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark

from onceward.connectors.spark.write.handler import EpochHandler
from onceward.core.contract.pipeline_settings import FOREACH_BATCH
from onceward.core.log import MemoryStore, read

from .core_fakes import policy
from .sink_kit import TargetSink, target_called

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path


QUERY = "5c2f9a10-query"


class Checkpoint:
    """A query's checkpoint folder, with the offsets of its batches."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        (folder / "offsets").mkdir(parents=True)
        (folder / "metadata").write_text(json.dumps({"id": QUERY}))

    def plan(self, batch: int, *, end: int | None = None, watermark: int = 0) -> None:
        """Spark logs a batch's offsets before it runs it."""
        offset = 10 * batch + 10 if end is None else end
        text = f'v1\n{{"batchWatermarkMs":{watermark}}}\n{{"t":{{"0":{offset}}}}}\n'
        (self.root / "offsets" / str(batch)).write_text(text)

    def forget(self) -> None:
        """As if it were another query's folder."""
        for file in (self.root / "offsets").iterdir():
            file.unlink()


class Frame:
    """A micro-batch: a list of rows for each partition.

    Args:
        partitions: Numbers, for a column `n`.
        stage: Id of the stage that runs them.
        fails: The partition that fails, after the ones before are through; None: none does.
    """

    columns = ("n",)
    isStreaming = False  # noqa: N815 - Spark's name

    def __init__(self, *partitions: Sequence[int], stage: int = 1, fails: int | None = None) -> None:
        self.partitions, self.stage, self.fails = partitions, stage, fails
        self.drained = self.gathered = 0
        self.persisted: list[str] = []
        self.before: Callable[[], object] = lambda: None

    def coalesce(self, tasks: int) -> Frame:
        assert len(self.partitions) <= tasks
        return self

    def persist(self, level: Any) -> Frame:
        self.persisted.append(str(level))
        return self

    def unpersist(self) -> Frame:
        self.persisted.append("released")
        return self

    def where(self, _condition: str) -> Frame:
        return self

    def mapInArrow(self, task: Any, _schema: str) -> Frame:
        self.task = task
        return self

    def collect(self) -> list[dict[str, Any]]:
        self.before()
        rows = []
        for number, values in enumerate(self.partitions):
            with running(number, stage=self.stage):
                if number == self.fails:
                    raise OSError("the executor is lost")
                rows += [row for batch in self.task(batches(values)) for row in batch.to_pylist()]
        return rows

    def toArrow(self) -> pa.Table:
        self.gathered += 1
        return pa.Table.from_batches([batch for values in self.partitions for batch in batches(values)])

    @property
    def write(self) -> Any:
        def drain() -> None:
            self.drained += 1

        return SimpleNamespace(format=lambda _: SimpleNamespace(mode=lambda _: SimpleNamespace(save=drain)))


def batches(values: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Rows as Spark hands them over."""
    yield pa.RecordBatch.from_pydict({"n": pa.array(list(values), pa.int64())})


class Task:
    """What a running task is told."""

    def __init__(self, number: int, stage: int, attempt: int, properties: Mapping[str, str]) -> None:
        self.number, self.stage, self.attempt, self.properties = number, stage, attempt, properties

    def partitionId(self) -> int:
        return self.number

    def attemptNumber(self) -> int:
        return self.attempt

    def stageId(self) -> int:
        return self.stage

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


class running:  # noqa: N801 - reads as a statement
    """Inside the block a task runs.

    Args:
        number: Its partition.
        stage: Of which stage.
        attempt: Which try it is.
        properties: Local properties of the job.
    """

    def __init__(
        self, number: int, *, stage: int = 1, attempt: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        self.task = Task(number, stage, attempt, properties or {})

    def __enter__(self) -> None:
        self.kept = pyspark.TaskContext.__dict__["get"]
        pyspark.TaskContext.get = classmethod(lambda _cls: self.task)  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        pyspark.TaskContext.get = self.kept


class Session:
    """A SparkSession with one running query, as a foreachBatch function sees it."""

    def __init__(self, checkpoint: Any, master: str = "local[2]", *, query: str = QUERY, **conf: str) -> None:
        self.query = query
        self.checkpoint, self.conf, self.run, self.master = checkpoint, conf, "run-1", master
        self.stages: dict[int, Any] = {1: stage()}
        running_query = SimpleNamespace(
            getClass=lambda: SimpleNamespace(getSimpleName=lambda: "MicroBatchExecution"),
            trigger=lambda: SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: "OneTimeTrigger")),
            outputMode=lambda: SimpleNamespace(toString=lambda: "Append"),
            resolvedCheckpointRoot=lambda: str(checkpoint.root),
        )
        stream = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: running_query))
        self.streams = SimpleNamespace(get=lambda _: stream)

    @property
    def sparkContext(self) -> Any:
        properties = {"sql.streaming.queryId": self.query, "spark.jobGroup.id": self.run}
        return SimpleNamespace(
            master=self.master,
            defaultParallelism=64,
            getConf=lambda: self.conf,
            getLocalProperty=properties.get,
            statusTracker=lambda: SimpleNamespace(getStageInfo=self.stages.get),
        )


def stage(attempt: int = 0, failed: int = 0) -> Any:
    """What Spark's status tracker says of a finished stage."""
    return SimpleNamespace(currentAttemptId=attempt, numFailedTasks=failed)


class Query:
    """One streaming query with one sink, and its runs."""

    def __init__(self, folder: Path, **conf: str) -> None:
        self.checkpoint = Checkpoint(folder / "checkpoint")
        self.spark = Session(self.checkpoint, **conf)
        self.key = str(folder)
        self.target = target_called(self.key)
        self.store = MemoryStore()
        self.told: list[tuple[int, int]] = []
        self.handler = self.driver()

    def driver(self, **changes: Any) -> EpochHandler:
        """A driver process that calls exactly_once; the query's run is a new one."""
        given = {name: changes.pop(name) for name in FOREACH_BATCH.settings.keys() & changes.keys()}
        told: Any = {"pipeline": "p", "store": self.store, **given}
        values: dict[str, Any] = {
            "settings": FOREACH_BATCH.filled(told),
            "cheap": False,
            "row_size": "0",
            "policy": policy(),
            **changes,
        }
        sinks = values.pop("sinks", None) or [TargetSink(self.key)]
        return EpochHandler(spark=self.spark, sinks=sinks, on_complete=self.tell, **values)  # type: ignore[arg-type]

    def tell(self, epoch: int, _about: Any) -> None:
        self.told.append((epoch, read(self.store).completed))

    def run(self, batch: int, *partitions: list[int], handler: EpochHandler | None = None, **frame: Any) -> Frame:
        """One micro-batch."""
        self.checkpoint.plan(batch)
        made = Frame(*(partitions or ([batch],)), **frame)
        (handler or self.handler)(made, batch)  # type: ignore[arg-type]
        return made

    def shown(self) -> list[int]:
        return sorted(row["n"] for row in self.target.rows)


def active(query: Query) -> Any:
    """The query's run, as Spark lists it."""
    streams = query.spark.streams
    return SimpleNamespace(id=query.spark.query, runId=query.spark.run, stop=lambda: streams.active.clear())  # noqa: PLW0108 - made before the list is
