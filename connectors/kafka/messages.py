"""Arrow record batches as arrays of librdkafka's messages: addresses and lengths, filled in by numpy.

What a message is, and which rows are refused, is documented in rows.py. Its `Rows` has a twin here for BatchProducer; a
test compares what both write. No Python object is made of a cell, except for the distinct names of topics and headers.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .librdkafka import COPY, Argument, Message
from .rows import SLICE, UNASSIGNED, Messages, QueueFull, headers_of, refuse_nul

if TYPE_CHECKING:
    import numpy.typing as npt

    from .librdkafka import BatchProducer

    Numbers = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint64]

_MESSAGE: Final = np.dtype(Message)
_ARGUMENT: Final = np.dtype(Argument)
_NOT_NULL: Final = 1
"""Address of an empty value whose column has no data: librdkafka only compares it with null."""
_OWN: Final = 5
"""Arguments of a message besides its headers."""


class Tag(IntEnum):
    """rd_kafka_vtype_t."""

    TOPIC = 1
    PARTITION = 3
    VALUE = 4
    KEY = 5
    FLAGS = 7
    HEADER = 9


class MessageArray(Messages):
    """The same, for a BatchProducer."""

    def __init__(self, batch: pa.RecordBatch, topic: str | None) -> None:
        super().__init__(batch, topic)
        names = batch.schema.names
        self._kept: list[Any] = []
        self._names, self._codes = self._topics_of(batch)
        self._partitions = np.full(self._length, UNASSIGNED, np.int64)
        if "partition" in names:
            self._partitions[:] = pc.fill_null(batch.column("partition"), UNASSIGNED).to_numpy(zero_copy_only=False)
        self._messages = np.zeros(self._length, _MESSAGE)
        for column, address, length in (("value", "payload", "len"), ("key", "key", "key_len")):
            if column in names:
                self._messages[address], self._messages[length] = self._places(batch.column(column))
        self._starts = np.zeros(0, np.int64)
        if "headers" in names and batch.column("headers").null_count < self._length:
            self._add_headers(batch.column("headers"))
        else:
            self._sort()

    @property
    def topics(self) -> set[str]:
        """Topics that the rows name themselves."""
        return set(self._names) if self._topic is None else set()

    def feed(self, producer: BatchProducer, begin: int) -> int:
        """Produce up to SLICE rows from row `begin` on; how many rows are done then.

        Raises:
            QueueFull: The queue is full.
        """
        end = min(self._length, begin + SLICE)
        if len(self._starts):
            return self._feed_headers(producer, begin, end)
        while begin < end:
            stop = min(end, int(self._ends[np.searchsorted(self._ends, begin, side="right")]))
            topic, partition = self._names[self._codes[begin]], int(self._partitions[begin])
            done = begin + producer.produce_batch(topic, partition, self._messages[begin:stop])
            if done < stop:
                raise QueueFull(done)
            begin = stop
        return end

    def _feed_headers(self, producer: BatchProducer, begin: int, end: int) -> int:
        address = self._arguments.ctypes.data
        places = (address + self._starts[begin : end + 1] * _ARGUMENT.itemsize).tolist()
        counts = np.diff(self._starts[begin : end + 1]).tolist()
        for row, (place, count) in enumerate(zip(places, counts, strict=False), begin):
            if not producer.produce(place, count):
                raise QueueFull(row)
        return end

    def _topics_of(self, batch: pa.RecordBatch) -> tuple[list[str], Numbers]:
        """The distinct topics, and which of them each row goes to."""
        if self._topic is not None:
            return [self._topic], np.zeros(self._length, np.int64)
        names, codes = _distinct(batch.column("topic"))
        refuse_nul("topic", names)
        return names, codes

    def _sort(self) -> None:
        """Bring rows of a topic and partition together: only within a partition does their order mean anything.

        Rows that are left to the partitioner may go anywhere, so beside rows that are not, all keep their places.
        """
        numbers = self._partitions
        if len(self._names) > 1 or np.any(numbers != UNASSIGNED):
            mixed = numbers.min() < 0 <= numbers.max()
            order = np.argsort(self._codes, kind="stable") if mixed else np.lexsort((numbers, self._codes))
            self._messages, self._codes, self._partitions = self._messages[order], self._codes[order], numbers[order]
        changes = (np.diff(self._codes) != 0) | (np.diff(self._partitions) != 0)
        self._ends = np.append(np.flatnonzero(changes) + 1, self._length)

    def _add_headers(self, column: pa.Array) -> None:
        """One message is a list of tagged arguments: its own and, after them, its headers."""
        keys, values, lengths = headers_of(column)
        counts = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts + _OWN)])
        self._arguments = np.zeros(int(self._starts[-1]), _ARGUMENT)
        names, codes = _distinct(keys)
        refuse_nul("the key of a header", names)
        own = self._starts[:-1]
        self._put(own, Tag.TOPIC, self._texts(self._names)[self._codes])
        self._put(own + 1, Tag.FLAGS, COPY)
        self._put(own + 2, Tag.PARTITION, self._partitions.astype(np.int32).view(np.uint32))
        self._put(own + 3, Tag.VALUE, self._messages["payload"], self._messages["len"])
        self._put(own + 4, Tag.KEY, self._messages["key"], self._messages["key_len"])
        place = np.arange(len(codes)) + np.repeat(_OWN * np.arange(1, len(counts) + 1), counts)
        self._put(place, Tag.HEADER, self._texts(names)[codes], *self._places(values))

    def _put(self, at: Numbers, tag: Tag, *words: Any) -> None:
        self._arguments["vtype"][at] = tag
        for field, word in zip(("one", "two", "three"), words, strict=False):
            self._arguments[field][at] = word

    def _texts(self, texts: list[str]) -> Words:
        """Addresses of C strings."""
        buffers = [ctypes.create_string_buffer(text.encode()) for text in texts]
        self._kept += buffers
        return np.array([ctypes.addressof(buffer) for buffer in buffers], np.uint64)

    def _places(self, column: pa.Array) -> tuple[Words, Words]:
        """Address and length of each value; address 0 for null."""
        if not any(fits(column.type) for fits in (pa.types.is_binary, pa.types.is_string)):
            column = column.cast(pa.large_binary())
        self._kept.append(column)
        count, wide = len(column), pa.types.is_large_binary(column.type)
        _, ends, data = column.buffers()
        if not count or ends is None:
            return np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        offsets = np.frombuffer(ends, np.int64 if wide else np.int32)[column.offset : column.offset + count + 1]
        addresses = offsets[:-1].astype(np.uint64)
        addresses += np.uint64((data.address if data is not None else 0) or _NOT_NULL)
        lengths = np.diff(offsets).astype(np.uint64)
        if column.null_count:
            nulls = column.is_null().to_numpy(zero_copy_only=False)
            addresses[nulls], lengths[nulls] = 0, 0
        return addresses, lengths


def _distinct(column: pa.Array) -> tuple[list[str], Numbers]:
    encoded = column.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return encoded.dictionary.to_pylist(), codes
