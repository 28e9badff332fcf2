"""`exactly_once` on real Spark, Kafka and PostgreSQL. Numbers are those of the scenario list."""

from __future__ import annotations

import re
import shutil
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf

from onceward import FileSink, KafkaSink, PostgresSink
from onceward.connectors.spark import exactly_once
from onceward.connectors.spark.session.query import read_by_hadoop, read_text
from onceward.core.checkpoint import CommitPolicy
from onceward.core.errors import ConfigurationError, EpochConflictError, SchemaError
from onceward.core.kit.crash_points import Step
from onceward.core.log import LogWriter, open_store, read

from .spark_kit import JSON, Job, crash_at, ids_in_table, ids_in_topic, make_table, once, prepared_in

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]


def test_each_record_takes_effect_once_in_both_targets_across_a_clean_restart(job: Job) -> None:
    job.feed.add()
    job.feed.add()
    job.run()
    assert job.seen_once()
    job.feed.add()
    job.run()
    assert job.seen_once()


BY_DAY = (Step.START_AFTER, Step.ACKNOWLEDGED, Step.DECIDE_BEFORE, Step.DECIDE_AFTER, Step.COMMIT_AFTER)
BY_NIGHT = (
    Step.SWEEP_AFTER,
    Step.COMMIT_BEFORE,
    Step.COMPLETE_BEFORE,
    Step.COMPLETE_AFTER,
    Step.LOG_DELETE_BEFORE,
)


@pytest.mark.parametrize("step", [*BY_DAY, *(pytest.param(step, marks=pytest.mark.nightly) for step in BY_NIGHT)])
def test_88_a_driver_that_dies_at_any_step_loses_and_doubles_nothing(job: Job, step: Step) -> None:
    job.feed.add()
    job.run()
    job.feed.add()
    with crash_at(step), pytest.raises(StreamingQueryException):
        job.run()
    job.feed.add()
    job.run()
    assert job.seen_once()


def test_16_dying_twice_in_recovery_loses_and_doubles_nothing(job: Job) -> None:
    job.feed.add()
    with crash_at(Step.DECIDE_AFTER), pytest.raises(StreamingQueryException):
        job.run()
    for step in (Step.COMMIT_AFTER, Step.COMPLETE_BEFORE):
        with crash_at(step), pytest.raises(StreamingQueryException):
            job.run()
    job.run()
    assert job.seen_once()


def test_a_rewind_left_in_the_command_line_is_done_once(job: Job) -> None:
    """A supervisor repeats the command line after each crash between the decision and Spark's own commit log."""
    job.feed.add()
    job.run(rewind="restored on Tuesday")
    for step in (Step.DECIDE_AFTER, Step.COMPLETE_AFTER):
        job.feed.add()
        with crash_at(step), pytest.raises(StreamingQueryException):
            job.run(rewind="restored on Tuesday")
    job.feed.add()
    job.run(rewind="restored on Tuesday")
    assert job.seen_once()


def test_a_file_of_the_checkpoint_is_read_alike_by_python_and_by_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    """Local ones are read by Python, which spares calls into the JVM; others by Hadoop."""
    (tmp_path / "7").write_text("v1\nnaïve\n", encoding="utf-8")
    for name in ("7", "8"):
        url = f"file:{tmp_path}/{name}"
        assert read_text(url) == read_by_hadoop(spark, url)


def newest(folder: Path) -> Path:
    return max((file for file in folder.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))


def forget(file: Path) -> None:
    file.unlink()
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def test_87_a_replayed_batch_is_recognised_and_not_written_again(job: Job) -> None:
    job.feed.add()
    job.feed.add()
    job.run()
    forget(newest(job.checkpoint / "commits"))
    job.run()
    job.feed.add()
    job.run()
    assert job.seen_once()


def test_90_the_same_batch_with_other_content_is_refused(job: Job) -> None:
    job.feed.add()
    job.run()
    forget(newest(job.checkpoint / "commits"))
    offsets = newest(job.checkpoint / "offsets")
    changed = offsets.read_text().replace('"batchWatermarkMs":0', '"batchWatermarkMs":1')
    assert changed != offsets.read_text()
    forget(offsets)
    offsets.write_text(changed)
    with pytest.raises(StreamingQueryException, match="other input"):
        job.run()


