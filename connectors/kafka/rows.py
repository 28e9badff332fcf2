"""Arrow record batches as Kafka messages, and Kafka messages as Arrow record batches.

Columns and rules are those of Spark's own Kafka sink and source ("Structured Streaming + Kafka Integration Guide").
Cells become Python objects, and the client's methods are called by `map`, column by column: no Python bytecode runs
per row.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, islice, repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from onceward.core.errors import KafkaError, SchemaError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .positions import Partition

SLICE: Final = 5000
"""Rows between two looks at delivery failures."""
UNASSIGNED: Final = -1
_BYTES: Final = "binary or string"


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
        if topic is None and batch.column("topic").null_count:
            raise KafkaError("a row's topic is null and the sink has no topic: set one of them")

    def __len__(self) -> int:
        return self._length

    @property
    def label(self) -> str:
        """Where they go, for messages to people."""
        return f"topic {self._topic}" if self._topic is not None else "a row's own topic"


class Rows(Messages):
    """The same, for a confluent_kafka.Producer."""

    def __init__(self, batch: pa.RecordBatch, topic: str | None) -> None:
        super().__init__(batch, topic)
        names = batch.schema.names
        self._values = _cells(batch.column("value"))
        self._keys = _cells(batch.column("key")) if "key" in names else None
        self._headers = _headers(batch.column("headers")) if "headers" in names else None
        self._partitions: list[int] | None = None
        if "partition" in names:
            self._partitions = pc.fill_null(batch.column("partition"), UNASSIGNED).to_pylist()
        self._topics: list[str] | None = None
        if topic is None:
            self._topics = batch.column("topic").to_pylist()
            refuse_nul("topic", self._topics)

    def feed(self, producer: Any, begin: int) -> int:
        """Produce up to SLICE rows from row `begin` on; how many rows are done then.

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
        """Arguments of Producer.produce, by position: topic, value, key, partition, callbacks, timestamp, headers."""
        topics = repeat(self._topic) if self._topics is None else self._topics[begin:end]
        keys = repeat(None) if self._keys is None else self._keys[begin:end]
        arguments: list[Iterable[Any]] = [topics, values, keys]
        if self._partitions is None and self._headers is None:
            return arguments
        arguments.append(repeat(UNASSIGNED) if self._partitions is None else self._partitions[begin:end])
        if self._headers is not None:
            arguments += [repeat(None), repeat(None), repeat(0), self._headers[begin:end]]
        return arguments


def check_columns(schema: pa.Schema, topic: str | None, sink: str) -> None:
    """Check names and types; columns that are no part of a message are ignored, as Spark's sink does.

    Raises:
        SchemaError: A column is missing or has a type that does not fit; the message names it.
    """
    if "value" not in schema.names:
        raise SchemaError(f"column value is missing: give {_BYTES}", sink=sink)
    if topic is None and "topic" not in schema.names:
        raise SchemaError("column topic is missing, and the sink has no topic: give one of them", sink=sink)
    wanted = {
        "value": (_is_bytes, _BYTES),
        "key": (_is_bytes, _BYTES),
        "topic": (_is_string, "string"),
        "partition": (pa.types.is_int32, "int"),
        "headers": (_is_headers, "array<struct<key: string, value: binary>>"),
    }
    for name, (fits, words) in wanted.items():
        if name not in schema.names or (name == "topic" and topic is not None):
            continue
        if schema.names.count(name) > 1:
            raise SchemaError(f"there are several columns {name}", sink=sink)
        if not fits(schema.field(name).type):
            raise SchemaError(f"column {name} has type {schema.field(name).type}; Kafka needs {words}", sink=sink)


def _is_bytes(kind: pa.DataType) -> bool:
    return _is_string(kind) or any((pa.types.is_binary(kind), pa.types.is_large_binary(kind), kind == pa.binary_view()))


def _is_string(kind: pa.DataType) -> bool:
    return any((pa.types.is_string(kind), pa.types.is_large_string(kind), kind == pa.string_view()))


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields: dict[str, pa.DataType] = {field.name: field.type for field in kind.value_type}
    return fields.keys() == {"key", "value"} and _is_string(fields["key"]) and _is_bytes(fields["value"])


