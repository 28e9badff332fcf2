"""The requests about transactions that no public client API can send, built from kafka-python's request classes.

EndTxn is sent as version 3 and InitProducerId as version 4, the newest of the transaction protocol that librdkafka's
producers speak; newer ones (KIP-890, KIP-939) change what an epoch means.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

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
    from collections.abc import Mapping, Sequence

END_TXN_VERSION: Final = 3
INIT_PRODUCER_ID_VERSION: Final = 4
LIST_BY_DURATION_VERSION: Final = 1
LIST_BY_PATTERN_VERSION: Final = 2
WRITE_MARKERS_VERSION: Final = 1


def end_txn(name: str, producer_id: int, producer_epoch: int, *, commit: bool) -> Any:
    """EndTxnRequest: commit or abort exactly this producer epoch's transaction."""
    return EndTxnRequest(
        version=END_TXN_VERSION,
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        committed=commit,
    )


def init_producer_id(name: str, producer_id: int, producer_epoch: int, *, timeout_ms: int) -> Any:
    """InitProducerIdRequest: raise the producer epoch by one."""
    return InitProducerIdRequest(
        version=INIT_PRODUCER_ID_VERSION,
        transactional_id=name,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def describe_transactions(names: Sequence[str]) -> Any:
    """DescribeTransactionsRequest, for the coordinator of all of them."""
    return DescribeTransactionsRequest(transactional_ids=list(names))


def list_transactions(states: Sequence[str], pattern: str | None, longer_than_ms: int | None = None) -> Any:
    """ListTransactionsRequest, for every broker.

    Args:
        states: Names of states; empty for all.
        pattern: RE2 that the whole name matches; needs Kafka 4.1.
        longer_than_ms: Only those that have been running for longer, by the broker's clock; needs Kafka 3.8.
    """
    filters: dict[str, Any] = {"state_filters": list(states), "producer_id_filters": []}
    if longer_than_ms is not None:
        filters |= {"duration_filter": longer_than_ms, "min_version": LIST_BY_DURATION_VERSION}
    if pattern is not None:
        filters |= {"transactional_id_pattern": pattern, "min_version": LIST_BY_PATTERN_VERSION}
    return ListTransactionsRequest(**filters)


def describe_producers(partitions: Mapping[str, Sequence[int]]) -> Any:
    """DescribeProducersRequest, for the leader of all these partitions."""
    topics = [DescribeProducersRequest.TopicRequest(name=n, partition_indexes=list(p)) for n, p in partitions.items()]
    return DescribeProducersRequest(topics=topics)


def write_marker(partition: tuple[str, int], producer: tuple[int, int], coordinator_epoch: int, *, commit: bool) -> Any:
    """WriteTxnMarkersRequest, for the partition's leader: what the coordinator sends it at a transaction's end."""
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topic, number = partition
    producer_id, producer_epoch = producer
    return WriteTxnMarkersRequest(
        max_version=WRITE_MARKERS_VERSION,
        markers=[
            marker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transaction_result=commit,
                topics=[marker.WritableTxnMarkerTopic(name=topic, partition_indexes=[number])],
                coordinator_epoch=coordinator_epoch,
            )
        ],
    )
