"""Committing and aborting by handle: what is sent when, and what is believed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from onceward.connectors.kafka import commits
from onceward.connectors.kafka.error_codes import Code
from onceward.connectors.kafka.transaction_state import Description, Handle, Prepared
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from onceward.connectors.kafka.transaction_state import Partition

MINE = Handle("onceward:1:p:s:0a0b0c0d:0123abcd:0", 7, 3, 1000)
PRODUCER = (7, 3)
A, B0, B1 = ("a", 0), ("b", 0), ("b", 1)
IDS = {"a": "id-of-a", "b": "id-of-b"}
TIMEOUT = 900_000
ROUNDS = 8
PREPARED = Prepared(MINE, frozenset({A, B0, B1}), frozenset(IDS.items()))


class Client:
    """Kafka, as a coordinator client sees it. A coordinator skips partitions that are silent (KAFKA-20734)."""

    def __init__(self) -> None:
        self.state, self.epoch, self.age = "Ongoing", MINE.producer_epoch, 0
        self.open: set[Partition] = {A, B0, B1}
        self.silent: set[Partition] = set()
        self.ids: dict[str, str | None] = dict(IDS)
        self.tells_age = True
        self.deposed = 0
        """Look-ups until the successor is found of a coordinator that was deposed while the transaction was open."""
        self.sent: list[str] = []

    def describe(self, names: Iterable[str], *, topics: Collection[str]) -> dict[str, Description]:
        assert set(topics) == {"a", "b"}
        if self.deposed:
            return {name: Description(Code.NONE, "Ongoing", MINE, TIMEOUT) for name in names}
        handle = MINE._replace(producer_epoch=self.epoch)
        return {name: Description(Code.NONE, self.state, handle, TIMEOUT) for name in names}

    def describe_producers(self, partitions: Collection[Partition], *, retry_seconds: float) -> dict[Partition, Any]:
        assert retry_seconds == 0
        there = {p: {PRODUCER: 5} if p in self.open else {(8, 0): 1} for p in partitions}
        return {p: None if p in self.silent or self.ids.get(p[0]) is None else there[p] for p in partitions}

    def topic_ids(self, topics: Collection[str], *, everywhere: bool) -> dict[str, str | None]:
        assert everywhere
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def running_longer(self, names: Collection[str], milliseconds: int) -> set[str] | None:
        if not self.tells_age:
            return None
        return set(names) if self.state == "Ongoing" and self.age > milliseconds else set()

    def end_many(self, handles: Sequence[Handle], *, commit: bool) -> list[int]:
        assert commit
        assert self.state == "Ongoing"
        assert handles == [MINE]
        self.sent.append("commit")
        self.state = "CompleteCommit"
        self.open &= self.silent
        return [Code.NONE]

    def look_up_again(self, names: Iterable[str]) -> None:
        assert list(names) == [MINE.transactional_id]
        self.deposed = max(0, self.deposed - 1)

    def fence(self, name: str, producer_id: int, producer_epoch: int, *, once: bool = False) -> int:
        assert (name, producer_id, producer_epoch) == MINE[:3]
        self.sent.append("fence once" if once else "fence")
        if self.deposed:
            self.deposed -= 1
            return Code.NOT_COORDINATOR  # its log takes no more entries
        assert self.state != "CompleteCommit", "the coordinator would forget that it has committed"
        self.state, self.epoch = "CompleteAbort", self.epoch + 1
        self.open &= self.silent
        return Code.CONCURRENT_TRANSACTIONS

    def write_marker(self, partition: Partition, producer: tuple[int, int], epoch: int, *, commit: bool) -> int:
        assert (producer, epoch) == (PRODUCER, 5)
        self.sent.append(f"{'commit' if commit else 'abort'} in {partition[0]}-{partition[1]}")
        self.open.discard(partition)
        return Code.NONE


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens between the rounds of a call, one after another."""
    happenings: list[Callable[[], object]] = []

    def rounds(_seconds: float) -> Iterator[int]:
        for number in range(ROUNDS):
            yield number
            if happenings:
                happenings.pop(0)()

    monkeypatch.setattr(commits, "Retries", rounds)
    monkeypatch.setattr(commits, "PROOF_SECONDS", 0)
    return happenings


def commit(client: Client, transaction: Prepared = PREPARED) -> Any:
    [outcome] = commits.commit(client, [transaction])  # type: ignore[arg-type]
    return outcome


def abort(client: Client) -> Any:
    return commits.abort(client, PREPARED)  # type: ignore[arg-type]


pytestmark = pytest.mark.usefixtures("between")


