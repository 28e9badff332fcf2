"""What functions of an Output and of a ForeachBatch may do with a micro-batch, on a real Spark."""

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as sf

from onceward import FileSink, ForeachBatch, Output, exactly_once
from onceward.connectors.spark.write import handler
from onceward.core.errors import ConfigurationError, EpochConflictError, SchemaError
from onceward.core.log import DirectoryStore, read
from onceward.core.run.handover import Successor

from .spark_kit import Feed, finish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark]
Function = Any
"""A function of an Output: from a DataFrame to a DataFrame."""


class Job:
    """Feed → folders of Parquet files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.feed = spark, folder, Feed(folder)
        self.pipeline = f"functions-{uuid.uuid4().hex[:8]}"
        self.feed.add()

    def sink(self, name: str) -> FileSink:
        return FileSink(name, self.folder / name)

    def marked(self) -> DataFrame:
        """Rows with a value that is another one in each computation."""
        mark = sf.udf(lambda _: uuid.uuid4().hex, "string").asNondeterministic()
        return self.feed.stream(self.spark).withColumn("mark", mark("id"))

    def run(self, *outputs: Any, frame: DataFrame | None = None, mode: str = "append") -> None:
        frame = self.feed.stream(self.spark) if frame is None else frame
        writer = exactly_once(frame, *outputs, checkpoint=str(self.folder / "checkpoint"), pipeline=self.pipeline)
        finish(writer.outputMode(mode).trigger(availableNow=True).start())

    def run_batches(self, body: Callable[[DataFrame, Any], None], handler: ForeachBatch, frame: DataFrame) -> None:
        def write(batch: DataFrame, number: int) -> None:
            with handler.epoch(batch, number) as epoch:
                body(batch, epoch)

        query = (
            frame.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def rows(self, name: str) -> list[dict[str, Any]]:
        folder = self.folder / name
        return pyarrow.dataset.dataset(folder).to_table().to_pylist() if any(folder.glob("*.parquet")) else []

    def marks(self, *names: str) -> dict[int, set[str]]:
        marks: dict[int, set[str]] = {}
        for name in names:
            for row in self.rows(name):
                marks.setdefault(row["id"], set()).add(row["mark"])
        return marks

    def keeps_nothing(self) -> bool:
        """Whether Spark has forgotten everything that was persisted."""
        session: Any = self.spark
        return bool(session._jsparkSession.sharedState().cacheManager().isEmpty())


@pytest.fixture
def views_job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def test_a_view_of_the_batch_is_not_looked_for_in_the_programs_session(views_job: Job) -> None:
    """Plain foreachBatch raises TABLE_OR_VIEW_NOT_FOUND."""

    def by_program(batch: DataFrame) -> DataFrame:
        batch.createOrReplaceTempView("updates")
        return views_job.spark.sql("SELECT word, count(*) AS rows FROM updates GROUP BY word")

    with pytest.raises(SchemaError, match="updates"):
        views_job.run(Output(views_job.sink("counts"), by_program))
    assert not views_job.spark.catalog.tableExists("updates")
    views_job.spark.range(1).selectExpr("'old' AS word").createOrReplaceTempView("updates")
    try:
        with pytest.raises(ConfigurationError, match=r"does not read the micro-batch.*batch\.sparkSession"):
            views_job.run(views_job.sink("all"), Output(views_job.sink("counts"), by_program))
        assert views_job.spark.table("updates").collect()[0].word == "old"
    finally:
        views_job.spark.catalog.dropTempView("updates")
    assert views_job.rows("all") == []


def by_view(batch: DataFrame) -> DataFrame:
    batch.createOrReplaceTempView("updates")
    return batch.sparkSession.sql("SELECT id FROM updates")


def by_subquery(batch: DataFrame) -> DataFrame:
    batch.createOrReplaceTempView("updates")
    return batch.sparkSession.sql("SELECT id FROM range(1000) WHERE id IN (SELECT id FROM updates)")


def by_table_expression(batch: DataFrame) -> DataFrame:
    batch.createOrReplaceTempView("updates")
    return batch.sparkSession.sql("WITH u AS (SELECT id FROM updates) SELECT id FROM u UNION SELECT id FROM u")


def by_cache(batch: DataFrame) -> DataFrame:
    return batch.select("id").persist()


@pytest.mark.parametrize("function", [by_view, by_subquery, by_table_expression, by_cache])
def test_what_reads_the_batch_in_any_way_is_written(views_job: Job, function: Function) -> None:
    views_job.feed.add()
    views_job.run(Output(views_job.sink("rows"), function))
    assert sorted(row["id"] for row in views_job.rows("rows")) == list(range(views_job.feed.rows))
    views_job.spark.catalog.clearCache()


def test_a_result_of_another_call_is_refused(views_job: Job) -> None:
    kept: list[DataFrame] = []

    def once(batch: DataFrame) -> DataFrame:
        if not kept:
            kept.append(batch.groupBy("word").count())
        return kept[0]

    with pytest.raises(StreamingQueryException, match="does not read the micro-batch"):
        views_job.run(views_job.sink("all"), Output(views_job.sink("counts"), once))
    assert (views_job.rows("all"), views_job.rows("counts")) == ([], [])


def test_what_is_made_elsewhere_is_written_if_the_output_says_so(views_job: Job) -> None:
    def collected(batch: DataFrame) -> DataFrame:
        return batch.sparkSession.createDataFrame([(batch.count(),)], "rows long")

    with pytest.raises(ConfigurationError, match="reads_batch=False"):
        views_job.run(Output(views_job.sink("counts"), collected))
    views_job.run(Output(views_job.sink("counts"), collected, reads_batch=False))
    assert views_job.rows("counts") == [{"rows": 20}]


def test_the_call_that_describes_leaves_nothing_persisted(views_job: Job) -> None:
    def caching(batch: DataFrame) -> DataFrame:
        batch.persist()
        batch.sparkSession.conf.set("onceward.test.described", "yes")
        return batch.select("id").persist().groupBy("id").count()

    assert views_job.keeps_nothing()
    exactly_once(
        views_job.feed.stream(views_job.spark),
        Output(views_job.sink("rows"), caching),
        checkpoint=str(views_job.folder / "checkpoint"),
        pipeline=views_job.pipeline,
    )
    assert views_job.keeps_nothing()
    assert views_job.spark.conf.get("onceward.test.described", None) is None


def twice(batch: DataFrame) -> DataFrame:
    return batch.union(batch)


def joined(batch: DataFrame) -> DataFrame:
    return batch.join(batch.select("id", sf.col("mark").alias("other")), "id").where("mark = other")


def counted_first(batch: DataFrame) -> DataFrame:
    newest = batch.agg(sf.max("mark")).collect()[0][0]
    return batch.where(sf.col("mark") <= sf.lit(newest))


def released(batch: DataFrame) -> DataFrame:
    batch.persist()
    batch.count()
    batch.unpersist()
    return batch.union(batch)


@pytest.mark.parametrize("function", [twice, joined, counted_first, released])
@pytest.mark.parametrize("others", [(), ("plain",)])
def test_a_function_that_reads_the_batch_twice_sees_one_value_of_each_row(
    views_job: Job, function: Function, others: tuple[str, ...]
) -> None:
    views_job.run(Output(views_job.sink("rows"), function), *map(views_job.sink, others), frame=views_job.marked())
    marks = views_job.marks("rows", *others)
    assert len(marks) == views_job.feed.rows
    assert all(len(values) == 1 for values in marks.values()), marks
    assert views_job.keeps_nothing()


def test_a_block_that_writes_two_frames_into_one_sink_sees_one_value_of_each_row(views_job: Job) -> None:
    sink = views_job.sink("rows")

    def write(batch: DataFrame, epoch: Any) -> None:
        epoch.write(batch, sink)
        epoch.write(batch.where("id >= 0"), sink)

    views_job.run_batches(write, ForeachBatch(sink, pipeline=views_job.pipeline), views_job.marked())
    assert len(views_job.rows("rows")) == 2 * views_job.feed.rows
    assert all(len(values) == 1 for values in views_job.marks("rows").values())


@pytest.mark.parametrize("late", [False, True])
def test_a_block_that_releases_what_it_writes_is_refused(views_job: Job, late: bool) -> None:
    one, two = views_job.sink("one"), views_job.sink("two")
    handler = ForeachBatch(one, two, pipeline=views_job.pipeline)
    mark = sf.udf(lambda _: uuid.uuid4().hex, "string").asNondeterministic()
    kept: list[DataFrame] = []

    def write(batch: DataFrame, number: int) -> None:
        with handler.epoch(batch, number) as epoch:
            kept.append(batch.withColumn("mark", mark("id")).persist())
            epoch.write(kept[-1].where("id >= 0"), one)
            epoch.write(kept[-1].select("*"), two)
            if not late:
                kept[-1].unpersist()
        kept[-1].unpersist()

    query = (
        views_job.feed.stream(views_job.spark)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(views_job.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    if not late:
        with pytest.raises(StreamingQueryException, match=r"unpersist\(\) was called before the end of the block"):
            query.awaitTermination()
        assert views_job.rows("one") == views_job.rows("two") == []
        return
    query.awaitTermination()
    marks = views_job.marks("one", "two")
    assert len(marks) == views_job.feed.rows
    assert all(len(values) == 1 for values in marks.values())


def nothing(batch: DataFrame) -> DataFrame:
    return batch.where(sf.lit(False))


def one_row(batch: DataFrame) -> DataFrame:
    return batch.limit(1)


@pytest.mark.parametrize("function", [nothing, one_row])
@pytest.mark.parametrize("by_block", [False, True])
def test_a_query_that_keeps_state_goes_on_after_an_epoch_of_which_its_output_read_nothing(
    views_job: Job, function: Function, by_block: bool
) -> None:
    """Else the state store lacks a version of the partitions that no job computed."""
    for turn in range(3):
        counts = views_job.feed.stream(views_job.spark).groupBy("word").count()
        own = function if turn == 1 else lambda batch: batch
        if by_block:
            handler = ForeachBatch(Output(views_job.sink("counts"), own), pipeline=views_job.pipeline)
            query = (
                counts.writeStream.outputMode("update")
                .foreachBatch(handler)
                .option("checkpointLocation", str(views_job.folder / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        else:
            views_job.run(Output(views_job.sink("counts"), own), frame=counts, mode="update")
        views_job.feed.add()
    newest: dict[str, int] = {}
    for row in views_job.rows("counts"):
        newest[row["word"]] = max(newest.get(row["word"], 0), row["count"])
    assert sum(newest.values()) == 60


@pytest.mark.parametrize("as_argument", [False, True])
def test_a_start_that_spark_refuses_takes_nothing_over(
    views_job: Job, monkeypatch: pytest.MonkeyPatch, as_argument: bool
) -> None:
    warmed: list[Any] = []
    monkeypatch.setattr(handler, "warm_up", lambda *_: warmed.append(True))  # the first step of a hand-over
    counts = views_job.feed.stream(views_job.spark).groupBy("word").count()
    options: dict[str, Any] = {
        "checkpoint": str(views_job.folder / "checkpoint"),
        "pipeline": views_job.pipeline,
        "take_over": 30,
    }
    writer = exactly_once(counts, views_job.sink("counts"), **options)
    with pytest.raises(AnalysisException, match="Invalid streaming output mode: append"):
        writer.start(outputMode="append") if as_argument else writer.start()
    assert warmed == []
    query = (
        exactly_once(counts, views_job.sink("counts"), **options)
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert warmed == [True]
    assert sum(row["count"] for row in views_job.rows("counts")) == 20


class Unready(FileSink):
    """Writes into a target that is not set up for it."""

    def validate(self, schema: Any) -> None:
        raise ConfigurationError(f"there is no such column: {schema.names}")


REFUSED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a name that is taken": ("taken", lambda writer: writer.queryName("taken")),
    "continuous processing": ("continuous", lambda writer: writer.trigger(continuous="1 second")),
    "asynchronous progress": ("asynchronous", lambda writer: writer.option("asyncProgressTrackingEnabled", "true")),
    "partitions": ("partitionBy", lambda writer: writer.partitionBy("word")),
    "a mode that a sink refuses": ("complete", lambda writer: writer.outputMode("complete")),
    "a sink that is not ready": ("no such column", lambda writer: writer),
    "another query's checkpoint": ("another query", lambda writer: writer),
    "an older copy of the checkpoint": ("offsets/1", lambda writer: writer),
}


@pytest.mark.parametrize("why", REFUSED)
def test_no_start_that_is_refused_ends_a_run_that_works(
    views_job: Job, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Nobody is asked to end, and START is not put."""
    views_job.run(views_job.sink("words"))
    if "older" in why:
        shutil.copytree(views_job.folder / "checkpoint", views_job.folder / "other")
        views_job.feed.add()
        views_job.run(views_job.sink("words"))
    store = DirectoryStore(views_job.folder / "checkpoint/onceward")
    log, keys = read(store), store.list_keys()
    monkeypatch.setattr(Successor, "take", lambda *_: pytest.fail("it asks the other driver to end"))
    match, change = REFUSED[why]
    frame, sink = views_job.feed.stream(views_job.spark), views_job.sink("words")
    checkpoint, place = "checkpoint", None
    if "mode" in why:
        frame = frame.groupBy("word").count()
    if "not ready" in why:
        sink = Unready("words", views_job.folder / "words")
    if "checkpoint" in why:
        checkpoint, place = "other", store
    writer = exactly_once(
        frame,
        sink,
        checkpoint=str(views_job.folder / checkpoint),
        pipeline=views_job.pipeline,
        store=place,
        take_over=30,
    )
    taken = views_job.feed.stream(views_job.spark).writeStream.format("noop").queryName("taken")
    other = taken.option("checkpointLocation", str(views_job.folder / "taken")).start() if "taken" in why else None
    try:
        with pytest.raises((ConfigurationError, EpochConflictError), match=match):
            change(writer).start()
    finally:
        if other is not None:
            other.stop()
    assert (read(store).start, store.list_keys()) == (log.start, keys)


