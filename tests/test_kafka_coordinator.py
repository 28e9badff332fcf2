"""The client of the transaction coordinators: what is asked again, of whom, and what counts as an answer."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from onceward.connectors.kafka import wire
from onceward.connectors.kafka.error_codes import LEAST, Code
from onceward.connectors.kafka.ownership import never_committed
from onceward.connectors.kafka.transaction_coordinator import TransactionCoordinatorClient
from onceward.connectors.kafka.transaction_state import Description, Handle
from onceward.core.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAME = "onceward:1:p:s:0a0b0c0d:0123abcd:0"
BUSY, MOVED = Code.CONCURRENT_TRANSACTIONS, Code.NOT_COORDINATOR


class Brokers:
    """Two brokers in place of Wire; one of them is the coordinator, and answers with the codes that are scripted."""

    last_fault = ""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.coordinator = 1
        self.asked: list[int] = []
        self.listings: dict[int, Callable[[], Any]] = {}
        self.offline: list[int] = []
        self.state_code: int = Code.NONE

    def coordinators(self, names: Sequence[str], *, seconds: float) -> dict[str, wire.WireAnswer]:  # noqa: ARG002
        return {name: wire.WireAnswer(Code.NONE, self.coordinator) for name in names}

    def exchange(self, requests: Sequence[tuple[int, Any]], *, seconds: float) -> list[wire.WireAnswer]:  # noqa: ARG002
        self.asked += [node for node, _ in requests]
        return [wire.WireAnswer(Code.NONE, self.listings[n]() if self.listings else self._end(n)) for n, _ in requests]

    def _end(self, node: int) -> Any:
        if node != self.coordinator:
            return SimpleNamespace(error_code=MOVED)
        return SimpleNamespace(error_code=self.codes.pop(0) if self.codes else Code.NONE)

    def nodes(self, *, seconds: float) -> list[int]:  # noqa: ARG002
        return [1, 2]

    def leaderless(self, topic: str, *, seconds: float) -> wire.WireAnswer:  # noqa: ARG002
        assert topic == "__transaction_state"
        return wire.WireAnswer(self.state_code, self.offline)


def client(brokers: Brokers, retry_seconds: float = 2.0) -> TransactionCoordinatorClient:
    return TransactionCoordinatorClient(brokers, retry_seconds=retry_seconds)  # type: ignore[arg-type]


def test_endtxn_is_repeated_until_the_markers_are_written():
    brokers = Brokers(BUSY, BUSY, Code.NONE)
    assert client(brokers).end_many([Handle(NAME, 7, 3, 1000)], commit=True) == [Code.NONE]
    assert len(brokers.asked) == 3


@pytest.mark.parametrize("code", [Code.PRODUCER_FENCED, Code.INVALID_TXN_STATE])
def test_a_refusal_is_not_repeated(code: int):
    brokers = Brokers(code)
    assert client(brokers).end_many([Handle(NAME, 7, 3, 1000)], commit=True) == [code]
    assert len(brokers.asked) == 1


@pytest.mark.parametrize("codes", [(BUSY,), (Code.COORDINATOR_LOAD_IN_PROGRESS, BUSY)])
def test_fencing_is_not_repeated_while_markers_are_written(codes: tuple[int, ...]):
    """A second InitProducerId would raise the epoch again, and nothing would show that this transaction was aborted."""
    brokers = Brokers(*codes, Code.NONE)
    assert client(brokers).fence(NAME, 7, 3) == BUSY
    assert len(brokers.asked) == len(codes)


def test_23_a_fence_that_proves_a_loss_is_sent_to_no_other_coordinator():
    """Its successor may have committed the transaction, and would forget that."""
    brokers = Brokers()
    asking = client(brokers)
    asking.fence(NAME, 7, 3)
    brokers.coordinator = 2
    assert asking.fence(NAME, 7, 3, once=True) == MOVED
    assert brokers.asked == [1, 1]


def test_23_a_coordinator_is_looked_up_again_when_its_word_is_in_doubt():
    brokers = Brokers()
    asking = client(brokers)
    asking.fence(NAME, 7, 3)
    brokers.coordinator = 2
    asking.look_up_again([NAME, "another"])
    assert asking.fence(NAME, 7, 4) == Code.NONE
    assert brokers.asked == [1, 2]


def test_a_coordinator_that_moved_is_looked_up_again():
    brokers = Brokers()
    asking = client(brokers)
    asking.fence(NAME, 7, 3)
    brokers.coordinator = 2
    assert asking.fence(NAME, 7, 4) == Code.NONE
    assert brokers.asked == [1, 1, 2]


def listing(*names: str, code: int = Code.NONE) -> Any:
    rows = [SimpleNamespace(transactional_id=name, producer_id=7, transaction_state="Ongoing") for name in names]
    return SimpleNamespace(error_code=code, transaction_states=rows)


def test_a_listing_is_that_of_all_brokers():
    brokers = Brokers()
    brokers.listings = {1: lambda: listing("a"), 2: lambda: listing("b")}
    assert client(brokers).list_transactions() == ["a", "b"]


def test_a_listing_in_which_a_broker_is_missing_is_an_error():
    brokers = Brokers()
    brokers.listings = {1: lambda: listing("a"), 2: lambda: listing(code=Code.COORDINATOR_LOAD_IN_PROGRESS)}
    with pytest.raises(KafkaError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        client(brokers, retry_seconds=0.02).list_transactions()


def test_a_listing_is_an_error_while_a_part_of_the_coordinators_topic_has_no_leader():
    """Every broker answers, and nobody lists what is in that part."""
    brokers = Brokers()
    brokers.listings = {1: lambda: listing("a"), 2: listing}
    brokers.offline = [3, 17]
    with pytest.raises(KafkaError, match="__transaction_state has no leader for partition 3, 17") as caught:
        client(brokers, retry_seconds=0.2).list_transactions()
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("code", "why"),
    [(Code.TOPIC_AUTHORIZATION_FAILED, "permission to Describe topic __transaction_state"), (Code.NO_ANSWER, "")],
)
def test_a_listing_is_an_error_while_nobody_says_whether_a_part_is_missing(code: int, why: str):
    brokers = Brokers()
    brokers.listings = {1: lambda: listing("a"), 2: listing}
    brokers.state_code = code
    with pytest.raises(KafkaError, match=f"{Code(code).name}.*{why}") as caught:
        client(brokers, retry_seconds=0.2).list_transactions()
    assert caught.value.retryable == (code == Code.NO_ANSWER)


@pytest.mark.parametrize(
    ("code", "whole"),
    [
        (Code.NONE, True),
        (Code.TRANSACTIONAL_ID_NOT_FOUND, True),
        (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, False),
        (Code.NOT_COORDINATOR, False),
    ],
)
def test_a_listing_of_a_pipeline_is_an_error_if_this_client_may_not_see_all_of_it(
    monkeypatch: pytest.MonkeyPatch, code: int, whole: bool
):
    """Brokers leave out, without a word, what it may not describe."""
    brokers, described = Brokers(), list[str]()
    brokers.listings = {1: lambda: listing("onceward:1:p:a"), 2: listing}
    asking = client(brokers, retry_seconds=0.2)

    def describe(names: Sequence[str], *_: Any) -> dict[str, Description]:
        described.extend(names)
        return {name: Description(code) for name in names}

    monkeypatch.setattr(asking, "_describe_once", describe)
    assert asking.list_transactions(prefix="onceward:1:") == ["onceward:1:p:a"]
    assert described == []
    if whole:
        assert asking.list_transactions(prefix="onceward:1:p:") == ["onceward:1:p:a"]
        assert described == ["onceward:1:p:"]
    else:
        with pytest.raises(KafkaError, match=f"cannot list transactions: {Code(code).name}"):
            asking.list_transactions(prefix="onceward:1:p:")


def test_a_listing_waits_for_a_leader_of_the_coordinators_topic():
    brokers = Brokers()
    waits = [[3], [3], []]
    brokers.leaderless = lambda *_, **__: wire.WireAnswer(Code.NONE, waits.pop(0))  # type: ignore[method-assign]
    brokers.listings = {1: lambda: listing("a"), 2: listing}
    assert client(brokers).list_transactions() == ["a"]


def test_a_broker_that_is_loading_is_asked_again():
    brokers = Brokers()
    later = [listing(code=Code.COORDINATOR_LOAD_IN_PROGRESS)]
    brokers.listings = {1: lambda: listing("a"), 2: lambda: later.pop() if later else listing("b")}
    assert client(brokers).list_transactions() == ["a", "b"]


def test_the_calls_of_one_task_share_its_time(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    asked = client(Brokers(*[BUSY] * 10_000), retry_seconds=5.0)
    for of_one_task in (asked.within(5.0), asked.within(8.0)):
        began = clock[0]
        for _ in range(4):
            assert of_one_task.end_many([Handle(NAME, 7, 3, 1000)], commit=True) == [BUSY]
        assert clock[0] - began <= (5.0 if began == 0 else 8.0) + 4 * LEAST
    began = clock[0]
    for _ in range(2):
        assert asked.end_many([Handle(NAME, 7, 3, 1000)], commit=True) == [BUSY]
    assert clock[0] - began == pytest.approx(10.0)


class Leaders(Brokers):
    """Brokers that lead a topic's only partition, one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.leader, self.lookups = 1, 0
        self.stale: Any = None

    def topics(self, names: Sequence[str], *, seconds: float) -> wire.Topics:  # noqa: ARG002
        return self.topics_in()

    def topics_in(self, _answer: Any = None) -> wire.Topics:
        self.lookups += 1
        return wire.Topics({PLACE: self.leader}, {"t": "an-id"})

    def exchange(self, requests: Sequence[tuple[int | None, Any]], *, seconds: float) -> list[wire.WireAnswer]:  # noqa: ARG002
        return [wire.WireAnswer(Code.NONE, self._answer(node)) for node, _ in requests]

    def _answer(self, node: int | None) -> Any:
        open_ = [self.stale] if node != self.leader and self.stale is not None else []
        partition = SimpleNamespace(partition_index=0, error_code=Code.NONE, active_producers=open_)
        row = SimpleNamespace(
            transactional_id=NAME,
            producer_id=7,
            producer_epoch=3,
            transaction_start_time_ms=1000,
            error_code=Code.NONE,
            transaction_state="Ongoing",
            transaction_timeout_ms=60_000,
            topics=[],
        )
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[partition])], transaction_states=[row])


