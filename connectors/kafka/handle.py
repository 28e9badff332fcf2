"""What names one Kafka transaction and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...core.errors import LogDamagedError
from ...core.names import parse_pooled_name
from ...core.transaction import ANY_EPOCH, Committable

if TYPE_CHECKING:
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

    @classmethod
    def of(cls, committable: Committable) -> Handle | None:
        """The handle in a committable; None if nothing was written, so that there is no transaction.

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
        return cls(committable.transaction, fields["producer_id"], fields["producer_epoch"], fields["started_ms"])

    def to_json(self) -> dict[str, Any]:
        """The handle field of a committable."""
        return {
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "started_ms": self.started_ms,
        }


def listed_committable(handle: Handle, scope: Scope) -> Committable | None:
    """The committable of a transaction found at the broker; None if it is not exactly this pipeline's and sink's."""
    name = parse_pooled_name(handle.transactional_id)
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
        transaction=handle.transactional_id,
        handle=handle.to_json(),
    )
