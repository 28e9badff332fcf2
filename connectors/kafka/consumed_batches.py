"""What a consumer receives, as Arrow record batches: two clients that give the same.

`ArrayClient` reads librdkafka's messages where they lie: numpy gathers their fields by address, and Arrow copies keys
and values, so that no Python object is made of a row. `ObjectClient` uses confluent-kafka's objects: for headers, and
where librdkafka cannot be called. A test compares both.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from onceward.core.errors import SourceError
from onceward.core.kit.arrays import number_array, repeated_text
from onceward.core.kit.pieces import pieces

from . import librdkafka
from .positions import Partition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint64]

_log = logging.getLogger("onceward.kafka.librdkafka")

_CONSUMED: Final = np.dtype(librdkafka.Consumed)
_INLINE: Final = 12
"""Bytes of the longest value that Arrow keeps within its view ("Variable-size Binary View Layout")."""
_LENGTH_BYTES: Final = 4
_VIEW: Final = np.dtype([("length", np.int32), ("start", np.uint8, 4), ("buffer", np.int32), ("offset", np.int32)])
_WINDOW: Final = 1 << 30
"""Bytes between the starts of two buffers: a view's offset is a number of 31 bits."""


FARTHEST_MS: Final = 2**63 // 1000
"""Milliseconds, either way from 1970, that a timestamp in microseconds does not reach."""
PLAIN: Final = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
    }
)
HEADERS: Final = pa.list_(pa.field("element", pa.struct({"key": pa.string(), "value": pa.binary()})))
WITH_HEADERS: Final = PLAIN.append(pa.field("headers", HEADERS))

_OF_A_MESSAGE: Final = 200
"""Approximate number of bytes that librdkafka needs for a message in addition to its key and value."""


class Event(NamedTuple):
    """An event of a client that is no record; topic and partition are None and -1 if it is about neither."""

    error: Any
    topic: str | None
    partition: int
    offset: int


class Received(NamedTuple):
    """Records of one partition, and what came beside them."""

    batches: Sequence[pa.RecordBatch]
    """In order; none with more bytes than were asked for, unless it is one record."""
    events: Sequence[Event]
    records: int
    """How many librdkafka delivered: `batches` must have as many."""
    capped: bool = False
    """Whether as many were taken as was allowed, so that more may be waiting."""

    @property
    def size(self) -> int:
        """Approximate memory that librdkafka needed for these records, in bytes."""
        return sum(int(batch.nbytes) for batch in self.batches) + _OF_A_MESSAGE * self.records


NOTHING: Final = Received((), (), 0)


