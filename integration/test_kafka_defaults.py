"""Three brokers with Kafka's own times, with and without logins: nothing is refused that the cluster would take.

The other tests' brokers notice a fault within two seconds; these do as in production. With logins, the sink's user has
exactly the documented permissions.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from onceward.connectors.kafka import pool
from onceward.connectors.kafka.admin import cluster_of
from onceward.connectors.kafka.checks import check_kafka
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.core.checkpoint import CommitPolicy, Coordinator
from onceward.core.checkpoint.isolation import Isolation
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.findings import Health
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.errors import KafkaError, OncewardError
from onceward.core.log import EpochInput, MemoryStore
from onceward.testing.proxy import Proxy
from onceward.testing.services import KAFKAS_TIMES, KafkaCluster

from .kafka_kit import Bench, eventually, read_all, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LIMIT = 65_536


@pytest.fixture(scope="module", params=["without logins", pytest.param("with logins", marks=pytest.mark.nightly)])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    logins = {"app": uuid.uuid4().hex} if request.param == "with logins" else None
    folder = tmp_path_factory.mktemp("defaults")
    with KafkaCluster(folder, times=KAFKAS_TIMES, logins=logins) as cluster:
        cluster.logins = logins  # type: ignore[attr-defined]
        yield cluster


@pytest.fixture
def cluster(running: KafkaCluster) -> Iterator[KafkaCluster]:
    yield running
    running.up_again()


def bench_of(cluster: KafkaCluster, servers: str | None = None, config: Any = None, **topic: str) -> Bench:
    """A sink into a new topic, whose user may do what the documentation says, and nothing else."""
    name = cluster.create(f"rows-{uuid.uuid4().hex[:8]}", 1, config=topic)
    login = cluster.settings_of("app") if cluster.logins else {}  # type: ignore[attr-defined]
    # A client of its own: no connection of another test is used.
    config = {"client.id": name, **login, **(config or {})}
    bench = Bench(servers or cluster.bootstrap_servers, name, config=config)
    if login:
        allow(cluster, bench)
    return bench


def allow(cluster: KafkaCluster, bench: Bench) -> None:
    granted = [
        *((ResourceType.TOPIC, bench.topic, LITERAL, op) for op in ("WRITE", "READ", "DESCRIBE_CONFIGS")),
        (ResourceType.TOPIC, "__transaction_state", LITERAL, "DESCRIBE"),
        (ResourceType.TRANSACTIONAL_ID, f"onceward:1:{bench.pipeline}:", PREFIXED, "WRITE"),
        (ResourceType.BROKER, "kafka-cluster", LITERAL, "DESCRIBE_CONFIGS"),
    ]
    bindings = [
        AclBinding(kind, name, pattern, "User:app", "*", AclOperation[op], AclPermissionType.ALLOW)
        for kind, name, pattern, op in granted
    ]
    for future in cluster.admin.create_acls(bindings).values():
        future.result()
    eventually(lambda: not refused(bench), "every broker has heard of the permissions")


def refused(bench: Bench) -> str:
    try:
        bench.sink.validate(rows("x").schema)
    except OncewardError as error:
        return str(error)
    return ""


def committed(cluster: KafkaCluster, bench: Bench, *committables: Any) -> list[bytes]:
    for one in committables:
        eventually(lambda one=one: bench.sink.commit(one).settled, "committed", seconds=60)
    return [message.value() for message in read_all(cluster.direct, bench.topic)]


def test_the_coordinator_dies_between_the_flush_and_the_handle(cluster: KafkaCluster) -> None:
    """An epoch that the driver writes has no task that could be tried again."""
    bench = bench_of(cluster)
    bench.sink.validate(rows("x").schema)
    transaction = bench.sink.begin(bench.context())
    bench.sink.write(transaction, rows("a", "b"))
    transaction.producer.flush(time.monotonic() + 30)
    name = str(transaction.producer.name)
    bench.client.describe([name])
    cluster.brokers[bench.client._nodes[name]].kill()
    prepared = bench.sink.pre_commit(transaction)
    assert committed(cluster, bench, prepared) == [b"a", b"b"]


def test_a_silent_bootstrap_server_stops_no_start_and_no_writer(cluster: KafkaCluster) -> None:
    stray = Proxy("127.0.0.1", cluster.brokers[1].settings["port"])
    stray.cut()
    try:
        for _ in range(6):
            bench = bench_of(cluster, f"{stray.address},{cluster.bootstrap_servers}")
            began = time.monotonic()
            bench.sink.validate(rows("x").schema)
            assert committed(cluster, bench, bench.write(rows("x"))) == [b"x"]
            assert time.monotonic() - began < 15
    finally:
        stray.close()


@pytest.mark.parametrize("how", ["refuse", "cut"])
def test_a_coordinator_that_clients_cannot_reach_leaves_time_for_another_one(cluster: KafkaCluster, how: str) -> None:
    """The cluster finds it well, so nobody takes its place; the transactional id is free to be another one."""
    bench = bench_of(cluster)
    bench.sink.validate(rows("x").schema)
    ids = bench.sink._pool(bench.scope)
    ids._serve(bench.context())
    names = {str(name): name for name in islice(ids._names, 60)}
    wire, nodes = cluster_of(bench.sink.settings).wire, dict[str, int]()

    def are_known() -> bool:
        answers = wire.coordinators(list(names), seconds=20)
        nodes.update({name: one.response for name, one in answers.items()})
        return not any(one.code for one in answers.values())

    eventually(are_known, "the coordinator of each id is known", seconds=60)
    leader = cluster.leaders(str(bench.topic))[0]
    away = next(name for name in names if nodes[name] != leader)
    near = next(name for name in names if nodes[name] != nodes[away])
    ids._names = iter([names[away], names[near]])
    getattr(cluster.proxies[nodes[away]], how)()
    began = time.monotonic()
    prepared = bench.write(rows("x"))
    assert prepared.transaction == near
    assert committed(cluster, bench, prepared) == [b"x"]
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("age", [1.0, pytest.param(300.0, marks=pytest.mark.nightly)])
def test_connections_that_a_firewall_has_dropped_delay_an_epoch_by_seconds(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, age: float
) -> None:
    """A producer that was ready for too long is not used; one that is used has requests of a bounded time."""
    bench = bench_of(cluster, config={} if age < 2 else {"socket.timeout.ms": 5000})
    written = []
    for epoch in range(3):
        written.append(bench.write(rows(str(epoch)), epoch=epoch))
        assert len(committed(cluster, bench, written[-1])) == epoch + 1
        bench.sink.warm_up(bench.context(epoch))
    time.sleep(2)  # a producer is ready now
    monkeypatch.setattr(pool, "READY_SECONDS", age)
    monkeypatch.setattr(pool, "TRUSTED_SECONDS", age)
    for proxy in cluster.proxies.values():
        proxy.forget()
    began = time.monotonic()
    last = bench.write(rows("3"), epoch=3)
    assert committed(cluster, bench, last) == [b"0", b"1", b"2", b"3"]
    assert time.monotonic() - began < 45


def alter(cluster: KafkaCluster, topic: str, **config: str) -> None:
    entries = [ConfigEntry(n, v, incremental_operation=AlterConfigOpType.SET) for n, v in config.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    cluster.admin.incremental_alter_configs([resource])[resource].result(20)
    time.sleep(1)  # the brokers hear of it a moment later


def test_rows_that_a_topic_takes_are_written_though_batches_of_them_are_not_taken(cluster: KafkaCluster) -> None:
    """The limit is known at first, and lowered while the sink runs."""
    bench = bench_of(cluster, **{"max.message.bytes": str(LIMIT)})
    large, small = [str(n).zfill(20_000) for n in range(12)], [str(n).zfill(1000) for n in range(1000)]
    values = [text.encode() for text in (*large, *small)]
    assert committed(cluster, bench, bench.write(rows(*large)), bench.write(rows(*small), epoch=1)) == values
    alter(cluster, bench.topic or "", **{"max.message.bytes": "25000"})
    again = bench.write(rows(*large, *small), epoch=2)
    assert committed(cluster, bench, again) == [*values, *values]


def any_rows(draw: Random, count: int, limit: int) -> pa.RecordBatch:
    """Rows below and above the limit, of all that a message consists of; some compress well, some do not."""

    def text(size: int) -> bytes:
        return draw.randbytes(size) if draw.random() < 0.5 else bytes(size)

    def size() -> int:
        about = limit + draw.randrange(-120, 120)
        return draw.choice([0, 10, draw.randrange(2000), draw.randrange(limit), about, 4 * limit // 3])

    some = [{"key": "h", "value": text(draw.choice([3, 5000]))}]
    return pa.record_batch(
        {
            "value": pa.array([str(n).encode().zfill(4) + text(size()) for n in range(count)], pa.binary()),
            "key": pa.array([draw.choice([None, b"k", text(300)]) for _ in range(count)], pa.binary()),
            "headers": pa.array([draw.choice([None, some]) for _ in range(count)], HEADERS),
        }
    )


def attempt(bench: Bench, batch: pa.RecordBatch, number: int) -> tuple[Any, OncewardError | None]:
    """One attempt to write rows: its committable, or the refusal."""
    epoch = SubtaskEpoch(bench.sink, bench.context(subtask=number))
    try:
        epoch.write(batch)
        return epoch.pre_commit(), None
    except OncewardError as error:
        epoch.discard()
        return None, error


NIGHTLY_CODECS = [pytest.param(codec, marks=pytest.mark.nightly) for codec in ("gzip", "lz4")]


@pytest.mark.parametrize("codec", ["none", "zstd", *NIGHTLY_CODECS])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 5))])
@pytest.mark.parametrize("limit", [LIMIT, *(pytest.param(n, marks=pytest.mark.nightly) for n in (700, 900_000))])
def test_every_row_that_is_refused_fails_alone(cluster: KafkaCluster, limit: int, codec: str, seed: int) -> None:
    bench = bench_of(cluster, config={"compression.type": codec}, **{"max.message.bytes": str(limit)})
    batch, refused_rows = any_rows(Random(seed), 40, limit), list[int]()
    prepared, refusal = attempt(bench, batch, 0)
    if refusal is not None:
        assert refusal.refuses_rows, refusal
        isolation = Isolation(bench.sink, bench.context(), lambda _: batch, [batch.num_rows], most=None)
        prepared, _ = isolation.write(refusal)
        refused_rows = sorted(isolation.refused)
    good = [value for at, value in enumerate(batch["value"].to_pylist()) if at not in refused_rows]
    assert committed(cluster, bench, prepared) == good
    for at in refused_rows:
        _, alone = attempt(bench, batch.slice(at, 1), 1 + at)
        assert alone is not None
        assert "MSG_SIZE_TOO_LARGE" in str(alone)


def test_in_a_rolling_change_the_least_longest_timeout_counts(cluster: KafkaCluster) -> None:
    for number, broker in cluster.brokers.items():
        broker.config["transaction.max.timeout.ms"] = "3600000" if number == 1 else "900000"
        broker.restart()
        cluster.wait_in_sync()
    for _ in range(3):
        bench = bench_of(cluster)
        bench.sink.validate(rows("x").schema)
        assert bench.sink.transaction_timeout == 900
        assert committed(cluster, bench, bench.write(rows("x"))) == [b"x"]
    findings = check_kafka(KafkaSettings(cluster.direct))
    [longest] = [one for one in findings if one.check == "transaction.max.timeout.ms"]
    assert (longest.health, longest.found[:6]) == (Health.OK, "15 min")


def test_a_longest_timeout_that_is_lowered_under_a_running_sink_is_noticed(cluster: KafkaCluster) -> None:
    """Each process has asked for the limit when it began."""
    bench = bench_of(cluster)
    bench.sink.validate(rows("x").schema)
    lower = bench.sink.transaction_timeout - 300
    assert committed(cluster, bench, bench.write(rows("0"))) == [b"0"]
    for broker in cluster.brokers.values():
        broker.config["transaction.max.timeout.ms"] = f"{lower * 1000:.0f}"
        broker.restart()
        cluster.wait_in_sync()
    assert committed(cluster, bench, bench.write(rows("1"), epoch=1)) == [b"0", b"1"]
    assert bench.sink.transaction_timeout == lower


def test_a_frozen_broker_holds_no_client_for_long(cluster: KafkaCluster) -> None:
    """Until its session ends, a list of transactions cannot be complete; then all goes on without it."""
    bench = bench_of(cluster)
    bench.sink.commit(bench.write(rows("0")))
    cluster.brokers[3].pause()
    began = time.monotonic()
    client = cluster_of(bench.sink.settings).transactions
    listed: list[str] = []
    while not listed:
        one = time.monotonic()
        with suppress(KafkaError):
            listed = client.list_transactions(prefix=f"onceward:1:{bench.pipeline}:")
        assert time.monotonic() - one < 7
        assert time.monotonic() - began < 40
    assert committed(cluster, bench, bench.write(rows("1"), epoch=1)) == [b"0", b"1"]


@pytest.mark.parametrize("has_decided", [False, True], ids=["the first start", "a later start"])
def test_a_start_while_a_broker_is_frozen_waits_for_its_successors(cluster: KafkaCluster, has_decided: bool) -> None:
    """Its claim and its sweep need the answer of every broker; that one is fenced after 9 s."""
    bench, store = bench_of(cluster), MemoryStore()
    first = Coordinator(bench.pipeline, store, [bench.sink], CommitPolicy())
    first.open()
    if has_decided:
        run_epoch(first, bench, 0)
    left = bench.write(rows("left"), epoch=int(has_decided), log=first.view.log, generation=first.writer.token.start)
    cluster.brokers[3].pause()
    began = time.monotonic()
    bench.sink.validate(rows("x").schema)
    again = Coordinator(bench.pipeline, store, [bench.sink], CommitPolicy())
    again.open()
    assert time.monotonic() - began < 45
    assert bench.state_of(left) == "CompleteAbort"
    run_epoch(again, bench, int(has_decided))
    assert len(read_all(cluster.direct, bench.topic)) == 1 + has_decided


def run_epoch(coordinator: Coordinator, bench: Bench, epoch: int) -> None:
    about = EpochInput(query="q", start=epoch - 1 if epoch else None, end=epoch)
    coordinator.admit(epoch, about)
    writing = SubtaskEpoch(bench.sink, coordinator.context("out", epoch, subtask=0))
    writing.write(rows(str(epoch)))
    prepared = writing.pre_commit()
    ack = Acknowledgement(epoch=epoch, subtask=0, attempt=0, sinks=("out",), committables=(prepared,))
    coordinator.commit(epoch, [ack], about)
