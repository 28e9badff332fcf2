"""One Kafka transaction: what names it and no other, what brokers say of it, and what that proves. Pure.

A handle names a transaction by id, producer epoch and start time. The coordinator remembers the last transaction of an
id until the id is initialised again: so long its end is proven, both ways. The broker ends a transaction whose
timeout is over, and a fenced one, by raising the epoch by one; the start time stays (measured on Kafka 4.3). Once
the id is initialised again, nothing can be proven: the answer is "unknown" (invariant 8: then it is loud).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from onceward.core.contract.names import parse_pooled_name
from onceward.core.contract.transaction import ANY_EPOCH, Committable, Observation
from onceward.core.errors import LogDamagedError

from .error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

Partition = tuple[str, int]
"""Topic and number."""
OpenProducers = dict[tuple[int, int], int]
"""The producers with an open transaction in a partition: id and epoch, and the epoch of their coordinator."""

KIND: Final = "kafka"
VERSION: Final = 1
"""Layout of the handle. A producer that takes part in two-phase commit without timeout (KIP-939) would be 2."""


class Handle(NamedTuple):
    """One transaction of one producer epoch.

    Id, producer id and epoch are what EndTxn wants. The start time tells two transactions of one producer epoch
    apart, and shows after a broker's timeout that the transaction it aborted was this one.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    started_ms: int
    """Broker's clock when the transaction's first partition was added, in milliseconds; only ever compared."""


class _Layout(msgspec.Struct, frozen=True):
    """Layout of a committable's handle."""

    producer_id: int
    producer_epoch: int
    started_ms: int
    partitions: dict[str, list[int]]
    topic_ids: dict[str, str] = {}


class Prepared(NamedTuple):
    """A transaction and where its data are."""

    handle: Handle
    partitions: frozenset[Partition]
    topic_ids: frozenset[tuple[str, str]] = frozenset()
    """Topics with their ids, as far as known: a topic that is deleted and created again gets another one."""

    @classmethod
    def of(cls, committable: Committable) -> Prepared | None:
        """Read the transaction of a committable; return None if nothing was written, so that there is no transaction.

        Raises:
            LogDamagedError: Not a Kafka committable of a known version, or not of the transaction that its name says.
        """
        if committable.kind != KIND or committable.version != VERSION:
            raise LogDamagedError(
                f"committable of kind {committable.kind!r}, version {committable.version} is not one of Kafka's that "
                "this version of the library can read",
                sink=committable.sink,
                transaction=committable.transaction,
            )
        if not committable.handle and not committable.rows:
            return None
        name = parse_pooled_name(committable.transaction)
        if name is None or name.scope != (committable.pipeline, committable.sink, committable.log):
            raise LogDamagedError(
                f"{committable.transaction!r} is not a transactional id of this sink of decision log "
                f"{committable.log!r}",
                pipeline=committable.pipeline,
                sink=committable.sink,
                transaction=committable.transaction,
            )
        fields = committable.read_handle(_Layout)
        handle = Handle(committable.transaction, fields.producer_id, fields.producer_epoch, fields.started_ms)
        partitions = ((topic, number) for topic, numbers in fields.partitions.items() for number in numbers)
        return cls(handle, frozenset(partitions), frozenset(fields.topic_ids.items()))

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self.handle.producer_id, self.handle.producer_epoch

    @property
    def topics(self) -> set[str]:
        """Names of the topics."""
        return {topic for topic, _ in self.partitions}

    def ends_at(self, timeout_ms: int) -> float | None:
        """Return when its broker aborts it, in seconds since 1970 on the broker's clock; None if that is not known."""
        return (self.handle.started_ms + timeout_ms) / 1000 if timeout_ms else None

    def to_json(self) -> dict[str, Any]:
        """Return the handle field of a committable."""
        return {
            "producer_id": self.handle.producer_id,
            "producer_epoch": self.handle.producer_epoch,
            "started_ms": self.handle.started_ms,
            "partitions": by_topic(self.partitions),
            "topic_ids": dict(sorted(self.topic_ids)),
        }

    def with_ids(self, ids: Mapping[str, str | None]) -> Prepared:
        """Return the same transaction with the known ones of its topics' ids."""
        known = {(topic, id_) for topic in self.topics if (id_ := ids.get(topic)) is not None}
        return self._replace(topic_ids=frozenset(known))


def mark_of(producer_id: int, producer_epoch: int) -> str:
    """Return the mark of a transaction's records in a topic: a producer epoch is used for one transaction only."""
    return f"{producer_id}/{producer_epoch}"


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Return the partition numbers of each topic, in order."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics


