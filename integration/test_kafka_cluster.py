"""Three brokers, replication 3, min.insync.replicas 2: faults of which a cluster survives any one.

Each case ends with every broker back and in sync. Then a read_committed reader of every partition finds each row once,
and no transaction holds it back.
"""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward import KafkaSink, SequenceSource
from onceward.connectors.kafka.admin import cluster_of
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.connectors.kafka.topic_metadata import Lookup
from onceward.core import CheckpointConfig, Pipeline, RestartStrategy
from onceward.core.checkpoint import CommitPolicy, Coordinator, OnLost
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.errors import CommitPendingError, DataLossError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import EpochInput, MemoryStore
from onceward.testing.services import KafkaCluster

from .kafka_kit import eventually, numbered, read_all
from .spark_kit import Crash, crash_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
PARTITIONS, SUBTASKS, ROWS = 3, 3, 40
CUT_SECONDS = 12.0
"""Longer than a call to the transaction coordinator (5 s), its retries, and the brokers' sessions (2 s)."""
EXPIRES = 10.0
"""Seconds after which Kafka ends the transactions of the tests of loss."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: KafkaCluster) -> Iterator[KafkaCluster]:
    yield running
    running.up_again()


class Driven:
    """A sink and its coordinator, without an engine; three subtasks write each epoch."""

    def __init__(self, cluster: KafkaCluster, **settings: Any) -> None:
        self.cluster = cluster
        self.topic = cluster.create(f"rows-{uuid.uuid4().hex[:8]}", PARTITIONS)
        self.name, self.store = f"driven-{uuid.uuid4().hex[:8]}", MemoryStore()
        self.sink = KafkaSink("out", bootstrap_servers=cluster.bootstrap_servers, topic=self.topic, **settings)

    def open(self, **policy: Any) -> Coordinator:
        coordinator = Coordinator(self.name, self.store, [self.sink], CommitPolicy(**{"commit_timeout": 90, **policy}))
        coordinator.open()
        return coordinator

    def run(self, coordinator: Coordinator, epoch: int) -> None:
        about = EpochInput(query="q", start=epoch, end=epoch + 1)
        coordinator.admit(epoch, about)
        acks = []
        for subtask in range(SUBTASKS):
            writing = SubtaskEpoch(self.sink, coordinator.context("out", epoch, subtask=subtask))
            writing.write(numbered((epoch * SUBTASKS + subtask) * ROWS, ROWS))
            prepared = writing.pre_commit()
            assert prepared is not None
            acks.append(
                Acknowledgement(epoch=epoch, subtask=subtask, attempt=0, sinks=("out",), committables=(prepared,))
            )
        coordinator.commit(epoch, acks, about)

    def coordinator_broker(self) -> int:
        """The broker that is the transaction coordinator of the first subtask's id."""
        client = cluster_of(self.sink.settings).transactions
        name = min(client.list_transactions(["Ongoing"], prefix=f"onceward:1:{self.name}:"))
        client.describe([name])
        return client._nodes[name]

    def visible(self) -> list[int]:
        return visible(self.cluster, self.topic)


def visible(cluster: KafkaCluster, topic: str) -> list[int]:
    """What the strictest reader finds, after it is shown that nothing open holds it back."""
    eventually(lambda: open_transactions(cluster, topic) == [], "no transaction is open", seconds=60)
    return sorted(int(message.value()) for message in read_all(cluster.direct, topic))


def open_transactions(cluster: KafkaCluster, topic: str) -> list[Any]:
    """Open producers of any partition; None for a partition that does not say."""
    client = cluster_of(KafkaSettings(cluster.direct)).transactions
    inside = client.describe_producers([(topic, number) for number in range(PARTITIONS)])
    return [open_ for open_ in inside.values() if open_ != {}]


def once(epochs: int) -> list[int]:
    return list(range(epochs * SUBTASKS * ROWS))