PLACE = ("t", 0)


def test_every_broker_is_asked_for_the_partitions_of_a_transaction():
    """Of those that do not coordinate it, one says so, and a deposed coordinator does not."""
    rows = {1: row("Ongoing", [0]), 2: row("Ongoing", [0, 1]), 3: row("", [], code=Code.NOT_COORDINATOR)}

    class Cluster(Brokers):
        def nodes(self, *, seconds: float) -> list[int]:  # noqa: ARG002
            return sorted(rows)

        def exchange(self, requests: Sequence[tuple[int | None, Any]], *, seconds: float) -> list[wire.WireAnswer]:  # noqa: ARG002
            nodes = [node for node, _ in requests if node is not None]
            return [wire.WireAnswer(Code.NONE, SimpleNamespace(transaction_states=[rows[node]])) for node in nodes]

    asked = client(Cluster())
    assert asked.partitions_everywhere(Handle(NAME, 7, 3, 1000)) == {("t", 0), ("t", 1)}
    assert asked.partitions_everywhere(Handle(NAME, 7, 4, 1000)) == set()
    rows[3] = row("", [], code=Code.COORDINATOR_LOAD_IN_PROGRESS)
    assert asked.partitions_everywhere(Handle(NAME, 7, 3, 1000)) is None


def row(state: str, partitions: list[int], code: int = Code.NONE) -> Any:
    """What a broker says of a transaction."""
    return SimpleNamespace(
        transactional_id=NAME,
        producer_id=7,
        producer_epoch=3,
        transaction_start_time_ms=1000,
        error_code=code,
        transaction_state=state,
        transaction_timeout_ms=60_000,
        topics=[SimpleNamespace(topic="t", partitions=partitions)],
    )


