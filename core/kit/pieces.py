"""Cut record batches into pieces of a bounded number of bytes.

A batch is bounded by rows only, and one row may have 10 bytes or 50 MB. Whatever copies rows (a hash, a text, a
message) works on one piece after the other: its memory depends on the largest row, not on how many there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIECE_BYTES: Final = 16 * 2**20
"""Maximum size of a piece of several rows, in bytes. Larger ones are not faster."""
_VARIABLE: Final = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def pieces(batch: pa.RecordBatch, limit: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in their order, as slices of at most `limit` bytes or one row.

    Args:
        batch: The rows; one without rows is yielded as it is, so that its schema is seen.
        limit: Maximum size in bytes of a piece of several rows. Default: PIECE_BYTES.
    """
    limit = PIECE_BYTES if limit is None else limit
    if batch.num_rows <= 1 or size_of(batch) <= limit:
        yield batch
        return
    # In halves: slices of the average size would be single rows where one row is much larger than the others.
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half), limit)
    yield from pieces(batch.slice(half), limit)


def join_batches(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Copy batches into one: or into several, where a column of one would exceed the 2 GiB of its offsets."""
    if len(batches) <= 1:
        return list(batches)
    return [batch for batch in pa.Table.from_batches(batches).combine_chunks().to_batches() if batch.num_rows]


def size_of(batch: pa.RecordBatch) -> int:
    """Return about how many bytes a copy of the rows would take, dictionaries decoded."""
    return sum(map(array_size, batch.columns))


def array_size(array: pa.Array) -> int:
    """Return about how many bytes a copy of an array's values would take.

    Arrow's own `nbytes` counts a dictionary, and the texts behind views, in full for each slice.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _decoded_size(array)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return _viewed_size(array)
    if pa.types.is_struct(kind):
        return sum(array_size(array.field(n)) for n in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return array_size(array.flatten()) + 8 * len(array)
    return int(array.nbytes)


def _decoded_size(array: Any) -> int:
    """Return the size of the values that the indices of a dictionary refer to."""
    values = array.dictionary
    if len(values) == 0:
        return int(array.indices.nbytes)
    if values.type in _VARIABLE:
        import pyarrow.compute as pc  # noqa: PLC0415 - takes 20 ms, and few rows come here

        sizes = pc.binary_length(values).take(array.indices)
        return int(pc.sum(sizes.cast(pa.int64())).as_py() or 0) + 4 * len(array)
    return array_size(values) * len(array) // len(values)


def _viewed_size(array: pa.Array) -> int:
    """Return the size of the texts behind views: each view begins with the length of its text."""
    if len(array) == 0:
        return 0
    views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)[array.offset : array.offset + len(array)]
    lengths = views[:, 0].astype(np.int64)
    if array.null_count:
        lengths = lengths[array.is_valid().to_numpy(zero_copy_only=False)]
    return int(lengths.sum()) + 16 * len(array)