def test_a_transaction_that_is_open_everywhere_is_committed_at_once(client: Client):
    assert commit(client).status is CommitStatus.COMMITTED
    assert commit(client).status is CommitStatus.ALREADY_COMMITTED
    assert client.sent == ["commit"]


@pytest.mark.parametrize("silent", [{A}, {A, B0}, {A, B0, B1}])
def test_i_a_silent_partition_is_waited_for_until_half_of_the_timeout(client: Client, silent: set[Partition]):
    client.silent = silent
    client.age = TIMEOUT // 2
    outcome = commit(client)
    assert outcome.status is CommitStatus.RETRY_LATER
    assert client.sent == []
    client.age += 1
    assert commit(client).status is CommitStatus.RETRY_LATER
    assert client.sent == ["commit"]


def test_i_what_was_skipped_becomes_visible_when_its_partition_is_back(client: Client):
    client.silent, client.age = {A}, TIMEOUT - 1
    outcome = commit(client)
    assert outcome.status is CommitStatus.RETRY_LATER
    assert "committed, and can no longer be lost; the rows in a-0 become visible when" in outcome.detail
    client.silent = set()
    assert commit(client).status is CommitStatus.ALREADY_COMMITTED
    assert client.sent == ["commit", "commit in a-0"]
    assert client.open == set()


def test_i_half_of_the_timeout_may_pass_while_a_call_waits(client: Client, between: list[Callable[[], object]]):
    client.silent = {A}
    between += [
        lambda: None,
        lambda: setattr(client, "age", TIMEOUT // 2 + 1),
        lambda: setattr(client, "silent", set()),
    ]
    assert commit(client).status is CommitStatus.COMMITTED
    assert client.sent == ["commit", "commit in a-0"]


def test_i_brokers_that_cannot_tell_an_age_are_not_waited_for_long(client: Client, monkeypatch: pytest.MonkeyPatch):
    client.silent, client.tells_age = {A}, False
    clock = iter([0.0, 0.1, 2.4, *[3.0] * 100])
    monkeypatch.setattr(commits.time, "monotonic", lambda: next(clock))
    outcome = commit(client)
    assert client.sent == ["commit"]
    assert "can no longer be lost" in outcome.detail


def test_whoever_waits_is_told_for_which_partition_and_until_when(client: Client):
    client.silent = {A}
    assert commit(client).detail == (
        "open, but a-0 does not answer; it is not waited for after half of the timeout. Kafka aborts it at "
        "1970-01-01 00:15:01 UTC by its broker's clock unless it is committed before that"
    )


def test_a_partition_that_has_ended_it_is_never_overruled(client: Client):
    """Somebody aborted it there: EndTxn would be confirmed, and the rows are gone."""
    client.open, client.silent, client.age = {A, B0}, {A}, TIMEOUT - 1
    assert commit(client).status is CommitStatus.RETRY_LATER
    client.silent = set()
    outcome = commit(client)
    assert outcome.status is CommitStatus.LOST
    assert "kafka-transactions abort" in outcome.detail
    assert client.sent == ["fence once"]


class Pair(Client):
    """With another transaction of the same epoch, which is open in partition b-0 only."""

    def __init__(self) -> None:
        super().__init__()
        self.other = "Ongoing"

    def describe(self, names: Iterable[str], *, topics: Collection[str]) -> dict[str, Description]:
        assert set(topics) <= {"a", "b"}
        found = super().describe([MINE.transactional_id], topics=["a", "b"])
        other = {OTHER.handle.transactional_id: Description(Code.NONE, self.other, OTHER.handle, TIMEOUT)}
        return {name: (found | other)[name] for name in names}

    def describe_producers(self, partitions: Collection[Partition], *, retry_seconds: float) -> dict[Partition, Any]:
        found = super().describe_producers(partitions, retry_seconds=retry_seconds)
        if self.other == "Ongoing":
            found[B0] = {**(found[B0] or {}), OTHER.producer: 5}
        return found

    def running_longer(self, names: Collection[str], milliseconds: int) -> set[str]:
        return set(names) if self.age > milliseconds else set()

    def end_many(self, handles: Sequence[Handle], *, commit: bool) -> list[int]:
        assert commit
        assert handles == [OTHER.handle]
        self.sent.append("commit of the other")
        self.other = "CompleteCommit"
        return [Code.NONE]


OTHER = Prepared(
    Handle("onceward:1:p:s:0a0b0c0d:0123abcd:1", 9, 0, 1000), frozenset({B0}), frozenset({("b", "id-of-b")})
)


def test_nothing_of_an_epoch_is_committed_while_a_part_of_it_may_be_lost():
    """Somebody aborted the first one by hand: once readers see the second, the epoch cannot be written again."""
    client = Pair()
    client.open = set()
    lost, held = commits.commit(client, [PREPARED, OTHER])  # type: ignore[arg-type]
    assert (lost.status, held.status) == (CommitStatus.LOST, CommitStatus.RETRY_LATER)
    assert "something of its epoch is lost, or may be" in held.detail
    assert client.sent == ["fence once"]
    [outcome] = commits.commit(client, [OTHER])  # type: ignore[arg-type]
    assert outcome.status is CommitStatus.COMMITTED


@pytest.mark.parametrize(
    ("open_", "status"), [(set(), CommitStatus.RETRY_LATER), ({A, B0, B1}, CommitStatus.COMMITTED)]
)
def test_what_partitions_have_ended_holds_the_others_back_if_its_coordinator_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, open_: set[Partition], status: CommitStatus
):
    """It may be aborted. What its partitions have open is not."""
    client = Pair()
    client.open, describe = open_, client.describe

    def silently(names: Iterable[str], *, topics: Collection[str]) -> dict[str, Description]:
        return describe(names, topics=topics) | {MINE.transactional_id: Description(Code.NO_ANSWER)}

    monkeypatch.setattr(client, "describe", silently)
    outcomes = commits.commit(client, [PREPARED, OTHER])  # type: ignore[arg-type]
    assert [outcome.status for outcome in outcomes] == [CommitStatus.RETRY_LATER, status]