def test_91_an_old_name_with_a_new_checkpoint_is_refused(job: Job) -> None:
    job.feed.add()
    job.run()
    shutil.rmtree(job.checkpoint)
    with pytest.raises(StreamingQueryException, match=job.pipeline):
        job.run()
    assert job.seen_once()


def test_91_an_older_copy_of_the_checkpoint_is_refused(job: Job) -> None:
    job.feed.add()
    job.run(store=str(job.folder / "log"))
    copy = job.folder / "copy"
    shutil.copytree(job.checkpoint, copy)
    job.feed.add()
    job.feed.add()
    job.run(store=str(job.folder / "log"))
    with pytest.raises(StreamingQueryException, match="newest decided epoch"):
        job.run(checkpoint=str(copy), store=str(job.folder / "log"))
    assert job.seen_once()


def test_18_going_back_on_purpose_needs_a_reason_and_is_recorded(job: Job) -> None:
    job.feed.add()
    job.run()
    shutil.rmtree(job.checkpoint)
    job.run(rewind="the table was emptied by hand")
    assert ids_in_table(job.dsn) == once(job.feed.rows) + once(job.feed.rows)
    assert ids_in_topic(job.servers, job.topic) == once(job.feed.rows) + once(job.feed.rows)


def test_a_checkpoint_folder_of_another_pipeline_is_refused(job: Job) -> None:
    job.feed.add()
    job.run()
    job.feed.add()
    with pytest.raises(EpochConflictError, match="belongs to pipeline"):
        job.run(pipeline="another")


def test_36_another_query_under_the_same_name_does_not_stop_the_one_that_runs(job: Job, tmp_path: Path) -> None:
    store = str(tmp_path / "log")
    job.feed.add()
    running = exactly_once(
        job.feed.stream(job.spark), *job.sinks(), checkpoint=str(job.checkpoint), pipeline=job.pipeline, store=store
    ).start()
    try:
        running.processAllAvailable()
        with pytest.raises(StreamingQueryException, match="another query"):
            job.run(checkpoint=str(tmp_path / "second"), store=store)
        job.feed.add()
        running.processAllAvailable()
    finally:
        running.stop()
    assert job.seen_once()


def test_output_mode_complete_needs_an_upsert(job: Job) -> None:
    job.feed.add()
    totals = job.feed.stream(job.spark).groupBy("word").count().selectExpr("`count` AS id", "word")
    sink = PostgresSink("table", dsn=job.dsn, table="words")
    writer = exactly_once(totals, sink, checkpoint=str(job.checkpoint), pipeline=job.pipeline).outputMode("complete")
    with pytest.raises(StreamingQueryException, match="upsert"):
        writer.trigger(availableNow=True).start().awaitTermination()
    assert not ids_in_table(job.dsn)


def test_a_wrong_choice_is_named(job: Job) -> None:
    with pytest.raises(ConfigurationError, match="fail"):
        job.start(on_lost="ignore")
    with pytest.raises(ConfigurationError, match="pipeline name 7"):
        job.start(pipeline=7)


def test_36_a_second_writer_fences_the_first_which_stops_and_doubles_nothing(job: Job) -> None:
    job.feed.add()
    job.run()

    def intrude(*_: object) -> None:
        store = open_store(str(job.checkpoint / "onceward"))
        LogWriter(store, job.pipeline, CommitPolicy()).start()

    job.feed.add()
    job.feed.add()
    with pytest.raises(StreamingQueryException, match="newer writer"):
        job.run(on_complete=intrude)
    job.run()
    assert job.seen_once()


@pytest.mark.parametrize("partitions", [(3, 1), (1, 4), pytest.param((4, 2), marks=pytest.mark.nightly)])
def test_45_to_50_the_number_of_partitions_may_change_over_a_crash_and_back(
    job: Job, partitions: tuple[int, int]
) -> None:
    before, after = partitions
    job.feed.add()
    with crash_at(Step.ACKNOWLEDGED), pytest.raises(StreamingQueryException):
        job.run(job.feed.stream(job.spark, before))
    job.feed.add()
    job.run(job.feed.stream(job.spark, after))
    job.feed.add()
    with crash_at(Step.DECIDE_AFTER), pytest.raises(StreamingQueryException):
        job.run(job.feed.stream(job.spark, after))
    job.run(job.feed.stream(job.spark, before))
    assert job.seen_once()


