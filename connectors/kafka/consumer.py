"""Reading a range of offsets of one partition, to its end, whatever lies at its end.

A range may end in records that a reader never gets: control records, aborted data, compacted offsets. So it ends when a
record at or behind the end arrives, or when librdkafka says that the partition's readable part ends at or behind it
(partition EOF; measured: for read_committed it comes at the last stable offset, with that offset). Neither is needed if
the last offset itself arrived.

Consumers are kept for the process's next ranges: a new one costs connections and metadata. They are assigned partitions
by hand and never join a group.

A consumer must not outlive the topic that it read. librdkafka ignores metadata with an older leader epoch than it has
seen, and a topic that was deleted and recreated begins at epoch 0: after a restart of a broker, which raises the epoch,
a kept consumer waits for the old topic's leader forever (measured). So a consumer is bound to the ids of the topics
that it has read. The driver usually knows the ids when it plans a range; if it does not, or if a topic changes later, a
kept consumer that receives nothing is replaced.

librdkafka decompresses each response of a broker as a whole, whatever the limit of its queue: 1 MiB, the default size
of a response, can become 10 GB if the records are all zeros. So a range begins with small responses (NARROW_BYTES). If
their decompressed size shows that larger ones (WIDE_BYTES) fit into memory, the range continues with those, from a
second client, and may then need fewer round trips. If larger ones do not fit, even small responses become so many bytes
that round trips do not matter.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np

from onceward.core.errors import SourceError
from onceward.core.kit.pieces import PIECE_BYTES, join_batches
from onceward.core.kit.processwide import PerProcess

from . import librdkafka
from .admin import make_client, passes
from .consumed_batches import ArrayClient, ObjectClient
from .positions import Partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from .consumed_batches import Event, Received
    from .settings import KafkaSettings

ROWS: Final = 10_000
"""Rows of one batch: Spark's default of spark.sql.execution.arrow.maxRecordsPerBatch."""
POLL_SECONDS: Final = 1.0
ASK_AFTER_SECONDS: Final = 5.0
"""Seconds without records after which the brokers are asked whether the partition is still there, and a kept consumer
is replaced."""
UNASSIGNED: Final = -1
"""The partition of an event that is about a whole topic."""
KEPT: Final = 8
"""Idle consumers that a process keeps for one cluster."""
NARROW_BYTES: Final = 16 * 2**10
WIDE_BYTES: Final = 256 * 2**10
"""Limits of a response before it is decompressed. A broker sends at least one of a producer's batches, of any size."""
FITS: Final = 8 * 2**20
"""Bytes that NARROW_BYTES may become if WIDE_BYTES are to be asked for, which then become 16 times as many."""
FETCH_SIZES: Final = ("fetch.message.max.bytes", "max.partition.fetch.bytes")
"""Two names of one setting."""
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
    # One batch is built while the next one arrives.
    "queued.max.messages.kbytes": 2 * PIECE_BYTES // 2**10,
    "log_level": 0,
}


class Gone(Exception):  # noqa: N818 - the caller decides whether it is a fault
    """The offset that should be read next is not there."""