def _cells(column: pa.Array) -> list[bytes | None]:
    kind = column.type
    if _is_string(kind):
        column = column.cast(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    cells: list[bytes | None] = column.to_pylist()
    return cells


def refuse_nul(what: str, texts: Iterable[str]) -> None:
    """Refuse what librdkafka, to which it is a C string, would cut.

    Raises:
        KafkaError: One of the texts has a NUL.
    """
    cut = next((text for text in texts if "\0" in text), None)
    if cut is not None:
        raise KafkaError(f"{what} has a NUL character, which librdkafka cannot send: {cut!r}")


def _headers(column: pa.Array) -> Sequence[list[tuple[str, bytes | None]] | None]:
    """Each row's headers in order; names may repeat."""
    keys, values, lengths = headers_of(column)
    names = keys.to_pylist()
    refuse_nul("the key of a header", names)
    pairs = zip(names, _cells(values), strict=True)
    return [list(islice(pairs, length)) or None for length in lengths.to_pylist()]


def headers_of(column: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Keys and values of all headers, one after another, and how many each row has.

    Raises:
        KafkaError: A header or its key is null.
    """
    flat = column.flatten()
    if flat.null_count or flat.field("key").null_count:
        raise KafkaError("a header or its key is null: only a header's value may be null")
    return flat.field("key"), flat.field("value"), pc.fill_null(pc.list_value_length(column), 0)


def hashed(batch: pa.RecordBatch, *, own_topic: bool) -> pa.RecordBatch:
    """What is hashed of each message: key, value and headers, and the topic where each row names its own."""
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


def schema(*, include_headers: bool) -> pa.Schema:
    """Columns of the batches: key, value, topic, partition, offset, timestamp, timestampType[, headers]."""
    return WITH_HEADERS if include_headers else PLAIN


def to_batch(partition: Partition, messages: Sequence[Any], *, include_headers: bool) -> pa.RecordBatch:
    """A record batch out of messages of one partition."""
    kind = type(messages[0])
    # Flat, so that no tuples pile up: they would set off the garbage collector, which took half of the time.
    stamps = list(chain.from_iterable(map(kind.timestamp, messages)))
    batch = columns_batch(
        partition,
        keys=pa.array(list(map(kind.key, messages)), pa.binary()),
        values=pa.array(list(map(kind.value, messages)), pa.binary()),
        offsets=pa.array(list(map(kind.offset, messages)), pa.int64()),
        times=pa.array(stamps[1::2], pa.int64()),
        kinds=pa.array(stamps[::2], pa.int32()),
    )
    if not include_headers:
        return batch
    headers = _headers_column([message.headers() for message in messages])
    return pa.RecordBatch.from_arrays([*batch.columns, headers], schema=WITH_HEADERS)


def columns_batch(
    partition: Partition, *, keys: pa.Array, values: pa.Array, offsets: pa.Array, times: pa.Array, kinds: pa.Array
) -> pa.RecordBatch:
    """A record batch out of columns.

    Args:
        partition: Where all come from.
        keys: binary.
        values: binary.
        offsets: int64.
        times: int64, milliseconds since 1970.
        kinds: int32, what a time means, as librdkafka counts.

    Raises:
        SourceError: A time is later or earlier than Arrow's microseconds reach (292,000 years from 1970).
    """
    try:
        stamps = times.cast(pa.timestamp("ms", tz="UTC")).cast(PLAIN.field("timestamp").type)
    except pa.ArrowInvalid:
        far = pc.index(pc.greater(pc.abs(times), 2**63 // 1000), value=True).as_py()
        raise SourceError(
            f"the record at offset {offsets[far]} of {partition} has a timestamp that no column can hold: {times[far]} "
            "ms since 1970. Start after it, at the next offset"
        ) from None
    columns = [
        keys,
        values,
        pa.repeat(pa.scalar(partition.topic, pa.string()), len(keys)),
        pa.repeat(pa.scalar(partition.number, pa.int32()), len(keys)),
        offsets,
        stamps,
        # Java counts none, create, append from -1; librdkafka from 0.
        pc.subtract(kinds, pa.scalar(1, pa.int32())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PLAIN)


def _headers_column(rows: Sequence[Any]) -> pa.Array:
    if not any(rows):
        return pa.nulls(len(rows), HEADERS)
    return pa.array([[{"key": key, "value": value} for key, value in row] if row else None for row in rows], HEADERS)
