"""What is found under a pipeline's names: exactly its own, never what only begins alike (invariant 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from onceward.connectors.kafka import ownership
from onceward.connectors.kafka.error_codes import Code
from onceward.connectors.kafka.transaction_state import Description, Handle
from onceward.core.contract.names import NOTHING, PooledName, Scope
from onceward.core.errors import EpochConflictError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MINE = Scope("orders", "out", "0123abcd")
OTHERS = [
    MINE._replace(pipeline="orders-eu"),
    MINE._replace(pipeline="order"),
    MINE._replace(sink="out2"),
    MINE._replace(sink="ou"),
]
OTHER_LOG = MINE._replace(log="9999aaaa")


class Client:
    """A broker that lists whatever begins alike, and what else it likes."""

    def __init__(self, *scopes: Scope, state: str = "Ongoing", epoch: int = 0) -> None:
        self.names = [str(PooledName(scope, "ffff", n, n or None)) for n, scope in enumerate(scopes)]
        self.names += ["orders", "onceward:1:orders:out", "onceward:1:orders:out:0123abcd:ffff:00"]
        self.state, self.epoch = state, epoch
        self.registered: list[str] = []
        self.register_answers = 0
        self.silent: dict[int, int] = {}
        """For how many of the next descriptions a coordinator answers with this code."""
        self.open: dict[tuple[str, int], dict[tuple[int, int], int]] = {}

    def list_transactions(self, states: Collection[str] = (), *, prefix: str = "") -> list[str]:
        assert not states or self.state in states
        return [name for name in self.registered if name.startswith(prefix)] or self.names

    def describe(self, names: Iterable[str]) -> dict[str, Description]:
        where = frozenset({("t", 0)})
        if code := next((code for code, left in self.silent.items() if left), None):
            self.silent[code] -= 1
            return {name: Description(code) for name in names}
        return {name: Description(0, self.state, Handle(name, 7, self.epoch, 1), 60_000, where) for name in names}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return {topic: f"id-of-{topic}" for topic in topics}

    def register(self, name: str) -> int:
        self.registered.append(name)
        return self.register_answers

    def partitions_of(self, topics: Collection[str] | None) -> list[tuple[str, int]]:
        return [partition for partition in self.open if topics is None or partition[0] in topics]

    def describe_producers(
        self, partitions: Collection[tuple[str, int]], *, retry_seconds: float | None
    ) -> dict[tuple[str, int], Any]:
        assert retry_seconds in (None, 0)
        return {partition: self.open[partition] for partition in partitions}


def test_only_what_carries_exactly_this_pipelines_and_sinks_name_lingers():
    client: Any = Client(*OTHERS, MINE, OTHER_LOG)
    found = ownership.lingering(client, MINE, None)
    assert [(c.pipeline, c.sink, c.log) for c in found] == [MINE, OTHER_LOG]
    assert found[0].handle["topic_ids"] == {"t": "id-of-t"}


def test_what_a_pipeline_left_elsewhere_is_of_its_log_and_of_any_sink():
    client: Any = Client(*OTHERS, MINE, OTHER_LOG)
    found = ownership.lingering_elsewhere(client, MINE.pipeline, MINE.log)
    assert sorted(c.sink for c in found) == ["ou", "out", "out2"]
    assert {(c.pipeline, c.log) for c in found} == {(MINE.pipeline, MINE.log)}


def test_another_logs_commits_under_the_name_are_refused_until_they_are_accepted():
    client: Any = Client(*OTHERS, OTHER_LOG, state="CompleteCommit")
    with pytest.raises(EpochConflictError, match=r'Kafka knows .*9999aaaa.*rewind="'):
        ownership.check_ownership(client, MINE)
    ownership.accept(client, MINE)
    ownership.check_ownership(client, MINE)


def test_another_logs_commits_under_another_sinks_name_are_refused_too():
    """A fresh checkpoint and a renamed sink must not write the input a second time."""
    client: Any = Client(*OTHERS, OTHER_LOG._replace(sink="former"), state="CompleteCommit")
    with pytest.raises(
        EpochConflictError, match=r"Kafka knows this pipeline \(its sink former\) from decision log 9999aaaa"
    ):
        ownership.check_ownership(client, MINE)
    ownership.accept(client, MINE)
    ownership.check_ownership(client, MINE)


@pytest.mark.parametrize("client", [Client(*OTHERS, MINE, state="CompleteCommit"), Client(OTHER_LOG)])
def test_a_name_that_no_other_log_has_committed_under_is_free(client: Any):
    ownership.check_ownership(client, MINE)


def test_what_the_brokers_did_not_remember_is_not_accepted():
    client: Any = Client(OTHER_LOG, state="CompleteCommit")
    client.register_answers = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    with pytest.raises(KafkaError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        ownership.accept(client, MINE)


@pytest.mark.parametrize("topics", [["t"], None])
@pytest.mark.parametrize(("epoch", "found"), [(3, 3), (2, 2), (1, None), (4, None)])
def test_what_an_abort_left_open_in_a_partition_lingers(epoch: int, found: int | None, topics: list[str] | None):
    """A fence, and the broker's timeout, raise the producer epoch; the partition knows the one before."""
    client: Any = Client(MINE, state="CompleteAbort", epoch=3)
    client.open = {("t", 0): {(7, epoch): 5, (8, 3): 5}, ("t", 1): {}}
    listed = [(c.handle["producer_epoch"], c.handle["partitions"]) for c in ownership.lingering(client, MINE, topics)]
    assert listed == ([(found, {"t": [0]})] if found is not None else [])


