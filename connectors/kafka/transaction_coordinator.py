"""Client of Kafka's transaction coordinators: end, fence, describe and list transactions from any process.

1. Every call is bounded in time and answers with codes or states, never with an exception of a client library.
2. A coordinator is looked up when it is first needed, and again when it answers that it has moved, is loading, or does
   not answer.
3. Repeating a request is safe: EndTxn and InitProducerId name the producer epoch, so the second one either confirms the
   first or is refused. Only while markers are being written is InitProducerId not repeated: it would raise the epoch
   once more, and wipe out the proof of the abort.
4. A list is complete, or it is an error: a transaction that is missing in it would never be ended.
5. How a transaction ended is asked of its coordinator, whether readers see the end of the partitions' leaders: neither
   knows what the other does.

EndTxn is sent as version 3 and InitProducerId as version 4, the newest of the transaction protocol that librdkafka's
producers speak; newer ones (KIP-890, KIP-939) change what an epoch means. kafka-python's admin client can describe and
list, too, but raises at the first id or partition that answers with an error, and says nothing of the others.
"""

from __future__ import annotations

import copy
import math
import os
import re
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, Final, TypeVar

from onceward.core.contract.names import FORMAT

from . import wire
from .error_codes import LEAST, PASSING, Code, Retries, kafka_error
from .transaction_state import Description, Handle, OpenProducers, Partition, by_topic, open_producers

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that Python 3.11 and 3.12 call deprecated (3.13 does not any more).
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.admin.transactions import (
        DescribeProducersRequest,
        DescribeTransactionsRequest,
        ListTransactionsRequest,
    )
    from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest, WriteTxnMarkersRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

K = TypeVar("K")
V = TypeVar("V")
RETRY_SECONDS: Final = 5.0
"""Seconds that a call goes on asking before it answers with the last code it got."""
ASK_AGAIN: Final = PASSING | {Code.CONCURRENT_TRANSACTIONS}
_KNOWN_OR_NOT_HERE: Final = {Code.NONE, Code.NOT_COORDINATOR, Code.TRANSACTIONAL_ID_NOT_FOUND}
NOBODY: Final = -1
"""The producer id and epoch of a client that has none yet."""
FRESH_SECONDS: Final = 0.1
"""Leaders that were looked up together with a description are asked for again if its answer took longer."""
STATE_TOPIC: Final = "__transaction_state"
"""Topic in which coordinators keep the state of transactions."""
ANY_PIPELINE: Final = f"{FORMAT}:"
"""Beginning of the ids of all pipelines, of which a client may see some."""
UNSEEN: Final = (
    f"this client has no permission to Describe topic {STATE_TOPIC}, so it cannot see whether a list of transactions "
    "is complete. Grant it"
)
FENCED_TIMEOUT_MS: Final = 60_000
"""Of transactions under an id that is initialised here; nobody opens one."""


