"""The formats `onceward-kafka` and `onceward-postgres` on real services."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, StreamingQueryException

from onceward.connectors.spark.session.options import FormatOptions
from onceward.core.log import open_store, read

from .batch_driver import LONGER_THAN_SPARK_WAITS, fail_beside_slow_tasks, slow_beside_a_failure, slow_table, write
from .spark_kit import Feed, ids_in_table, ids_in_topic, make_table, once, prepared_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path)


def to_postgres(frame: DataFrame, dsn: str, checkpoint: Path, **options: str) -> None:
    writer = frame.writeStream.queryName("words").format("onceward-postgres")
    writer = writer.option("dsn", dsn).option("dbtable", "words")
    for key, value in options.items():
        writer = writer.option(key, value)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def test_postgres_append_restart_and_replay(spark: SparkSession, feed: Feed, tmp_path: Path, dsn: str) -> None:
    make_table(dsn)
    checkpoint = tmp_path / "checkpoint"
    feed.add()
    feed.add()
    to_postgres(feed.stream(spark), dsn, checkpoint)
    newest = max((f for f in (checkpoint / "commits").iterdir() if f.name.isdigit()), key=lambda f: int(f.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    feed.add()
    to_postgres(feed.stream(spark), dsn, checkpoint)
    assert ids_in_table(dsn) == once(feed.rows)
    assert prepared_in(dsn) == 0
    query = FormatOptions(checkpoint=str(checkpoint)).query()
    view = read(open_store(str(checkpoint / "onceward")))
    assert view.newest is not None
    assert (view.completed, view.newest.pipeline) == (2, query)


def test_a_rewind_left_in_the_options_is_done_once(spark: SparkSession, feed: Feed, tmp_path: Path, dsn: str) -> None:
    make_table(dsn)
    checkpoint = tmp_path / "checkpoint"
    for options in ({}, {"rewind": "restored on Tuesday"}, {"rewind": "restored on Tuesday"}):
        feed.add()
        to_postgres(feed.stream(spark), dsn, checkpoint, **options)
        newest = max((f for f in (checkpoint / "commits").iterdir() if f.name.isdigit()), key=lambda f: int(f.name))
        newest.unlink()  # as if the driver had died right after the decision
        (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    to_postgres(feed.stream(spark), dsn, checkpoint, rewind="restored on Tuesday")
    assert ids_in_table(dsn) == once(feed.rows)


def test_an_epoch_that_took_longer_than_the_transactions_live_is_not_decided(
    spark: SparkSession, feed: Feed, tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str]
) -> None:
    """The age of the transactions travels from the driver process that opened the epoch to the one that decides it."""
    copies, slow = topic(), tmp_path / "slow"
    slow.touch()
    feed.add()

    def delayed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        yield from batches
        if context is not None and context.partitionId() == 1 and slow.exists():
            time.sleep(12)  # the broker looks every second for transactions that are older than 5 s

    rows = feed.stream(spark).mapInArrow(delayed, "id long, word string")
    rows = rows.selectExpr("cast(id as string) AS key", "to_json(struct(*)) AS value")
    writer = rows.writeStream.format("onceward-kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    writer = writer.option("topic", copies).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.option("transactionTimeout", "5").trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="Nothing was committed; a restart writes the epoch again"):
        writer.start().awaitTermination()
    slow.unlink()
    writer.start().awaitTermination()
    assert ids_in_topic(kafka.bootstrap_servers, copies) == once(feed.rows)


def test_kafka_stream_and_batch(
    spark: SparkSession, feed: Feed, tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str]
) -> None:
    copies = topic(partitions=2)
    feed.add()
    rows = feed.stream(spark).selectExpr("cast(id as string) AS key", "to_json(struct(*)) AS value")
    for _ in range(2):
        writer = rows.writeStream.format("onceward-kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        writer = writer.option("topic", copies).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        feed.add()
    assert ids_in_topic(kafka.bootstrap_servers, copies) == once(20) + once(40) - once(20)


def test_a_batch_with_a_run_key_is_written_once_however_often_it_is_run(
    spark: SparkSession, tmp_path: Path, dsn: str
) -> None:
    make_table(dsn)
    rows = spark.range(50).selectExpr("id", "cast(id as string) AS word")
    for key in ("monday", "monday", "tuesday", "monday"):
        writer = rows.write.format("onceward-postgres").option("dsn", dsn).option("dbtable", "words").mode("append")
        writer.option("pipeline", "days").option("runKey", key).option("store", str(tmp_path / "log")).save()
    assert ids_in_table(dsn) == once(50) + once(50)


def test_a_batch_without_a_run_key_is_atomic(spark: SparkSession, dsn: str) -> None:
    make_table(dsn)
    rows = spark.range(50).selectExpr("id", "cast(id as string) AS word")
    bad = rows.selectExpr("CASE WHEN id = 49 THEN assert_true(false) ELSE NULL END AS stop", "id", "word")
    with pytest.raises(Exception, match=r"assert|true"):
        write(bad.where("stop IS NULL").drop("stop"), dsn)
    assert not ids_in_table(dsn)
    write(rows, dsn)
    assert ids_in_table(dsn) == once(50)


def test_slow_tasks_beside_one_that_fails_leave_nothing_prepared(spark: SparkSession, tmp_path: Path, dsn: str) -> None:
    """Spark does not wait for them: they prepare before, while or after it aborts, or are killed after two seconds."""
    make_table(dsn)
    slow_table(dsn)
    fail_beside_slow_tasks(spark, tmp_path, dsn, [0.2, 0.6, 1.2, 1.8, LONGER_THAN_SPARK_WAITS])
    time.sleep(2)
    assert prepared_in(dsn) == 0
    write(spark.range(50).selectExpr("id", "cast(id as string) AS word"), dsn)
    assert ids_in_table(dsn) == once(50)


def test_what_a_slow_task_has_produced_beside_one_that_fails_holds_no_reader_back(
    spark: SparkSession, tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str]
) -> None:
    copies = topic(partitions=1)
    failing = slow_beside_a_failure(spark, tmp_path)
    for rows in (failing, spark.range(20).selectExpr("id", "cast(id as string) AS word")):
        made = rows.selectExpr("cast(id as string) AS key", "to_json(struct(*)) AS value").write.mode("append")
        made = made.format("onceward-kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        if rows is failing:
            with pytest.raises(Exception, match="a bad row"):
                made.option("topic", copies).save()
            time.sleep(2)
        else:
            made.option("topic", copies).save()
    assert ids_in_topic(kafka.bootstrap_servers, copies) == once(20)


def test_complete_mode_upserts_the_whole_result(spark: SparkSession, feed: Feed, tmp_path: Path, dsn: str) -> None:
    make_table(dsn, key=True)
    feed.add(21)
    feed.add(21)
    counts = feed.stream(spark).groupBy("word").count().selectExpr("`count` AS id", "word")
    totals = counts.selectExpr("cast(substr(word, 2) as bigint) AS id", "cast(id as string) AS word")
    writer = totals.writeStream.format("onceward-postgres").option("dsn", dsn).option("dbtable", "words")
    writer = writer.option("mode", "upsert").option("key", "id").outputMode("complete")
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert ids_in_table(dsn) == once(7)


def test_a_relative_checkpoint_holds_the_decision_log_too(
    spark: SparkSession, feed: Feed, tmp_path: Path, dsn: str
) -> None:
    make_table(dsn)
    feed.add()
    relative = os.path.relpath(tmp_path / "checkpoint")
    to_postgres(feed.stream(spark), dsn, Path(relative))
    assert read(open_store(str(tmp_path / "checkpoint" / "onceward"))).completed == 0
    assert ids_in_table(dsn) == once(feed.rows)


def test_complete_mode_without_upsert_is_refused(spark: SparkSession, feed: Feed, tmp_path: Path, dsn: str) -> None:
    make_table(dsn)
    feed.add()
    totals = feed.stream(spark).groupBy("word").count().selectExpr("`count` AS id", "word")
    writer = totals.writeStream.format("onceward-postgres").option("dsn", dsn).option("dbtable", "words")
    writer = writer.outputMode("complete").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match="upsert"):
        writer.trigger(availableNow=True).start().awaitTermination()
    assert not ids_in_table(dsn)


def test_update_mode_is_refused_by_spark_before_our_code_runs(
    spark: SparkSession, feed: Feed, tmp_path: Path, dsn: str
) -> None:
    make_table(dsn)
    feed.add()
    writer = feed.stream(spark).writeStream.format("onceward-postgres").option("dsn", dsn).option("dbtable", "words")
    writer = writer.outputMode("update").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises((AnalysisException, StreamingQueryException)):
        writer.trigger(availableNow=True).start().awaitTermination()


def test_a_checkpoint_that_comes_from_the_configuration_is_asked_for(
    spark: SparkSession, feed: Feed, tmp_path: Path, dsn: str
) -> None:
    make_table(dsn)
    feed.add()
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "all"))
    try:
        writer = feed.stream(spark).writeStream.format("onceward-postgres").option("dsn", dsn)
        with pytest.raises(Exception, match="checkpointLocation"):
            writer.option("dbtable", "words").trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_wrong_column_is_named(spark: SparkSession, feed: Feed, tmp_path: Path, dsn: str) -> None:
    make_table(dsn)
    feed.add()
    frame: Any = feed.stream(spark).withColumnRenamed("word", "wrod")
    with pytest.raises(Exception, match="wrod"):
        to_postgres(frame, dsn, tmp_path / "c")
    assert not ids_in_table(dsn)


def test_an_old_name_with_a_new_checkpoint_is_refused(
    spark: SparkSession, feed: Feed, tmp_path: Path, dsn: str
) -> None:
    make_table(dsn)
    feed.add()
    to_postgres(feed.stream(spark), dsn, tmp_path / "first", pipeline="words")
    with pytest.raises(StreamingQueryException, match=r"pipeline words"):
        to_postgres(feed.stream(spark), dsn, tmp_path / "second", pipeline="words")
    assert ids_in_table(dsn) == once(feed.rows)