UNDESCRIBED: Final = {
    Code.NO_ANSWER: True,
    Code.NOT_COORDINATOR: True,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: False,
}


@pytest.mark.parametrize(("code", "retryable"), UNDESCRIBED.items())
@pytest.mark.parametrize(
    "ask",
    [
        lambda client: ownership.lingering(client, MINE, None),
        lambda client: ownership.lingering_elsewhere(client, MINE.pipeline, MINE.log),
        lambda client: ownership.check_ownership(client, MINE),
        lambda client: ownership.accept(client, MINE),
    ],
)
def test_a_listed_transaction_that_nobody_describes_is_neither_ended_nor_anybodys(ask: Any, code: int, retryable: bool):
    """Its coordinator froze after the list: what it has open would be left, and a name would be called used."""
    client: Any = Client(MINE, OTHER_LOG)
    client.silent = {code: 1}
    with pytest.raises(KafkaError, match=f"{Code(code).name}") as raised:
        ask(client)
    assert raised.value.retryable is retryable


def test_a_listed_transaction_that_was_forgotten_since_is_none():
    client: Any = Client(MINE, OTHER_LOG)
    client.silent = {Code.TRANSACTIONAL_ID_NOT_FOUND: 2}
    assert not ownership.lingering(client, MINE, None)
    ownership.check_ownership(client, MINE)


def test_the_claim_of_a_start_waits_for_an_election():
    client: Any = Client(OTHER_LOG)
    client.silent = {Code.NO_ANSWER: 3}
    ownership.KafkaLedger(lambda: client, wait_seconds=30.0).check_claim(MINE, NOTHING)
    client.silent = {Code.NO_ANSWER: 3}
    with pytest.raises(KafkaError, match="NO_ANSWER"):
        ownership.KafkaLedger(lambda: client, wait_seconds=0.0).check_claim(MINE, NOTHING)


def test_the_list_of_other_applications_transactions_lacks_only_those_that_may_not_be_seen():
    client: Any = Client()
    client.silent = {Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 1}
    assert ownership.open_elsewhere(client) == []
    client.silent = {Code.NO_ANSWER: 1}
    with pytest.raises(KafkaError, match="NO_ANSWER"):
        ownership.open_elsewhere(client)
