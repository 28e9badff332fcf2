"""Compare KafkaSource with Spark's own source: the same topics, options and restarts give the same columns and rows.

A seed makes the topics and what happens to them: records of any size and codec, null keys and values, headers,
transactions that end either way or stay open, retention, compaction, more partitions, topics that are made again. Each
failure's message names its seed and what was done; with ONCEWARD_SOURCE_SEED=17 set, seed 17 is run again.
"""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec, ResourceType
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from onceward.connectors.spark import register
from onceward.testing.services.jars import PEER_JARS, ensure_jars

from .kafka_source_kit import Writer, rows, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
OURS, SPARKS = "onceward-kafka", "kafka"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LARGEST = 8 * 2**20
SEED = os.environ.get("ONCEWARD_SOURCE_SEED")
FAULTS = (PySparkException, Py4JJavaError)
"""Errors of a read: Spark passes some errors of tasks on as they are."""
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
COLUMNS = (
    "key",
    "length(value) AS bytes",
    "sha2(value, 256) AS hash",
    "topic",
    "partition",
    "offset",
    "unix_micros(timestamp) AS time",
    "timestampType",
)


class Answer(NamedTuple):
    """The result of a reader: columns with their types, and rows in order; or the failure."""

    columns: tuple[str, ...]
    rows: tuple[Any, ...]
    failure: str = ""

    def difference(self, other: Answer) -> str:
        """Return the first difference from the other answer; "" if there is none."""
        if bool(self.failure) != bool(other.failure):
            return f"one fails: {self.failure!r}, {other.failure!r}"
        if self.columns != other.columns:
            return f"columns {self.columns} and {other.columns}"
        if len(self.rows) != len(other.rows):
            only = [sorted(set(a.rows) - set(b.rows))[:3] for a, b in ((self, other), (other, self))]
            return f"{len(self.rows)} and {len(other.rows)} rows; only in one: {only[0]}, only in the other: {only[1]}"
        return next((f"{a} and {b}" for a, b in zip(self.rows, other.rows, strict=True) if a != b), "")