def other_sources(job: Job) -> DataFrame:
    return counted(job.feed.stream(job.spark).union(job.feed.stream(job.spark)))


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("word").count()


CHANGES: dict[str, tuple[str, Callable[[Job], DataFrame]]] = {
    "another number of sources": ("now there are .2. sources", other_sources),
    "another kind of source": (
        "",
        lambda job: counted(job.spark.readStream.format("rate").load().selectExpr("'a' word")),
    ),
    "another key": ("KEY_SCHEMA", lambda job: job.feed.stream(job.spark).groupBy("id").count()),
    "another aggregate": (
        "VALUE_SCHEMA",
        lambda job: job.feed.stream(job.spark).groupBy("word").agg(sf.max("word").alias("count")),
    ),
    "no state any more": ("OPERATOR_NOT_MATCH", lambda job: job.feed.stream(job.spark)),
}


@pytest.mark.parametrize("why", CHANGES)
def test_a_query_that_cannot_continue_from_the_checkpoint_takes_nothing_over(
    views_job: Job, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Spark would tell so in the first micro-batch, when the other driver had ended."""
    views_job.run(views_job.sink("words"), frame=counted(views_job.feed.stream(views_job.spark)), mode="update")
    views_job.feed.add()
    views_job.run(views_job.sink("words"), frame=counted(views_job.feed.stream(views_job.spark)), mode="update")
    store = DirectoryStore(views_job.folder / "checkpoint/onceward")
    log, keys = read(store), store.list_keys()
    match, change = CHANGES[why]
    options: dict[str, Any] = {
        "checkpoint": str(views_job.folder / "checkpoint"),
        "pipeline": views_job.pipeline,
        "take_over": 30,
    }
    refused = exactly_once(change(views_job), views_job.sink("words"), **options).outputMode("update")
    with monkeypatch.context() as patch:
        patch.setattr(Successor, "take", lambda *_: pytest.fail("it asks the other driver to end"))
        with pytest.raises(ConfigurationError, match=f"cannot continue.*{match}"):
            refused.start()
    assert (read(store).start, store.list_keys()) == (log.start, keys)
    assert views_job.spark.streams.active == []
    views_job.feed.add()
    frame = counted(views_job.feed.stream(views_job.spark)).where("count > 0")
    accepted = exactly_once(frame, views_job.sink("words"), **options).outputMode("update")
    accepted.trigger(availableNow=True).start().awaitTermination()
    assert max(row["count"] for row in views_job.rows("words")) == 9


def test_a_foreach_batch_whose_target_is_not_ready_ends_no_run_that_works(views_job: Job) -> None:
    frame = views_job.feed.stream(views_job.spark)
    checkpoint = str(views_job.folder / "checkpoint")

    def run(sink: FileSink) -> None:
        query = (
            frame.writeStream.foreachBatch(ForeachBatch(sink, pipeline=views_job.pipeline))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run(views_job.sink("words"))
    views_job.feed.add()
    start = read(DirectoryStore(views_job.folder / "checkpoint/onceward")).start
    with pytest.raises(StreamingQueryException, match="no such column"):
        run(Unready("words", views_job.folder / "words"))
    assert read(DirectoryStore(views_job.folder / "checkpoint/onceward")).start == start
    run(views_job.sink("words"))
    assert sorted(row["id"] for row in views_job.rows("words")) == list(range(views_job.feed.rows))