class ObjectClient(Consumer):
    """A confluent_kafka.Consumer that gives record batches.

    Args:
        config: librdkafka's settings.
        include_headers: Whether batches have the column `headers`.
    """

    def __init__(self, config: Mapping[str, Any], *, include_headers: bool) -> None:
        super().__init__(dict(config))
        self._include_headers = include_headers

    def read_from(self, topic: str, partition: int, offset: int) -> None:
        """Read this partition from this offset on, and no other."""
        self.assign([TopicPartition(topic, partition, offset)])

    def receive(self, count: int, size: int, seconds: float) -> Received:
        """Take what is there, up to `count` records of about `size` bytes in total; wait for the first only."""
        first: Any = self.poll(seconds)
        if first is None:
            return NOTHING
        more = min(count - 1, size // max(1, _size_of(first) + self._headers_size(first)))
        messages: list[Any] = [first, *self.consume(more, 0)] if more else [first]
        capped = len(messages) > more
        events: list[Event] = []
        if any(map(type(first).error, messages)):
            errors = [message for message in messages if message.error() is not None]
            events = [Event(one.error(), one.topic(), one.partition(), one.offset()) for one in errors]
            messages = [message for message in messages if message.error() is None]
        if not messages:
            return Received((), events, 0)
        partition = Partition(messages[-1].topic(), messages[-1].partition())
        batches = [
            piece
            for first, behind in cuts(np.array(list(map(_size_of, messages)), np.int64), size)
            # Cut again, because the size of headers is cheap to know only from a finished batch.
            for piece in pieces(
                to_batch(partition, messages[first:behind], include_headers=self._include_headers), size
            )
        ]
        return Received(batches, events, len(messages), capped)

    def _headers_size(self, message: Any) -> int:
        """Return the size of a record's headers in bytes; 0 if headers are not read."""
        if not self._include_headers or message.error() is not None:
            return 0
        headers = _headers_of(Partition(message.topic(), message.partition()), message) or ()
        return sum(len(name) + len(value or b"") for name, value in headers)


class ArrayClient(librdkafka.BatchConsumer):
    """A client without headers that takes messages in arrays, as ObjectClient takes them one by one."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config, _log)
        self._addresses = np.zeros(0, np.uint64)

    def receive(self, count: int, size: int, seconds: float) -> Received:
        """Take what is there, up to `count` records of about `size` bytes in total; wait for the first only."""
        if len(self._addresses) < count:
            self._addresses = np.zeros(count, np.uint64)
        taken = self.consume(self._addresses[:1], seconds)
        if not taken:
            return NOTHING
        first = librdkafka.Message.from_address(int(self._addresses[0]))
        behind = min(count, 1 + size // max(1, first.len + first.key_len))
        if behind > 1:
            taken += self.consume(self._addresses[1:behind], 0)
        addresses = self._addresses[:taken]
        try:
            return self._received(addresses, size, capped=taken >= behind)
        finally:
            self.destroy(addresses.tolist())

    def _received(self, addresses: Words, size: int, *, capped: bool) -> Received:
        messages = _gathered(addresses, _CONSUMED.itemsize).view(_CONSUMED)[:, 0]
        wrong = messages["message"]["err"] != 0
        events: list[Event] = []
        if wrong.any():
            errors = zip(addresses[wrong].tolist(), messages["message"][wrong], strict=True)
            events = [self._event(address, message) for address, message in errors]
            addresses, messages = addresses[~wrong], messages[~wrong]
        sizes = (messages["message"]["key_len"] + messages["message"]["len"]).astype(np.int64)
        batches = [self._batch(addresses[a:b], messages[a:b]) for a, b in cuts(sizes, size)]
        return Received(batches, events, len(messages), capped)

    def _batch(self, addresses: Words, found: npt.NDArray[np.void]) -> pa.RecordBatch:
        messages = found["message"]
        topic, number = self.topic_name(int(messages["rkt"][-1])), int(messages["partition"][-1])
        times, kinds = self._times(addresses, found)
        return columns_batch(
            Partition(topic or "", number),
            keys=_binary(messages["key"], messages["key_len"]),
            values=_binary(messages["payload"], messages["len"]),
            offsets=messages["offset"],
            times=times,
            kinds=kinds,
        )

    def _times(self, addresses: Words, messages: npt.NDArray[np.void]) -> tuple[Numbers, npt.NDArray[np.int32]]:
        times, kinds = messages["time"], messages["time_kind"]
        for at in (0, -1):
            if self.time(int(addresses[at])) != (times[at], kinds[at]):
                pairs = [self.time(address) for address in addresses.tolist()]
                return np.array([time for time, _ in pairs]), np.array([kind for _, kind in pairs], np.int32)
        return times, kinds

    def _event(self, address: int, message: Any) -> Event:
        error = self.error(address, int(message["err"]))
        topic = self.topic_name(int(message["rkt"]))
        return Event(error, topic, int(message["partition"]), int(message["offset"]))


def cuts(sizes: Numbers, most: int) -> list[tuple[int, int]]:
    """Cut rows of these sizes into runs of at most `most` bytes or one row: for each the first row and the one behind.

    No run's values exceed the 2 GiB that Arrow's offsets of 32 bits reach, because no record does.
    """
    ends = np.cumsum(sizes)
    ranges, first = [], 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        behind = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        ranges.append((first, behind))
        first = behind
    return ranges


def _size_of(message: Any) -> int:
    """Return the number of bytes of a message's key and value, or of the text of its error."""
    return len(message.key() or b"") + len(message.value() or b"")


class _Memory:
    """This process's memory from an address on, as an array that must only be read where something lies.

    Source: "The array interface protocol" in NumPy's reference.
    """

    def __init__(self, address: int, kind: str, size: int) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, True), "typestr": kind, "shape": (size,)}


