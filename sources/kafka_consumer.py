"""Reading a range of offsets of one partition, to its end, whatever lies at its end.

A range may end in records that a reader never gets: control records, aborted data, compacted offsets. So it ends when a
record at or behind the end arrives, or when librdkafka says that the partition's readable part ends at or behind it
(partition EOF; measured: for read_committed it comes at the last stable offset, with that offset). Neither is needed if
the last offset itself arrived.

Consumers are kept for the process's next ranges: a new one costs connections and metadata. They are assigned partitions
by hand and never join a group.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ..connectors.kafka.errors import confluent
from ..connectors.kafka.processwide import PerProcess
from ..core.errors import SourceError
from .kafka_lookup import passes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Consumer, Message

    from ..connectors.kafka.settings import KafkaSettings
    from .offsets import Partition

ROWS: Final = 10_000
"""Rows of one batch: Spark's default of spark.sql.execution.arrow.maxRecordsPerBatch."""
POLL_SECONDS: Final = 1.0
KEPT: Final = 8
"""Idle consumers that a process keeps for one cluster."""
OWN: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
GROUP: Final = "onceward-source"
"""librdkafka wants a name; nothing is read from the group or committed to it here."""
WAIT_MS: Final = 20
"""How long a broker holds a fetch back when it has nothing: what a range that ends in a gap waits."""


class Gone(Exception):  # noqa: N818 - the caller decides whether it is a fault
    """The offset that should be read next is not there."""


class RangeConsumer:
    """A consumer that reads one range after another.

    Args:
        settings: Consumer settings, `isolation.level` included.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        library = confluent()
        own = {"group.id": GROUP, "fetch.wait.max.ms": WAIT_MS, "log_level": 0}
        self._consumer: Consumer = library.Consumer({**own, **settings.for_consumer(), **OWN})
        self._kinds = library.KafkaError
        self._topic_partition = library.TopicPartition
        self._servers = settings["bootstrap.servers"]

    def read(self, partition: Partition, start: int, end: int, patience: float) -> Iterator[list[Message]]:
        """Messages of offsets `start` to `end` - 1, in order, in lists of up to ROWS.

        Args:
            partition: What to read.
            start: First offset.
            end: Offset behind the last one.
            patience: Seconds for which nothing may come.

        Raises:
            Gone: The next offset is not there: deleted, or behind the partition's end.
            SourceError: Nothing came for `patience` seconds, or the brokers refuse.
        """
        self._consumer.assign([self._topic_partition(partition.topic, partition.number, start)])
        at, ready, fault = start, [], ""
        last_news = time.monotonic()
        while at < end:
            came = self._take(min(ROWS - len(ready), end - at))
            records, at_or_fault = self._sorted(came, at, end)
            if isinstance(at_or_fault, str):
                fault = at_or_fault
            elif at_or_fault > at:
                at, last_news = at_or_fault, time.monotonic()
            ready += records
            if len(ready) >= ROWS:
                yield ready
                ready, last_news = [], time.monotonic()
            if time.monotonic() - last_news > patience:
                raise self._too_late(partition, at, end, patience, fault)
        if ready:
            yield ready

    def _take(self, count: int) -> list[Message]:
        """What is there; waits for the first only."""
        first = self._consumer.poll(POLL_SECONDS)
        if first is None:
            return []
        return [first, *self._consumer.consume(count - 1, 0)] if count > 1 else [first]

    def _sorted(self, came: list[Message], at: int, end: int) -> tuple[list[Message], int | str]:
        """The range's records, and how far the range is read now or what is wrong."""
        fault = ""
        if any(message.error() for message in came):
            for message in came:
                if message.error() is not None:
                    at, fault = self._event(message, at)
            came = [message for message in came if message.error() is None]
        if came:
            at = max(at, came[-1].offset() + 1)
        if at > end and came and came[-1].offset() >= end:
            came = [message for message in came if message.offset() < end]
        return came, fault or at

    def _event(self, message: Message, at: int) -> tuple[int, str]:
        error = message.error()
        code = error.code()
        if code == self._kinds._PARTITION_EOF:  # noqa: SLF001 - confluent's name
            return max(at, message.offset()), ""
        if code in (self._kinds._AUTO_OFFSET_RESET, self._kinds._LOG_TRUNCATION):  # noqa: SLF001
            raise Gone(error.str())
        unknown = (self._kinds.UNKNOWN_TOPIC_OR_PART, self._kinds._UNKNOWN_PARTITION, self._kinds._UNKNOWN_TOPIC)  # noqa: SLF001
        # A group is named because it must be; whether we may use it makes no difference to reading.
        if passes(error) or code in unknown or code == self._kinds.GROUP_AUTHORIZATION_FAILED:
            return at, str(error.str())
        raise SourceError(f"cannot read from Kafka at {self._servers}: {error.str()}")

    def _too_late(self, partition: Partition, at: int, end: int, patience: float, fault: str) -> SourceError:
        why = f" The last fault: {fault}." if fault else ""
        return SourceError(
            f"nothing came from {partition} at {self._servers} for {patience:g} s: offsets {at} to {end - 1} are "
            f"missing.{why} Check that the brokers are up and hold the partition; kafkaConsumer.pollTimeoutMs "
            "(timeout) says how long to wait"
        )

    def held(self, partition: Partition) -> tuple[int, int]:
        """First offset and end of a partition, freshly asked for."""
        target = self._topic_partition(partition.topic, partition.number)
        low, high = self._consumer.get_watermark_offsets(target, timeout=10.0)
        return int(low), int(high)

    def release(self) -> None:
        """Stop fetching."""
        self._consumer.unassign()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()


class _Idle:
    """Consumers that nobody uses. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._consumers: list[RangeConsumer] = []

    def take(self) -> RangeConsumer | None:
        with self._lock:
            return self._consumers.pop() if self._consumers else None

    def give(self, consumer: RangeConsumer) -> bool:
        with self._lock:
            fits = len(self._consumers) < KEPT
            if fits:
                self._consumers.append(consumer)
            return fits


def _idle(_settings: Any) -> _Idle:
    return _Idle()


_idle_of: Final[PerProcess[KafkaSettings, _Idle]] = PerProcess(_idle)


@contextmanager
def borrowed(settings: KafkaSettings) -> Iterator[RangeConsumer]:
    """A consumer for one range: an idle one of this process, or a new one. After a fault it is not used again."""
    idle = _idle_of.get(settings)
    consumer = idle.take() or RangeConsumer(settings)
    try:
        yield consumer
    except GeneratorExit:
        _put_back(idle, consumer)
        raise
    except BaseException:
        consumer.close()
        raise
    _put_back(idle, consumer)


def _put_back(idle: _Idle, consumer: RangeConsumer) -> None:
    consumer.release()
    if not idle.give(consumer):
        consumer.close()
