"""Record batches whose records have several shapes: one column, a dense union with one struct for each shape.

A record is read back exactly as it was, because each shape has columns of its own, and the order is kept ("Columnar
Format" of Arrow, "Dense Union"). Operators that read single records and keys read such a batch as it is; for the others
it is cut where the shape changes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..kit.rows import in_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

MOST_SHAPES: Final = 100
"""Number of shapes in one batch; Arrow allows 128."""
_MARK: Final = {b"onceward.records": b"mixed"}


def mix_records(shapes: Sequence[pa.RecordBatch], numbers: Sequence[int]) -> pa.RecordBatch:
    """Make one batch of the records of several, in the order in which `numbers` names their batches."""
    kinds = np.array(numbers, np.int8)
    offsets = np.empty(len(kinds), np.int32)
    for number, shape in enumerate(shapes):
        offsets[kinds == number] = np.arange(shape.num_rows)
    structs = [shape.to_struct_array() if shape.num_columns else _fieldless(shape.num_rows) for shape in shapes]
    union = pa.UnionArray.from_dense(pa.array(kinds), pa.array(offsets), structs)
    return pa.RecordBatch.from_arrays([union], schema=pa.schema([pa.field("record", union.type)], _MARK))


def _fieldless(rows: int) -> pa.StructArray:
    return pa.array([{}] * rows, pa.struct([]))


def is_mixed(batch: pa.RecordBatch) -> bool:
    """Return whether the batch may hold records of several shapes."""
    metadata: dict[bytes, bytes] | None = batch.schema.metadata
    return metadata == _MARK and pa.types.is_union(batch.schema.field(0).type)


def by_shape(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]:
    """Return the records of each shape as a batch, with their positions in the mixed one."""
    kinds, offsets = _places(batch)
    for number in np.unique(kinds):
        (at,) = np.nonzero(kinds == number)
        yield _shape(batch, number, int(offsets[at[0]]), len(at)), at


def cut_by_shape(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the records in their order as batches of one shape each; yield a batch unchanged if it is not mixed."""
    if not is_mixed(batch):
        yield batch
        return
    kinds, offsets = _places(batch)
    cuts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    for begin, end in pairwise(cuts):
        if begin < end:
            yield _shape(batch, kinds[begin], int(offsets[begin]), end - begin)


def records_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the records as Python reads them.

    Raises:
        SchemaError: A value has a fraction of a microsecond; the message names the column.
    """
    if not is_mixed(batch):
        plain: list[dict[str, Any]] = in_python(batch).to_pylist()
        return plain
    records: list[dict[str, Any]] = [{}] * batch.num_rows
    for shape, at in by_shape(batch):
        for position, record in zip(at.tolist(), in_python(shape).to_pylist(), strict=True):
            records[position] = record
    return records


def _places(batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32]]:
    """Return for each record the number of its shape, and where it is in that shape's struct.

    Within a slice or a filtered batch, too, the records of one shape lie one after the other there. The buffers are
    read here, because `type_codes` and `offsets` of pyarrow 26 are those of the whole array.
    """
    union = batch.column(0)
    _, kinds, offsets = union.buffers()[:3]
    first, last = union.offset, union.offset + len(union)
    return np.frombuffer(kinds, np.int8)[first:last], np.frombuffer(offsets, np.int32)[first:last]


def _shape(batch: pa.RecordBatch, number: int, offset: int, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(batch.column(0).field(int(number)).slice(offset, rows))
