"""What lies in memory becomes Arrow columns: values are copied, whatever their lengths and wherever they are."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.connectors.kafka import consumed_batches
from onceward.connectors.kafka.consumed_batches import FARTHEST_MS, PLAIN, _binary, _gathered, columns_batch, to_batch
from onceward.connectors.kafka.librdkafka import Consumed
from onceward.connectors.kafka.positions import Partition
from onceward.core.errors import SourceError

VALUES = st.lists(st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=9, max_size=15)), min_size=1)


def laid_out(values: list[bytes | None]) -> tuple[Any, Any, list[Any]]:
    """Addresses and lengths of copies of these values, and what keeps the copies."""
    kept = [None if value is None else ctypes.create_string_buffer(value, max(len(value), 1)) for value in values]
    addresses = [0 if buffer is None else ctypes.addressof(buffer) for buffer in kept]
    return np.array(addresses, np.uint64), np.array([len(value or b"") for value in values], np.uint64), kept


@pytest.mark.parametrize("window", [1 << 30, 64, 16])
@given(values=VALUES)
def test_values_are_copied_from_where_they_lie(window: int, values: list[bytes | None]):
    addresses, lengths, kept = laid_out(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumed_batches, "_WINDOW", window)
        column = _binary(addresses, lengths)
    for buffer in kept:
        if buffer is not None:
            ctypes.memset(buffer, 0xFF, len(buffer))
    assert column.to_pylist() == values
    column.validate(full=True)


def test_structures_are_gathered_in_the_order_of_their_addresses():
    structures = (Consumed * 5)()
    for number, one in enumerate(structures):
        one.message.offset, one.time, one.time_kind = number, -number, number % 3
    order = [3, 0, 4]
    addresses = np.array([ctypes.addressof(structures[number]) for number in order], np.uint64)
    kind = np.dtype(Consumed)
    found: Any = _gathered(addresses, kind.itemsize).view(kind)[:, 0]
    assert found["message"]["offset"].tolist() == order
    assert found["time"].tolist() == [-number for number in order]
    assert found["time_kind"].tolist() == [0, 0, 1]


class _Undecodable:
    """A message of confluent-kafka with a header key that is no UTF-8."""

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 5

    def headers(self) -> None:
        raise SystemError("returned a result with an exception set")


def test_a_header_key_that_cannot_be_decoded_is_told_with_its_record():
    with pytest.raises(SourceError, match=r"offset 7 of a-0 has a header whose key is not UTF-8.*includeHeaders=false"):
        to_batch(Partition("a", 0), [_Undecodable()], include_headers=True)
    assert to_batch(Partition("a", 0), [_Undecodable()], include_headers=False).num_rows == 1


NUMBERS = st.integers(-(2**63), 2**63 - 1)
TIMES = NUMBERS | st.sampled_from([sign * (FARTHEST_MS + near) for sign in (-1, 1) for near in (-1, 0, 1)])


@given(st.lists(st.tuples(st.binary(max_size=3), NUMBERS, TIMES, st.integers(0, 2)), min_size=1))
def test_columns_are_those_that_arrow_makes_of_python_values(rows: list[tuple[bytes, int, int, int]]) -> None:
    values, offsets, times, kinds = zip(*rows, strict=True)
    binary = pa.array(values, pa.binary())
    made = columns_batch(
        Partition("tøpic", 3),
        keys=binary,
        values=binary,
        offsets=np.array(offsets),
        times=np.array(times),
        kinds=np.array(kinds, np.int32),
    )
    made.validate(full=True)
    micros = [time * 1000 if abs(time) < FARTHEST_MS else None for time in times]
    plain = {
        "key": values,
        "value": values,
        "topic": ["tøpic"] * len(rows),
        "partition": [3] * len(rows),
        "offset": offsets,
        "timestamp": micros,
        "timestampType": [kind - 1 for kind in kinds],
    }
    assert made == pa.RecordBatch.from_pydict(plain, PLAIN)
