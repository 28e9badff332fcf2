"""Three brokers in three racks, with Kafka's own times: what clusters do all day, and each fault for a source.

Connections that were idle for four seconds are closed by the brokers; consumers read from the nearest replica.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition

from onceward import KafkaSink, KafkaSource
from onceward.core.checkpoint import CommitPolicy, Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement, CommitStatus
from onceward.core.errors import OncewardError
from onceward.core.kit.crash_points import Step
from onceward.core.log import EpochInput, open_store
from onceward.testing.proxy import Proxy
from onceward.testing.services import KAFKAS_TIMES, KafkaCluster, KafkaServer

from .kafka_kit import Bench, eventually, numbered, prepared_of, read_all, rows
from .kafka_source_kit import values
from .spark_kit import Crash, crash_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
IDLE_MS, PARTITIONS, COUNT = 4000, 3, 3000


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(
        tmp_path_factory.mktemp("conditions"),
        times=KAFKAS_TIMES,
        config={
            "connections.max.idle.ms": str(IDLE_MS),
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        },
    )
    for number, broker in cluster.brokers.items():
        broker.config["broker.rack"] = f"rack-{number}"
    with cluster:
        yield cluster


@pytest.fixture
def cluster(running: KafkaCluster) -> Iterator[KafkaCluster]:
    yield running
    running.up_again()


@pytest.fixture
def silent(cluster: KafkaCluster) -> Iterator[str]:
    """A host that accepts connections and says nothing."""
    stray = Proxy("127.0.0.1", cluster.brokers[1].settings["port"])
    stray.cut()
    yield stray.address
    stray.close()


def new_topic(cluster: KafkaCluster, **more: Any) -> str:
    return cluster.create(f"t-{uuid.uuid4().hex[:8]}", **more)


def fill(cluster: KafkaCluster, topic: str, count: int = COUNT, size: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.direct, "acks": "all", "log_level": 0})
    for number in range(count):
        producer.produce(topic, str(number).zfill(size), str(number % 50))
    assert producer.flush(60) == 0


@pytest.mark.parametrize("config", [{}, {"connections.max.idle.ms": "1500"}], ids=["brokers", "client"])
def test_connections_that_are_closed_for_idleness_in_an_epoch_cost_nothing(
    cluster: KafkaCluster, config: dict[str, str]
) -> None:
    bench = Bench(cluster.bootstrap_servers, new_topic(cluster, partitions=1), config=config)
    bench.sink.validate(rows("x").schema)
    for epoch in range(2):
        transaction = bench.sink.begin(bench.context(epoch))
        for part in ("a", "b"):
            bench.sink.write(transaction, rows(f"{epoch}{part}"))
            transaction.producer.flush(time.monotonic() + 30)
            time.sleep(1.6 * IDLE_MS / 1000)
        prepared = bench.sink.pre_commit(transaction)
        bench.sink.warm_up(bench.context(epoch))
        time.sleep(1.6 * IDLE_MS / 1000)
        began = time.monotonic()
        assert bench.sink.commit(prepared).status is CommitStatus.COMMITTED
        assert time.monotonic() - began < 3
    assert [m.value() for m in read_all(cluster.direct, str(bench.topic))] == [b"0a", b"0b", b"1a", b"1b"]


def test_a_source_reads_from_the_replica_of_its_rack_and_from_the_leader_when_that_dies(cluster: KafkaCluster) -> None:
    topic = new_topic(cluster, replicas=[[1, 2, 3]])
    fill(cluster, topic, size=1000)
    source = KafkaSource(
        bootstrap_servers=cluster.bootstrap_servers, topics=[topic], config={"client.rack": "rack-3"}, timeout=60
    )
    before = {number: proxy.answered for number, proxy in cluster.proxies.items()}
    start = source.start()
    middle = source.latest(start, 2000)
    read = values(source, start, middle)
    answered = {number: proxy.answered - before[number] for number, proxy in cluster.proxies.items()}
    assert answered[3] > 10 * max(answered[1], answered[2]), answered
    cluster.brokers[3].kill()
    read += values(source, middle, source.latest(middle))
    assert [int(value) for value in read] == list(range(COUNT))


def test_fifty_topics_chosen_by_a_column_are_one_transaction_though_a_broker_dies(cluster: KafkaCluster) -> None:
    names = sorted(new_topic(cluster, partitions=2) for _ in range(50))
    bench = Bench(cluster.bootstrap_servers, None)
    bench.sink.validate(rows("x", topic=pa.array(["t"])).schema)
    expected: dict[str, list[bytes]] = defaultdict(list)
    for epoch in range(2):
        batch = rows(*map(str, range(1000)), topic=pa.array([names[n % 50] for n in range(1000)]))
        for n in range(1000):
            expected[names[n % 50]].append(str(n).encode())
        transaction = bench.sink.begin(bench.context(epoch))
        bench.sink.write(transaction, batch)
        transaction.producer.flush(time.monotonic() + 30)
        if epoch:
            cluster.brokers[2].kill()
        prepared = bench.sink.pre_commit(transaction)
        assert len({topic for topic, _ in prepared_of(prepared).partitions}) == 50
        eventually(lambda one=prepared: bench.sink.commit(one).settled, "committed", seconds=60)
    for name in names:
        found = sorted((m.value() for m in read_all(cluster.direct, name)), key=int)
        assert found == sorted(expected[name], key=int)


def leader_of(cluster: KafkaCluster, topic: str) -> int:
    return cluster.leaders(topic)[0]


def freeze_leader(cluster: KafkaCluster, topic: str) -> None:
    cluster.brokers[leader_of(cluster, topic)].pause()


def kill_leader(cluster: KafkaCluster, topic: str) -> None:
    cluster.brokers[leader_of(cluster, topic)].kill()


def cut_leader_off(cluster: KafkaCluster, topic: str) -> None:
    """The cluster is well; only this client does not reach the leader."""
    proxy = cluster.proxies[leader_of(cluster, topic)]
    proxy.cut()
    threading.Timer(15, proxy.mend).start()


def cut_all_off(cluster: KafkaCluster, _: str) -> None:
    cluster.cut()
    threading.Timer(12, cluster.mend).start()


def forget_connections(cluster: KafkaCluster, _: str) -> None:
    for proxy in cluster.proxies.values():
        proxy.forget()


def elect(cluster: KafkaCluster, topic: str) -> None:
    cluster.brokers[leader_of(cluster, topic)].restart()


def nothing(*_: Any) -> None:
    """Only the silent host."""


@pytest.mark.parametrize(
    "fault", [kill_leader, freeze_leader, cut_leader_off, cut_all_off, forget_connections, elect, nothing]
)
def test_a_source_reads_every_record_once_and_in_order(
    cluster: KafkaCluster, silent: str, fault: Callable[[KafkaCluster, str], None]
) -> None:
    topic = new_topic(cluster, partitions=PARTITIONS)
    fill(cluster, topic)
    source = KafkaSource(bootstrap_servers=f"{silent},{cluster.bootstrap_servers}", topics=[topic], timeout=90)
    began, read, step = time.monotonic(), list[tuple[str, int]](), 0
    position = source.start()
    while (end := source.latest(position, 500)) != position:
        if step == 2:
            fault(cluster, topic)
        for split in source.splits(position, end):
            for piece in source.read(split):
                read += [(split.unit, int(value)) for value in piece.batch.column("value").to_pylist()]
        position, step = end, step + 1
    assert sorted(number for _, number in read) == list(range(COUNT))
    for unit in {unit for unit, _ in read}:
        numbers = [number for one, number in read if one == unit]
        assert numbers == sorted(numbers)
    assert time.monotonic() - began < 60


def test_an_unclean_election_is_a_loud_loss_that_is_named(cluster: KafkaCluster) -> None:
    """The only replica in sync dies with the rows; the operator has another one lead, which never had them."""
    topic = new_topic(cluster, replicas=[[1, 2]], config={"min.insync.replicas": "1"})
    bench = Bench(cluster.bootstrap_servers, topic)
    cluster.brokers[2].kill()
    eventually(lambda: in_sync(cluster, topic) == [1], "the follower is out of sync", seconds=60)
    early = bench.sink.begin(bench.context(0, subtask=1))
    bench.sink.write(early, rows("early"))
    early.producer.flush(time.monotonic() + 30)
    prepared = bench.write(rows("lost"))
    cluster.brokers[1].kill()
    cluster.brokers[2].start_again()
    elect_unclean(cluster, topic)
    with pytest.raises(OncewardError, match="an unclean leader was elected"):
        bench.sink.pre_commit(early)
    outcome = bench.sink.commit(prepared)
    deadline = time.monotonic() + 60
    while outcome.status is CommitStatus.RETRY_LATER and time.monotonic() < deadline:
        outcome = bench.sink.commit(prepared)
    assert outcome.status is CommitStatus.LOST
    assert "unclean leader election" in outcome.detail


def in_sync(cluster: KafkaCluster, topic: str) -> list[int]:
    return cluster.admin.list_topics(topic, timeout=10).topics[topic].partitions[0].isrs


def elect_unclean(cluster: KafkaCluster, topic: str) -> None:
    def elected() -> bool:
        done = cluster.admin.elect_leaders(ElectionType.UNCLEAN, [TopicPartition(topic, 0)])
        done.result()
        return cluster.leaders(topic)[0] == 2

    eventually(elected, "the other replica leads", seconds=60)


class Decided:
    """A pipeline whose driver has died after a decision, with its log in a folder."""

    def __init__(self, cluster: KafkaCluster, folder: Path) -> None:
        self.topic, self.store = new_topic(cluster, partitions=PARTITIONS), f"file://{folder}/log"
        sink = KafkaSink("out", bootstrap_servers=cluster.bootstrap_servers, topic=self.topic)
        name = f"p-{uuid.uuid4().hex[:8]}"
        coordinator = Coordinator(name, open_store(self.store), [sink], CommitPolicy())
        coordinator.open()
        about = EpochInput(query="q", start=0, end=1)
        coordinator.admit(0, about)
        writing = SubtaskEpoch(sink, coordinator.context("out", 0, subtask=0))
        writing.write(numbered(0, 30))
        prepared = writing.pre_commit()
        ack = Acknowledgement(epoch=0, subtask=0, attempt=0, sinks=("out",), committables=(prepared,))
        with pytest.raises(Crash), crash_at(Step.DECIDE_AFTER):
            coordinator.commit(0, [ack], about)


JOB = """
import pyarrow as pa
from onceward import KafkaSink, SequenceSource
from onceward.core import Pipeline

