"""Hashes of rows against a plain twin, and what makes no difference to them."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import random
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.core.contract.proof import NO_ROWS, total, without
from onceward.core.contract.row_hash import WORDS_AT_ONCE, RowHash, covers

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
M1, M2, M3 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0x9FB21C651E98DF25


def mixed(word: int) -> int:
    word = word * M1 & ALL
    word ^= word >> 32
    word = word * M2 & ALL
    return word ^ word >> 29


def finished(lane: int) -> int:
    lane ^= lane >> 33
    lane = lane * M1 & ALL
    lane ^= lane >> 29
    lane = lane * M2 & ALL
    return lane ^ lane >> 32


def words_of(column: str, value: Any) -> tuple[int, int]:
    """What a value adds to both sums of its row."""
    seed = hashlib.blake2b(column.encode(), digest_size=8, person=b"onceward-row").digest()
    key = int.from_bytes(seed, "little")
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        sums = [len(data) * GOLDEN, len(data) * GOLDEN]
        for number, at in enumerate(range(0, len(data), 8)):
            word = int.from_bytes(data[at : at + 8], "little")
            for lane in (0, 1):
                sums[lane] += (word ^ word >> 29) * (mixed((2 * number + lane + 1) * GOLDEN & ALL) | 1)
        return mixed(sums[0] & ALL ^ key), mixed(sums[1] & ALL ^ key)
    if isinstance(value, float):
        word = int.from_bytes(struct.pack("<d", math.nan if math.isnan(value) else value), "little")
    else:
        word = value & ALL
    one = mixed(word ^ key)
    two = one * M3 & ALL
    return one, two ^ two >> 32


def twin(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The hash of rows of ints, floats, texts and bytes, written down plainly."""
    total = [0, 0]
    for row in rows:
        sums = [GOLDEN, GOLDEN]
        for name, value in zip(names, row, strict=True):
            if value is not None:
                sums = [(lane + more) & ALL for lane, more in zip(sums, words_of(name, value), strict=True)]
        total = [(lane + finished(more)) & ALL for lane, more in zip(total, sums, strict=True)]
    return "".join(f"{lane:016x}" for lane in total)


def hashed(*batches: pa.RecordBatch) -> str:
    found = RowHash()
    for batch in batches:
        found.add(batch)
    return found.proof().hash


def a_value(kind: str, rng: random.Random) -> Any:
    if rng.random() < 0.2:
        return None
    match kind:
        case "int":
            return rng.choice([0, -1, 1, 2**63 - 1, -(2**63), rng.randrange(-(10**6), 10**6)])
        case "float":
            return rng.choice([0.0, -0.0, 1.5, math.inf, math.nan, rng.gauss(0, 1e9)])
        case "bytes":
            return rng.randbytes(rng.choice([0, 1, 7, 8, 9, 16, 40, rng.randrange(3000)]))
        case _:
            return "".join(rng.choice("aé€😀") for _ in range(rng.randrange(12)))


TYPES = {"int": pa.int64(), "float": pa.float64(), "bytes": pa.binary(), "text": pa.string()}


@pytest.mark.parametrize("seed", range(40))
def test_the_vectorized_hash_agrees_with_its_plain_twin(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [rng.choice(list(TYPES)) for _ in range(rng.randrange(1, 5))]
    names = [f"c{number}" for number in range(len(kinds))]
    rows = [[a_value(kind, rng) for kind in kinds] for _ in range(rng.choice([1, 3, 70, 300]))]
    columns = [pa.array(list(cells), TYPES[kind]) for cells, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, names=names)
    cut = rng.randrange(len(rows) + 1)
    assert hashed(batch) == hashed(batch.slice(cut), batch.slice(0, cut)) == twin(names, rows)


def test_more_rows_than_are_hashed_at_once() -> None:
    numbers = list(range(WORDS_AT_ONCE * 2 + 5))
    assert hashed(pa.record_batch({"n": numbers})) == twin(["n"], [[number] for number in numbers])


def test_neither_order_nor_batches_make_a_difference() -> None:
    rows = [{"id": number, "word": f"w{number % 7}"} for number in range(100)]
    shuffled = random.Random(1).sample(rows, len(rows))
    whole = pa.RecordBatch.from_pylist(rows)
    halves = [pa.RecordBatch.from_pylist(part).select(["word", "id"]) for part in (shuffled[:33], shuffled[33:])]
    assert hashed(whole) == hashed(*halves)
    assert total([hashed(halves[0]), hashed(halves[1])]) == hashed(whole)
    assert without(hashed(whole), hashed(halves[0])) == hashed(halves[1])
    assert total([hashed(whole), NO_ROWS]) == hashed(whole)


@pytest.mark.parametrize(
    "other",
    [
        [{"a": 1, "b": 2}],
        [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 3, "b": 4}],
        [{"a": 1, "b": 4}, {"a": 3, "b": 2}],
        [{"a": 2, "b": 1}, {"a": 4, "b": 3}],
        [{"a": 1, "b": 2}, {"a": 3, "b": -4}],
        [{"a": 1, "b": 2}, {"a": 3, "b": None}],
    ],
)
def test_a_row_that_is_missing_doubled_or_altered_is_seen(other: list[dict[str, Any]]) -> None:
    rows = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert hashed(pa.RecordBatch.from_pylist(other)) != hashed(pa.RecordBatch.from_pylist(rows))