def test_99_a_stateful_query_that_replays_a_decided_batch_keeps_its_totals(job: Job) -> None:
    def counts() -> DataFrame:
        words = job.spark.readStream.schema("id long, word string").option("maxFilesPerTrigger", 1)
        counted = words.json(str(job.feed.folder)).groupBy("word").count()
        return counted.selectExpr("`count` AS id", "word")

    def run() -> None:
        sink = PostgresSink("table", dsn=job.dsn, table="totals", mode="upsert", key=["word"])
        writer = exactly_once(counts(), sink, checkpoint=str(job.checkpoint), pipeline=job.pipeline)
        query = writer.outputMode("update").trigger(availableNow=True).start()
        query.awaitTermination()

    import psycopg

    with psycopg.connect(job.dsn) as connection:
        connection.execute("CREATE TABLE totals (word text PRIMARY KEY, id bigint)")
    job.feed.add(21)
    job.feed.add(21)
    run()
    forget(newest(job.checkpoint / "commits"))
    job.feed.add(21)
    run()
    with psycopg.connect(job.dsn) as connection:
        assert dict(connection.execute("SELECT word, id FROM totals").fetchall()) == {f"w{n}": 9 for n in range(7)}


def test_the_checkpoint_location_may_come_from_the_configuration(job: Job) -> None:
    job.feed.add()
    job.spark.conf.set("spark.sql.streaming.checkpointLocation", str(job.folder / "all"))
    try:
        writer = exactly_once(job.feed.stream(job.spark), *job.sinks(), pipeline=job.pipeline)
        writer.queryName("configured").trigger(availableNow=True).start().awaitTermination()
    finally:
        job.spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert job.seen_once()
    assert read(open_store(str(job.folder / "all" / "configured" / "onceward"))).completed == 0


def test_every_trigger_works(job: Job) -> None:
    for trigger in ({"once": True}, {"availableNow": True}):
        job.feed.add()
        writer = exactly_once(
            job.feed.stream(job.spark), *job.sinks(), checkpoint=str(job.checkpoint), pipeline=job.pipeline
        )
        writer.trigger(**trigger).start().awaitTermination()
    job.feed.add()
    writer = exactly_once(
        job.feed.stream(job.spark), *job.sinks(), checkpoint=str(job.checkpoint), pipeline=job.pipeline
    )
    query = writer.trigger(processingTime="200 milliseconds").start()
    query.processAllAvailable()
    query.stop()
    assert job.seen_once()


def test_a_wrong_column_is_named_before_anything_is_written(job: Job) -> None:
    frame = job.feed.stream(job.spark).withColumnRenamed("word", "wrod")
    with pytest.raises(SchemaError, match="wrod"):
        job.start(frame)
    assert not job.checkpoint.exists()


def test_a_query_that_is_described_and_not_started_changes_nothing(job: Job) -> None:
    job.feed.add()
    topic, store = f"made-{uuid.uuid4().hex}", job.folder / "log.db"
    admin = AdminClient({"bootstrap.servers": job.servers})
    writer = exactly_once(
        job.feed.stream(job.spark),
        PostgresSink("table", dsn=job.dsn, table="made", create_table=True),
        KafkaSink("topic", bootstrap_servers=job.servers, topic=topic, create_topic=True, select=JSON),
        FileSink("files", job.folder / "out"),
        dead_letter=FileSink("rejected", job.folder / "rejected"),
        checkpoint=str(job.checkpoint),
        store=f"sqlite:///{store}",
        pipeline=job.pipeline,
    ).trigger(availableNow=True)
    with psycopg.connect(job.dsn) as connection:
        made = connection.execute("SELECT to_regclass('made'), to_regnamespace('onceward')").fetchone()
    assert made == (None, None)
    assert topic not in admin.list_topics(timeout=10).topics
    assert sorted(path.name for path in job.folder.iterdir()) == [job.feed.folder.name]
    writer.start().awaitTermination()
    assert ids_in_table(job.dsn, "made") == once(job.feed.rows)
    assert topic in admin.list_topics(timeout=10).topics
    assert store.exists()
    assert (job.folder / "out").is_dir()


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_threads_may_start_queries_at_once_also_with_the_same_sinks(job: Job, count: int) -> None:
    queries, sinks = range(count), job.sinks()
    job.feed.add()
    frames = [job.feed.stream(job.spark) for _ in queries]
    ready = threading.Barrier(len(queries))

    def run(number: int) -> None:
        ready.wait(10)
        options = {"checkpoint": f"{job.checkpoint}-{number}", "pipeline": f"{job.pipeline[:50]}-{number}"}
        writer = exactly_once(frames[number], *sinks, **options).trigger(availableNow=True)
        ready.wait(30)
        writer.start().awaitTermination()

    with ThreadPoolExecutor(len(queries)) as pool:
        list(pool.map(run, queries))
    expected = Counter({row: times * count for row, times in once(job.feed.rows).items()})
    assert ids_in_table(job.dsn) == expected
    assert ids_in_topic(job.servers, job.topic) == expected
    assert prepared_in(job.dsn) == 0