def build():
    pipeline = Pipeline("explained", store="{store}")
    numbers = SequenceSource(pa.table({{"value": ["1"]}}), batch_rows=1)
    pipeline.source(numbers, uid="numbers").sink(KafkaSink("out", bootstrap_servers="{servers}", topic="{topic}"))
    return pipeline
"""


def onceward(*arguments: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    began = time.monotonic()
    command = [sys.executable, "-c", "from onceward.cli.main import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})
    return time.monotonic() - began, done


@pytest.mark.parametrize("fault", ["silent host", "frozen broker"])
def test_commands_are_done_soon_though_one_host_of_three_is_silent(
    cluster: KafkaCluster, silent: str, tmp_path: Path, fault: str
) -> None:
    decided, took = Decided(cluster, tmp_path), dict[str, float]()
    servers = cluster.bootstrap_servers
    usual, _ = onceward("txn", "list", "--at", f"kafka={servers}")
    if fault == "silent host":
        servers = ",".join([silent, *servers.split(",")[1:]])
    else:
        cluster.brokers[3].pause()
    at = ("--at", f"kafka={servers}")
    took["txn commit"], done = onceward("txn", "commit", "--store", decided.store, *at, "--yes")
    took["doctor"], doctor = onceward("doctor", *at, "--place", f"kafka:{decided.topic}", "--json")
    while done.returncode and fault == "frozen broker":  # it may coordinate the transaction, until its session ends
        assert "did not answer" in done.stdout + done.stderr
        took["txn commit"], done = onceward("txn", "commit", "--store", decided.store, *at, "--yes")
    took["txn list"], listed = onceward("txn", "list", "--store", decided.store, *at)
    (tmp_path / "job.py").write_text(JOB.format(store=f"file://{tmp_path}/other", servers=servers, topic=decided.topic))
    took["explain"], explained = onceward("explain", f"{tmp_path}/job.py:build")
    assert "exactly-once" in explained.stdout, explained.stdout + explained.stderr
    assert "transaction.max.timeout.ms" in explained.stdout
    print(fault, round(usual, 1), {name: round(seconds, 1) for name, seconds in took.items()})
    assert (done.returncode, listed.returncode) == (0, 0), done.stdout + done.stderr + listed.stdout + listed.stderr
    assert {finding["check"] for finding in json.loads(doctor.stdout)} >= {f"topic {decided.topic}"}
    assert sorted(int(m.value()) for m in read_all(cluster.direct, decided.topic)) == list(range(30))
    assert max(took.values()) < 3 * usual + 25, took


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[tuple[KafkaCluster, dict[int, KafkaServer]]]:
    """Three brokers, and three controllers that are no brokers."""
    cluster = KafkaCluster(tmp_path / "brokers", controllers=0, times=KAFKAS_TIMES)
    controllers = {n: KafkaServer(tmp_path / str(n), heap="256m") for n in (101, 102, 103)}
    places = {n: f"127.0.0.1:{one.settings['controller_port']}" for n, one in controllers.items()}
    voters = {"controller.quorum.voters": ",".join(f"{n}@{place}" for n, place in places.items())}
    for broker in cluster.brokers.values():
        broker.config |= voters
    for n, one in controllers.items():
        one.settings["cluster_id"] = cluster.brokers[1].settings["cluster_id"]
        listens = f"CONTROLLER://{places[n]}"
        names = {"listeners": listens, "advertised.listeners": listens}
        one.config = {**KAFKAS_TIMES, **voters, **names, "process.roles": "controller", "node.id": str(n)}
        one.config["listener.security.protocol.map"] = "CONTROLLER:PLAINTEXT"
    try:
        for one in controllers.values():
            one.start()
        with cluster:
            yield cluster, controllers
    finally:
        for one in controllers.values():
            one.delete()


def refused(bench: Bench) -> str:
    try:
        bench.sink.validate(rows("x").schema)
    except OncewardError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("fault", ["kill", pytest.param("pause", marks=pytest.mark.nightly)])
def test_a_failover_of_the_controller_alone_delays_no_epoch(
    apart: tuple[KafkaCluster, dict[int, KafkaServer]], fault: str
) -> None:
    cluster, controllers = apart
    bench = Bench(cluster.bootstrap_servers, new_topic(cluster))
    assert bench.sink.commit(bench.write(rows("0"))).status is CommitStatus.COMMITTED
    active = cluster.controller()
    began = time.monotonic()
    transaction = bench.sink.begin(bench.context(1))
    bench.sink.write(transaction, rows("1"))
    getattr(controllers[active], fault)()
    prepared = bench.sink.pre_commit(transaction)
    eventually(lambda: bench.sink.commit(prepared).settled, "committed")
    assert time.monotonic() - began < 15
    last = Bench(cluster.bootstrap_servers, f"new-{bench.topic}", create_topic=True)  # which a controller does
    eventually(lambda: cluster.controller() != active, "another one is active", seconds=30)
    # A broker that has sent its request to the frozen one waits for half a minute.
    eventually(lambda: not refused(last), "the topic is made", seconds=60)
    assert last.sink.commit(last.write(rows("2"))).status is CommitStatus.COMMITTED
    assert sorted(m.value() for m in read_all(cluster.direct, str(bench.topic))) == [b"0", b"1"]
    assert [m.value() for m in read_all(cluster.direct, str(last.topic))] == [b"2"]


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A broker that forgets transactional ids that were not used for ten seconds."""
    server = KafkaServer(
        tmp_path_factory.mktemp("forgetful"),
        config={
            "transactional.id.expiration.ms": "10000",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
        },
    )
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.delete()


@pytest.mark.parametrize("ready", [True, False])
def test_an_idle_pipeline_whose_transactional_ids_have_expired_goes_on(forgetful: KafkaServer, ready: bool) -> None:
    """Each epoch succeeds at once: one that the driver writes has no task that could be tried again."""
    bench = Bench(forgetful.bootstrap_servers, f"t-{uuid.uuid4().hex[:8]}", create_topic=True)
    bench.sink.validate(rows("x").schema)
    for epoch in range(6):
        prepared = bench.write(rows(str(epoch)), epoch=epoch)
        assert bench.sink.commit(prepared).status is CommitStatus.COMMITTED
        if ready:
            bench.sink.warm_up(bench.context(epoch))
        if epoch in (2, 3):
            eventually(lambda: bench.producers() == [], "the broker has forgotten the ids", seconds=40)
    assert bench.values() == [str(n).encode() for n in range(6)]
