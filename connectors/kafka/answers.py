"""What brokers say of transactions."""

from __future__ import annotations

from typing import Any, NamedTuple

from .codes import Code
from .handle import Handle, Partition, Prepared


class Description(NamedTuple):
    """What a coordinator says of a transactional id."""

    code: int
    state: str = ""
    """Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead or PrepareEpochFence."""
    handle: Handle | None = None
    timeout_ms: int = 0
    partitions: frozenset[Partition] = frozenset()
    """Where an open transaction has data; empty after its end."""

    @property
    def open(self) -> Prepared | None:
        """The transaction, if it is open."""
        return Prepared(self.handle, self.partitions) if self.state == "Ongoing" and self.handle is not None else None


class Listing(NamedTuple):
    """One known transactional id."""

    transactional_id: str
    producer_id: int
    state: str


OpenProducers = dict[tuple[int, int], int]
"""The producers with an open transaction in a partition: id and epoch, and the epoch of their coordinator."""


def description(row: Any) -> Description:
    """Out of a row of DescribeTransactionsResponse."""
    handle = Handle(row.transactional_id, row.producer_id, row.producer_epoch, row.transaction_start_time_ms)
    partitions = frozenset((topic.topic, number) for topic in row.topics for number in topic.partitions)
    return Description(row.error_code, row.transaction_state, handle, row.transaction_timeout_ms, partitions)


def open_producers(response: Any) -> dict[Partition, OpenProducers | None]:
    """Out of a DescribeProducersResponse; partitions that answered with a fault are missing."""
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
