"""ForeachBatch: several writes of somebody's own function in one decision, on real Spark, Kafka and PostgreSQL."""

from __future__ import annotations

import contextlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf

from onceward import ForeachBatch, KafkaSink, Output, PostgresSink
from onceward.core.errors import ConfigurationError
from onceward.core.kit.crash_points import Step
from onceward.core.log import open_store, read

from .spark_kit import Feed, crash_at, finish, ids_in_table, ids_in_topic, make_table, once, prepared_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from onceward.connectors.spark.write.foreach_batch import EpochWriter
    from onceward.core.log import LogView
    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]


def totals(batch: DataFrame) -> DataFrame:
    return batch.groupBy("word").count()


class Job:
    """Feed → raw rows in Kafka and in one table, counts in another."""

    def __init__(self, spark: SparkSession, folder: Path, kafka: KafkaServer, topic: str, dsn: str) -> None:
        self.spark, self.folder, self.servers, self.topic, self.dsn = spark, folder, kafka.bootstrap_servers, topic, dsn
        self.feed = Feed(folder)
        self.feed.add()
        self.checkpoint = folder / "checkpoint"
        self.pipeline = f"batches-{folder.parent.name}-{folder.name}"[-60:].lstrip("-_.")
        self.raw = KafkaSink("raw", bootstrap_servers=self.servers, topic=topic, select=["to_json(struct(*)) AS value"])
        self.words = PostgresSink("words", dsn=dsn, table="words")
        self.totals = PostgresSink("totals", dsn=dsn, table="totals")
        make_table(dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE totals (word text, count bigint)")

    def handler(self, **options: Any) -> ForeachBatch:
        return ForeachBatch(self.raw, self.words, self.totals, pipeline=self.pipeline, **options)

    def write_all(self, batch: DataFrame, epoch: EpochWriter) -> None:
        epoch.write(batch, self.raw)
        epoch.write(batch, self.words)
        epoch.write(totals(batch), self.totals)

    def run(self, function: Callable[[DataFrame, int], None], frame: DataFrame | None = None) -> None:
        frame = self.feed.stream(self.spark) if frame is None else frame
        writer = frame.writeStream.foreachBatch(function).option("checkpointLocation", str(self.checkpoint))
        finish(writer.trigger(availableNow=True).start())

    def run_with(self, body: Callable[[DataFrame, EpochWriter], None], **options: Any) -> None:
        handler = self.handler(**options)

        def write(batch: DataFrame, number: int) -> None:
            with handler.epoch(batch, number) as epoch:
                body(batch, epoch)

        self.run(write)

    def log(self) -> LogView:
        return read(open_store(f"{self.checkpoint}/onceward", pipeline=self.pipeline))

    def totalled(self) -> int:
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("SELECT coalesce(sum(count), 0) FROM totals").fetchone()
        assert row is not None
        return int(row[0])

    def check(self) -> None:
        """Each row once everywhere."""
        assert ids_in_topic(self.servers, self.topic) == once(self.feed.rows)
        assert ids_in_table(self.dsn) == once(self.feed.rows)
        assert self.totalled() == self.feed.rows
        assert prepared_in(self.dsn) == 0

    def check_nothing(self) -> None:
        assert not ids_in_topic(self.servers, self.topic)
        assert not ids_in_table(self.dsn)
        assert self.totalled() == 0
        assert prepared_in(self.dsn) == 0


def test_several_writes_of_a_function_are_one_decision(job: Job) -> None:
    job.run_with(job.write_all)
    job.feed.add()
    job.feed.add()
    job.run_with(job.write_all)
    job.check()
    newest = job.log().newest
    assert newest is not None
    assert (newest.epoch, sorted(newest.sinks)) == (2, ["raw", "totals", "words"])


def test_as_the_function_itself_it_writes_each_output(job: Job) -> None:
    for _ in range(2):
        job.run(ForeachBatch(job.raw, job.words, Output(job.totals, totals), pipeline=job.pipeline))
        job.feed.add()
    job.run(ForeachBatch(job.raw, job.words, Output(job.totals, totals), pipeline=job.pipeline))
    job.check()


AT_NIGHT = (Step.START_AFTER, Step.ACKNOWLEDGED, Step.COMMIT_BEFORE, Step.COMPLETE_AFTER)
BY_DAY = (Step.START_BEFORE, Step.DECIDE_BEFORE, Step.DECIDE_AFTER, Step.COMMIT_AFTER, Step.COMPLETE_BEFORE)


@pytest.mark.parametrize("step", [*BY_DAY, *(pytest.param(step, marks=pytest.mark.nightly) for step in AT_NIGHT)])
def test_a_driver_that_dies_at_any_step_loses_and_doubles_nothing(job: Job, step: Step) -> None:
    job.run_with(job.write_all)
    job.feed.add()
    with crash_at(step), pytest.raises(StreamingQueryException):
        job.run_with(job.write_all)
    job.feed.add()
    job.run_with(job.write_all)
    job.check()


def test_a_function_that_raises_between_its_writes_writes_nothing(job: Job) -> None:
    def fail(batch: DataFrame, epoch: EpochWriter) -> None:
        job.write_all(batch, epoch)
        raise KeyError("missing")

    with pytest.raises(StreamingQueryException, match="missing"):
        job.run_with(fail)
    job.check_nothing()
    job.run_with(job.write_all)
    job.check()


def test_a_refused_write_fails_the_epoch_although_the_function_catches_its_error(job: Job) -> None:
    def catch(batch: DataFrame, epoch: EpochWriter) -> None:
        job.write_all(batch, epoch)
        with contextlib.suppress(Exception):
            epoch.write(batch.select("id"), job.words)

    with pytest.raises(StreamingQueryException, match=r"(?s)a write of this epoch was refused.*id bigint, word string"):
        job.run_with(catch)
    job.check_nothing()
    job.run_with(job.write_all)
    job.check()


def test_a_sink_that_is_written_twice_gets_the_rows_of_both(job: Job) -> None:
    def halves(batch: DataFrame, epoch: EpochWriter) -> None:
        epoch.write(batch, job.raw)
        epoch.write(batch.where("id % 2 = 0"), job.words)
        epoch.write(batch.where("id % 2 = 1").select("word", "id"), job.words)
        epoch.write(totals(batch), job.totals)

    job.run_with(halves)
    job.check()


def test_writes_from_threads_are_of_the_epoch_and_late_ones_are_refused(job: Job) -> None:
    kept: list[EpochWriter] = []

    def threads(batch: DataFrame, epoch: EpochWriter) -> None:
        kept.append(epoch)
        with ThreadPoolExecutor(3) as pool:
            for written in [(batch, job.raw), (batch, job.words), (totals(batch), job.totals)]:
                pool.submit(epoch.write, *written)

    job.run_with(threads)
    job.check()
    with pytest.raises(ConfigurationError, match="not open"):
        kept[0].write(job.spark.range(1), job.words)


def test_an_epoch_of_which_nothing_is_written_is_decided_and_keeps_a_stateful_query_going(job: Job) -> None:
    """The state store of dropDuplicates misses a version if a batch is not run."""
    handler = job.handler()

    def sometimes(batch: DataFrame, number: int) -> None:
        with handler.epoch(batch, number) as epoch:
            if number != 1:
                job.write_all(batch, epoch)

    for _ in range(2):
        job.feed.add()
    job.run(sometimes, job.feed.stream(job.spark).dropDuplicates(["id"]))
    written = [number for number in range(60) if not 20 <= number < 40]
    assert sorted(ids_in_table(job.dsn)) == written
    assert job.log().completed == 2


def test_rows_that_do_not_come_from_the_micro_batch_are_written_in_its_epoch(job: Job) -> None:
    def elsewhere(_: DataFrame, epoch: EpochWriter) -> None:
        epoch.write(job.spark.range(3).selectExpr("id", "'x' AS word"), job.words)

    job.run_with(elsewhere)
    assert ids_in_table(job.dsn) == once(3)


def test_a_function_that_leaves_out_a_batch_or_swallows_its_failure_is_found_out_at_the_next(job: Job) -> None:
    handler = job.handler()

    def leaves_out(batch: DataFrame, number: int) -> None:
        if number == 1:
            return
        with handler.epoch(batch, number) as epoch:
            job.write_all(batch, epoch)

    def swallows(batch: DataFrame, number: int) -> None:
        with contextlib.suppress(Exception):
            leaves_out(batch, number)

    for _ in range(2):
        job.feed.add()
    with pytest.raises(StreamingQueryException, match="the newest decided epoch is 0"):
        job.run(leaves_out)
    assert ids_in_table(job.dsn) == once(20)
    with pytest.raises(StreamingQueryException, match="the newest decided epoch is 0"):
        job.run_with(job.write_all)
    job.run_with(job.write_all, rewind="the rows of batch 1 are not wanted")
    assert sorted(ids_in_table(job.dsn)) == [*range(20), *range(40, 60)]
    with crash_at(Step.DECIDE_BEFORE):
        job.feed.add()
        job.run(swallows)
    job.feed.add()
    with pytest.raises(StreamingQueryException, match="the newest decided epoch is 2"):
        job.run_with(job.write_all)


def misused(job: Job, name: str) -> tuple[Callable[[DataFrame, int], None], str]:
    """A function that misuses the handler, and words of the error."""
    handler = job.handler()

    def whole(batch: DataFrame, number: int) -> None:
        with handler.epoch(batch, number) as epoch:
            job.write_all(batch, epoch)

    def of(body: Callable[[DataFrame, EpochWriter], None]) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, number: int) -> None:
            with handler.epoch(batch, number) as epoch:
                body(batch, epoch)

        return write

    def in_thread(batch: DataFrame, number: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(whole, batch, number).result()

    def nested(batch: DataFrame, number: int) -> None:
        with handler.epoch(batch, number) as epoch:
            job.write_all(batch, epoch)
            whole(batch, number)

    stranger = PostgresSink("words", dsn=job.dsn, table="words")
    cases: dict[str, tuple[Callable[[DataFrame, int], None], str]] = {
        "without with": (lambda batch, number: handler.epoch(batch, number).write(batch, job.words), "not open"),
        "another number": (lambda batch, number: whole(batch, number + 1), "the micro-batch is 0"),
        "a nested epoch": (nested, "is open already"),
        "a thread of its own": (in_thread, "not the thread"),
        "a sink of somebody else": (of(lambda batch, epoch: epoch.write(batch, stranger)), "not one of this pipeline"),
        "a name": (of(lambda batch, epoch: epoch.write(batch, "words")), "a str is not one"),  # type: ignore[arg-type]
        "rows": (of(lambda batch, epoch: epoch.write(batch.collect(), job.words)), "given: list"),  # type: ignore[arg-type]
        "a stream": (of(lambda _, epoch: epoch.write(job.feed.stream(job.spark), job.words)), "streaming DataFrame"),
        "a column that the table lacks": (
            of(lambda batch, epoch: epoch.write(batch.withColumn("more", sf.lit(1)), job.words)),
            "more",
        ),
        "no micro-batch": (lambda _, number: whole(job.feed.stream(job.spark), number), "takes the micro-batch"),
    }
    return cases[name]


MISUSES = [
    *("without with", "another number", "a nested epoch", "a thread of its own", "a sink of somebody else", "a name"),
    *("rows", "a stream", "a column that the table lacks", "no micro-batch"),
]


@pytest.mark.parametrize("name", MISUSES)
def test_a_misuse_is_a_clear_error_before_anything_is_written(job: Job, name: str) -> None:
    function, words = misused(job, name)
    with pytest.raises(StreamingQueryException, match=words):
        job.run(function)
    job.check_nothing()
    job.run_with(job.write_all)
    job.check()


def test_a_second_epoch_of_a_batch_is_refused_and_its_rows_are_not_lost_silently(job: Job) -> None:
    def twice(batch: DataFrame, number: int) -> None:
        for part in (0, 1):
            handler = job.handler()  # another object does not help
            with handler.epoch(batch, number) as epoch:
                epoch.write(batch.where(f"id % 2 = {part}"), job.words)

    with pytest.raises(StreamingQueryException, match="has been written and committed in this run"):
        job.run(twice)
    assert sorted(ids_in_table(job.dsn)) == list(range(0, 20, 2))


def test_a_second_query_with_the_same_object_is_refused(job: Job, spark: SparkSession) -> None:
    handler, begun, ended = job.handler(), threading.Event(), threading.Event()

    def first(batch: DataFrame, number: int) -> None:
        with handler.epoch(batch, number) as epoch:
            job.write_all(batch, epoch)
        begun.set()
        ended.wait(60)

    writer = job.feed.stream(spark).writeStream.foreachBatch(first)
    query = writer.option("checkpointLocation", str(job.folder / "first")).start()
    try:
        assert begun.wait(60)
        with pytest.raises(StreamingQueryException, match="another query that is running uses the same"):
            job.run(handler)
    finally:
        ended.set()
        query.stop()
    job.check()


def test_outside_of_a_query_it_is_refused(job: Job) -> None:
    handler = job.handler()
    with pytest.raises(ConfigurationError, match=r"not the thread in which Spark calls.*df\.write\.format"):
        handler(job.spark.range(1), 0)
    with pytest.raises(ConfigurationError, match="takes one or more sinks"):
        ForeachBatch(pipeline="p")
    with pytest.raises(ConfigurationError, match="name of its own"):
        ForeachBatch(job.words, job.words, pipeline="p")


def test_a_checkpoint_that_was_deleted_is_noticed_before_anything_is_written_twice(job: Job) -> None:
    job.run_with(job.write_all)
    shutil.rmtree(job.checkpoint)
    with pytest.raises(StreamingQueryException, match="either the checkpoint folder was deleted"):
        job.run_with(job.write_all)
    job.check()


def test_a_value_that_differs_in_each_job_of_an_epoch_is_computed_once(job: Job) -> None:
    frame = job.feed.stream(job.spark).withColumn("word", sf.expr("uuid()"))
    handler = job.handler()

    def write(batch: DataFrame, number: int) -> None:
        with handler.epoch(batch, number) as epoch:
            job.write_all(batch, epoch)

    job.run(write, frame)
    with psycopg.connect(job.dsn) as connection:
        words = connection.execute("SELECT word FROM words ORDER BY 1").fetchall()
        assert connection.execute("SELECT word FROM totals ORDER BY 1").fetchall() == words
