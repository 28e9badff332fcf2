"""Arrow arrays that are made without `pa.array` and `pa.scalar`.

Both import pandas where it is installed, to recognize its types: in each new Python process that takes
a quarter of a second (pyarrow 26).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def number_array(values: npt.NDArray[Any]) -> pa.Array:
    """Return the numbers as an array of their own type; a copy only if they do not lie side by side."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def repeated_text(text: str, count: int) -> pa.Array:
    """Return a string array of `count` rows that are all the same."""
    data = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data * count)])
