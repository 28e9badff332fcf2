"""Arrow record batches as Kafka messages: for confluent_kafka's producer, and for a BatchProducer.

Columns and rules are those of Spark's own Kafka sink ("Structured Streaming + Kafka Integration Guide"). `Rows` makes
Python objects of cells, and calls the producer's method by `map`, column by column: no Python bytecode runs per row.
`MessageArray` makes arrays of librdkafka's messages, addresses and lengths that numpy fills in: no Python object is
made of a cell, except for the distinct names of topics and headers. A test compares what both write.
"""

from __future__ import annotations

import ctypes
from collections import deque
from enum import IntEnum
from itertools import chain, islice, repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceward.core.errors import KafkaError, SchemaError, refusing_rows

from .librdkafka import COPY, Argument, Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from .librdkafka import BatchProducer

    Numbers = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint64]

SLICE: Final = 5000
"""Rows between two looks at delivery failures."""
UNASSIGNED: Final = -1
_BYTES: Final = "binary or string"
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_MESSAGE: Final = np.dtype(Message)
_ARGUMENT: Final = np.dtype(Argument)
_NOT_NULL: Final = 1
"""Address of an empty value whose column has no data: librdkafka only compares it with null."""
_SHOWN: Final = 60
"""Bytes of a wrong value that a message shows."""
COLUMNS: Final = ("value", "key", "headers", "topic", "partition")
"""Columns that are parts of a message."""
_OWN: Final = 5
"""Arguments of a message besides its headers."""


class QueueFull(Exception):  # noqa: N818 - it is a signal, not a fault
    """librdkafka's queue is full; `done` rows were taken."""

    def __init__(self, done: int) -> None:
        self.done = done


class Messages:
    """The messages of one record batch.

    Raises:
        KafkaError: A row has no topic, or a header without key.
    """

    def __init__(self, batch: pa.RecordBatch, topic: str | None) -> None:
        self._length: int = batch.num_rows
        self._topic = topic
        self.label = f"topic {topic}" if topic is not None else "a row's own topic"
        """Where they go, for messages to people."""
        if topic is None and batch.column("topic").null_count:
            raise refusing_rows(KafkaError("a row's topic is null and the sink has no topic: set one of them"))

    def __len__(self) -> int:
        return self._length