def kill_leader(driven: Driven) -> None:
    driven.cluster.brokers[driven.cluster.leaders(driven.topic)[0]].kill()


def kill_coordinator(driven: Driven) -> None:
    driven.cluster.brokers[driven.coordinator_broker()].kill()


def kill_controller(driven: Driven) -> None:
    driven.cluster.brokers[driven.cluster.controller()].kill()


def pause_leader(driven: Driven) -> None:
    driven.cluster.brokers[driven.cluster.leaders(driven.topic)[0]].pause()


def pause_coordinator(driven: Driven) -> None:
    driven.cluster.brokers[driven.coordinator_broker()].pause()


def cut_for_a_while(driven: Driven) -> None:
    driven.cluster.cut()
    threading.Timer(CUT_SECONDS, driven.cluster.mend).start()


PREPARED, DECIDED = Step.ACKNOWLEDGED, Step.DECIDE_AFTER
FAULTS = [
    (kill_leader, PREPARED),
    (kill_coordinator, DECIDED),
    pytest.param(kill_leader, DECIDED, marks=pytest.mark.nightly),
    pytest.param(kill_coordinator, PREPARED, marks=pytest.mark.nightly),
    pytest.param(kill_controller, PREPARED, marks=pytest.mark.nightly),
    pytest.param(kill_controller, DECIDED, marks=pytest.mark.nightly),
    pytest.param(pause_leader, DECIDED, marks=pytest.mark.nightly),
    pytest.param(pause_coordinator, DECIDED, marks=pytest.mark.nightly),
    pytest.param(cut_for_a_while, PREPARED, marks=pytest.mark.nightly),
    pytest.param(cut_for_a_while, DECIDED, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("fault", "moment"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_of_one_broker_or_of_the_network_loses_and_duplicates_nothing(
    cluster: KafkaCluster, fault: Callable[[Driven], None], moment: Step
) -> None:
    driven = Driven(cluster)
    coordinator = driven.open()
    driven.run(coordinator, 0)
    struck = []

    def strike(step: Step) -> None:
        if step is moment and not struck:
            struck.append(step)
            fault(driven)

    with hooked(strike):
        driven.run(coordinator, 1)
    assert struck == [moment]
    driven.run(coordinator, 2)  # with the broker still away
    assert coordinator.view.completed == 2
    assert driven.visible() == once(3)
    cluster.up_again()
    driven.run(coordinator, 3)
    assert driven.visible() == once(4)


@pytest.mark.parametrize(
    "on_lost", ["fail", *(pytest.param(other, marks=pytest.mark.nightly) for other in ("skip", "replay"))]
)
def test_a_cut_for_longer_than_the_transactions_timeout_is_a_loud_loss(cluster: KafkaCluster, on_lost: str) -> None:
    """Scenario 43. The decision stands, and Kafka has aborted what it names."""
    driven = Driven(cluster, transaction_timeout=EXPIRES)
    coordinator = driven.open()
    driven.run(coordinator, 0)
    with crash_at(Step.DECIDE_AFTER), pytest.raises(Crash):
        driven.run(coordinator, 1)
    cluster.cut()
    with pytest.raises(CommitPendingError, match="NO_ANSWER"):
        driven.open(commit_timeout=1)
    assert driven.visible() == once(1)  # waits until Kafka has aborted them
    cluster.mend()
    if on_lost == "fail":
        with pytest.raises(DataLossError) as lost:
            driven.open()
        told = str(lost.value)
        assert all(word in told for word in ("epoch 1", "sink out", f"{ROWS} rows", "on_lost")), told
        with pytest.raises(DataLossError):
            driven.open()
        assert driven.visible() == once(1)
        return
    coordinator = driven.open(on_lost=OnLost(on_lost))
    again = 1 if on_lost == "replay" else 2
    for epoch in range(again, 3):
        driven.run(coordinator, epoch)
    skipped = set() if on_lost == "replay" else set(once(2)) - set(once(1))
    assert driven.visible() == sorted(set(once(3)) - skipped)


def test_every_broker_is_asked_for_a_transactions_partitions(cluster: KafkaCluster) -> None:
    driven = Driven(cluster)
    coordinator = driven.open()
    writing = SubtaskEpoch(driven.sink, coordinator.context("out", 0, subtask=0))
    writing.write(numbered(0, ROWS))
    prepared = writing.pre_commit()
    assert prepared is not None
    client = cluster_of(driven.sink.settings).transactions
    known = client.describe([prepared.transaction])[prepared.transaction]
    assert known.handle is not None
    assert client.partitions_everywhere(known.handle) == known.partitions
    assert {partition for _, partition in known.partitions} == set(range(PARTITIONS))
    assert client.leaderless_of([driven.topic]) == []
    driven.sink.abort(prepared)


def test_sources_look_topics_up_though_the_broker_is_dead_that_their_client_asks(cluster: KafkaCluster) -> None:
    """librdkafka asks one broker, which its metadata call the controller, and does not look for another by itself."""
    topic = cluster.create(f"looked-up-{uuid.uuid4().hex[:8]}", PARTITIONS)
    settings = [KafkaSettings(cluster.direct, {"client.id": f"reader-{n}"}) for n in range(15)]
    lookups = [Lookup(one, committed=True, retry_seconds=60) for one in settings]
    with ThreadPoolExecutor(len(lookups)) as threads:
        before = list(threads.map(lambda lookup: lookup.partitions_of([topic]), lookups))
        cluster.brokers[1].kill()
        assert list(threads.map(lambda lookup: lookup.partitions_of([topic]), lookups)) == before


def kill_the_leader_of_a_running_job(cluster: KafkaCluster, topic: str) -> None:
    cluster.brokers[cluster.leaders(topic)[0]].kill()


def restart_one_broker_after_the_other(cluster: KafkaCluster, topic: str) -> None:  # noqa: ARG001 - of all faults
    """As operators do it: the next one when all replicas are in sync again."""
    for broker in cluster.brokers.values():
        broker.restart()
        cluster.wait_in_sync()


def newest(pipeline: Pipeline) -> int:
    """The newest completed checkpoint."""
    return max((record.checkpoint for record in pipeline.checkpoints if record.status == "completed"), default=0)


@pytest.mark.parametrize(
    "fault",
    [kill_the_leader_of_a_running_job, pytest.param(restart_one_broker_after_the_other, marks=pytest.mark.nightly)],
)
def test_a_running_job_of_the_embedded_engine_is_exact_at_its_end(
    cluster: KafkaCluster, tmp_path: Path, fault: Callable[[KafkaCluster, str], None]
) -> None:
    topic = cluster.create(f"job-{uuid.uuid4().hex[:8]}", PARTITIONS)
    over, rows = threading.Event(), 6000

    def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(0.0 if over.is_set() else 0.2)
        return batch

    pipeline = Pipeline(
        topic,
        checkpointing=CheckpointConfig(interval=0.5, tolerable_failures=100),
        restart=RestartStrategy.fixed_delay(attempts=100, delay=0.5),
        store=f"file://{tmp_path}/log",
    )
    values = pa.table({"value": [str(n) for n in range(rows)]})
    stream = pipeline.source(SequenceSource(values, batch_rows=10), uid="numbers").map_batches(slowly, uid="slowly")
    stream.sink(KafkaSink("out", bootstrap_servers=cluster.bootstrap_servers, topic=topic))
    pipeline.start()
    try:
        eventually(lambda: newest(pipeline) > 0, "under way")
        fault(cluster, topic)
        before = newest(pipeline)
        eventually(lambda: newest(pipeline) > before, "checkpoints go on", seconds=60)
    finally:
        over.set()
    assert pipeline.wait(120)
    assert visible(cluster, topic) == list(range(rows))
