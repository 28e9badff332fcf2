"""How many tasks write an epoch, on a session with two task slots."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import confluent_kafka
import psycopg
import pytest

from onceward import FileSink, KafkaSink, PostgresSink, exactly_once, register
from onceward.connectors.spark.write.handler import EpochHandler

from .spark_kit import Feed, finish, ids_in_table, make_table, once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]


def run(frame: DataFrame, *sinks: Any, mode: str = "append", **options: Any) -> None:
    options["pipeline"] = f"words-{options['checkpoint'].split('/')[-2]}"[:60]
    finish(exactly_once(frame, *sinks, **options).outputMode(mode).trigger(availableNow=True).start())


def transactions(dsn: str) -> list[int]:
    """How many rows each transaction wrote: a task is a transaction."""
    with psycopg.connect(dsn) as connection:
        return [rows for (rows,) in connection.execute("SELECT count(*) FROM words GROUP BY xmin::text").fetchall()]


def fill(kafka: KafkaServer, topic: str, partitions: int, numbers: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for number in numbers:
        for partition in range(partitions):
            producer.produce(topic, json.dumps({"id": number * partitions + partition}), partition=partition)
    producer.flush()


@pytest.mark.parametrize(("writers", "tasks"), [("auto", 2), (3, 3), (None, 8)])
def test_the_argument_writers_limits_the_tasks_that_write_an_epoch(
    spark: SparkSession, tmp_path: Path, dsn: str, writers: Any, tasks: int
) -> None:
    make_table(dsn)
    feed = Feed(tmp_path)
    feed.add(80)
    sink = PostgresSink("table", dsn=dsn, table="words")
    run(feed.stream(spark, partitions=8), sink, checkpoint=str(tmp_path / "checkpoint"), writers=writers)
    assert ids_in_table(dsn) == once(80)
    assert len(transactions(dsn)) == tasks


def test_few_rows_of_many_partitions_are_one_transaction_and_keep_their_order(
    spark: SparkSession, tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str], dsn: str
) -> None:
    register(spark)
    make_table(dsn)
    source, target, partitions = topic(8), topic(1), 8
    stream = spark.readStream.format("onceward-kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    stream = stream.option("subscribe", source).option("startingOffsets", "earliest").load()
    words = stream.selectExpr("get_json_object(string(value), '$.id')::bigint AS id", "string(value) AS word")
    sinks = [
        PostgresSink("table", dsn=dsn, table="words"),
        KafkaSink("topic", bootstrap_servers=kafka.bootstrap_servers, topic=target, select=["word AS value"]),
    ]
    for numbers in (range(10), range(10, 20)):
        fill(kafka, source, partitions, numbers)
        run(words, *sinks, checkpoint=str(tmp_path / "checkpoint"))
    assert ids_in_table(dsn) == once(160)
    assert sorted(transactions(dsn)) == [40, 40, 80]  # how many came at first, nobody knows
    found = in_order(kafka, target)
    for partition in range(partitions):
        mine = [number for number in found if number % partitions == partition]
        assert mine == sorted(mine)


AT = "timestamp '2025-10-25 12:00:00' + make_interval(0, 0, 0, int(id % 2)) AS at"


def test_the_driver_writes_what_tasks_would(
    spark: SparkSession, tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str], dsn: str
) -> None:
    """Three epochs of one run: the first by a task, the others by the driver, with columns and rows of each sink."""
    register(spark)
    make_table(dsn)
    source, target, partitions = topic(4), topic(1), 4
    fill(kafka, source, partitions, range(30))
    stream = spark.readStream.format("onceward-kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    stream = stream.option("subscribe", source).option("startingOffsets", "earliest")
    stream = stream.option("maxOffsetsPerTrigger", 40).load()
    words = stream.selectExpr("get_json_object(string(value), '$.id')::bigint AS id", "string(value) AS word")
    sinks = [
        PostgresSink("table", dsn=dsn, table="words", where="id % 2 = 0"),
        KafkaSink("topic", bootstrap_servers=kafka.bootstrap_servers, topic=target, select=["word AS value"]),
        FileSink("days", tmp_path / "days", format="csv", partition_by=["at"], select=[AT, "id"], where="id < 100"),
    ]
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with patch.object(EpochHandler, "_gathered", autospec=True, side_effect=EpochHandler._gathered) as here:
            run(words, *sinks, checkpoint=str(tmp_path / "checkpoint"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert here.call_count == 2
    folders = [path.name for path in sorted((tmp_path / "days").glob("at=*"))]
    assert folders == ["at=2025-10-25 16%3A00%3A00+00%3A00", "at=2025-10-26 16%3A00%3A00+00%3A00"]
    assert ids_in_table(dsn) == dict.fromkeys(range(0, 120, 2), 1)
    found = in_order(kafka, target)
    assert sorted(found) == list(range(120))
    for partition in range(partitions):
        mine = [number for number in found if number % partitions == partition]
        assert mine == sorted(mine)


def test_column_names_may_hold_dots_and_backticks(spark: SparkSession, tmp_path: Path) -> None:
    row = {"a.b": 1, "c`d": "x"}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text(json.dumps(row))
    rows = spark.readStream.schema("`a.b` long, `c``d` string").json(str(tmp_path / "in"))
    run(rows, FileSink("out", tmp_path / "out", format="jsonl"), checkpoint=str(tmp_path / "checkpoint"))
    [file] = (tmp_path / "out").glob("*.jsonl")
    assert json.loads(file.read_text()) == row


def test_a_row_that_is_too_large_for_the_driver_is_written_by_tasks(
    spark: SparkSession, tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str], dsn: str
) -> None:
    """Rows were small until now, so it would take what comes: 2,000 rows of up to 1 MB."""
    register(spark)
    make_table(dsn)
    source = topic(4)
    stream = spark.readStream.format("onceward-kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    stream = stream.option("subscribe", source).option("startingOffsets", "earliest")
    stream = stream.option("maxOffsetsPerTrigger", 2000).load()
    words = stream.selectExpr("get_json_object(string(value), '$.id')::bigint AS id", "string(value) AS word")
    fill(kafka, source, 4, range(1000))
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    producer.produce(source, json.dumps({"id": 4000, "x": "x" * 500_000}), partition=0)
    producer.flush()
    fill(kafka, source, 4, range(1001, 1501))
    with patch.object(EpochHandler, "_gathered", autospec=True, side_effect=EpochHandler._gathered) as here:
        run(words, PostgresSink("table", dsn=dsn, table="words"), checkpoint=str(tmp_path / "checkpoint"))
    assert here.call_count == 2  # the second epoch's, and the third's in vain; not the fourth's
    assert ids_in_table(dsn) == dict.fromkeys([*range(4001), *range(4004, 6004)], 1)


def in_order(kafka: KafkaServer, topic: str) -> list[int]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[int] = []
    try:
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.append(json.loads(message.value())["id"])
    finally:
        consumer.close()
    return found


def test_a_stateful_query_that_fewer_tasks_write_keeps_its_state(spark: SparkSession, tmp_path: Path, dsn: str) -> None:
    make_table(dsn, key=True)
    feed = Feed(tmp_path)
    sink = PostgresSink("table", dsn=dsn, table="words", key=["id"])
    for _ in range(2):
        feed.add(20)
        counts = feed.stream(spark).groupBy("word").count()
        totals = counts.selectExpr("bigint(substring(word, 2)) AS id", "string(count) AS word")
        run(totals, sink, mode="update", checkpoint=str(tmp_path / "checkpoint"), writers=1)
    with psycopg.connect(dsn) as connection:
        found = dict(connection.execute("SELECT id, word::int FROM words").fetchall())
    assert found == {n: sum(number % 7 == n for number in range(40)) for n in range(7)}