class Rows(Messages):
    """Producer of an Arrow batch's rows through confluent_kafka.Producer, one call per message."""

    def __init__(self, batch: pa.RecordBatch, topic: str | None) -> None:
        super().__init__(batch, topic)
        names = batch.schema.names
        self._values = _cells(batch.column("value"))
        self._keys = _cells(batch.column("key")) if "key" in names else None
        self._headers = _headers(batch.column("headers")) if "headers" in names else None
        self._partitions = _numbers(batch).to_pylist() if "partition" in names else None
        self._topics: list[str] | None = None
        if topic is None:
            self._topics = _read_texts("column topic", batch.column("topic"))
            _refuse_nul("topic", self._topics)

    def feed(self, producer: Any, begin: int) -> int:
        """Produce up to SLICE rows from row `begin` on; return the index of the first row that is left.

        Raises:
            QueueFull: The queue is full.
        """
        end = min(self._length, begin + SLICE)
        position = iter(self._values[begin:end])
        try:
            deque(map(producer.produce, *self._arguments(begin, end, position)), maxlen=0)
        except BufferError:
            raise QueueFull(end - length_hint(position) - 1) from None
        return end

    @property
    def topics(self) -> set[str]:
        """Topics that the rows name themselves."""
        return set(self._topics or ())

    def _arguments(self, begin: int, end: int, values: Iterable[Any]) -> list[Iterable[Any]]:
        """Return the arguments of Producer.produce: topic, value, key, partition, callbacks, timestamp, headers."""
        topics = repeat(self._topic) if self._topics is None else self._topics[begin:end]
        keys = repeat(None) if self._keys is None else self._keys[begin:end]
        arguments: list[Iterable[Any]] = [topics, values, keys]
        if self._partitions is None and self._headers is None:
            return arguments
        arguments.append(repeat(UNASSIGNED) if self._partitions is None else self._partitions[begin:end])
        if self._headers is not None:
            arguments += [repeat(None), repeat(None), repeat(0), self._headers[begin:end]]
        return arguments


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
            self._partitions[:] = _numbers(batch).to_numpy(zero_copy_only=False)
        self._messages = np.zeros(self._length, _MESSAGE)
        for column, address, length in (("value", "payload", "len"), ("key", "key", "key_len")):
            if column in names:
                self._messages[address], self._messages[length] = self._places(batch.column(column))
        self._starts = np.zeros(0, np.int64)
        if "headers" in names and batch.column("headers").null_count < self._length:
            self._add_headers(batch.column("headers"))
        elif self._length and self._partitions.min() < 0 <= self._partitions.max():
            # Rows that are left to the partitioner may go anywhere, so beside rows that are not, all keep their places.
            # In arrays each would be a call of its own, which costs more than a message's own arguments.
            self._add_headers(pa.nulls(self._length, _HEADERS))
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
        """Return the distinct topics, and the number of each row's topic in that list."""
        if self._topic is not None:
            return [self._topic], np.zeros(self._length, np.int64)
        names, codes = _distinct("column topic", batch.column("topic"))
        _refuse_nul("topic", names)
        return names, codes

    def _sort(self) -> None:
        """Bring rows of a topic and partition together: only within a partition does their order mean anything."""
        numbers = self._partitions
        if len(self._names) > 1 or np.any(numbers != UNASSIGNED):
            order = np.lexsort((numbers, self._codes))
            self._messages, self._codes, self._partitions = self._messages[order], self._codes[order], numbers[order]
        changes = (np.diff(self._codes) != 0) | (np.diff(self._partitions) != 0)
        self._ends = np.append(np.flatnonzero(changes) + 1, self._length)

    def _add_headers(self, column: pa.Array) -> None:
        """Add the headers: a message becomes a list of tagged arguments, its own followed by its headers."""
        keys, values, lengths = _headers_of(column)
        counts = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts + _OWN)])
        self._arguments = np.zeros(int(self._starts[-1]), _ARGUMENT)
        names, codes = _distinct("the key of a header", keys)
        _refuse_nul("the key of a header", names)
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
        """Return the addresses of the texts as C strings, which live as long as this array."""
        buffers = [ctypes.create_string_buffer(text.encode()) for text in texts]
        self._kept += buffers
        return np.array([ctypes.addressof(buffer) for buffer in buffers], np.uint64)

    def _places(self, column: pa.Array) -> tuple[Words, Words]:
        """Return address and length of each value; address 0 for null."""
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


def _distinct(what: str, column: pa.Array) -> tuple[list[str], Numbers]:
    encoded = (column.cast(pa.large_string()) if pa.types.is_string_view(column.type) else column).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return _read_texts(what, encoded.dictionary), codes


def _read_texts(what: str, column: pa.Array) -> list[str]:
    """Return texts as Python's; raise KafkaError, with the subject, for bytes that are not UTF-8."""
    try:
        texts: list[str] = column.to_pylist()
    except UnicodeDecodeError:
        wrong = next(data for data in column.cast(pa.large_binary()).to_pylist() if not _is_utf8(data))
        why = f"{what} holds bytes that are not UTF-8: {wrong[:_SHOWN]!r}. Kafka's names are texts: decode or encode"
        advice = "them in the query; only key, value and the values of headers may be any bytes"
        raise refusing_rows(KafkaError(f"{why} {advice}")) from None
    return texts


def _is_utf8(data: bytes | None) -> bool:
    try:
        return data is None or data.decode() is not None
    except UnicodeDecodeError:
        return False


def check_message_columns(schema: pa.Schema, topic: str | None, sink: str) -> None:
    """Check names and types; columns that are no part of a message are ignored, as Spark's sink does.

    Raises:
        SchemaError: A column is missing or has a type that does not fit; the message names it.
    """
    if "value" not in schema.names:
        raise SchemaError(f"column value is missing: give {_BYTES}", sink=sink)
    if topic is None and "topic" not in schema.names:
        raise SchemaError("column topic is missing, and the sink has no topic: give one of them", sink=sink)
    types = {
        "value": (_is_bytes, _BYTES),
        "key": (_is_bytes, _BYTES),
        "topic": (_is_string, "string"),
        "partition": (pa.types.is_int32, "int"),
        "headers": (_is_headers, "array<struct<key: string, value: binary>>"),
    }
    for name, (fits, words) in types.items():
        if name not in schema.names or (name == "topic" and topic is not None):
            continue
        if schema.names.count(name) > 1:
            raise SchemaError(f"there are several columns {name}", sink=sink)
        if not fits(schema.field(name).type):
            raise SchemaError(f"column {name} has type {schema.field(name).type}; Kafka needs {words}", sink=sink)