class TransactionCoordinatorClient:
    """A client that ends, fences, describes and lists transactions. Thread-safe; belongs to its process."""

    def __init__(self, link: wire.Wire, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self._wire = link
        self._each = retry_seconds
        self._deadline = math.inf
        self._nodes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._by_pattern = True
        self._topics: wire.Topics | None = None

    def within(self, seconds: float) -> TransactionCoordinatorClient:
        """Return the same client for the calls of one task: together they take at most `seconds`.

        It remembers the leaders and topic ids that its last `describe` has looked up.
        """
        bounded = copy.copy(self)
        # (1) Not the shared object's: other threads have deadlines of their own.
        bounded._deadline = time.monotonic() + seconds  # noqa: SLF001 - of the same class
        bounded._topics = wire.Topics({}, {})  # noqa: SLF001
        return bounded

    @property
    def _seconds(self) -> float:
        """The seconds for which the next call may repeat its requests."""
        return max(LEAST, min(self._each, self._deadline - time.monotonic()))

    def end_many(self, handles: Sequence[Handle], *, commit: bool) -> list[int]:
        """Commit or abort transactions by handle, pipelined.

        Returns:
            The coordinator's code for each: NONE says that the transaction of this producer epoch is ended this way,
            now or before. CONCURRENT_TRANSACTIONS and the codes in PASSING remain only when time is over.
        """
        requests = {
            handle: EndTxnRequest(
                version=3,
                transactional_id=handle.transactional_id,
                producer_id=handle.producer_id,
                producer_epoch=handle.producer_epoch,
                committed=commit,
            )
            for handle in handles
        }
        # (3) CONCURRENT_TRANSACTIONS means that the markers are being written: asking again waits for them.
        codes = self._ask_each(requests, ASK_AGAIN)
        return [codes[handle] for handle in handles]

    def fence(self, transactional_id: str, producer_id: int, producer_epoch: int, *, once: bool = False) -> int:
        """Raise the producer epoch, so that the producer which holds it can do nothing any more.

        An open transaction is aborted by that, and the answer is CONCURRENT_TRANSACTIONS while the markers are being
        written: describe shows the end. The request is not repeated then: that would raise the epoch once more and
        wipe out the proof that this transaction was aborted. Look at the description right before: the coordinator
        compares the epoch in every state except Ongoing, where a transaction of a NEWER epoch of the same producer id
        would be aborted (measured).

        Args:
            transactional_id: Of the producer.
            producer_id: The one that was described.
            producer_epoch: Likewise.
            once: Send it to the coordinator that gave the description, and to no other: the successor of a deposed
                coordinator may have committed the transaction, and would forget that.
        """
        handle = Handle(transactional_id, producer_id, producer_epoch, NOBODY)
        # (3) Without CONCURRENT_TRANSACTIONS, which ASK_AGAIN has: it says that markers are being written.
        return self._init_producer_id(handle, () if once else PASSING)

    def look_up_again(self, ids: Iterable[str]) -> None:
        """Ask any broker again which one coordinates these transactional ids, before the next request."""
        with self._lock:
            for name in ids:
                self._nodes.pop(name, None)

    def register(self, transactional_id: str) -> int:
        """Make a transactional id known to its coordinator, as a producer's start does."""
        return self._init_producer_id(Handle(transactional_id, NOBODY, NOBODY, NOBODY), ASK_AGAIN)

    def describe(self, ids: Iterable[str], *, topics: Collection[str] = ()) -> dict[str, Description]:
        """Return state, handle, timeout and partitions of each transactional id.

        Args:
            ids: Transactional ids.
            topics: Topics whose leaders and ids the next calls of this task need. They are asked for in the same round
                trip. A client that was not made by `within` ignores them.
        """

        def ask(names: Sequence[str], retries: Retries) -> dict[str, Description]:
            return self._describe_once(names, topics, retries)

        return self._repeat(ids, ask, lambda states: states.code, Description(Code.NO_ANSWER))

    def list_transactions(self, states: Collection[str] = (), *, prefix: str = "") -> list[str]:
        """Return all transactional ids that any broker knows, in these states (default: any).

        Args:
            states: Names of states as in Description.
            prefix: Beginning of the id; a filter that spares the wire, no proof of anything: parse the names.

        Raises:
            KafkaError: Not every broker answered, a part of the coordinators' own topic has no leader, or this client
                may not see all ids under a pipeline's prefix, so the list would not be complete.
        """

        def ask(_: Sequence[str], retries: Retries) -> dict[str, list[wire.WireAnswer]]:
            listed = self._list_once(states, prefix, retries)
            return {prefix: [*listed, *self._unlisted(retries.left), *self._unseen(prefix, retries)]}

        unanswered: list[wire.WireAnswer] = []
        answers = self._repeat([prefix], ask, lambda listing: _worst(listing).code, unanswered)[prefix]
        # (4) Whatever the others have listed.
        if (worst := _worst(answers)).code:
            raise kafka_error("cannot list transactions", worst.code, worst.detail or self._wire.last_fault)
        ids: list[str] = [row.transactional_id for answer in answers for row in answer.response.transaction_states]
        # Brokers before 4.1 know no pattern, and list all.
        return [name for name in ids if name.startswith(prefix)]

    def _unlisted(self, seconds: float) -> list[wire.WireAnswer]:
        """Return an error in the name of partitions of the coordinators' topic that have no leader, if there are any.

        No broker lists their transactions. Nobody can say that there are none if this client may not look.
        """
        # (4) No broker would list their transactions, and none would answer with an error.
        answer = self._wire.leaderless(STATE_TOPIC, seconds=seconds)
        if answer.code == Code.TOPIC_AUTHORIZATION_FAILED:
            return [answer._replace(detail=UNSEEN)]
        if answer.code:
            return [answer]
        why = f"{STATE_TOPIC} has no leader for partition {', '.join(map(str, answer.response))}"
        return [wire.WireAnswer(Code.COORDINATOR_NOT_AVAILABLE, detail=why)] if answer.response else []

    def _unseen(self, prefix: str, retries: Retries) -> list[wire.WireAnswer]:
        """Return an error if this client may not describe all ids that begin with a pipeline's prefix.

        Brokers leave such ids out without a word. So an id that nobody has is described.
        """
        if not prefix.removeprefix(ANY_PIPELINE) or not prefix.startswith(ANY_PIPELINE):
            return []
        code = self._describe_once([prefix], (), retries)[prefix].code
        if code in (Code.NONE, Code.TRANSACTIONAL_ID_NOT_FOUND):
            return []
        why = f"this client has no permission to Describe all transactional ids with the prefix {prefix}. Grant it"
        return [wire.WireAnswer(code, detail=why if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED else "")]

    def may_list(self) -> int:
        """Return the code with which a broker answers whether the coordinators' topic has all its leaders."""
        return self._wire.leaderless(STATE_TOPIC, seconds=self._seconds).code

    def running_longer(self, ids: Collection[str], milliseconds: int) -> set[str] | None:
        """Return those ids that have had a transaction open for longer than `milliseconds`.

        Their coordinators say so by the clocks by which they abort a transaction at its timeout: no clocks of two
        machines are compared. None if a broker is too old to tell (before Kafka 3.8).
        """
        prefix = os.path.commonprefix(list(ids))  # noqa: RUF071 - characters are meant
        answers = self._list_once(["Ongoing"], prefix, Retries(self._seconds), milliseconds)
        if any(answer.code == Code.UNSUPPORTED_VERSION for answer in answers):
            return None
        rows = [row for answer in answers if not answer.code for row in answer.response.transaction_states]
        return {row.transactional_id for row in rows} & set(ids)

    def topic_ids(self, topics: Collection[str], *, everywhere: bool = False) -> dict[str, str | None]:
        """Return the id of each topic, None for one that does not exist; topics whose id is unknown are missing.

        A broker may not have heard of a change yet: `everywhere` believes only what all of them say alike.
        """
        if not topics:
            return {}
        if everywhere:
            return self._wire.topic_ids_everywhere(sorted(topics), seconds=self._seconds)
        known = self._topics.ids if self._topics is not None else {}
        missing = {topic for topic in topics if known.get(topic) is None}
        return {**known, **(self._wire.topics(sorted(missing), seconds=self._seconds).ids if missing else {})}

    def describe_producers(
        self, partitions: Collection[Partition], *, retry_seconds: float | None = None
    ) -> dict[Partition, OpenProducers | None]:
        """Return the producers with an open transaction in each partition, as its leader sees it; None: no answer.

        A partition without a leader does not answer. What the coordinator says of a transaction's end is not what the
        partitions know: `kafka-transactions abort` ends it there only, and a coordinator skips a partition that has
        no leader when the markers are written (KAFKA-20734).
        """
        return self._repeat(
            partitions,
            self._producers_once,
            lambda states: Code.NO_ANSWER if states is None else Code.NONE,
            None,
            seconds=retry_seconds,
        )

    def may_look(self, topic: str) -> int:
        """Return the code with which a partition of the topic answers describe_producers, which needs Read on it."""
        code: int = Code.LEADER_NOT_AVAILABLE
        retries = Retries(self._seconds)
        for _ in retries:
            leaders = self._wire.topics([topic], seconds=retries.left).leaders
            # Any partition will do: the leader of the first one may be silent.
            requests = [(node, _describe_producers([min(led)])) for node, led in _grouped(leaders).items()]
            codes = [
                answer.code or int(answer.response.topics[0].partitions[0].error_code)
                for answer in self._wire.exchange(requests, seconds=retries.left)
            ]
            code = min((code for code in codes if code not in PASSING), default=next(iter(codes), code))
            if code not in PASSING:
                break
        return code

    def partitions_of(self, topics: Collection[str] | None) -> list[Partition]:
        """Return the partitions of these topics that have a leader now; None: of all topics this client may see."""
        names = None if topics is None else sorted(topics)
        known = sorted(p for p in self._topics.leaders if p[0] in names) if names and self._topics is not None else []
        if names and {topic for topic, _ in known}.issuperset(names):
            return known
        return sorted(self._wire.topics(names, seconds=self._seconds).leaders) if names != [] else []

    def leaderless_of(self, topics: Collection[str]) -> list[Partition]:
        """Return the partitions of these topics that have no leader now."""
        known = self._topics
        if known is None or not {topic for topic, _ in (*known.leaders, *known.leaderless)}.issuperset(topics):
            known = self._wire.topics(sorted(topics), seconds=self._seconds)
        return sorted(partition for partition in known.leaderless if partition[0] in topics)

    def partitions_everywhere(self, handle: Handle) -> set[Partition] | None:
        """Return the partitions of a transaction as any broker knows them, be it its coordinator or a deposed one.

        Returns:
            None if a broker did not answer, or is still loading what a coordinator knows.
        """
        request = DescribeTransactionsRequest(transactional_ids=[handle.transactional_id])
        retries = Retries(self._seconds)
        nodes = self._wire.nodes(seconds=retries.left)
        partitions: set[Partition] = set()
        requests = [(node, copy.copy(request)) for node in nodes]
        for answer in self._wire.exchange(requests, seconds=retries.left):
            rows = [Description.of(row) for row in answer.response.transaction_states] if not answer.code else []
            # One broker that is still loading may be the only one that knows.
            if any(row.code not in _KNOWN_OR_NOT_HERE for row in rows) or not rows:
                return None
            partitions.update(
                *(row.partitions for row in rows if row.handle is not None and row.handle[:3] == handle[:3])
            )
        return partitions if nodes else None

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
        topic, number = partition
        # (5) Straight to the leader: its coordinator has ended the transaction and will send no marker any more.
        retries = Retries(self._seconds)
        leader = self._wire.topics([topic], seconds=retries.left).leaders.get(partition)
        if leader is None:
            return Code.LEADER_NOT_AVAILABLE
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer[0],
            producer_epoch=producer[1],
            transaction_result=commit,
            topics=[
                WriteTxnMarkersRequest.WritableTxnMarker.WritableTxnMarkerTopic(name=topic, partition_indexes=[number])
            ],
            coordinator_epoch=coordinator_epoch,
        )
        request = WriteTxnMarkersRequest(max_version=1, markers=[marker])
        [answer] = self._wire.exchange([(leader, request)], seconds=retries.left)
        return answer.code or int(answer.response.markers[0].topics[0].partitions[0].error_code)

    def _repeat(
        self,
        keys: Iterable[K],
        ask: Callable[[Sequence[K], Retries], Mapping[K, V]],
        code_of: Callable[[V], int],
        unanswered: V,
        *,
        again: Collection[int] = PASSING,
        seconds: float | None = None,
    ) -> dict[K, V]:
        """Ask for all keys, and again for those whose answer may be another one next time; the last answer of each."""
        answers = dict.fromkeys(keys, unanswered)
        waiting = list(answers)
        if not waiting:
            return answers
        retries = Retries(self._seconds if seconds is None else seconds)
        for _ in retries:
            answers |= ask(waiting, retries)
            waiting = [key for key in waiting if code_of(answers[key]) in again]
            if not waiting:
                break
        return answers

    def _ask_each(self, requests: Mapping[Handle, Any], again: Collection[int]) -> dict[Handle, int]:
        """Send each request to its id's coordinator."""

        def ask(waiting: Sequence[Handle], retries: Retries) -> dict[Handle, int]:
            nodes, failed = self._find({handle.transactional_id for handle in waiting}, retries.left)
            requested = [handle for handle in waiting if handle.transactional_id in nodes]
            sent = [(nodes[handle.transactional_id], requests[handle]) for handle in requested]
            answers = self._wire.exchange(sent, seconds=retries.left)
            codes = {handle: answer.result for handle, answer in zip(requested, answers, strict=True)}
            # (2) The next try looks these up again.
            self._forget_moved({handle.transactional_id: code for handle, code in codes.items()})
            return {h: codes[h] if h in codes else failed[h.transactional_id] for h in waiting}

        return self._repeat(requests, ask, int, int(Code.NO_ANSWER), again=again)

    def _init_producer_id(self, handle: Handle, again: Collection[int]) -> int:
        request = InitProducerIdRequest(
            version=4,
            transactional_id=handle.transactional_id,
            transaction_timeout_ms=FENCED_TIMEOUT_MS,
            producer_id=handle.producer_id,
            producer_epoch=handle.producer_epoch,
        )
        return self._ask_each({handle: request}, again)[handle]

    def _find(self, names: Collection[str], seconds: float) -> tuple[dict[str, int], dict[str, int]]:
        """Return the node id of each name's coordinator, and the error codes of the names that have none now."""
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

    def _forget_moved(self, codes: Mapping[str, int]) -> None:
        """Forget the coordinators whose error code may mean that they have moved: the next call looks them up."""
        with self._lock:
            for name, code in codes.items():
                if code in PASSING:
                    self._nodes.pop(name, None)

    def _describe_once(self, names: Sequence[str], topics: Collection[str], retries: Retries) -> dict[str, Description]:
        nodes, failed = self._find(names, retries.left)
        descriptions = {name: Description(code) for name, code in failed.items()}
        groups = _grouped(nodes)
        sent: list[tuple[int | None, Any]]
        sent = [(node, DescribeTransactionsRequest(transactional_ids=group)) for node, group in groups.items()]
        topic_names = sorted(topics) if self._topics is not None else []
        if topic_names:
            sent.append((wire.ANY_NODE, wire.metadata_request(topic_names)))
        began = time.monotonic()
        answers = self._wire.exchange(sent, seconds=retries.left)
        if topic_names:
            # Only what is fresh: followers answer, too, with what they have copied so far (measured on Kafka 4.3).
            answer_topics = self._wire.topics_in(answers.pop())
            self._topics = answer_topics if time.monotonic() - began < FRESH_SECONDS else wire.Topics({}, {})
        for group, answer in zip(groups.values(), answers, strict=True):
            if answer.code:
                descriptions |= {name: Description(answer.code) for name in group}
            else:
                descriptions |= {
                    row.transactional_id: Description.of(row) for row in answer.response.transaction_states
                }
        self._forget_moved({name: description.code for name, description in descriptions.items()})
        return descriptions

    def _list_once(
        self, states: Collection[str], prefix: str, retries: Retries, longer_than_ms: int | None = None
    ) -> list[wire.WireAnswer]:
        """Return every broker's list of transactions, with the error code of the whole answer.

        The pattern is an RE2 that the whole name matches (Kafka 4.1); for how long transactions have been running is
        compared with the broker's clock (Kafka 3.8).
        """
        filters: dict[str, Any] = {"state_filters": sorted(states), "producer_id_filters": []}
        if longer_than_ms is not None:
            filters |= {"duration_filter": longer_than_ms, "min_version": 1}
        if by_pattern := prefix and self._by_pattern:
            pattern = f"{re.escape(prefix)}.*"
            filters |= {"transactional_id_pattern": pattern, "min_version": 2}
        nodes = self._wire.nodes(seconds=retries.left)
        requests = [(node, ListTransactionsRequest(**filters)) for node in nodes]
        answers = self._wire.exchange(requests, seconds=retries.left)
        if by_pattern and any(answer.result == Code.UNSUPPORTED_VERSION for answer in answers):
            # Brokers of several versions: asked once more, all without the pattern.
            self._by_pattern = False
            return self._list_once(states, prefix, retries, longer_than_ms)
        return [answer._replace(code=answer.result) for answer in answers]

    def _producers_once(
        self, partitions: Collection[Partition], retries: Retries
    ) -> dict[Partition, OpenProducers | None]:
        leaders = self._leaders_of(partitions, retries.left)
        groups = _grouped({partition: leaders[partition] for partition in partitions if partition in leaders})
        sent = [(node, _describe_producers(group)) for node, group in groups.items()]
        producers: dict[Partition, OpenProducers | None] = {}
        for answer in self._wire.exchange(sent, seconds=retries.left):
            if answer.code == Code.NONE:
                producers |= open_producers(answer.response)
        return producers

    def _leaders_of(self, partitions: Collection[Partition], seconds: float) -> dict[Partition, int]:
        known = self._topics.leaders if self._topics is not None else {}
        missing = {topic for topic, number in partitions if (topic, number) not in known}
        return {**known, **(self._wire.topics(sorted(missing), seconds=seconds).leaders if missing else {})}


def _worst(answers: Sequence[wire.WireAnswer]) -> wire.WireAnswer:
    """Return the first answer with an error, which makes the list incomplete; if there is none, the first answer."""
    none = wire.WireAnswer(Code.NO_ANSWER)
    return next((answer for answer in answers if answer.code), answers[0] if answers else none)


def _describe_producers(partitions: Collection[Partition]) -> Any:
    """Return the request to the leader of all these partitions."""
    topic = DescribeProducersRequest.TopicRequest
    topics = [topic(name=name, partition_indexes=numbers) for name, numbers in by_topic(partitions).items()]
    return DescribeProducersRequest(topics=topics)


def _grouped(owners: Mapping[K, int]) -> dict[int, list[K]]:
    groups: dict[int, list[K]] = {}
    for item, node in owners.items():
        groups.setdefault(node, []).append(item)
    return groups
