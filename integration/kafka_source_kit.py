"""Topics with known contents, and reading them through a KafkaSource."""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from onceward import KafkaSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from onceward.sources import Position, Split


class Writer:
    """Writes to one broker as another program would."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = AdminClient({"bootstrap.servers": servers})

    def source(self, *topics: str, **settings: Any) -> KafkaSource:
        chosen = {"topics": topics} if topics else {}
        return KafkaSource(bootstrap_servers=self.servers, **{"timeout": 60.0, **chosen, **settings})

    def send(self, topic: str, values: Iterable[Any], partition: int = 0, **more: Any) -> None:
        """Plain records, without a transaction."""
        # A new one knows new partitions.
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 5, "log_level": 0})
        for value in values:
            producer.produce(topic, as_bytes(value), partition=partition, **more)
        assert producer.flush(30) == 0

    @contextmanager
    def transaction(self, topic: str, values: Iterable[Any], partition: int = 0) -> Iterator[Producer]:
        """An open transaction that holds the values; aborted at the end unless it was ended."""
        producer = Producer(
            {"bootstrap.servers": self.servers, "transactional.id": f"w-{uuid.uuid4()}", "log_level": 0}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, as_bytes(value), partition=partition)
        assert producer.flush(30) == 0
        ended = False

        def end(method: Any) -> Any:
            def call() -> None:
                nonlocal ended
                marker = self.end_of(topic, partition) + 1
                method(30)
                ended = True
                # Brokers write the marker after they have answered.
                wait_until(lambda: self.end_of(topic, partition) >= marker)

            return call

        yield Ended(end(producer.commit_transaction), end(producer.abort_transaction))  # type: ignore[misc]
        if not ended:
            producer.abort_transaction(30)

    def commit(self, topic: str, values: Iterable[Any], partition: int = 0) -> None:
        with self.transaction(topic, values, partition) as transaction:
            transaction.commit()

    def abort(self, topic: str, values: Iterable[Any], partition: int = 0) -> None:
        with self.transaction(topic, values, partition) as transaction:
            transaction.abort()

    def end_of(self, topic: str, partition: int) -> int:
        """Where the next record goes."""
        asked = self.admin.list_offsets({TopicPartition(topic, partition): OffsetSpec.latest()})
        return int(next(iter(asked.values())).result(90).offset)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """What retention does."""
        for future in self.admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            future.result(90)

    def delete_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(90)

    def create_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(90)

    def add_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(90)

    def alter(self, kind: ResourceType, name: str, settings: dict[str, str]) -> None:
        """Change settings of a topic or a broker; the name of a broker is its number."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(30)

    def partitions_of(self, topic: str) -> int:
        """How many there are, as the broker knows; 0 if there is no such topic."""
        found = self.admin.list_topics(timeout=30).topics.get(topic)
        return len(found.partitions) if found is not None and found.error is None else 0


class Ended:
    """How a transaction ends."""

    def __init__(self, commit: Any, abort: Any) -> None:
        self.commit = commit
        self.abort = abort


def as_bytes(value: Any) -> bytes | None:
    return None if value is None else str(value).encode()


def rows(source: KafkaSource, splits: Iterable[Split]) -> list[tuple[int, int, bytes | None]]:
    """(partition, offset, value) of everything in these splits."""
    found = []
    for split in splits:
        for piece in source.read(split):
            columns = [piece.batch.column(name).to_pylist() for name in ("partition", "offset", "value")]
            found += list(zip(*columns, strict=True))
            assert piece.next == found[-1][1] + 1
    return found


def values(source: KafkaSource, start: Position, end: Position) -> list[str]:
    """Values between two positions, partition by partition, in order."""
    return [value.decode() for _, _, value in sorted(rows(source, source.splits(start, end))) if value is not None]


def wait_until(holds: Callable[[], bool], seconds: float = 90.0) -> None:
    """Brokers' metadata and markers follow what a call did a moment later."""
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(0.02)


def recreate(writer: Writer, name: str) -> None:
    writer.delete_topic(name)
    wait_until(lambda: not writer.source(name)._find().partitions)
    writer.create_topic(name)
