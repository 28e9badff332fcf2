"""Kafka messages as Arrow record batches, with the columns of Spark's own Kafka source.

Columns are made one after another by `map` over the client's C methods: no Python bytecode runs per row.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .positions import Partition

PLAIN: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
HEADERS: Final = pa.field(
    "headers", pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
)
WITH_HEADERS: Final = PLAIN.append(HEADERS)


def schema(*, include_headers: bool) -> pa.Schema:
    """Columns of the batches: key, value, topic, partition, offset, timestamp, timestampType[, headers]."""
    return WITH_HEADERS if include_headers else PLAIN


def to_batch(partition: Partition, messages: Sequence[Any], *, include_headers: bool) -> pa.RecordBatch:
    """A record batch out of messages of one partition."""
    kind = type(messages[0])
    count = len(messages)
    # Flat, so that no tuples pile up: they would set off the garbage collector, which took half of the time.
    stamps = list(chain.from_iterable(map(kind.timestamp, messages)))
    columns: list[pa.Array] = [
        pa.array(list(map(kind.key, messages)), pa.binary()),
        pa.array(list(map(kind.value, messages)), pa.binary()),
        pa.repeat(pa.scalar(partition.topic, pa.string()), count),
        pa.repeat(pa.scalar(partition.number, pa.int32()), count),
        pa.array(list(map(kind.offset, messages)), pa.int64()),
        pa.array(stamps[1::2], pa.timestamp("ms", tz="UTC")).cast(PLAIN.field("timestamp").type),
        _java_kinds(stamps[::2]),
    ]
    if include_headers:
        columns.append(_headers([message.headers() for message in messages]))
    return pa.RecordBatch.from_arrays(columns, schema=schema(include_headers=include_headers))


def _java_kinds(kinds: Sequence[int]) -> pa.Array:
    """Java counts none, create, append from -1; librdkafka from 0."""
    if len(set(kinds)) == 1:
        return pa.repeat(pa.scalar(kinds[0] - 1, pa.int32()), len(kinds))
    return pa.array([kind - 1 for kind in kinds], pa.int32())


def _headers(rows: Sequence[Any]) -> pa.Array:
    if not any(rows):
        return pa.nulls(len(rows), HEADERS.type)
    return pa.array(
        [[{"key": key, "value": value} for key, value in row] if row else None for row in rows], HEADERS.type
    )
