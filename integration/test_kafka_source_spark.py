"""`spark.readStream.format("onceward-kafka")` and `spark.read`, on real Spark and Kafka, without any jar."""

from __future__ import annotations

import json
import re
import time
import warnings
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException, StreamingQueryException

from onceward import ForeachBatch, KafkaSink, KafkaSource, Output, ProgressListener, read_stream
from onceward.connectors.spark import exactly_once, register
from onceward.connectors.spark.read.any_source import LIMITS, BeforeLimits
from onceward.connectors.spark.read.kafka_offsets import stream_source
from onceward.core.contract.events import QueryProgressed, observe
from onceward.core.errors import OncewardWarning, SourceError
from onceward.core.kit.crash_points import Step

from .kafka_kit import read_all
from .kafka_source_kit import Writer, values, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
limits = pytest.mark.skipif(not LIMITS, reason="before pyspark 4.2 availableNow reads one micro-batch")


class Observation:
    """A foreachBatch function that keeps the rows of each batch."""

    def __init__(self, then: Callable[[int], None] | None = None) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self.tasks: dict[int, int] = {}
        self._then = then

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.tasks[batch] = frame.rdd.getNumPartitions()
        rows = frame.select("topic", "partition", "offset", "value").collect()
        self.batches[batch] = sorted((r.topic, r.partition, r.offset, bytes(r.value)) for r in rows)
        if self._then is not None:
            self._then(batch)

    @property
    def values(self) -> list[str]:
        return [value.decode() for batch in sorted(self.batches) for *_, value in self.batches[batch]]


class Reader:
    """Queries of one test."""

    def __init__(self, spark: SparkSession, writer: Writer, folder: Path) -> None:
        self.spark, self.writer, self.checkpoint = spark, writer, folder / "checkpoint"
        register(spark)

    def options(self, topic: str | None, more: dict[str, Any]) -> dict[str, str]:
        chosen = {"subscribe": topic} if topic else {}
        options = {
            "kafka.bootstrap.servers": self.writer.servers,
            "kafkaConsumer.pollTimeoutMs": 20_000,
            **chosen,
            **more,
        }
        return {name: str(value) for name, value in options.items()}

    def stream(self, topic: str | None = None, **more: Any) -> DataFrame:
        options = {"startingOffsets": "earliest", **more}
        return self.spark.readStream.format("onceward-kafka").options(**self.options(topic, options)).load()

    def batch(self, topic: str | None = None, **more: Any) -> DataFrame:
        return self.spark.read.format("onceward-kafka").options(**self.options(topic, more)).load()

    def start(self, frame: DataFrame, seen: Observation, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, frame: DataFrame, seen: Observation | None = None, **trigger: Any) -> Observation:
        seen = seen or Observation()
        query = self.start(frame, seen, **trigger)
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return seen

    def forget_newest_commit(self) -> None:
        """As if the driver had died just before it logged its last batch."""
        folder = self.checkpoint / "commits"
        newest = max((file for file in folder.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))
        newest.unlink()
        (folder / f".{newest.name}.crc").unlink(missing_ok=True)

    def offsets(self, batch: int) -> Any:
        return json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])