def test_an_id_that_is_not_known_has_no_handle():
    """Its row has the fields of one all the same: an id that was forgotten seemed to be in use."""
    forgotten = row("", [], code=Code.TRANSACTIONAL_ID_NOT_FOUND)
    assert Description.of(forgotten) == Description(Code.TRANSACTIONAL_ID_NOT_FOUND)
    assert never_committed(Description.of(forgotten))


def test_a_task_looks_up_leaders_and_ids_with_each_description_and_not_again():
    brokers = Leaders()
    task = client(brokers).within(5.0)
    for number in (1, 2):
        assert task.describe([NAME], topics=["t"])[NAME].state == "Ongoing"
        assert task.describe_producers([PLACE]) == {PLACE: {}}
        assert task.topic_ids(["t"]) == {"t": "an-id"}
        assert brokers.lookups == number


def test_a_leader_that_is_a_follower_now_is_not_believed_in_the_next_round():
    """Brokers answer DescribeProducers for any replica that they hold."""
    brokers = Leaders()
    brokers.stale = SimpleNamespace(producer_id=7, producer_epoch=3, current_txn_start_offset=0, coordinator_epoch=5)
    task = client(brokers).within(5.0)
    for brokers.leader in (1, 2):
        task.describe([NAME], topics=["t"])
        assert task.describe_producers([PLACE]) == {PLACE: {}}


def test_leaders_that_waited_for_a_slow_coordinator_are_looked_up_again(monkeypatch: pytest.MonkeyPatch):
    brokers, clock = Leaders(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    task = client(brokers).within(5.0)
    exchange = brokers.exchange

    def slow(requests: Sequence[tuple[int | None, Any]], *, seconds: float) -> list[wire.WireAnswer]:
        clock[0] += 1.0
        return exchange(requests, seconds=seconds)

    monkeypatch.setattr(brokers, "exchange", slow)
    task.describe([NAME], topics=["t"])
    monkeypatch.setattr(brokers, "exchange", exchange)
    brokers.leader = 2
    brokers.stale = SimpleNamespace(producer_id=7, producer_epoch=3, current_txn_start_offset=0, coordinator_epoch=5)
    assert task.describe_producers([PLACE]) == {PLACE: {}}


def test_no_task_believes_what_another_one_looked_up():
    brokers = Leaders()
    asked = client(brokers)
    asked.within(5.0).describe([NAME], topics=["t"])
    asked.describe([NAME], topics=["t"])
    for each in (asked.within(5.0), asked, asked):
        assert each.describe_producers([PLACE]) == {PLACE: {}}
    assert brokers.lookups == 4