def test_what_is_held_back_is_committed_before_its_timeout():
    client = Pair()
    client.open, client.age = set(), TIMEOUT // 2 + 1
    outcomes = commits.commit(client, [PREPARED, OTHER])  # type: ignore[arg-type]
    assert [outcome.status for outcome in outcomes] == [CommitStatus.LOST, CommitStatus.COMMITTED]


@pytest.mark.parametrize(("age", "sent"), [(TIMEOUT // 2 - 60_000, []), (TIMEOUT // 2 + 1, ["commit of the other"])])
def test_6_old_brokers_hold_back_what_may_be_lost_in_part_until_half_of_the_timeout_by_this_clock(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, age: int, sent: list[str]
):
    """Before Kafka 3.8, no broker tells for how long a transaction has been open."""
    client = Pair()
    client.open, describe = set(), client.describe

    def silently(names: Iterable[str], *, topics: Collection[str]) -> dict[str, Description]:
        return describe(names, topics=topics) | {MINE.transactional_id: Description(Code.NO_ANSWER)}

    monkeypatch.setattr(client, "describe", silently)
    monkeypatch.setattr(client, "running_longer", lambda *_: None)
    monkeypatch.setattr(commits.time, "time", lambda: (MINE.started_ms + age) / 1000)
    clock = iter([0.0, 0.1, *[3.0] * 5, *[10.0] * 100])
    monkeypatch.setattr(commits.time, "monotonic", lambda: next(clock))
    commits.commit(client, [PREPARED, OTHER])  # type: ignore[arg-type]
    assert client.sent == sent
    warnings = [record.getMessage() for record in caplog.records]
    why = "committed without waiting any longer for proof of what became of the rest of its epoch"
    assert warnings == [f"{OTHER.handle.transactional_id} is {why}"] * len(sent)


@pytest.mark.parametrize("deleted", [{"a"}, {"a", "b"}])
def test_the_rows_of_other_topics_are_committed_at_once_where_one_was_deleted(
    client: Client, deleted: set[str], caplog: pytest.LogCaptureFixture
):
    client.ids |= dict.fromkeys(deleted)
    with caplog.at_level(logging.WARNING):
        outcome = commit(client)
    assert outcome.status is CommitStatus.COMMITTED
    words = f"the rows in {', '.join(sorted(deleted))} are gone: the topic was deleted"
    assert words in outcome.detail
    assert words in caplog.text
    assert client.sent == ["commit"]


def test_a_topic_that_was_created_again_counts_as_deleted(client: Client):
    client.ids["a"], client.open = "another id", {B0, B1}
    outcome = commit(client)
    assert outcome.status is CommitStatus.COMMITTED
    assert "the rows in a are gone" in outcome.detail


@pytest.mark.parametrize(
    ("ids", "transaction"),
    [
        (IDS, PREPARED),
        ({"b": "id-of-b"}, PREPARED),
        ({**IDS, "a": "another id"}, PREPARED._replace(topic_ids=frozenset())),
    ],
    ids=["the same topic", "brokers do not agree", "its id was never known"],
)
def test_a_topic_counts_as_deleted_only_where_that_is_certain(client: Client, ids: Any, transaction: Prepared):
    """Else a partition that has ended what its coordinator calls open is an operator's abort."""
    client.open = {B0, B1}
    client.ids = {**IDS, **ids}
    client.topic_ids = lambda *_, **__: ids  # type: ignore[method-assign]
    assert commit(client, transaction).status is CommitStatus.LOST
    assert client.sent == ["fence once"]


def test_another_topic_under_the_name_is_not_believed_while_its_partition_is_silent(client: Client):
    """Only the partition's own answer shows that the transaction is not there."""
    client.ids["a"], client.silent = "another id", {A}
    assert commit(client).status is CommitStatus.RETRY_LATER
    assert client.sent == []


def test_a_commit_is_not_believed_while_a_partition_has_it_open(client: Client):
    client.state, client.open = "CompleteCommit", {B1}
    client.write_marker = lambda *_, **__: Code.NOT_LEADER_OR_FOLLOWER  # type: ignore[method-assign]
    assert commit(client).status is CommitStatus.RETRY_LATER


def test_an_abort_is_not_believed_while_a_partition_has_it_open(client: Client):
    """The coordinator aborted it at its timeout, while a partition had no leader."""
    client.state, client.epoch, client.open = "CompleteAbort", MINE.producer_epoch + 1, {B1}
    client.write_marker = lambda *_, **__: Code.NOT_LEADER_OR_FOLLOWER  # type: ignore[method-assign]
    assert abort(client).status is AbortStatus.RETRY_LATER
    del client.write_marker
    assert abort(client).status is AbortStatus.ABORTED
    assert client.sent == ["abort in b-1"]


def test_an_abort_waits_for_partitions(client: Client, between: list[Callable[[], object]]):
    client.silent, client.age = {A}, TIMEOUT - 1
    assert abort(client).status is AbortStatus.RETRY_LATER
    assert client.sent == []
    between += [lambda: setattr(client, "silent", set())]
    assert abort(client).status is AbortStatus.ABORTED
    assert client.sent == ["fence"]


def test_an_abort_does_not_wait_for_deleted_topics(client: Client):
    client.ids |= {"a": None, "b": None}
    assert abort(client).status is AbortStatus.ABORTED
    assert client.sent == ["fence"]


@pytest.mark.parametrize("deposed", [1, 2, 3, ROUNDS * 2])
def test_23_a_deposed_coordinator_that_calls_it_open_proves_nothing(client: Client, deposed: int):
    """Its successor has committed the transaction, and the partitions have the markers."""
    client.state, client.open, client.deposed = "CompleteCommit", set(), deposed
    seen = commit(client)
    assert seen.status in (CommitStatus.ALREADY_COMMITTED, CommitStatus.RETRY_LATER)
    if seen.status is CommitStatus.RETRY_LATER:
        assert "its coordinator calls it open, and its partitions have ended it" in seen.detail
    client.deposed = 0
    assert commit(client).status is CommitStatus.ALREADY_COMMITTED


def test_23_what_only_partitions_have_ended_is_not_lost_before_seconds_have_passed(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commits, "PROOF_SECONDS", 60)
    client.open = set()
    outcome = commit(client)
    assert outcome.status is CommitStatus.RETRY_LATER
    assert "its coordinator calls it open, and its partitions have ended it" in outcome.detail
    assert commits.look_at(client, [PREPARED]) == [Observation.PREPARED]  # type: ignore[arg-type]
    assert client.sent == []


def test_23_a_partition_that_had_not_heard_of_the_transaction_is_asked_again(
    client: Client, between: list[Callable[[], object]]
):
    """A leader that was deposed, too, says that nothing is open: its successor knows better."""
    client.open = {B0, B1}
    between += [lambda: client.open.add(A)]
    assert commit(client).status is CommitStatus.COMMITTED
    assert client.sent == ["commit"]


def test_somebody_elses_commit_between_two_questions_is_neither_an_abort_nor_left_out(client: Client):
    """The coordinator is asked first; what partitions have ended is believed when the coordinator says so, too."""
    questions: list[str] = []

    def then_committed(name: str) -> None:
        ask = getattr(client, name)

        def asked(*arguments: Any, **more: Any) -> Any:
            found = ask(*arguments, **more)
            if not questions:
                client.state, client.open = "CompleteCommit", set()
            questions.append(name)
            return found

        setattr(client, name, asked)

    then_committed("describe")
    then_committed("describe_producers")
    assert commit(client).status is CommitStatus.ALREADY_COMMITTED
    assert client.sent == []
    assert questions[:2] == ["describe", "describe_producers"]
