"""Arrow arrays that are made without `pa.array` and `pa.scalar`.

Both import pandas where it is installed, to recognize its types: in each new Python process that takes
a quarter of a second (pyarrow 26).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def number_array(
    values: npt.NDArray[Any], kind: pa.DataType | None = None, valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Return the numbers as an array; a copy only if they do not lie side by side.

    Args:
        values: The numbers of the array.
        kind: A type whose values are such numbers; None: the type of the numbers.
        valid: Booleans, false where the value is null; None: no value is null.
    """
    nulls = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [nulls, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind or pa.from_numpy_dtype(values.dtype), len(values), buffers)


def repeated_text(text: str, count: int) -> pa.Array:
    """Return a string array of `count` rows that are all the same."""
    data = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data * count)])