def listed_committable(prepared: Prepared) -> Committable | None:
    """Return the committable of a transaction found at the broker; None if onceward did not name it."""
    name = parse_pooled_name(prepared.handle.transactional_id)
    if name is None:
        return None
    return Committable(
        kind=KIND,
        version=VERSION,
        pipeline=name.scope.pipeline,
        sink=name.scope.sink,
        log=name.scope.log,
        generation=ANY_EPOCH if name.start is None else name.start,
        epoch=ANY_EPOCH,
        transaction=prepared.handle.transactional_id,
        handle=prepared.to_json(),
    )


class Description(NamedTuple):
    """The description of a transactional id by its coordinator."""

    code: int
    state: str = ""
    """Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead or PrepareEpochFence."""
    handle: Handle | None = None
    timeout_ms: int = 0
    partitions: frozenset[Partition] = frozenset()
    """Where an open transaction has data; empty after its end."""

    @classmethod
    def of(cls, row: Any) -> Description:
        """Read a row of DescribeTransactionsResponse; one with an error has no handle, whatever its fields hold."""
        if row.error_code:
            return cls(row.error_code)
        handle = Handle(row.transactional_id, row.producer_id, row.producer_epoch, row.transaction_start_time_ms)
        partitions = frozenset((topic.topic, number) for topic in row.topics for number in topic.partitions)
        return cls(row.error_code, row.transaction_state, handle, row.transaction_timeout_ms, partitions)

    @property
    def open(self) -> Prepared | None:
        """The transaction, if it is open."""
        return Prepared(self.handle, self.partitions) if self.state == "Ongoing" and self.handle is not None else None


def open_producers(response: Any) -> dict[Partition, OpenProducers | None]:
    """Read the open producers of each partition from a DescribeProducersResponse; those with an error are missing."""
    return {
        (topic.name, partition.partition_index): {
            (producer.producer_id, producer.producer_epoch): producer.coordinator_epoch
            for producer in partition.active_producers
            if producer.current_txn_start_offset >= 0
        }
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code == Code.NONE
    }


WORDS: Final = {
    Observation.PREPARED: "open",
    Observation.COMMITTED: "committed",
    Observation.ABORTED: "aborted",
    Observation.EXPIRED: "aborted with its producer: its timeout was over, or it was fenced",
    Observation.UNKNOWN: "ended, and its transactional id initialised again since: how it ended is unknown",
    Observation.ABSENT: "not known to the coordinator: never written, or forgotten after "
    "transactional.id.expiration.ms",
    Observation.NO_ANSWER: "its state cannot be read now",
}
"""What became of a transaction, as a coordinator says."""
_ABORTS: Final = ("PrepareAbort", "CompleteAbort")
"""States that a coordinator shows only once they are in its log. PrepareEpochFence is only in its memory: it proves
nothing yet, and is temporary."""
_SAME: Final = {
    "Ongoing": Observation.PREPARED,
    "PrepareCommit": Observation.COMMITTED,
    "CompleteCommit": Observation.COMMITTED,
    **dict.fromkeys(_ABORTS, Observation.ABORTED),
    "PrepareEpochFence": Observation.NO_ANSWER,
}
"""What the coordinator's states mean for the transaction that the handle names."""
_NEXT: Final = {**dict.fromkeys(_ABORTS, Observation.EXPIRED), "PrepareEpochFence": Observation.NO_ANSWER}
"""What they mean if the producer epoch was raised by one since."""


def judge(handle: Handle, description: Description) -> Observation:
    """Compare a handle with its coordinator's description of the id."""
    now = description.handle
    if description.code == Code.TRANSACTIONAL_ID_NOT_FOUND:
        return Observation.ABSENT
    if description.code != Code.NONE or now is None:
        return Observation.NO_ANSWER
    if now == handle:
        return _SAME.get(description.state, Observation.UNKNOWN)
    if now == handle._replace(producer_epoch=handle.producer_epoch + 1):
        return _NEXT.get(description.state, Observation.UNKNOWN)
    return Observation.UNKNOWN


class Inside(StrEnum):
    """The state of a transaction in its partitions; those of deleted topics do not count."""

    OPEN = "open in every partition"
    ENDED = "open in no partition"
    MIXED = "open in some partitions only"
    SILENT = "open, as far as its partitions answer"
    NO_WORD = "some partitions do not answer, and some of the others no longer have it open"
    GONE = "deleted with its topics"


def judge_partitions(
    prepared: Prepared, producers: Mapping[Partition, OpenProducers | None], deleted: Collection[str] = ()
) -> Inside:
    """Return whether the partitions of a transaction have it open."""
    answers = [producers.get(partition) for partition in prepared.partitions if partition[0] not in deleted]
    if not answers:
        return Inside.GONE
    is_open = [prepared.producer in open_ for open_ in answers if open_ is not None]
    if None in answers:
        return Inside.SILENT if all(is_open) else Inside.NO_WORD
    if all(is_open):
        return Inside.OPEN
    return Inside.MIXED if any(is_open) else Inside.ENDED
