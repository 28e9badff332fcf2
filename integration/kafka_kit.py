"""What the Kafka tests share: a sink of their own, readers of both isolation levels, child processes that die."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from onceward.connectors.kafka.admin import cluster_of
from onceward.connectors.kafka.sink import KafkaSink
from onceward.connectors.kafka.transaction_state import Handle, Prepared
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import Committable, WriteContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.connectors.kafka.transaction_coordinator import TransactionCoordinatorClient
    from onceward.connectors.kafka.transaction_state import Description

READ_SECONDS = 20.0
DELAY_SECONDS = 0.05


class Bench:
    """One pipeline with one KafkaSink into one new topic."""

    def __init__(self, servers: str, topic: str | None, **settings: Any) -> None:
        self.servers = servers
        self.topic = topic
        self.pipeline = f"orders-{uuid.uuid4().hex[:8]}"
        self.log = uuid.uuid4().hex[:8]
        self.settings = settings
        self.sink = KafkaSink("out", bootstrap_servers=servers, topic=topic, **settings)

    @property
    def scope(self) -> Scope:
        return Scope(self.pipeline, "out", self.log)

    @property
    def client(self) -> TransactionCoordinatorClient:
        return cluster_of(self.sink.settings).transactions

    def context(self, epoch: int = 0, **fields: Any) -> WriteContext:
        given = {"pipeline": self.pipeline, "sink": "out", "log": self.log, "generation": 0, "subtask": 0, **fields}
        return WriteContext(epoch=epoch, **{"completed": epoch - 1, **given})

    def write(self, batch: pa.RecordBatch, epoch: int = 0, **fields: Any) -> Committable:
        """One subtask's epoch, up to pre-commit."""
        transaction = self.sink.begin(self.context(epoch, **fields))
        self.sink.write(transaction, batch)
        return self.sink.pre_commit(transaction)

    def describe(self, name: str) -> Description:
        return self.client.describe([name])[name]

    def state_of(self, committable: Committable) -> str:
        return self.describe(committable.transaction).state

    def producers(self) -> list[str]:
        """Transactional ids of this pipeline that the broker knows."""
        return sorted(self.client.list_transactions(prefix=f"onceward:1:{self.pipeline}:"))

    def values(self, topic: str | None = None, *, committed: bool = True) -> list[bytes | None]:
        return [message.value() for message in self.messages(topic, committed=committed)]

    def messages(self, topic: str | None = None, *, committed: bool = True) -> list[Any]:
        """What a reader sees now: all of each partition, up to the last stable offset if `committed`."""
        return read_all(self.servers, topic or str(self.topic), committed=committed)


def read_all(servers: str, topic: str, *, committed: bool = True, **config: Any) -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 10,
            **config,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=READ_SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        waiting, found = set(partitions), []
        deadline = time.monotonic() + READ_SECONDS
        while waiting:
            assert time.monotonic() < deadline, f"no end of partitions {waiting} of {topic} within {READ_SECONDS} s"
            for message in consumer.consume(1000, DELAY_SECONDS):
                if message.error() is None:
                    found.append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    waiting.discard(message.partition())
        return sorted(found, key=lambda message: (message.partition(), message.offset()))
    finally:
        consumer.close()


def rows(*values: Any, **columns: Any) -> pa.RecordBatch:
    """Messages with these values, and further columns."""
    return pa.record_batch({"value": pa.array(values, pa.string()), **columns})


def numbered(first: int, count: int) -> pa.RecordBatch:
    numbers = [str(number) for number in range(first, first + count)]
    return rows(*numbers, key=pa.array(numbers))


def prepared_of(committable: Committable) -> Prepared:
    prepared = Prepared.of(committable)
    assert prepared is not None
    return prepared


def handle_of(committable: Committable) -> Handle:
    return prepared_of(committable).handle


def eventually(check: Callable[[], bool], what: str, seconds: float = READ_SECONDS) -> None:
    """Wait for something that only asking shows."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(DELAY_SECONDS)


def leaderless(bench):
    """By a definite answer: a client that nobody answers knows of no leaders either."""
    try:
        name = bench.topic
        topic = AdminClient({"bootstrap.servers": bench.servers}).list_topics(name, timeout=5).topics[name]
    except KafkaException:
        return None
    leaders = [partition.leader for partition in topic.partitions.values()]
    return leaders == [-1] if leaders else None


def lose_leader(bench, second):
    second.kill()
    eventually(lambda: leaderless(bench) is True, "the controller has taken the leadership away", seconds=60)


def bring_back(bench, second):
    second.start()
    second.wait_ready()
    eventually(lambda: leaderless(bench) is False, "a leader again", seconds=60)