def answer(frames: list[DataFrame]) -> Answer:
    """Collect the rows of frames that have the same columns."""
    columns: tuple[str, ...] = ()
    found: list[Any] = []
    for frame in frames:
        columns = tuple(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
        headers = ["headers"] if "headers" in frame.columns else []
        found += [as_tuple(row) for row in frame.selectExpr(*COLUMNS, *headers).collect()]
    return Answer(columns, tuple(sorted(found)))


def as_tuple(row: Any) -> tuple[Any, ...]:
    """A row that can be compared: topic, partition and offset first."""
    headers = row.headers if "headers" in row else None
    texts = repr([(header.key, header.value) for header in headers]) if headers is not None else "none"
    rest = (repr(row.key), row.bytes, row.hash, row.time, row.timestampType, texts)
    return row.topic, row.partition, row.offset, *map(repr, rest)


def said(error: Exception) -> str:
    """Return the message of an error without its stack traces."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " / ".join(line[:300] for line in lines if line and not line.startswith(("at ", "File ", "...")))[:1500]


class World:
    """Topics, and what happens to them."""

    def __init__(self, seed: int, servers: str) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.writer = Writer(servers)
        self.story: list[str] = []
        self.partitions: dict[str, int] = {}
        self.settings: dict[str, dict[str, str]] = {}
        self.open = ExitStack()
        """Transactions that are open while the topics are read."""
        self._busy: set[str] = set()
        self.made_again: set[str] = set()
        """Topics, since the last run of the streams."""
        """Topics that have open transactions."""
        for _ in range(self.chance.choice([1, 1, 2])):
            self._create(f"diff-{seed}-{uuid.uuid4().hex[:6]}", self.chance.randint(1, 3))
        if self.chance.random() < 0.5:
            self._create_compacted(f"diff-{seed}-{uuid.uuid4().hex[:6]}")

    def _create_compacted(self, topic: str) -> None:
        """Make a topic of which compaction has removed records, and which is not compacted any further.

        Compaction must not go on between the two reads that are compared.
        """
        self.writer.alter(ResourceType.BROKER, "1", {"log.cleaner.backoff.ms": "100"})
        self.settings[topic] = {"max.message.bytes": str(LARGEST), **COMPACTED}
        self._create(topic, 1)
        for _ in range(4):
            self.writer.send(topic, range(30), key=self.chance.choice([b"a", b"b", b"c"]))
            time.sleep(0.15)  # more than segment.ms: only older segments are compacted
        source = self.writer.source(topic)
        wait_until(lambda: len(rows(source, source.splits(source.start(), source.end()))) < 120)
        plain = {"cleanup.policy": "delete", "message.timestamp.after.max.ms": str(2**63 - 1)}
        self.writer.alter(ResourceType.TOPIC, topic, plain)
        self.settings[topic] = {"max.message.bytes": str(LARGEST), **plain}
        time.sleep(0.5)  # for a cleaning that has begun
        self.told(f"compact {topic}")

    def _create(self, topic: str, partitions: int) -> None:
        settings = {"max.message.bytes": str(LARGEST), "message.timestamp.after.max.ms": str(2**63 - 1)}
        if self.chance.random() < 0.3:
            settings["message.timestamp.type"] = "LogAppendTime"
        settings = self.settings.setdefault(topic, settings)
        self.writer.create_topic(topic, partitions, **settings)
        self.partitions[topic] = partitions
        self.told(f"create {topic} with {partitions} partitions, {settings}")

    def told(self, event: str) -> None:
        self.story.append(event)

    def any_partition(self) -> tuple[str, int]:
        topic = self.chance.choice(sorted(self.partitions))
        return topic, self.chance.randrange(self.partitions[topic])

    def happen(self, count: int) -> None:
        """Let some things happen."""
        kinds = {
            self.write: 5,
            self.end_transaction: 3,
            self.delete: 1,
            self.add_partition: 1,
            self.open_transaction: 1,
            self.make_again: 1,
        }
        for _ in range(count):
            self.chance.choices(list(kinds), list(kinds.values()))[0]()

    def write(self) -> None:
        topic, partition = self.any_partition()
        codec = self.chance.choice(CODECS)
        producer = self._producer(codec)
        self._produce(producer, topic, partition)
        assert producer.flush(60) == 0
        self.told(f"write to {topic}-{partition} with {codec}")

    def end_transaction(self) -> None:
        topic, partition = self.any_partition()
        commit = self.chance.random() < 0.5
        with self._transaction(topic, partition) as producer:
            marker = self.writer.end_of(topic, partition) + 1
            (producer.commit_transaction if commit else producer.abort_transaction)(30)
            wait_until(lambda: self.writer.end_of(topic, partition) >= marker)
        self.told(f"{'commit' if commit else 'abort'} in {topic}-{partition}")

    def open_transaction(self) -> None:
        topic, partition = self.any_partition()
        producer = self.open.enter_context(self._transaction(topic, partition))
        self.open.callback(suppressing_faults(producer.abort_transaction), 30)
        self._busy.add(topic)
        self.told(f"leave a transaction open in {topic}-{partition}")

    def delete(self) -> None:
        topic, partition = self.any_partition()
        first, end = self.bounds(topic, partition)
        if first < end:
            offset = self.chance.randint(first, end)
            self.writer.delete_before(topic, partition, offset)
            self.told(f"delete {topic}-{partition} before {offset}")

    def add_partition(self) -> None:
        topic, _ = self.any_partition()
        self.partitions[topic] += 1
        self.writer.add_partitions(topic, self.partitions[topic])
        wait_until(lambda: self.writer.partitions_of(topic) == self.partitions[topic])
        self.told(f"add a partition to {topic}")

    def make_again(self) -> None:
        """Delete a topic and create it under the same name, with other records."""
        topic, _ = self.any_partition()
        if topic in self._busy:
            return
        self.writer.delete_topic(topic)
        wait_until(lambda: self.writer.partitions_of(topic) == 0)
        self._create(topic, self.partitions[topic])
        self.made_again.add(topic)
        wait_until(lambda: self.writer.partitions_of(topic) == self.partitions[topic])

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset, and the one after the last stable one; both sources wait for what lies beyond it."""
        place = TopicPartition(topic, partition)
        ask = partial(self.writer.admin.list_offsets, isolation_level=IsolationLevel.READ_COMMITTED)
        found: list[int] = []

        def known() -> bool:
            """A broker learns only a moment later that it leads a new partition."""
            with suppress(KafkaException):
                asked = [ask({place: spec}) for spec in (OffsetSpec.earliest(), OffsetSpec.latest())]
                found[:] = [int(next(iter(one.values())).result(60).offset) for one in asked]
            return bool(found)

        wait_until(known)
        return found[0], found[1]

    def _producer(self, codec: str, **more: Any) -> Producer:
        config = {"bootstrap.servers": self.writer.servers, "linger.ms": 5, "log_level": 0, **more}
        config |= {"compression.type": codec, "message.max.bytes": LARGEST}
        if self.chance.random() < 0.3:
            config["batch.num.messages"] = 3
        return Producer(config)

    @contextmanager
    def _transaction(self, topic: str, partition: int) -> Iterator[Producer]:
        """A transaction that holds records of one partition, and is still open."""
        producer = self._producer(
            self.chance.choice(CODECS),
            **{"transactional.id": f"diff-{uuid.uuid4().hex}", "transaction.timeout.ms": 900_000},
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        self._produce(producer, topic, partition)
        assert producer.flush(60) == 0
        yield producer

    def _produce(self, producer: Producer, topic: str, partition: int) -> None:
        large = self.chance.random() < 0.2
        for _ in range(self.chance.randint(1, 3 if large else 60)):
            size = self.chance.randint(100_000, 5_000_000) if large else self.chance.choice([0, 1, 12, 13, 100, 5_000])
            noise = self.chance.randbytes(min(size, self.chance.choice([8, size])))
            more: dict[str, Any] = (
                {"timestamp": self.chance.randint(1, 4 * 10**12)} if self.chance.random() < 0.5 else {}
            )
            key = None if self.chance.random() < 0.3 else self.chance.randbytes(self.chance.choice([0, 3, 40]))
            value = None if self.chance.random() < 0.1 else noise + bytes(size - len(noise))
            producer.produce(topic, value, key, partition, headers=self._headers(), **more)
            producer.poll(0)

    def _headers(self) -> list[tuple[str, bytes | None]] | None:
        if self.chance.random() < 0.5:
            return None
        names = ["", "a", "a", "content-type", "ключ", "\x00", "🙂"]
        values = [None, b"", b"\xff\xfe", self.chance.randbytes(30)]
        return [(self.chance.choice(names), self.chance.choice(values)) for _ in range(self.chance.randint(0, 4))]


def suppressing_faults(call: Callable[..., None]) -> Callable[..., None]:
    """End a transaction whose end no test depends on."""

    def suppressed(*arguments: Any) -> None:
        with suppress(KafkaException):
            call(*arguments)

    return suppressed


class Side:
    """One of the two sources, over batches and over one query that is started again and again."""

    def __init__(self, spark: SparkSession, form: str, world: World, folder: Path) -> None:
        self._spark, self._form, self._world = spark, form, world
        self._checkpoint = str(folder / form)

    def batch(self, options: dict[str, str]) -> Answer:
        """Read once."""
        try:
            return answer([self._spark.read.format(self._form).options(**self._options(options)).load()])
        except FAULTS as error:
            return Answer((), (), said(error))

    def run(self, options: dict[str, str]) -> Answer:
        """Run the query over all there is."""
        found: list[Answer] = []
        frame = self._spark.readStream.format(self._form).options(**self._options(options)).load()
        writer = frame.writeStream.foreachBatch(lambda batch, _: found.append(answer([batch])))
        query = writer.option("checkpointLocation", self._checkpoint).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120), "the query did not end"
        except FAULTS as error:
            return Answer((), (), said(error))
        finally:
            query.stop()
        columns = {one.columns for one in found}
        assert len(columns) <= 1
        return Answer(next(iter(columns), ()), tuple(sorted(row for one in found for row in one.rows)))

    def _options(self, options: dict[str, str]) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._world.writer.servers,
            "subscribe": ",".join(sorted(self._world.partitions)),
            "kafkaConsumer.pollTimeoutMs": "20000",
            **options,
        }