def test_two_sinks_of_one_name_are_refused(job: Job) -> None:
    sinks = [PostgresSink("same", dsn=job.dsn, table="words") for _ in range(2)]
    with pytest.raises(ConfigurationError, match="name of its own"):
        exactly_once(job.feed.stream(job.spark), *sinks, checkpoint=str(job.checkpoint), pipeline=job.pipeline)


def test_where_and_select_feed_several_outputs_in_one_pass(job: Job) -> None:
    make_table(job.dsn, "even")
    make_table(job.dsn, "odd")
    job.feed.add()
    even = PostgresSink("even", dsn=job.dsn, table="even", where="id % 2 = 0")
    odd = PostgresSink("odd", dsn=job.dsn, table="odd", where="id % 2 = 1", select=["id", "upper(word) AS word"])
    writer = exactly_once(job.feed.stream(job.spark), even, odd, checkpoint=str(job.checkpoint), pipeline=job.pipeline)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(ids_in_table(job.dsn, "even")) == list(range(0, 20, 2))
    assert sorted(ids_in_table(job.dsn, "odd")) == list(range(1, 20, 2))


def test_a_select_or_where_that_cannot_be_computed_is_told_at_once_with_its_sink(job: Job) -> None:
    """A query without input would look healthy, and max(id) would be computed anew for each micro-batch."""
    rowwise = "computed row by row"
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"where": "cent > 3"}, SchemaError, "Spark cannot compute its select or where: [UNRESOLVED_COLUMN"),
        ({"where": "id >"}, SchemaError, "[PARSE_SYNTAX_ERROR]"),
        ({"where": "word"}, SchemaError, "[DATATYPE_MISMATCH"),
        ({"select": ["nosuch(id) AS id"]}, SchemaError, "[UNRESOLVED_ROUTINE]"),
        ({"select": ["id", "explode(array(1)) AS word"]}, SchemaError, "[UNSUPPORTED_GENERATOR"),
        ({"select": ["max(id) AS id"]}, ConfigurationError, rowwise),
        ({"select": ["id", "max(word) AS word"]}, ConfigurationError, rowwise),
        ({"where": "count(*) > 1"}, ConfigurationError, rowwise),
        ({"select": ["rank() OVER (ORDER BY id) AS id"]}, ConfigurationError, rowwise),
        ({"select": ["window(timestamp(word), '1 minute').start AS w"]}, ConfigurationError, rowwise),
        ({"select": ["window(timestamp(word), '2 minutes', '1 minute').start AS w"]}, ConfigurationError, rowwise),
    ]
    plain = job.feed.stream(job.spark)
    for frame in (
        plain,
        plain.groupBy("id").agg(sf.max("word").alias("word")),
        plain.union(plain),
        plain.where("id > 1"),
    ):
        exactly_once(
            frame,
            FileSink("fine", job.folder / "out", where="id > 3", select=["1 AS one", "upper(word) AS w"]),
            pipeline=job.pipeline,
        )
        for given, kind, words in wrong:
            with pytest.raises(kind, match=re.escape(words)) as told:
                exactly_once(frame, FileSink("wrong", job.folder / "out", **given), pipeline=job.pipeline)
            assert "sink wrong" in str(told.value)
            assert "\n" not in str(told.value)


def test_conflicts_survive_the_way_through_spark(job: Job) -> None:
    """What a user sees is our message, not only Spark's."""
    job.feed.add()
    job.run()
    shutil.rmtree(job.checkpoint)
    with pytest.raises(StreamingQueryException) as caught:
        job.run()
    assert EpochConflictError.__name__ in str(caught.value)
