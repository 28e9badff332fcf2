"""What names one Kafka transaction and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceward.core.errors import LogDamagedError
from onceward.core.names import parse_pooled_name
from onceward.core.transaction import ANY_EPOCH, Committable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Partition = tuple[str, int]
"""Topic and number."""

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


class Prepared(NamedTuple):
    """A transaction and where its data are."""

    handle: Handle
    partitions: frozenset[Partition]
    topic_ids: frozenset[tuple[str, str]] = frozenset()
    """Topics with their ids, as far as known: a topic that is deleted and created again gets another one."""

    @classmethod
    def of(cls, committable: Committable) -> Prepared | None:
        """The transaction of a committable; None if nothing was written, so that there is no transaction.

        Raises:
            LogDamagedError: Not a Kafka committable of a known version.
        """
        if committable.kind != KIND or committable.version != VERSION:
            raise LogDamagedError(
                f"committable of kind {committable.kind!r}, version {committable.version} is not one of Kafka's that "
                "this version of the library can read",
                sink=committable.sink,
                transaction=committable.transaction,
            )
        if not committable.handle:
            return None
        fields = committable.handle
        handle = Handle(committable.transaction, fields["producer_id"], fields["producer_epoch"], fields["started_ms"])
        partitions = ((topic, number) for topic, numbers in fields["partitions"].items() for number in numbers)
        return cls(handle, frozenset(partitions), frozenset(fields.get("topic_ids", {}).items()))

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self.handle.producer_id, self.handle.producer_epoch

    def to_json(self) -> dict[str, Any]:
        """The handle field of a committable."""
        return {
            "producer_id": self.handle.producer_id,
            "producer_epoch": self.handle.producer_epoch,
            "started_ms": self.handle.started_ms,
            "partitions": by_topic(self.partitions),
            "topic_ids": dict(sorted(self.topic_ids)),
        }

    @property
    def topics(self) -> set[str]:
        """Names of the topics."""
        return {topic for topic, _ in self.partitions}

    def with_ids(self, ids: Mapping[str, str | None]) -> Prepared:
        """The same transaction with what is known of its topics' ids."""
        known = {(topic, found) for topic in self.topics if (found := ids.get(topic)) is not None}
        return self._replace(topic_ids=frozenset(known))


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Partition numbers of each topic, in order."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics


def listed_committable(prepared: Prepared) -> Committable | None:
    """The committable of a transaction found at the broker; None if its name is none of this library's."""
    name = parse_pooled_name(prepared.handle.transactional_id)
    if name is None:
        return None
    return Committable(
        kind=KIND,
        version=VERSION,
        pipeline=name.scope.pipeline,
        sink=name.scope.sink,
        log=name.scope.log,
        writer=ANY_EPOCH if name.start is None else name.start,
        epoch=ANY_EPOCH,
        transaction=prepared.handle.transactional_id,
        handle=prepared.to_json(),
    )