@pytest.fixture
def reader(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> Reader:
    return Reader(spark, Writer(kafka.bootstrap_servers), tmp_path)


def texts(*numbers: int) -> list[str]:
    return [str(number) for number in range(*numbers)]


def committed(servers: str, group: str, topic: str, partitions: int = 1) -> list[int]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        return [found.offset for found in consumer.committed(wanted, timeout=30)]
    finally:
        consumer.close()


def test_a_batch_has_the_columns_and_rows_of_sparks_own_source(reader: Reader, topic: Callable[..., str]):
    name = topic(2)
    reader.writer.send(name, ["a"], partition=1, key=b"k", headers=[("h", b"1"), ("h", None)], timestamp=1_500)
    reader.writer.send(name, [None], partition=0)
    frame = reader.batch(name, includeHeaders="true")
    assert [f"{field.name} {field.dataType.simpleString()}" for field in frame.schema] == [
        "key binary",
        "value binary",
        "topic string",
        "partition int",
        "offset bigint",
        "timestamp timestamp",
        "timestampType int",
        "headers array<struct<key:string,value:binary>>",
    ]
    row = frame.where("partition = 1").selectExpr("*", "unix_millis(timestamp) AS ms").collect()[0]
    assert (bytes(row.key), bytes(row.value), row.topic, row.offset, row.ms) == (b"k", b"a", name, 0, 1500)
    assert [(header.key, header.value) for header in row.headers] == [("h", b"1"), ("h", None)]
    empty = frame.where("partition = 0").collect()[0]
    assert (empty.key, empty.value, empty.headers) == (None, None, None)
    assert "headers" not in reader.batch(name).columns


def test_a_batch_reads_from_starting_to_ending_offsets(reader: Reader, topic: Callable[..., str]):
    name = topic(2)
    reader.writer.commit(name, range(20), partition=0)
    reader.writer.send(name, range(20, 30), partition=1)
    ends = {"endingOffsets": json.dumps({name: {"0": 15, "1": -1}})}
    starts = {"startingOffsets": json.dumps({name: {"0": 5, "1": -2}})}
    rows = reader.batch(name, **starts, **ends).selectExpr("CAST(value AS string)").collect()
    assert sorted(int(row[0]) for row in rows) == [*range(5, 15), *range(20, 30)]
    with pytest.raises(PySparkException, match="startingOffsets cannot be latest"):
        reader.batch(name, startingOffsets="latest").count()
    late = {**starts, "endingOffsets": json.dumps({name: {"0": 99, "1": -1}})}
    with pytest.raises(PySparkException, match=rf"{name}-0 ends at offset 21, and 99 was given"):
        reader.batch(name, **late).count()
    assert reader.batch(name, failOnDataLoss="false", **late).count() == 25
    assert reader.batch(name, minPartitions=7).rdd.getNumPartitions() == 7
    assert reader.batch(name, minPartitions=7).count() == 30


@limits
def test_available_now_reads_what_is_there_in_limited_batches_and_stops(reader: Reader, topic: Callable[..., str]):
    name = topic(2)
    reader.writer.send(name, range(60), partition=0)
    reader.writer.send(name, range(60, 100), partition=1)
    late = Observation(lambda batch: reader.writer.send(name, ["late"]) if batch == 0 else None)
    seen = reader.run(reader.stream(name, maxOffsetsPerTrigger=25), late)
    assert sorted(seen.values, key=int) == texts(100)
    assert [len(rows) for rows in seen.batches.values()] == [25, 25, 25, 25]
    assert {partition for _, partition, *_ in seen.batches[0]} == {0, 1}
    assert reader.run(reader.stream(name, maxOffsetsPerTrigger=25)).values == ["late"]


@pytest.mark.parametrize("how", ["format", "read_stream", "ForeachBatch"])
def test_a_start_warns_the_program_that_parts_of_one_partition_are_read_at_the_same_time(
    reader: Reader, topic: Callable[..., str], how: str
):
    name, target = topic(), topic()
    reader.writer.send(name, range(40))
    sink = KafkaSink("out", bootstrap_servers=reader.writer.servers, topic=target)
    if how == "read_stream":
        source = KafkaSource(bootstrap_servers=reader.writer.servers, topics=[name], max_records_per_partition=10)
        words, frame = "max_records_per_partition lets several", read_stream(reader.spark, source)
    else:
        words, frame = "maxRecordsPerPartition lets several", reader.stream(name, maxRecordsPerPartition=10)
    frame = frame.select("key", "value")
    if how == "ForeachBatch":
        writer = frame.writeStream.foreachBatch(ForeachBatch(sink, pipeline=target))
        writer.option("checkpointLocation", str(reader.checkpoint))
    else:
        writer = exactly_once(frame, sink, checkpoint=reader.checkpoint, pipeline=target)
    with pytest.warns(OncewardWarning, match=words) as warned:
        writer.trigger(availableNow=True).start().awaitTermination()
    assert how == "ForeachBatch" or [one.filename for one in warned if "order" in str(one.message)] == [__file__]
    assert sorted(int(message.value()) for message in read_all(reader.writer.servers, target)) == list(range(40))


def test_the_documented_way_keeps_the_order_of_a_key_and_is_not_warned_of(reader: Reader, topic: Callable[..., str]):
    name, target = topic(), topic(2)
    for number in range(400):
        reader.writer.send(name, [number], key=str(number % 5).encode())
    frame = reader.stream(name, maxRecordsPerPartition=10).select("key", "value", "offset")
    sink = KafkaSink("out", bootstrap_servers=reader.writer.servers, topic=target, select=["key", "value"])
    output = Output(sink, lambda batch: batch.repartition("key").sortWithinPartitions("key", "offset"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", OncewardWarning)
        query = exactly_once(frame, output, checkpoint=reader.checkpoint, pipeline=target, writers=None)
        query.trigger(availableNow=True).start().awaitTermination()
    by_key = defaultdict(list)
    for message in read_all(reader.writer.servers, target):
        by_key[message.key()].append(int(message.value()))
    assert sorted(by_key.values()) == [list(range(key, 400, 5)) for key in range(5)]


def test_once_reads_everything_there_is(reader: Reader, topic: Callable[..., str]):
    name = topic()
    reader.writer.send(name, range(40))
    seen = reader.run(reader.stream(name, maxOffsetsPerTrigger=10), once=True)
    assert seen.values == texts(40)


def test_a_running_query_reads_what_comes_and_goes_on_after_a_restart(reader: Reader, topic: Callable[..., str]):
    name = topic()
    reader.writer.send(name, ["before"])
    seen = Observation()
    query = reader.start(reader.stream(name, startingOffsets="latest"), seen, processingTime="100 milliseconds")
    wait_until(lambda: query.status["message"] == "Waiting for data to arrive")
    reader.writer.commit(name, range(5))
    query.processAllAvailable()
    assert seen.values == texts(5)
    query.stop()
    reader.writer.commit(name, range(5, 9))
    again = reader.run(reader.stream(name))
    assert again.values == texts(5, 9)


@limits
def test_67_a_replayed_batch_has_the_same_rows_whatever_happened_since(reader: Reader, topic: Callable[..., str]):
    name = topic(2)
    reader.writer.commit(name, range(30), partition=0)
    reader.writer.abort(name, range(500, 520), partition=0)
    with reader.writer.transaction(name, range(30, 50), partition=1) as transaction:
        first = reader.run(reader.stream(name))
        transaction.commit()
    assert sorted(first.values, key=int) == texts(30)
    reader.writer.commit(name, range(50, 70), partition=0)
    reader.forget_newest_commit()
    second = reader.run(reader.stream(name, minPartitions=5))
    assert second.batches[0] == first.batches[0]
    assert sorted(first.values + second.values[30:], key=int) == texts(70)


def test_68_offsets_below_retention_stop_the_query_with_words(reader: Reader, topic: Callable[..., str]):
    name = topic()
    reader.writer.send(name, range(10))
    reader.run(reader.stream(name))
    reader.writer.send(name, range(10, 30))
    reader.writer.delete_before(name, 0, 20)
    with pytest.raises(StreamingQueryException, match=f"{name}-0: offsets 10 to 19 are deleted"):
        reader.run(reader.stream(name))
    seen = reader.run(reader.stream(name, failOnDataLoss="false"))
    assert seen.values == texts(20, 30)


@limits
def test_the_progress_of_a_listener_says_how_far_the_source_is_behind(reader: Reader, topic: Callable[..., str]):
    name = topic(2)
    reader.writer.send(name, range(30), partition=0)
    reader.writer.send(name, range(30, 40), partition=1)
    listener, reports = ProgressListener(), []
    observe(reports.append)
    reader.spark.streams.addListener(listener)
    try:
        reader.run(reader.stream(name, maxOffsetsPerTrigger=20))
        wait_until(lambda: len([report for report in reports if isinstance(report, QueryProgressed)]) > 1)
    finally:
        reader.spark.streams.removeListener(listener)
    found = [report.progress["sources"][0]["metrics"] for report in reports if isinstance(report, QueryProgressed)]
    assert found[0] == {f"{kind}OffsetsBehindLatest": n for kind, n in (("avg", "10.0"), ("min", "5"), ("max", "15"))}
    assert found[1] == {f"{kind}OffsetsBehindLatest": n for kind, n in (("avg", "0.0"), ("min", "0"), ("max", "0"))}


@limits
@pytest.mark.parametrize("lenient", [False, True])
def test_68_a_topic_made_anew_in_a_running_query_after_a_restart_of_its_broker(
    reader: Reader, kafka: KafkaServer, topic: Callable[..., str], *, lenient: bool
):
    """The new topic is at least as long as the old one was: nothing but its id tells them apart."""
    name = topic()
    reader.writer.send(name, range(5))
    seen = Observation()
    frame = reader.stream(name, failOnDataLoss=str(not lenient).lower())
    query = reader.start(frame, seen, processingTime="4 seconds")
    try:
        wait_until(lambda: seen.values == texts(5))
        kafka.kill()
        kafka.start()
        reader.writer.send(name, range(5, 10))
        wait_until(lambda: seen.values == texts(10))
        reader.writer.delete_topic(name)
        wait_until(lambda: not reader.writer.source(name)._find().partitions)
        reader.writer.create_topic(name)
        reader.writer.send(name, range(100, 120))
        if lenient:
            wait_until(lambda: seen.values == [*texts(10), *texts(100, 120)], seconds=60)
        else:
            with pytest.raises(StreamingQueryException, match=f"{name}-0 was deleted (and recreated )?after offset 10"):
                query.awaitTermination(60)
    finally:
        query.stop()


def test_70_new_partitions_and_topics_are_picked_up_by_a_running_query(reader: Reader, topic: Callable[..., str]):
    name = topic(prefix="live")
    reader.writer.send(name, ["1"])
    seen = Observation()
    frame = reader.stream(subscribePattern=f"{re.escape(name)}.*")
    query = reader.start(frame, seen, processingTime="100 milliseconds")
    wait_until(lambda: seen.values == ["1"])
    reader.writer.add_partitions(name, 2)
    reader.writer.send(name, ["2"], partition=1)
    reader.writer.create_topic(f"{name}-b")
    reader.writer.send(f"{name}-b", ["3"])
    wait_until(lambda: sorted(seen.values) == ["1", "2", "3"])
    query.stop()
    assert reader.offsets(max(seen.batches)) == {name: {"0": 1, "1": 1}, f"{name}-b": {"0": 1}}


def test_a_stream_is_cut_into_at_least_min_partitions(reader: Reader, topic: Callable[..., str]):
    name = topic(2)
    reader.writer.send(name, range(100), partition=0)
    reader.writer.send(name, range(100, 110), partition=1)
    seen = reader.run(reader.stream(name, minPartitions=6))
    assert sorted(seen.values, key=int) == texts(110)
    assert seen.tasks == {0: 6}


def test_short_ranges_are_read_by_one_task(reader: Reader, topic: Callable[..., str]):
    name = topic(4)
    for partition in range(4):
        reader.writer.send(name, range(partition * 10, partition * 10 + 10), partition=partition)
    seen = reader.run(reader.stream(name, minRecordsPerPartition=15))
    assert sorted(seen.values, key=int) == texts(40)
    assert seen.tasks == {0: 2}


def test_wrong_options_are_named_when_the_source_is_loaded(reader: Reader, topic: Callable[..., str]):
    name = topic()
    with pytest.raises(PySparkException, match=r"unknown options .*startingoffset"):
        reader.stream(name, startingOffset="latest")
    with pytest.raises(PySparkException, match=r"unknown options .*startingoffset"):
        reader.batch(name, startingOffset="latest")
    with pytest.raises(PySparkException, match="minPartitions is not a whole number"):
        reader.stream(name, minPartitions="few")
    with pytest.raises(StreamingQueryException, match="endingOffsets are not for streaming"):
        reader.run(reader.stream(name, endingOffsets="latest"))


def test_a_wrong_address_is_said_when_the_source_is_loaded(reader: Reader):
    began = time.monotonic()
    with pytest.raises(PySparkException, match=r"no broker answers at 127\.0\.0\.1:1: .*Connection refused"):
        reader.stream("orders", **{"kafka.bootstrap.servers": "127.0.0.1:1"})
    assert time.monotonic() - began < 20  # 10 s, and a Python process of Spark's


def test_a_missing_topic_and_an_unknown_setting_are_said_when_the_source_is_loaded(
    reader: Reader, topic: Callable[..., str]
):
    with pytest.raises(PySparkException, match="has no nowhere: create it first"):
        reader.stream("nowhere")
    with pytest.raises(PySparkException, match=r"ConfigurationError.*fetch\.min\.byte\W"):
        reader.stream(topic(), **{"kafka.fetch.min.byte": "1"})


def before_limits(options: dict[str, str]) -> BeforeLimits:
    source = stream_source(options)
    return BeforeLimits(source, source.max_offsets_per_trigger)


def test_before_pyspark_4_2_batches_are_limited_from_where_the_last_one_ended(
    reader: Reader, topic: Callable[..., str]
):
    name = topic()
    reader.writer.send(name, range(30))
    options = reader.options(name, {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 20})
    reader = before_limits(options)
    start = reader.initialOffset()
    end = reader.latestOffset()
    assert (start, end) == ({name: {"0": 0}}, {name: {"0": 20}})
    [[split]] = [task.value for task in reader.partitions(start, end)]
    assert (split.unit, split.start, split.end) == (f"{name}-0", 0, 20)
    assert reader.latestOffset() == {name: {"0": 30}}
    restarted = before_limits(options)
    assert restarted.latestOffset() == {name: {"0": 30}}


def test_before_pyspark_4_2_a_topic_that_is_deleted_while_the_query_is_down_is_told(kafka: KafkaServer, topic):
    kept, gone = topic(), topic()
    writer = Writer(kafka.bootstrap_servers)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": f"{kept},{gone}"}
    reached = before_limits(options).initialOffset()
    writer.delete_topic(gone)
    wait_until(lambda: len(writer.source(kept, gone)._find().partitions) == 1)
    writer.send(kept, range(3))
    restarted = before_limits(options)
    end = restarted.latestOffset()
    assert end == {kept: {"0": 3}}
    with pytest.raises(SourceError, match=f"{gone}-0 was deleted"):
        restarted.partitions(reached, end)


class Copy:
    """Kafka to Kafka by exactly_once."""

    def __init__(self, bench: Reader, source: str, target: str, group: str) -> None:
        self.bench, self.source, self.target, self.group = bench, source, target, group

    def run(self) -> None:
        frame = self.bench.stream(self.source, **{"kafka.group.id": self.group, "maxOffsetsPerTrigger": 10})
        sink = KafkaSink("copy", bootstrap_servers=self.bench.writer.servers, topic=self.target)
        query = exactly_once(
            frame.selectExpr("key", "value"), sink, checkpoint=str(self.bench.checkpoint), pipeline=self.target
        )
        running = query.trigger(availableNow=True).start()
        try:
            running.awaitTermination()
        finally:
            running.stop()

    def copied(self) -> list[str]:
        source = self.bench.writer.source(self.target)
        return sorted(values(source, source.start(), source.latest(source.start())), key=int)

    def published(self) -> list[int]:
        return committed(self.bench.writer.servers, self.group, self.source)


@limits
def test_69_offsets_are_published_after_the_epoch_is_completed_the_last_one_included(
    reader: Reader, topic: Callable[..., str]
):
    from .spark_kit import crash_at

    copy = Copy(reader, topic(), topic(), "copies")
    reader.writer.send(copy.source, range(30))
    with crash_at(Step.DECIDE_AFTER, count=2), pytest.raises(StreamingQueryException):
        copy.run()
    assert copy.published() == [10]
    copy.run()
    assert copy.copied() == texts(30)
    assert copy.published() == [30]


def test_each_source_of_a_query_publishes_to_its_own_group(reader: Reader, topic: Callable[..., str]):
    one, two, target = topic(), topic(), topic()
    reader.writer.send(one, range(3))
    reader.writer.send(two, range(3, 8))
    frames = [reader.stream(name, **{"kafka.group.id": f"of-{name}"}).select("value") for name in (one, two)]
    sink = KafkaSink("copy", bootstrap_servers=reader.writer.servers, topic=target)
    query = exactly_once(frames[0].union(frames[1]), sink, checkpoint=str(reader.checkpoint), pipeline=target)
    query.trigger(availableNow=True).start().awaitTermination()
    assert [committed(reader.writer.servers, f"of-{name}", name) for name in (one, two)] == [[3], [5]]


def test_69_a_format_publishes_the_last_epochs_offsets_too(reader: Reader, topic: Callable[..., str]):
    name, target = topic(), topic()
    reader.writer.send(name, range(25))
    frame = reader.stream(name, maxOffsetsPerTrigger=10).select("value")
    writer = frame.writeStream.format("onceward-kafka").option("topic", target)
    writer = writer.option("kafka.bootstrap.servers", reader.writer.servers)
    writer = writer.option("offsets.kafka.bootstrap.servers", reader.writer.servers)
    writer = writer.option("offsets.kafka.group.id", f"format-{name}")
    writer.option("checkpointLocation", str(reader.checkpoint)).trigger(availableNow=True).start().awaitTermination()
    assert committed(reader.writer.servers, f"format-{name}", name) == [25]


@limits
def test_69_with_another_sink_spark_publishes_a_batch_late(reader: Reader, topic: Callable[..., str]):
    name = topic()
    reader.writer.send(name, range(20))
    reader.run(reader.stream(name, **{"kafka.group.id": f"late-{name}", "maxOffsetsPerTrigger": 10}))
    assert committed(reader.writer.servers, f"late-{name}", name)[0] in (10, 20)