class Comparison:
    """Both sources over one world."""

    def __init__(self, spark: SparkSession, world: World, folder: Path) -> None:
        self._world = world
        self._sides = [Side(spark, form, world, folder) for form in (OURS, SPARKS)]
        chance = world.chance
        self._stream = self._common() | {"startingOffsets": "earliest", "failOnDataLoss": "false"}
        if chance.random() < 0.6:
            self._stream["maxOffsetsPerTrigger"] = str(chance.choice([60, 150, 1000]))

    def _common(self) -> dict[str, str]:
        chance = self._world.chance
        options = {"kafka.isolation.level": chance.choice(["read_committed", "read_committed", "read_uncommitted"])}
        if chance.random() < 0.7:
            options["includeHeaders"] = "true"
        if chance.random() < 0.3:
            options["minPartitions"] = str(chance.randint(2, 6))
        return options

    def batch(self) -> None:
        """Read a random range."""
        chance, world = self._world.chance, self._world
        options = self._common()
        if chance.random() < 0.3:
            options["failOnDataLoss"] = "false"
        starts, ends = self._bounds()
        if chance.random() < 0.6:
            options["startingOffsets"] = json.dumps(starts)
        if chance.random() < 0.6:
            options["endingOffsets"] = json.dumps(ends)
        world.told(f"read {options}")
        self._compare([side.batch(options) for side in self._sides])

    def _bounds(self) -> tuple[dict[str, Any], dict[str, Any]]:
        starts: dict[str, Any] = {}
        ends: dict[str, Any] = {}
        chance = self._world.chance
        for topic, count in self._world.partitions.items():
            for partition in range(count):
                first, end = self._world.bounds(topic, partition)
                a, b = sorted(chance.randint(first, end) for _ in range(2))
                starts.setdefault(topic, {})[str(partition)] = chance.choice([a, a, a, -2])
                ends.setdefault(topic, {})[str(partition)] = chance.choice([b, b, b, -1])
        return starts, ends

    def stream(self) -> None:
        """Let both queries read what they have not read yet."""
        self._world.told(f"run {self._stream}")
        ours, theirs = (side.run(self._stream) for side in self._sides)
        # If a topic was made again and is shorter than what was read of the old one, Spark's source skips its rows.
        seen, again = set(theirs.rows), self._world.made_again
        alike = tuple(row for row in ours.rows if row in seen or row[0] not in again)
        columns = ours.columns if alike or theirs.columns else ()
        self._compare([Answer(columns, alike, ours.failure), theirs])
        again.clear()

    def _compare(self, answers: list[Answer]) -> None:
        ours, theirs = answers
        difference = ours.difference(theirs)
        assert not difference, "\n".join([f"ONCEWARD_SOURCE_SEED={self._world.seed}: {difference}", *self._world.story])


