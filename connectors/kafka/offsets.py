"""Publish offsets to a consumer group, for people and tools that watch lag. Nothing here is ever read back.

The source of truth is the position in the decision; a group's offsets are written after the epoch is completed, so
they are never ahead of what is committed (scenario 69).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .errors import client_error, confluent
from .processwide import PerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .settings import KafkaSettings

PUBLISH_SECONDS: Final = 10.0


def publish_offsets(settings: KafkaSettings, group: str, offsets: Mapping[str, Mapping[str, int]]) -> None:
    """Write offsets of a consumer group that has no members.

    Args:
        settings: Of the cluster.
        group: The consumer group.
        offsets: By topic and partition, the next offset to read: `{"orders": {"0": 123}}`.

    Raises:
        KafkaError: The brokers do not answer, or refuse, for example because the group has members.
    """
    kafka = confluent()
    rows = [kafka.TopicPartition(t, int(n), offset) for t, parts in offsets.items() for n, offset in parts.items()]
    if not rows:
        return
    request = kafka.ConsumerGroupTopicPartitions(group, rows)
    what = f"cannot publish offsets to consumer group {group}"
    try:
        admin = _admins.get(settings.connection())
        [future] = admin.alter_consumer_group_offsets([request], request_timeout=PUBLISH_SECONDS).values()
        refused = [row.error for row in future.result().topic_partitions if row.error is not None]
    except kafka.KafkaException as error:
        raise client_error(what, error) from None
    if refused:
        raise client_error(what, kafka.KafkaException(refused[0])) from None


def _make(settings: KafkaSettings) -> Any:
    confluent()
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - an extra

    return AdminClient(settings.for_admin())


_admins: Final[PerProcess[KafkaSettings, Any]] = PerProcess(_make)
