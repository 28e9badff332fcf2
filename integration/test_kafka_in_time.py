"""Rule I: a decided commit is sent in time. A deleted topic or a silent partition costs no other topic its rows."""

from __future__ import annotations

import logging
import re
import time
import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from onceward import KafkaSink
from onceward.core.checkpoint import Backoff, CommitPolicy, Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import AbortStatus, Acknowledgement, CommitStatus
from onceward.core.errors import CommitPendingError
from onceward.core.kit.crash_points import Step
from onceward.core.log import EpochInput, MemoryStore

from .kafka_kit import Bench, bring_back, eventually, lose_leader, prepared_of, read_all, rows
from .spark_kit import Crash, crash_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.testing.services import KafkaServer

pytestmark = pytest.mark.kafka
TIMEOUT = 16.0


class Pipeline:
    """Rows that name their own topics, each epoch in one transaction."""

    def __init__(self, servers: str, **settings: Any) -> None:
        self.servers, self.store, self.name = servers, MemoryStore(), f"in-time-{uuid.uuid4().hex[:8]}"
        self.sink = KafkaSink("out", bootstrap_servers=servers, **settings)

    def open(self) -> Coordinator:
        policy = CommitPolicy(commits=Backoff(attempts=1))
        coordinator = Coordinator(self.name, self.store, [self.sink], policy)
        coordinator.open()
        return coordinator

    def decide(self, *topics: str) -> None:
        """One epoch with three rows for each topic; the driver dies when it is decided."""
        coordinator = self.open()
        writing = SubtaskEpoch(self.sink, coordinator.context("out", 0, subtask=0))
        for topic in topics:
            writing.write(rows("1", "2", "3", topic=[topic] * 3))
        prepared = writing.pre_commit()
        assert prepared is not None
        ack = Acknowledgement(epoch=0, subtask=0, attempt=0, sinks=("out",), committables=(prepared,))
        about = EpochInput(query="q", start=0, end=1)
        coordinator.admit(0, about)
        with crash_at(Step.DECIDE_AFTER), pytest.raises(Crash):
            coordinator.commit(0, [ack], about)

    def visible(self, topic: str) -> list[bytes | None]:
        return [message.value() for message in read_all(self.servers, topic)]


def delete(servers: str, topic: str, *, create_again: bool = False) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: topic not in admin.list_topics(timeout=10).topics, "deleted")
    if create_again:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        eventually(lambda: topic in admin.list_topics(timeout=10).topics, "created again")


@pytest.mark.parametrize("create_again", [False, True], ids=["deleted", "deleted and created again"])
def test_a_topic_that_is_deleted_after_the_decision_takes_no_other_topics_rows_with_it(
    kafka: KafkaServer, topic: Callable[..., str], caplog: pytest.LogCaptureFixture, create_again: bool
) -> None:
    gone, kept = topic(), topic()
    pipeline = Pipeline(kafka.bootstrap_servers, transaction_timeout=TIMEOUT)
    pipeline.decide(gone, kept)
    delete(kafka.bootstrap_servers, gone, create_again=create_again)
    with caplog.at_level(logging.WARNING):
        view = pipeline.open().view
    assert view.completed == 0
    assert pipeline.visible(kept) == [b"1", b"2", b"3"]
    assert f"the rows in {gone} are gone: the topic was deleted before they were committed" in caplog.text


def test_a_transaction_all_of_whose_topics_are_deleted_ends(kafka: KafkaServer, topic: Callable[..., str]) -> None:
    bench = Bench(kafka.bootstrap_servers, None)
    one, two = topic(), topic()
    committed = bench.write(rows("1", "2", topic=[one, two]))
    aborted = bench.write(rows("1", "2", topic=[one, two]), subtask=1)
    for name in (one, two):
        delete(kafka.bootstrap_servers, name)
    assert bench.sink.commit(committed).status is CommitStatus.COMMITTED
    assert bench.sink.commit(committed).status is CommitStatus.ALREADY_COMMITTED
    assert bench.sink.abort(aborted).status is AbortStatus.ABORTED
    assert list(bench.sink.lingering(bench.scope)) == []


def test_a_handle_says_which_topics_it_wrote_to(kafka: KafkaServer, topic: Callable[..., str]) -> None:
    bench = Bench(kafka.bootstrap_servers, topic())
    committable = bench.write(rows("1"))
    [(name, id_)] = prepared_of(committable).topic_ids
    assert (name, len(id_)) == (bench.topic, 36)
    assert [c.identity() for c in bench.sink.lingering(bench.scope)] == [committable.identity()]
    bench.sink.abort(committable)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_partition_that_is_silent_for_longer_than_the_timeout_loses_nothing(pair: Any) -> None:
    """The coordinator would abort the transaction at its timeout, and with it the rows of the healthy partition."""
    servers, second = pair.direct, pair.brokers[2]
    for name, where in {"here": [[1]], "apart": [[2]]}.items():
        pair.create(name, replicas=where)
    pipeline = Pipeline(servers, transaction_timeout=2 * TIMEOUT)
    began = time.monotonic()
    pipeline.decide("here", "apart")
    lose_leader(Bench(servers, "apart"), second)
    while "cannot be read now" in (told := pending(pipeline)):  # the coordinator may have been on the dead broker
        assert time.monotonic() - began < TIMEOUT, told
    assert "nothing is lost" not in told.lower()
    when = re.search(r"open, but apart-0 does not answer.*Kafka aborts it at (\S+ \S+) UTC by its broker's clock", told)
    assert when is not None, told
    left = datetime.fromisoformat(f"{when[1]}+00:00").timestamp() - time.time()
    assert abs(2 * TIMEOUT - (time.monotonic() - began) - left) < 6

    eventually(lambda: sends(pipeline), "EndTxn without the silent partition", seconds=TIMEOUT + 15)
    assert time.monotonic() - began > TIMEOUT
    assert pipeline.visible("here") == [b"1", b"2", b"3"]
    time.sleep(max(0.0, began + 2 * TIMEOUT + 5 - time.monotonic()))
    bring_back(Bench(servers, "apart"), second)
    eventually(lambda: completes(pipeline), "completed", seconds=60)
    assert pipeline.visible("here") == pipeline.visible("apart") == [b"1", b"2", b"3"]


def pending(pipeline: Pipeline) -> str:
    """Why a decision still waits."""
    with pytest.raises(CommitPendingError) as waits:
        pipeline.open()
    return str(waits.value)


def sends(pipeline: Pipeline) -> bool:
    """Whether the commit is safe, though a partition does not have it yet."""
    return "committed, and can no longer be lost; the rows in apart-0 become visible when" in pending(pipeline)


def completes(pipeline: Pipeline) -> bool:
    try:
        return pipeline.open().view.completed == 0
    except CommitPendingError:
        return False
