"""Connections to brokers of which some are silent, slow, or away: one that answers is found, within a call's bound."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from onceward.connectors.kafka import wire
from onceward.connectors.kafka.admin import Cluster
from onceward.connectors.kafka.error_codes import Code
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.connectors.kafka.transaction_coordinator import TransactionCoordinatorClient
from onceward.connectors.kafka.transaction_state import Handle
from onceward.connectors.kafka.wire import HEDGE_SECONDS, TRY_SECONDS, Wire
from onceward.core.errors import KafkaError

from . import kafka_server_kit
from .kafka_server_kit import FakeCluster, Manner

if TYPE_CHECKING:
    from collections.abc import Callable

MORE = 0.6
"""Seconds that a machine with little time may need besides."""
DEAD = (Manner.SILENT, Manner.FROZEN, Manner.REFUSES, Manner.HOLE)
CALLS: dict[str, Callable[[Wire, float], Any]] = {
    "nodes": lambda link, seconds: link.nodes(seconds=seconds),
    "coordinators": lambda link, seconds: link.coordinators(["an id"], seconds=seconds),
    "leaderless": lambda link, seconds: link.leaderless("t", seconds=seconds),
    "topics": lambda link, seconds: link.topics(None, seconds=seconds),
    "topic": lambda link, seconds: link.topic("t", seconds=seconds),
    "topic ids": lambda link, seconds: link.topic_ids_everywhere(["t"], seconds=seconds),
    "topic limits": lambda link, seconds: link.topic_limits(["t"], seconds=seconds),
    "broker configs": lambda link, seconds: link.broker_configs([1, 2], seconds=seconds),
    "describe": lambda link, seconds: TransactionCoordinatorClient(link).within(seconds).describe(["an id"]),
    "end": lambda link, seconds: TransactionCoordinatorClient(link, retry_seconds=seconds).end_many([ONE], commit=True),
    "list": lambda link, seconds: listed(TransactionCoordinatorClient(link, retry_seconds=seconds)),
    "may look": lambda link, seconds: TransactionCoordinatorClient(link, retry_seconds=seconds).may_look("t"),
}
ONE = Handle("an id", 7, 3, 1000)


def listed(client: TransactionCoordinatorClient) -> list[str] | None:
    try:
        return client.list_transactions()
    except KafkaError:
        return None


def linked(cluster: FakeCluster) -> Wire:
    return Wire({"bootstrap_servers": ",".join(cluster.addresses)})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_server_kit, "SLOW_SECONDS", 0.3)


@pytest.mark.parametrize("seed", range(12))
def test_a_broker_that_answers_is_found_whatever_the_other_addresses_do(seed: int) -> None:
    random = Random(seed)
    manners = [random.choice(DEAD) for _ in range(4)]
    brokers = {1: random.choice([Manner.WELL, Manner.SLOW]), 2: manners[0], 3: manners[1]}
    with FakeCluster(brokers, strays=(manners[2], manners[3])) as cluster:
        began = time.monotonic()
        link = linked(cluster)
        assert link.nodes(seconds=10) == [1, 2, 3], link.last_fault
        assert link.coordinators(["an id"], seconds=10)["an id"].response == 1
        assert link.topics(["t"], seconds=10).leaders == {("t", 0): 1}
        client = TransactionCoordinatorClient(link)
        assert client.end_many([ONE], commit=True) == [Code.NONE]
        assert time.monotonic() - began < 4 * (HEDGE_SECONDS + MORE) + 5 * kafka_server_kit.SLOW_SECONDS
        link.forget()


@pytest.mark.parametrize("manner", DEAD)
@pytest.mark.parametrize("call", CALLS)
def test_no_call_takes_longer_than_its_caller_has_said(call: str, manner: Manner) -> None:
    with FakeCluster({1: manner, 2: manner}) as cluster:
        link = linked(cluster)
        for seconds in (0.1, 0.8):
            began = time.monotonic()
            CALLS[call](link, seconds)
            assert time.monotonic() - began < seconds + MORE
        link.forget()


@pytest.mark.parametrize("call", ["list", "describe", "end", "broker configs"])
def test_a_frozen_broker_that_was_connected_holds_no_call_longer_than_its_bound(call: str) -> None:
    """It answered at first, for example ApiVersions, or everything until a moment ago."""
    with FakeCluster({1: Manner.WELL, 2: Manner.WELL}) as cluster:
        link = linked(cluster)
        CALLS[call](link, 5.0)
        for broker in cluster.brokers.values():
            broker.manner = Manner.FROZEN
        began = time.monotonic()
        CALLS[call](link, 1.5)
        assert time.monotonic() - began < 1.5 + MORE
        link.forget()


@pytest.mark.parametrize("old", [Manner.SILENT, Manner.FROZEN, Manner.REFUSES])
def test_brokers_that_have_moved_are_found_while_their_old_addresses_are(old: Manner) -> None:
    """As pods: a configured name leads to any of them, the brokers themselves are at new addresses."""
    with FakeCluster({1: Manner.WELL, 2: Manner.WELL, 3: Manner.WELL}, strays=(Manner.WELL,)) as cluster:
        link = Wire({"bootstrap_servers": cluster.strays[0].address})
        client = TransactionCoordinatorClient(link)
        assert listed(client) == ["id-of-1", "id-of-2", "id-of-3"]
        assert client.end_many([ONE], commit=True) == [Code.NONE]
        left = [cluster.move(node) for node in (1, 2, 3)]
        for broker in left:
            broker.manner = old
            if old is Manner.REFUSES:
                broker.close()
        began = time.monotonic()
        assert listed(client) == ["id-of-1", "id-of-2", "id-of-3"]
        assert client.end_many([ONE], commit=True) == [Code.NONE]
        assert time.monotonic() - began < 3 * HEDGE_SECONDS + 2 * TRY_SECONDS + 2 * MORE
        link.forget()
        for broker in left:
            broker.close()


def test_a_silent_broker_leaves_time_for_the_others() -> None:
    with FakeCluster({1: Manner.WELL, 2: Manner.SILENT, 3: Manner.WELL}) as cluster:
        link = linked(cluster)
        assert link.nodes(seconds=5)
        for _ in range(3):  # however often it was silent
            began = time.monotonic()
            answers = link.exchange([(node, wire.metadata_request([])) for node in (1, 2, 3)], seconds=4.0)
            assert [answer.code for answer in answers] == [Code.NONE, Code.NO_ANSWER, Code.NONE]
            assert time.monotonic() - began < 2.0 + MORE
        link.forget()


def test_a_broker_that_is_slower_than_the_first_try_is_heard_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_server_kit, "SLOW_SECONDS", 1.4)
    with FakeCluster({1: Manner.SLOW, 2: Manner.WELL}) as cluster:
        link = linked(cluster)
        client = TransactionCoordinatorClient(link)
        assert client.end_many([ONE], commit=True) == [Code.NONE]
        began = time.monotonic()
        assert client.end_many([ONE], commit=True) == [Code.NONE]
        assert time.monotonic() - began < 1.4 + MORE
        link.forget()


def test_time_without_an_answer_is_counted_across_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose other end is gone without a word is replaced, though no call waits that long."""
    monkeypatch.setattr(wire, "SILENT_SECONDS", 1.0)
    with FakeCluster({1: Manner.WELL}) as cluster:
        link = linked(cluster)
        assert link.nodes(seconds=5) == [1]
        broker = cluster.brokers[1]
        request = [(1, wire.metadata_request([]))]
        link.exchange(request, seconds=1)
        before = len(broker._connections)
        broker.manner = Manner.FROZEN
        deadline = time.monotonic() + 10
        while len(broker._connections) == before and time.monotonic() < deadline:
            link.exchange(request, seconds=0.2)
        broker.manner = Manner.WELL
        link.exchange(request, seconds=1)
        assert len(broker._connections) > before
        link.forget()