def test_the_highest_bits_of_two_words_do_not_cancel_out() -> None:
    other = bytes(byte ^ (0x80 if at % 8 == 7 else 0) for at, byte in enumerate(bytes(16)))
    assert hashed(pa.record_batch({"a": [bytes(16)]})) != hashed(pa.record_batch({"a": [other]}))


def test_signs_of_two_floats_of_a_row_do_not_cancel_out() -> None:
    assert twin(["a", "b"], [[1.0, 2.0]]) != twin(["a", "b"], [[-1.0, -2.0]])


NOON = dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("values", "one", "other"),
    [
        ([1, -1, None], pa.int8(), pa.int64()),
        ([1, 2], pa.uint16(), pa.int32()),
        ([0.5, None], pa.float32(), pa.float64()),
        ([NOON], pa.timestamp("ms", "UTC"), pa.timestamp("us", "Asia/Tokyo")),
        ([Decimal("1.50"), Decimal("-20.00"), Decimal(0)], pa.decimal128(5, 2), pa.decimal128(38, 20)),
        ([Decimal("0.00000010"), None], pa.decimal128(20, 8), pa.decimal128(20, 15)),
        ([Decimal(100)], pa.decimal128(5, 0), pa.decimal256(50, 3)),
        (["a", "", None], pa.string(), pa.large_string()),
        (["a", "bb"], pa.string_view(), pa.binary()),
        (["a", "a"], pa.dictionary(pa.int8(), pa.string()), pa.string()),
        ([dt.date(2026, 1, 1)], pa.date32(), pa.date64()),
        ([dt.time(1, 2)], pa.time32("s"), pa.time64("us")),
        ([None, None], pa.null(), pa.string()),
    ],
)
def test_equal_values_of_different_types_hash_alike(values: list[Any], one: pa.DataType, other: pa.DataType) -> None:
    found = {hashed(pa.record_batch({"c": pa.array(values, kind)})) for kind in (one, other)}
    assert len(found) == 1
    assert covers(one)


def test_nested_values_are_not_covered() -> None:
    assert not covers(pa.list_(pa.int64()))
    assert not covers(pa.struct({"a": pa.int64()}))
    assert not covers(pa.dictionary(pa.int8(), pa.string_view()))
    assert not covers(pa.timestamp("ns"))


def test_a_null_is_nothing_and_an_empty_text_is_something() -> None:
    rows = pa.record_batch({"a": [1, 2]})
    assert hashed(rows) == hashed(pa.record_batch({"a": [1, 2], "b": pa.nulls(2, pa.string())}))
    assert hashed(rows) != hashed(pa.record_batch({"a": [1, 2], "b": ["", ""]}))
    assert hashed(pa.record_batch({"b": pa.nulls(2)})) != hashed(pa.record_batch({"b": pa.nulls(1)}))


def test_a_long_value_hashes_alike_in_parts_and_beside_short_ones(monkeypatch: pytest.MonkeyPatch):
    """Values of 60 MB were padded 64 at a time: 1.5 GB of memory beyond the rows."""
    rows = [random.Random(number).randbytes(size) for number, size in enumerate((0, 1, 63, 64, 65, 640, 1000, 4001))]
    batch = pa.record_batch({"a": pa.array([*rows, None])})
    whole = RowHash()
    whole.add(batch)
    monkeypatch.setattr("onceward.core.contract.row_hash._LONG_BYTES", 64)
    monkeypatch.setattr("onceward.core.kit.pieces.PIECE_BYTES", 1000)
    parts = RowHash()
    parts.add(batch)
    assert parts.proof() == whole.proof()
