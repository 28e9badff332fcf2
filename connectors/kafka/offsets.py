"""Publishing how far a source was read: offsets are committed to a consumer group that nobody joins.

For people and tools that watch lag. The library itself never reads them: positions come from the epoch's decision and
the checkpoint. So publishing is idempotent, and may be skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import ConfigurationError

from .codes import Code
from .connectivity import admin_of
from .errors import client_error, confluent
from .retries import Retries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .settings import KafkaSettings

ASK_SECONDS: Final = 10.0
MOVING: Final = frozenset({Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
"""Answers while the group's coordinator moves, as after a broker's restart: asked again."""


def publish_offsets(settings: KafkaSettings, group: str, offsets: Mapping[str, Mapping[str, int]]) -> None:
    """Commit offsets to a consumer group without joining it (AlterConsumerGroupOffsets, KIP-396).

    Call it only after the epoch that ends at these offsets is completed.

    Args:
        settings: Where and how to connect.
        group: Name of the group. It must have no member that consumes at present.
        offsets: The next offset of each partition: `{"topic": {"0": 123}}`.

    Raises:
        ConfigurationError: The group's name is empty.
        KafkaError: No broker answers, or it refuses: the group has live members, or we may not.
    """
    library = confluent()
    if not group:
        raise ConfigurationError("the consumer group's name is empty")
    found = [library.TopicPartition(t, int(n), o) for t, numbers in offsets.items() for n, o in numbers.items()]
    if not found:
        return
    what = f"cannot publish offsets to consumer group {group}"
    where, refusal = what, None
    for _ in Retries(ASK_SECONDS):
        where, refusal = what, None
        try:
            request = library.ConsumerGroupTopicPartitions(group, found)
            admin = admin_of(settings).client
            futures = admin.alter_consumer_group_offsets([request], request_timeout=ASK_SECONDS)
            answer = futures[group].result()
        except library.KafkaException as error:
            refusal = error
        else:
            for partition in (p for p in answer.topic_partitions if p.error is not None):
                where, refusal = f"{what} for {partition.topic}-{partition.partition}", _exception(partition.error)
        if refusal is None or refusal.args[0].code() not in MOVING:
            break
    if refusal is not None:
        raise client_error(where, refusal)


def _exception(error: Any) -> Any:
    return confluent().KafkaException(error)
