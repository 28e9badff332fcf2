"""Targets are independent, on a real Kafka and PostgreSQL: an outage of one loses nothing in the other."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from onceward import KafkaSink, PostgresSink
from onceward.core.checkpoint import Backoff, CommitPolicy, Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.errors import CommitPendingError, EpochConflictError, RetryableSinkError
from onceward.core.kit.crash_points import Step
from onceward.core.log import EpochInput, MemoryStore

from .spark_kit import Crash, crash_at, ids_in_table, ids_in_topic, make_table, once, prepared_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.testing.services import KafkaServer, PostgresServer

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]
TIMEOUT = 14.0
"""Seconds after which Kafka ends the transactions here."""


class Pipeline:
    """Ids into a table and a topic; PostgreSQL comes first in the order of arguments."""

    def __init__(self, kafka: KafkaServer, topic: str, dsn: str) -> None:
        self.store = MemoryStore()
        self.sinks = [
            PostgresSink("table", dsn=dsn, table="words", select=["id", "word"]),
            KafkaSink("topic", bootstrap_servers=kafka.bootstrap_servers, topic=topic, transaction_timeout=TIMEOUT),
        ]

    def open(self) -> Coordinator:
        policy = CommitPolicy(commits=Backoff(attempts=2))
        coordinator = Coordinator(f"p-{self.sinks[1].topic}", self.store, self.sinks, policy)
        coordinator.open()
        return coordinator

    def run(self, coordinator: Coordinator, epoch: int, rows: int) -> None:
        ids = range(epoch * rows, (epoch + 1) * rows)
        batches = {
            "table": pa.RecordBatch.from_pydict({"id": list(ids), "word": [f"w{n}" for n in ids]}),
            "topic": pa.RecordBatch.from_pydict({"value": [json.dumps({"id": n}) for n in ids]}),
        }
        prepared = []
        for sink in self.sinks:
            writing = SubtaskEpoch(sink, coordinator.context(sink.name, epoch, subtask=0))
            writing.write(batches[sink.name])
            prepared.append(writing.pre_commit())
        names = tuple(sink.name for sink in self.sinks)
        found = tuple(committable for committable in prepared if committable is not None)
        ack = Acknowledgement(epoch=epoch, subtask=0, attempt=0, sinks=names, committables=found)
        about = EpochInput(query="q", start=epoch, end=epoch + 1)
        coordinator.admit(epoch, about)
        coordinator.commit(epoch, [ack], about)


def test_a_database_that_is_away_for_longer_than_kafkas_timeout_costs_kafka_nothing(
    kafka: KafkaServer, postgres: PostgresServer, topic: Callable[..., str], dsn: str
) -> None:
    make_table(dsn)
    name = topic()
    pipeline = Pipeline(kafka, name, dsn)
    coordinator = pipeline.open()
    with crash_at(Step.DECIDE_AFTER), pytest.raises(Crash):
        pipeline.run(coordinator, 0, rows=3)
    postgres.stop()
    stopped = time.monotonic()
    with pytest.raises(CommitPendingError, match="table"):
        pipeline.open()
    assert ids_in_topic(kafka.bootstrap_servers, name) == once(3)
    time.sleep(max(0.0, TIMEOUT + 4 - (time.monotonic() - stopped)))  # the broker looks every second
    postgres.start()
    postgres.wait_ready()
    pipeline.open()
    assert ids_in_topic(kafka.bootstrap_servers, name) == once(3)
    assert ids_in_table(dsn) == once(3)
    assert prepared_in(dsn) == 0


def test_what_lingers_in_kafka_is_swept_while_the_database_is_away(
    kafka: KafkaServer, postgres: PostgresServer, topic: Callable[..., str], dsn: str
) -> None:
    """Scenario 44: readers of the topic do not wait for PostgreSQL."""
    make_table(dsn)
    name = topic()
    pipeline = Pipeline(kafka, name, dsn)
    coordinator = pipeline.open()
    pipeline.run(coordinator, 0, rows=3)
    with crash_at(Step.DECIDE_BEFORE), pytest.raises(Crash):
        pipeline.run(coordinator, 1, rows=3)
    postgres.stop()
    with pytest.raises(RetryableSinkError, match="cannot check who owns the names"):
        pipeline.open()
    sink = pipeline.sinks[1]
    assert isinstance(sink, KafkaSink)
    scope = coordinator.context("topic", 1, subtask=0).scope
    assert list(sink.lingering(scope)) == []


def test_a_first_start_that_decided_nothing_leaves_the_names_free(
    kafka: KafkaServer, topic: Callable[..., str], dsn: str
) -> None:
    """Point of every newcomer: mend the mistake, delete the checkpoint, start again."""
    make_table(dsn)
    pipeline = Pipeline(kafka, topic(), dsn)
    coordinator = pipeline.open()
    with crash_at(Step.DECIDE_BEFORE), pytest.raises(Crash):
        pipeline.run(coordinator, 0, rows=3)
    pipeline.open()  # sweeps
    pipeline.store = MemoryStore()
    pipeline.run(pipeline.open(), 0, rows=3)
    assert ids_in_table(dsn) == once(3)
    pipeline.store = MemoryStore()
    with pytest.raises(EpochConflictError, match='rewind="'):
        pipeline.open()