def ignored_columns(schema: pa.Schema) -> str:
    """Return a warning of columns that are no part of a message and so are not written; empty if there are none."""
    ignored = [name for name in schema.names if name not in COLUMNS]
    if not ignored:
        return ""
    names = {name: name.lower() for name in ignored if name.lower() in COLUMNS}
    case = "".join(f". Names must match in case: rename {name} to {right}" for name, right in names.items())
    return (
        f"columns {', '.join(ignored)} are not written: a message has the columns {', '.join(COLUMNS)}, and its "
        f"timestamp is the time of writing{case}. Leave them out with select, or put them into value or headers"
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return _is_string(kind) or any((pa.types.is_binary(kind), pa.types.is_large_binary(kind), kind == pa.binary_view()))


def _is_string(kind: pa.DataType) -> bool:
    return any((pa.types.is_string(kind), pa.types.is_large_string(kind), kind == pa.string_view()))


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields: dict[str, pa.DataType] = {field.name: field.type for field in kind.value_type}
    return fields.keys() == {"key", "value"} and _is_string(fields["key"]) and _is_bytes(fields["value"])


def _numbers(batch: pa.RecordBatch) -> pa.Array:
    least = pc.min(batch.column("partition")).as_py()
    if least is not None and least < 0:
        why = f"a row has partition {least}, and partitions are numbered from 0. Give null to leave a row to the"
        advice = "partitioner; hash(key) % n is negative for half of the keys, in Spark pmod(hash(key), n) is not"
        raise refusing_rows(KafkaError(f"{why} {advice}"))
    return pc.fill_null(batch.column("partition"), UNASSIGNED)


def _cells(column: pa.Array) -> list[bytes | None]:
    kind = column.type
    if _is_string(kind):
        column = column.cast(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    cells: list[bytes | None] = column.to_pylist()
    return cells


def _refuse_nul(what: str, texts: Iterable[str]) -> None:
    """Refuse a text with NUL, where librdkafka would cut it: it is a C string there."""
    cut = next((text for text in texts if "\0" in text), None)
    if cut is not None:
        raise refusing_rows(KafkaError(f"{what} has a NUL character, which librdkafka cannot send: {cut!r}"))


def _headers(column: pa.Array) -> Sequence[list[tuple[str, bytes | None]] | None]:
    """Return each row's headers in order; names may repeat."""
    keys, values, lengths = _headers_of(column)
    names = _read_texts("the key of a header", keys)
    _refuse_nul("the key of a header", names)
    pairs = zip(names, _cells(values), strict=True)
    return [list(islice(pairs, length)) or None for length in lengths.to_pylist()]


def _headers_of(column: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return keys and values of all headers, one after another, and the number of headers of each row."""
    flat = column.flatten()
    if flat.null_count or flat.field("key").null_count:
        raise refusing_rows(KafkaError("a header or its key is null: only a header's value may be null"))
    return flat.field("key"), flat.field("value"), pc.fill_null(pc.list_value_length(column), 0)


def hashed_message_columns(batch: pa.RecordBatch, *, own_topic: bool) -> pa.RecordBatch:
    """Return the hashed columns of each message: key, value, headers, and the topic where each row names its own."""
    names = [name for name in ("key", "value", *(["topic"] if own_topic else [])) if name in batch.schema.names]
    columns = [batch.column(name) for name in names]
    if "headers" in batch.schema.names and batch.column("headers").null_count < batch.num_rows:
        names.append("headers")
        rows = [None if not row else b"".join(map(_framed, chain(*row))) for row in _headers(batch.column("headers"))]
        columns.append(pa.array(rows, pa.large_binary()))
    return pa.RecordBatch.from_arrays(columns, names=names)


def _framed(text: str | bytes | None) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return b"\xff" * 4 if data is None else len(data).to_bytes(4, "big") + data
