"""Client of Kafka's transaction coordinators: end, fence, describe and list transactions from any process.

Every call is bounded in time and answers with codes or states, never with an exception of a client library. A
coordinator is looked up when it is first needed, and again when it answers that it has moved, is loading, or does not
answer. Repeating a request is safe: EndTxn and InitProducerId name the producer epoch, so the second one either
confirms the first or is refused.
"""

from __future__ import annotations

import copy
import math
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from . import requests, wire
from .answers import Description, Listing, OpenProducers, description, open_producers
from .codes import PASSING, Code
from .errors import kafka_error
from .handle import Handle, Partition, by_topic
from .retries import LEAST, Retries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

T = TypeVar("T")
RETRY_SECONDS: Final = 5.0
"""Seconds that a call goes on asking before it answers with the last code it got."""
TRIES_BEFORE_BOOTSTRAP: Final = 4
"""Unanswered retries after which the brokers' addresses themselves are in doubt."""
ASK_AGAIN: Final = PASSING | {Code.CONCURRENT_TRANSACTIONS}


class TransactionCoordinatorClient:
    """Ends, fences, describes and lists transactions. Thread-safe; belongs to the process that made it.

    Args:
        link: Connections to the cluster.
        retry_seconds: Seconds that one call may take at most.
    """

    def __init__(self, link: wire.Wire, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self._wire = link
        self._each = retry_seconds
        self._deadline = math.inf
        self._nodes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._by_pattern = True

    def within(self, seconds: float) -> TransactionCoordinatorClient:
        """The same client for the calls of one task: together they take no longer than this."""
        bounded = copy.copy(self)
        bounded._deadline = time.monotonic() + seconds  # noqa: SLF001 - of the same class
        return bounded

    @property
    def _seconds(self) -> float:
        """For which the next call may go on asking."""
        return max(LEAST, min(self._each, self._deadline - time.monotonic()))

    def end_txn(self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool) -> int:
        """Commit or abort one transaction; see end_many."""
        return self.end_many([Handle(transactional_id, producer_id, producer_epoch, -1)], commit=commit)[0]

    def end_many(self, handles: Sequence[Handle], *, commit: bool) -> list[int]:
        """Commit or abort transactions by handle, pipelined.

        Returns:
            The coordinator's code for each: NONE says that the transaction of this producer epoch is ended this way,
            now or before. CONCURRENT_TRANSACTIONS and the codes in PASSING remain only when time is over.
        """
        sent = {
            (h.transactional_id, i): requests.end_txn(
                h.transactional_id, h.producer_id, h.producer_epoch, commit=commit
            )
            for i, h in enumerate(handles)
        }
        return list(self._ask_each(sent).values())

    def fence(self, transactional_id: str, producer_id: int, producer_epoch: int, *, timeout_ms: int = 60_000) -> int:
        """Raise the producer epoch, so that the producer which holds it can do nothing any more.

        An open transaction is aborted by that, and the answer is CONCURRENT_TRANSACTIONS while the markers are being
        written: describe shows the end. The request is not repeated then: that would raise the epoch once more and
        wipe out the proof that this transaction was aborted. Look at the description right before: the coordinator
        compares the epoch in every state except Ongoing, where a transaction of a NEWER epoch of the same producer id
        would be aborted (measured).
        """
        request = requests.init_producer_id(transactional_id, producer_id, producer_epoch, timeout_ms=timeout_ms)
        return self._ask_each({(transactional_id, 0): request}, again=PASSING)[transactional_id, 0]

    def register(self, transactional_id: str) -> int:
        """Make a transactional id known to its coordinator, as a producer's start does."""
        request = requests.init_producer_id(transactional_id, -1, -1, timeout_ms=60_000)
        return self._ask_each({(transactional_id, 0): request})[transactional_id, 0]

    def describe(self, ids: Iterable[str]) -> dict[str, Description]:
        """State, handle, timeout and partitions of each transactional id."""
        found = dict.fromkeys(ids, Description(Code.NO_ANSWER))
        waiting = {name: seen.code for name, seen in found.items()}
        retries = Retries(self._seconds)
        for number in retries:
            self._look_again(waiting, number)
            found |= self._describe_once(list(waiting), retries.left)
            waiting = {name: found[name].code for name in waiting if found[name].code in PASSING}
            if not waiting:
                break
        return found

    def list_transactions(self, states: Collection[str] = (), *, prefix: str = "") -> list[Listing]:
        """All transactional ids that any broker knows, in these states (default: any).

        Args:
            states: Names of states as in Description.
            prefix: Beginning of the id; a filter that spares the wire, no proof of anything: parse the names.

        Raises:
            KafkaError: Not every broker answered, so the list would not be complete.
        """
        bad = wire.Answer(Code.NO_ANSWER)
        retries = Retries(self._seconds)
        for number in retries:
            if number >= TRIES_BEFORE_BOOTSTRAP:
                self._wire.forget()
            answers = self._list_once(states, prefix, retries.left)
            failed = [answer for answer in answers if answer.code]
            if answers and not failed:
                rows = [row for answer in answers for row in answer.response.transaction_states]
                listed = [Listing(row.transactional_id, row.producer_id, row.transaction_state) for row in rows]
                return [row for row in listed if row.transactional_id.startswith(prefix)]
            bad = failed[0] if failed else bad
            if failed and bad.code not in PASSING:
                break
        raise kafka_error("cannot list transactions", bad.code, bad.detail)

    def running_longer(self, ids: Collection[str], milliseconds: int) -> set[str] | None:
        """Which of these ids have a transaction that has been open for longer.

        Their coordinators say so by the clocks by which they abort a transaction at its timeout: no clocks of two
        machines are compared. None if a broker is too old to tell (before Kafka 3.8).
        """
        prefix = os.path.commonprefix(list(ids))  # noqa: RUF071 - characters are meant
        answers = self._list_once(["Ongoing"], prefix, self._seconds, milliseconds)
        if any(answer.code == Code.UNSUPPORTED_VERSION for answer in answers):
            return None
        told = [row for answer in answers if not answer.code for row in answer.response.transaction_states]
        return {row.transactional_id for row in told} & set(ids)

    def topic_ids(self, topics: Collection[str], *, everywhere: bool = False) -> dict[str, str | None]:
        """Id of each topic, None for one that does not exist; what cannot be told is missing.

        Args:
            topics: Their names.
            everywhere: Believe only what all brokers say alike.
        """
        return self._wire.topic_ids(sorted(topics), everywhere=everywhere, seconds=self._seconds) if topics else {}

    def describe_producers(
        self, partitions: Collection[Partition], *, retry_seconds: float | None = None
    ) -> dict[Partition, OpenProducers | None]:
        """Producers with an open transaction in each partition, as its leader sees it; None if it did not answer.

        A partition without a leader does not answer. What the coordinator says of a transaction's end is not what the
        partitions know: `kafka-transactions abort` ends it there only, and a coordinator skips a partition that has
        no leader when the markers are written (KAFKA-20734).
        """
        found: dict[Partition, OpenProducers | None] = dict.fromkeys(partitions)
        waiting = list(found)
        for number in Retries(self._seconds if retry_seconds is None else retry_seconds):
            if not waiting:
                break
            if number >= TRIES_BEFORE_BOOTSTRAP:
                self._wire.forget()
            found |= self._producers_once(waiting, self._seconds)
            waiting = [partition for partition in waiting if found[partition] is None]
        return found

    def may_look(self, topic: str) -> int:
        """The code with which a partition of the topic answers describe_producers; it needs Read on the topic."""
        leaders = self._wire.leaders([topic], seconds=self._seconds)
        partition = min(leaders, default=None)
        if partition is None:
            return Code.LEADER_NOT_AVAILABLE
        request = requests.describe_producers(by_topic([partition]))
        [answer] = self._wire.exchange([(leaders[partition], request)], seconds=self._seconds)
        return answer.code or int(answer.response.topics[0].partitions[0].error_code)

    def partitions_of(self, topics: Collection[str]) -> list[Partition]:
        """The partitions of these topics that have a leader now."""
        return sorted(self._wire.leaders(sorted(topics), seconds=self._seconds)) if topics else []

    def write_marker(
        self, partition: Partition, producer: tuple[int, int], coordinator_epoch: int, *, commit: bool
    ) -> int:
        """End a transaction in one partition, where its coordinator has ended it and the partition does not know.

        Args:
            partition: Where.
            producer: Producer id and epoch.
            coordinator_epoch: As describe_producers tells it.
            commit: How the coordinator ended it: anything else would break the transaction apart.
        """
        leader = self._wire.leaders([partition[0]], seconds=self._seconds).get(partition)
        if leader is None:
            return Code.LEADER_NOT_AVAILABLE
        request = requests.write_marker(partition, producer, coordinator_epoch, commit=commit)
        [answer] = self._wire.exchange([(leader, request)], seconds=self._seconds)
        if answer.code:
            return answer.code
        [row] = [row for m in answer.response.markers for topic in m.topics for row in topic.partitions]
        return int(row.error_code)

    def _ask_each(
        self, sent: Mapping[tuple[str, int], Any], again: Collection[int] = ASK_AGAIN
    ) -> dict[tuple[str, int], int]:
        """Send each request to its id's coordinator, again while that may help; the last code of each."""
        codes: dict[tuple[str, int], int] = dict.fromkeys(sent, Code.NO_ANSWER)
        waiting = list(codes)
        retries = Retries(self._seconds)
        for number in retries:
            self._look_again({name: codes[name, i] for name, i in waiting}, number)
            nodes, failed = self._find({name for name, _ in waiting}, retries.left)
            asked = [key for key in waiting if key[0] in nodes]
            answers = self._wire.exchange([(nodes[key[0]], sent[key]) for key in asked], seconds=retries.left)
            codes |= {key: failed[key[0]] for key in waiting if key[0] in failed}
            codes |= {key: answer.result for key, answer in zip(asked, answers, strict=True)}
            waiting = [key for key in waiting if codes[key] in again]
            if not waiting:
                break
        return codes

    def _find(self, names: Collection[str], seconds: float) -> tuple[dict[str, int], dict[str, int]]:
        """Node id of each name's coordinator, and the codes of those that have none now."""
        with self._lock:
            nodes = {name: self._nodes[name] for name in names if name in self._nodes}
        unknown = [name for name in names if name not in nodes]
        if not unknown:
            return nodes, {}
        answers = self._wire.coordinators(unknown, seconds=seconds)
        fresh = {name: answer.response for name, answer in answers.items() if answer.code == Code.NONE}
        with self._lock:
            self._nodes |= fresh
        return nodes | fresh, {name: answer.code for name, answer in answers.items() if answer.code}

    def _look_again(self, codes: Mapping[str, int], number: int) -> None:
        """Before another round: forget the coordinators that moved, at last also the brokers' addresses."""
        if number == 0:
            return
        with self._lock:
            for name, code in codes.items():
                if code in PASSING:
                    self._nodes.pop(name, None)
        if number >= TRIES_BEFORE_BOOTSTRAP and Code.NO_ANSWER in codes.values():
            self._wire.forget()

    def _describe_once(self, names: Sequence[str], seconds: float) -> dict[str, Description]:
        nodes, failed = self._find(names, seconds)
        found = {name: Description(code) for name, code in failed.items()}
        groups = _grouped(nodes)
        sent = [(node, requests.describe_transactions(group)) for node, group in groups.items()]
        answers = self._wire.exchange(sent, seconds=seconds)
        for group, answer in zip(groups.values(), answers, strict=True):
            if answer.code:
                found |= {name: Description(answer.code) for name in group}
            else:
                found |= {row.transactional_id: description(row) for row in answer.response.transaction_states}
        return found

    def _list_once(
        self, states: Collection[str], prefix: str, seconds: float, longer_than_ms: int | None = None
    ) -> list[wire.Answer]:
        pattern = f"{re.escape(prefix)}.*" if prefix and self._by_pattern else None
        nodes = self._wire.nodes(seconds=seconds)
        sent = [(node, requests.list_transactions(sorted(states), pattern, longer_than_ms)) for node in nodes]
        answers = self._wire.exchange(sent, seconds=seconds)
        if pattern is not None and any(answer.result == Code.UNSUPPORTED_VERSION for answer in answers):
            self._by_pattern = False
            return self._list_once(states, prefix, seconds, longer_than_ms)
        return [answer._replace(code=answer.result) for answer in answers]

    def _producers_once(
        self, partitions: Collection[Partition], seconds: float
    ) -> dict[Partition, OpenProducers | None]:
        leaders = self._wire.leaders(sorted({topic for topic, _ in partitions}), seconds=seconds)
        groups = _grouped({partition: leaders[partition] for partition in partitions if partition in leaders})
        sent = [(node, requests.describe_producers(by_topic(group))) for node, group in groups.items()]
        found: dict[Partition, OpenProducers | None] = {}
        for answer in self._wire.exchange(sent, seconds=seconds):
            if answer.code == Code.NONE:
                found |= open_producers(answer.response)
        return found


def _grouped(owners: Mapping[T, int]) -> dict[int, list[T]]:
    groups: dict[int, list[T]] = {}
    for item, node in owners.items():
        groups.setdefault(node, []).append(item)
    return groups