class RangeConsumer:
    """A consumer that reads one range after another. For one thread at a time.

    Args:
        settings: Of the client.
        include_headers: Whether batches have the column `headers`.

    Raises:
        ConfigurationError: librdkafka refuses a setting.
    """

    def __init__(self, settings: KafkaSettings, *, include_headers: bool = False) -> None:
        self._config = {**DEFAULTS, **settings.for_librdkafka(), **FIXED}
        self._include_headers = include_headers
        self._servers = settings["bootstrap.servers"]
        self._open()

    def _open(self) -> None:
        self._ids: dict[str, str] = {}
        """Ids of the topics that the clients have read, as far as they are known."""
        self._kept = False
        """Whether the clients have read a range before this one."""
        size = None if any(name in self._config for name in FETCH_SIZES) else NARROW_BYTES
        self._narrow = self._client = self._new_client(size)
        self._wide = self._narrow if size is None else None

    def _new_client(self, fetch_bytes: int | None) -> ArrayClient | ObjectClient:
        """Make a client that asks for `fetch_bytes` bytes per request; None: for as many as the settings say."""
        config = self._config if fetch_bytes is None else {**self._config, FETCH_SIZES[0]: fetch_bytes}
        if self._include_headers or not librdkafka.usable(config):
            return make_client(ObjectClient, config, include_headers=self._include_headers)
        return make_client(ArrayClient, config)

    def _widen(self, partition: Partition, offset: int) -> None:
        """Continue from this offset with larger responses."""
        self._client.unassign()
        if self._wide is None:
            self._wide = self._new_client(WIDE_BYTES)
        self._client = self._wide
        self._client.read_from(*partition, offset)

    def takes(self, topic: str, topic_id: str) -> bool:
        """Return whether the clients have read no other topic of this name, and bind them to this one.

        An unknown id (empty) fits any topic: then only missing records show that the topic is another one.
        """
        return self._ids.setdefault(topic, topic_id) == topic_id or not topic_id

    def read(
        self, partition: Partition, start: int, end: int, *, retry_seconds: float, is_there: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of offsets `start` to `end` - 1, in order, in batches of up to ROWS and PIECE_BYTES.

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
        self._client = self._narrow
        self._client.read_from(*partition, start)
        reading, look = _Range(partition, start, end), _Look()
        patience = min(ASK_AFTER_SECONDS, retry_seconds / 2)
        heard = asked = time.monotonic()
        while reading.at < end:
            before = reading.at
            came = self._client.receive(min(ROWS - reading.rows, end - before), PIECE_BYTES, POLL_SECONDS)
            yield from reading.take(came)
            if reading.rows >= ROWS or reading.gone:
                yield from reading.ready()
            if self._client is not self._wide and look.fits(came, end - reading.at) and not reading.gone:
                self._widen(partition, reading.at)
            now = time.monotonic()
            if reading.at > before:  # it counts from here, for whoever takes the rows may take his time
                heard = now
            if reading.gone:
                reading.check_count()
                raise Gone(reading.gone)
            if now - max(heard, asked) > ASK_AFTER_SECONDS:
                asked = now
                if not is_there():
                    raise Gone("the partition is not there")
            if now - heard > retry_seconds:
                raise self._too_late(reading, retry_seconds)
            if self._kept and now - heard > patience:
                self._replace_client(reading)
        yield from reading.ready()
        reading.check_count()

    def _replace_client(self, reading: _Range) -> None:
        self.close()
        self._open()
        self._client.read_from(*reading.partition, reading.at)

    def _too_late(self, reading: _Range, retry_seconds: float) -> SourceError:
        why = f" The last fault: {reading.fault}." if reading.fault else ""
        return SourceError(
            f"nothing came from {reading.partition} at {self._servers} for {retry_seconds:g} s: offsets {reading.at} "
            f"to {reading.end - 1} are missing.{why} Check that the brokers are up and hold the partition; "
            "kafkaConsumer.pollTimeoutMs (timeout) says how long to wait"
        )

    def put_back(self, idle: deque[RangeConsumer]) -> None:
        """Stop fetching, and wait among the idle ones; close if there are enough."""
        self._client.unassign()  # the other client has no partition now
        self._kept = True
        if len(idle) < KEPT:
            idle.append(self)
        else:
            self.close()

    def close(self) -> None:
        """Close the connections."""
        self._narrow.close()
        if self._wide is not None and self._wide is not self._narrow:
            self._wide.close()


class _Look:
    """The decompressed size of a narrow client's responses.

    librdkafka queues all records of a response together. So the records that arrive between two moments at which the
    queue is empty belong to one or more complete responses.
    """

    def __init__(self) -> None:
        self._whole = True

    def fits(self, came: Received, left: int) -> bool:
        """Return whether `came` shows that larger responses fit into memory, and the `left` offsets are worth them."""
        whole, self._whole = self._whole and not came.capped, not came.capped
        return whole and 0 < came.size <= FITS and left * came.size > came.records * WIDE_BYTES


class _Range:
    """The progress through a range, and the records that wait to become a batch.

    What librdkafka delivered is counted twice: when it comes, and when it is given to the caller. Offsets grow, so
    nothing is delivered twice; whether an offset that is left out is a gap only the broker knows, and librdkafka asks
    it for the next offset after the last one that it has, so it leaves out only what the broker does not have for
    readers: control records, aborted and compacted ones.
    """

    def __init__(self, partition: Partition, start: int, end: int) -> None:
        self.partition = partition
        self.at = start
        self.end = end
        self.fault = ""
        """What the client last complained of."""
        self.gone = ""
        """Why the next offset is not there."""
        self.rows = 0
        """Records that wait."""
        self._bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._came = 0
        self._given = 0
        """Records within the range that librdkafka delivered, and those that the caller got."""

    def take(self, came: Received) -> Iterator[pa.RecordBatch]:
        """Take the range's records out of the received ones, and yield batches that are full.

        Moves on past these records, and past gaps that are known to be empty.
        """
        self._came += came.records
        for records in came.batches:
            self._move(records)
            within = records
            if records.column("offset")[-1].as_py() >= self.end:
                within = records.slice(0, int(np.searchsorted(records.column("offset").to_numpy(), self.end)))
                self._came -= len(records) - len(within)
            if self.rows and self._bytes + within.nbytes > PIECE_BYTES:
                yield from self.ready()
            if len(within):
                self._waiting.append(within)
                self.rows += len(within)
                self._bytes += within.nbytes
        for event in came.events:
            self._event(event)

    def ready(self) -> Iterator[pa.RecordBatch]:
        """Yield the records that wait."""
        batches, self._waiting = join_batches(self._waiting), []
        self.rows = self._bytes = 0
        for batch in batches:
            self._given += len(batch)
            yield batch

    def check_count(self) -> None:
        """Check that the caller has got every record that librdkafka delivered."""
        if self._came != self._given:
            raise SourceError(
                f"{self.partition}: the client delivered {self._came} records up to offset {self.at - 1}, and "
                f"{self._given} were passed on. Nothing of this epoch is committed: please report this"
            )

    def _move(self, records: pa.RecordBatch) -> None:
        offsets = records.column("offset").to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        delivered = Partition(records.column("topic")[0].as_py(), records.column("partition")[0].as_py())
        if first < self.at or delivered != self.partition or (np.diff(offsets) <= 0).any():
            raise SourceError(
                f"asked for {self.partition} from offset {self.at} on, the client delivered {delivered} from offset "
                f"{first} to {last}, not in order: please report this"
            )
        self.at = last + 1

    def _event(self, event: Event) -> None:
        error = event.error
        about = event.topic, event.partition  # of the client, of a topic as a whole, or of a partition
        if about[0] is not None and about not in (self.partition, (self.partition.topic, UNASSIGNED)):
            return  # a consumer that is used again may still deliver events of the range before, in another partition
        kinds, code = type(error), error.code()
        if code == kinds._PARTITION_EOF:  # noqa: SLF001 - confluent's name of a local event
            self.at = max(self.at, event.offset)
            return
        self.fault = error.str()
        unknown = (kinds.UNKNOWN_TOPIC_OR_PART, kinds._UNKNOWN_PARTITION, kinds._UNKNOWN_TOPIC)  # noqa: SLF001
        if code in (kinds._AUTO_OFFSET_RESET, kinds._LOG_TRUNCATION):  # noqa: SLF001
            self.gone = self.fault
        # A group is named because librdkafka wants one; whether it may be used makes no difference to reading.
        elif not (passes(error) or code in (*unknown, kinds.GROUP_AUTHORIZATION_FAILED)):
            raise SourceError(f"cannot read {self.partition} from Kafka: {self.fault}")


# A reader that is given up may put its consumer back while garbage is collected, anywhere: a deque needs no lock.
_idle_of: Final[PerProcess[tuple[KafkaSettings, bool], deque[RangeConsumer]]] = PerProcess(lambda _: deque())


@contextmanager
def lend_consumer(
    settings: KafkaSettings, topic: str, topic_id: str, *, include_headers: bool
) -> Iterator[RangeConsumer]:
    """Lend a consumer for one range: an idle one of this process, or a new one. After a fault it is not used again.

    Args:
        settings: Settings of the client.
        topic: Name of the topic.
        topic_id: Its id; empty if it is not known.
        include_headers: Whether batches have the column `headers`.
    """
    idle = _idle_of.get((settings, include_headers))
    consumer = _idle_for(idle, topic, topic_id)
    if consumer is None:
        consumer = RangeConsumer(settings, include_headers=include_headers)
        consumer.takes(topic, topic_id)
    try:
        yield consumer
    except GeneratorExit:
        consumer.put_back(idle)
        raise
    except BaseException:
        consumer.close()
        raise
    consumer.put_back(idle)


def _idle_for(idle: deque[RangeConsumer], topic: str, topic_id: str) -> RangeConsumer | None:
    """Take an idle consumer, and close those that have read another topic of this name; None if no consumer is left."""
    while True:
        try:
            consumer = idle.pop()
        except IndexError:
            return None
        if consumer.takes(topic, topic_id):
            return consumer
        consumer.close()