@pytest.mark.parametrize("manner", DEAD)
def test_the_least_limit_of_all_brokers_counts(manner: Manner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers differ in the middle of a rolling change; one that is silent does not stop a start."""
    monkeypatch.setattr("onceward.connectors.kafka.admin.LIMIT_SECONDS", 1.0)
    with FakeCluster({1: Manner.WELL, 2: Manner.WELL, 3: manner, 4: Manner.WELL}) as cluster:
        for node, minutes, size in ((1, 60, 5000), (2, 15, 7000), (4, 60, 3000)):
            cluster.configs[node] = {
                "transaction.max.timeout.ms": str(60_000 * minutes),
                "message.max.bytes": str(size),
            }
        asked = Cluster(KafkaSettings(cluster.addresses))
        began = time.monotonic()
        limits = asked.limits()
        assert (limits.longest_timeout_ms, limits.message_bytes, limits.known) == (900_000, 3000, True)
        assert time.monotonic() - began < 5
        asked.wire.forget()


def test_the_limit_of_a_topic_is_the_least_one_that_a_broker_tells() -> None:
    with FakeCluster({1: Manner.WELL, 2: Manner.WELL, 3: Manner.WELL}) as cluster:
        cluster.configs = {node: {"max.message.bytes": str(1000 * node)} for node in cluster.brokers}
        link = linked(cluster)
        assert link.topic_limits(["t", "u"], seconds=5) == {"t": 1000, "u": 1000}
        link.forget()


def test_a_topic_that_may_not_be_described_is_not_one_without_missing_leaders() -> None:
    with FakeCluster({1: Manner.WELL}) as cluster:
        cluster.topic_errors = {"hidden": Code.TOPIC_AUTHORIZATION_FAILED, "new": Code.UNKNOWN_TOPIC_OR_PARTITION}
        link = linked(cluster)
        assert link.leaderless("hidden", seconds=5).code == Code.TOPIC_AUTHORIZATION_FAILED
        assert link.leaderless("new", seconds=5) == (Code.NONE, [], "")
        link.forget()
