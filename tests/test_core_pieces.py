"""Batches are cut by bytes: nothing is lost, and no piece is large, whatever the types."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.kit.pieces import PIECE_BYTES, join_batches, pieces, size_of

from .sink_kit import Target, TargetSink, Transaction, context

LONG: Final = "x" * 1000
COLUMNS: Final = (
    pa.array([LONG, None, "y"] * 100),
    pa.array([LONG, None, "y"] * 100, pa.string_view()),
    pa.array([LONG, None, "y"] * 100).dictionary_encode(),
    pa.array([[LONG], None, ["y"]] * 100),
    pa.array([[LONG], None, ["y"]] * 100, pa.list_(pa.string_view())),
    pa.array([{"a": LONG}, None, {"a": "y"}] * 100),
    pa.array([[("k", LONG)], None, [("k", "y")]] * 100, pa.map_(pa.string(), pa.string())),
    pa.array([b"x" * 400] * 300, pa.binary(400)),
)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type)[:30])
def test_pieces_are_small_and_hold_every_row_in_order(column: pa.Array):
    batch = pa.record_batch({"n": range(300), "value": column})
    parts = list(pieces(batch, 5000))
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))
    assert 20 <= len(parts) <= 130
    assert max(map(size_of, parts)) <= 5000


def test_a_row_that_is_larger_than_a_piece_is_a_piece_of_its_own():
    batch = pa.record_batch({"value": ["y", "x" * 20_000, *["y"] * 1022]})
    assert [part.num_rows for part in pieces(batch, 5000)][:2] == [1, 1]
    assert len(list(pieces(batch, 5000))) == 10 + 1  # rows beside it stay together


def test_a_batch_without_rows_is_one_piece():
    assert [part.num_rows for part in pieces(pa.record_batch({"n": pa.array([], pa.int64())}), 1)] == [0]


def test_a_sink_gets_no_more_bytes_at_once_than_a_piece_has():
    sizes: list[int] = []

    class Weighing(TargetSink):
        def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
            transaction.rows.append({"bytes": batch.nbytes})
            sizes.append(batch.nbytes)
            self.target.written += batch.num_rows

    sink = Weighing(Target())
    writing = SubtaskEpoch(sink, context(sink.name))
    rows = pa.record_batch({"value": pa.array(["x" * 2**20] * 40)})
    writing.write(rows)
    assert max(sizes) <= PIECE_BYTES
    assert sink.target.written == writing.written.rows == 40


@given(sizes=st.lists(st.integers(0, 5), max_size=6))
def test_joined_batches_hold_the_same_rows(sizes: list[int]) -> None:
    batches = [pa.record_batch({"n": pa.array([size] * size, pa.int64())}) for size in sizes]
    found = [n for batch in join_batches(batches) for n in batch["n"].to_pylist()]
    assert found == [size for size in sizes for _ in range(size)]
