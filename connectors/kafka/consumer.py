"""Reading a range of offsets of one partition, to its end, whatever lies at its end.

A range may end in records that a reader never gets: control records, aborted data, compacted offsets. So it ends when a
record at or behind the end arrives, or when librdkafka says that the partition's readable part ends at or behind it
(partition EOF; measured: for read_committed it comes at the last stable offset, with that offset). Neither is needed if
the last offset itself arrived.

Consumers are kept for the process's next ranges: a new one costs connections and metadata. They are assigned partitions
by hand and never join a group.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import SourceError
from onceward.core.kit.processwide import PerProcess

from .errors import confluent, made
from .lookup import passes
from .positions import Partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .settings import KafkaSettings

ROWS: Final = 10_000
"""Rows of one batch: Spark's default of spark.sql.execution.arrow.maxRecordsPerBatch."""
POLL_SECONDS: Final = 1.0
ASK_AFTER_SECONDS: Final = 5.0
"""Of silence: then the brokers are asked whether the partition is still there."""
UNASSIGNED: Final = -1
"""The partition of an event that is about a whole topic."""
KEPT: Final = 8
"""Idle consumers that a process keeps for one cluster."""
FIXED: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
DEFAULTS: Final = {
    # librdkafka wants a name; nothing is read from the group or committed to it here.
    "group.id": "onceward-source",
    # What a range that ends in a gap waits for the broker's answer.
    "fetch.wait.max.ms": 5,
    # With its default of 1000 ms one partition gives 160,000 rows/s at most (measured); with 1 ms 600,000.
    "fetch.queue.backoff.ms": 1,
    # What is fetched beyond a range is thrown away: little is enough to keep one fetch ahead.
    "queued.min.messages": 2000,
    "log_level": 0,
}


class Gone(Exception):  # noqa: N818 - the caller decides whether it is a fault
    """The offset that should be read next is not there."""


