"""What names one Kafka transaction and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...core.errors import LogDamagedError
from ...core.names import parse_pooled_name
from ...core.transaction import ANY_EPOCH, Committable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...core.names import Scope

Partition = tuple[str, int]
"""Topic and number."""

KIND: Final = "kafka"
VERSION: Final = 1
"""Layout of the handle. A producer that takes part in two-phase commit without time-out (KIP-939) would be 2."""


class Handle(NamedTuple):
    """One transaction of one producer epoch.

    Id, producer id and epoch are what EndTxn wants. The start time tells two transactions of one producer epoch
    apart, and shows after a broker's time-out that the transaction it aborted was this one.
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
        return cls(handle, frozenset(partitions))

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
        }


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Partition numbers of each topic, in order."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics


def listed_committable(prepared: Prepared, scope: Scope) -> Committable | None:
    """The committable of a transaction found at the broker; None if it is not exactly this pipeline's and sink's."""
    name = parse_pooled_name(prepared.handle.transactional_id)
    if name is None or (name.scope.pipeline, name.scope.sink) != (scope.pipeline, scope.sink):
        return None
    return Committable(
        kind=KIND,
        version=VERSION,
        pipeline=scope.pipeline,
        sink=scope.sink,
        log=name.scope.log,
        writer=ANY_EPOCH,
        epoch=ANY_EPOCH,
        transaction=prepared.handle.transactional_id,
        handle=prepared.to_json(),
    )