@pytest.fixture(scope="module")
def both(spark: SparkSession) -> SparkSession:
    """A session that has Spark's own Kafka source, too."""
    session = spark.newSession()
    for jar in ensure_jars(PEER_JARS).glob("*.jar"):
        session.sql(f"ADD JAR '{jar}'")
    register(session)
    return session


def check(session: SparkSession, servers: str, folder: Path, seed: int, rounds: int) -> None:
    """Compare both sources in the world of a seed."""
    world = World(seed, servers)
    with world.open:
        world.happen(5)
        comparison = Comparison(session, world, folder)
        comparison.batch()
        comparison.stream()
        for _ in range(rounds):
            world.happen(3)
            comparison.stream()
            comparison.batch()


NIGHTS = [pytest.param(number, marks=pytest.mark.nightly) for number in range(2, 14)]


@pytest.mark.parametrize("number", [1, *NIGHTS])
def test_columns_and_rows_are_those_of_sparks_own_source(
    both: SparkSession, kafka: KafkaServer, tmp_path: Path, number: int
):
    """By day the same seed and one restart of the queries; each night other seeds and more restarts."""
    night = int(time.time()) // 86_400 * 100
    seed, rounds = (1, 1) if number == 1 else (night + number, 4)
    check(both, kafka.bootstrap_servers, tmp_path, int(SEED or seed), rounds)