class RangeConsumer:
    """A consumer that reads one range after another. For one thread at a time.

    Raises:
        ConfigurationError: librdkafka refuses a setting.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        library = confluent()
        self._consumer: Any = made(library.Consumer, {**DEFAULTS, **settings.for_librdkafka(), **FIXED})
        self._topic_partition = library.TopicPartition
        self._servers = settings["bootstrap.servers"]

    def read(
        self, partition: Partition, start: int, end: int, *, retry_seconds: float, is_there: Callable[[], bool]
    ) -> Iterator[list[Any]]:
        """Messages of offsets `start` to `end` - 1, in order, in lists of up to ROWS.

        Args:
            partition: What to read.
            start: First offset.
            end: Offset behind the last one.
            retry_seconds: Seconds for which nothing may come.
            is_there: Asked while nothing comes: whether the partition is still there. librdkafka does not say so.

        Raises:
            Gone: The next offset is not there: deleted, or behind the partition's end.
            SourceError: Nothing came for `retry_seconds` seconds, or the brokers refuse.
        """
        self._consumer.assign([self._topic_partition(partition.topic, partition.number, start)])
        reading = _Range(partition, start, end)
        ready: list[Any] = []
        heard = asked = time.monotonic()
        while reading.at < end:
            before = reading.at
            ready += reading.take(self._what_came(min(ROWS - len(ready), end - before)))
            if reading.at > before:
                heard = time.monotonic()
            if len(ready) >= ROWS or (ready and reading.gone):
                yield ready
                ready = []
                heard = time.monotonic()
            if reading.gone:
                raise Gone(reading.gone)
            now = time.monotonic()
            if now - max(heard, asked) > ASK_AFTER_SECONDS:
                asked = now
                if not is_there():
                    raise Gone("the partition is not there")
            if now - heard > retry_seconds:
                raise self._too_late(reading, retry_seconds)
        if ready:
            yield ready

    def _what_came(self, count: int) -> list[Any]:
        """Messages and events that are there; waits for the first only."""
        first = self._consumer.poll(POLL_SECONDS)
        if first is None:
            return []
        return [first, *self._consumer.consume(count - 1, 0)] if count > 1 else [first]

    def _too_late(self, reading: _Range, retry_seconds: float) -> SourceError:
        why = f" The last fault: {reading.fault}." if reading.fault else ""
        return SourceError(
            f"nothing came from {reading.partition} at {self._servers} for {retry_seconds:g} s: offsets {reading.at} "
            f"to {reading.end - 1} are missing.{why} Check that the brokers are up and hold the partition; "
            "kafkaConsumer.pollTimeoutMs (timeout) says how long to wait"
        )

    def put_back(self, idle: deque[RangeConsumer]) -> None:
        """Stop fetching, and wait among the idle ones; close if there are enough."""
        self._consumer.unassign()
        if len(idle) < KEPT:
            idle.append(self)
        else:
            self.close()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()


class _Range:
    """How far a range was read."""

    def __init__(self, partition: Partition, start: int, end: int) -> None:
        self.partition = partition
        self.at = start
        self.end = end
        self.fault = ""
        """What the client last complained of."""
        self.gone = ""
        """Why the next offset is not there."""

    def take(self, came: list[Any]) -> list[Any]:
        """The range's records among what came; moves on past them, and past gaps that are known to be empty."""
        records = came
        if came and any(map(type(came[0]).error, came)):
            records = [message for message in came if message.error() is None]
        self._move(records)
        if records is not came:
            for message in came:
                if message.error() is not None:
                    self._event(message, message.error())
        if records and records[-1].offset() >= self.end:
            return [message for message in records if message.offset() < self.end]
        return records

    def _move(self, records: list[Any]) -> None:
        if not records:
            return
        first, last = records[0], records[-1]
        if first.offset() < self.at or Partition(last.topic(), last.partition()) != self.partition:
            raise SourceError(
                f"asked for {self.partition} from offset {self.at} on, the client delivered {first.topic()}-"
                f"{first.partition()} at offset {first.offset()}: please report this"
            )
        self.at = last.offset() + 1

    def _event(self, message: Any, error: Any) -> None:
        about = message.topic(), message.partition()  # of the client, of a topic as a whole, or of a partition
        if about[0] is not None and about not in (self.partition, (self.partition.topic, UNASSIGNED)):
            return  # a consumer that is used again may still deliver events of the range before
        kinds, code = type(error), error.code()
        if code == kinds._PARTITION_EOF:  # noqa: SLF001 - confluent's name of a local event
            self.at = max(self.at, message.offset())
            return
        self.fault = error.str()
        unknown = (kinds.UNKNOWN_TOPIC_OR_PART, kinds._UNKNOWN_PARTITION, kinds._UNKNOWN_TOPIC)  # noqa: SLF001
        if code in (kinds._AUTO_OFFSET_RESET, kinds._LOG_TRUNCATION):  # noqa: SLF001
            self.gone = self.fault
        # A group is named because librdkafka wants one; whether it may be used makes no difference to reading.
        elif not (passes(error) or code in (*unknown, kinds.GROUP_AUTHORIZATION_FAILED)):
            raise SourceError(f"cannot read {self.partition} from Kafka: {self.fault}")


# A reader that is given up may put its consumer back while garbage is collected, anywhere: a deque needs no lock.
_idle_of: Final[PerProcess[KafkaSettings, deque[RangeConsumer]]] = PerProcess(lambda _: deque())


@contextmanager
def borrowed(settings: KafkaSettings) -> Iterator[RangeConsumer]:
    """A consumer for one range: an idle one of this process, or a new one. After a fault it is not used again."""
    idle = _idle_of.get(settings)
    try:
        consumer = idle.pop()
    except IndexError:
        consumer = RangeConsumer(settings)
    try:
        yield consumer
    except GeneratorExit:
        consumer.put_back(idle)
        raise
    except BaseException:
        consumer.close()
        raise
    consumer.put_back(idle)