def _gathered(addresses: Words, size: int) -> npt.NDArray[np.uint8]:
    """Return `size` bytes, a multiple of eight, from each of these addresses, which are multiples of eight."""
    first = int(addresses.min())
    places = ((addresses - np.uint64(first)) >> np.uint64(3)).astype(np.int64)
    words = np.asarray(_Memory(first, "<u8", int(places.max()) + size // 8))
    records: npt.NDArray[np.uint64] = words[places[:, None] + np.arange(size // 8)]
    return records.view(np.uint8)


def _binary(addresses: Words, lengths: Words) -> pa.Array:
    """Copy the values at these addresses into an array; null where the address is 0.

    Array of type binary: out of one of type binary_view, whose buffers are the memory itself.
    """
    sizes, there = lengths.astype(np.int64), addresses != 0
    views = np.zeros(len(sizes), _VIEW)
    views["length"] = sizes
    short = np.flatnonzero(there & (sizes > 0) & (sizes <= _INLINE))
    if len(short):
        _copy_inline(views, short, addresses[short], sizes[short])
    buffers: list[pa.Buffer] = []
    longer = np.flatnonzero(sizes > _INLINE)
    if len(longer):
        first = int(addresses[longer].min())
        offsets = (addresses[longer] - np.uint64(first)).astype(np.int64)
        windows, views["buffer"][longer] = np.unique(offsets // _WINDOW, return_inverse=True)
        views["offset"][longer] = offsets % _WINDOW
        buffers = [pa.foreign_buffer(first + window * _WINDOW, 2 * _WINDOW - 1) for window in windows.tolist()]
    valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    column = pa.Array.from_buffers(pa.binary_view(), len(sizes), [valid, pa.py_buffer(views), *buffers])
    return column.cast(pa.binary())


def _copy_inline(views: npt.NDArray[np.void], rows: Numbers, addresses: Words, sizes: Numbers) -> None:
    """Copy short values into their views, byte by byte: Arrow keeps them behind the length."""
    first = int(addresses.min())
    starts = (addresses - np.uint64(first)).astype(np.int64)
    memory = np.asarray(_Memory(first, "|u1", int((starts + sizes).max())))
    within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    cells = views.view(np.uint8).reshape(len(views), _VIEW.itemsize)
    cells[np.repeat(rows, sizes), _LENGTH_BYTES + within] = memory[np.repeat(starts, sizes) + within]


def schema(*, include_headers: bool) -> pa.Schema:
    """Return the schema of batches: key, value, topic, partition, offset, timestamp, timestampType[, headers]."""
    return WITH_HEADERS if include_headers else PLAIN


def to_batch(partition: Partition, messages: Sequence[Any], *, include_headers: bool) -> pa.RecordBatch:
    """Make a record batch of messages of one partition."""
    kind = type(messages[0])
    # Flat, so that no tuples pile up: they would set off the garbage collector, which took half of the time.
    stamps = list(chain.from_iterable(map(kind.timestamp, messages)))
    batch = columns_batch(
        partition,
        keys=pa.array(list(map(kind.key, messages)), pa.binary()),
        values=pa.array(list(map(kind.value, messages)), pa.binary()),
        offsets=np.array(list(map(kind.offset, messages)), np.int64),
        times=np.array(stamps[1::2], np.int64),
        kinds=np.array(stamps[::2], np.int32),
    )
    if not include_headers:
        return batch
    headers = _headers_column([_headers_of(partition, message) for message in messages])
    return pa.RecordBatch.from_arrays([*batch.columns, headers], schema=WITH_HEADERS)


def _headers_of(partition: Partition, message: Any) -> list[tuple[str, bytes | None]] | None:
    """Return a message's headers; confluent-kafka cannot decode a key that is not UTF-8."""
    try:
        headers: list[tuple[str, bytes | None]] | None = message.headers()
    except (UnicodeDecodeError, SystemError) as error:
        raise SourceError(
            f"the record at offset {message.offset()} of {partition} has a header whose key is not UTF-8, and cannot "
            "be read with its headers. Leave the headers out (includeHeaders=false), or begin behind the record"
        ) from error
    return headers


def columns_batch(
    partition: Partition,
    *,
    keys: pa.Array,
    values: pa.Array,
    offsets: Numbers,
    times: Numbers,
    kinds: npt.NDArray[np.int32],
) -> pa.RecordBatch:
    """Make a record batch of columns.

    Args:
        partition: Where all come from.
        keys: binary.
        values: binary.
        offsets: The records' offsets.
        times: Milliseconds since 1970.
        kinds: What a time means, as librdkafka counts.

    A time that is later or earlier than Arrow's microseconds reach (292,000 years from 1970) is null, and no other is:
    see `check_timestamps`.
    """
    reached = (times < FARTHEST_MS) & (times > -FARTHEST_MS)
    columns = [
        keys,
        values,
        repeated_text(partition.topic, len(keys)),
        number_array(np.full(len(keys), partition.number, np.int32)),
        number_array(offsets),
        number_array(np.where(reached, times, 0) * 1000, PLAIN.field("timestamp").type, reached),
        # Java counts none, create, append from -1; librdkafka from 0.
        number_array(kinds - np.int32(1)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PLAIN)


def check_timestamps(batch: pa.RecordBatch, partition: Partition) -> None:
    """Raise SourceError for the first record whose timestamp the column cannot hold."""
    if batch.column("timestamp").null_count:
        at = int(np.argmax(batch.column("timestamp").is_null()))
        raise SourceError(
            f"the record at offset {batch.column('offset')[at]} of {partition} has a timestamp that no column can "
            "hold, more than 292,000 years from 1970: did its producer give nanoseconds as milliseconds? Set "
            "invalidTimestamps=null (invalid_timestamps='null') to read such timestamps as null. A query that does not "
            "use the column needs that, too: Spark does not tell a Python source which columns it uses"
        )


def _headers_column(rows: Sequence[Any]) -> pa.Array:
    if not any(rows):
        return pa.nulls(len(rows), HEADERS)
    return pa.array([[{"key": key, "value": value} for key, value in row] if row else None for row in rows], HEADERS)
