"""Arrays of every Arrow type."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

DAY, TIME = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 12, 30, 15, tzinfo=dt.UTC)
TEXTS: Final = (pa.string(), pa.large_string(), pa.string_view())
BYTES: Final = (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))
VALUES: Final[tuple[tuple[pa.DataType, Any], ...]] = (
    *((kind, "c") for kind in TEXTS),
    *((kind, b"c") for kind in BYTES),
    *((kind(), 1) for kind in (pa.int8, pa.uint8, pa.int16, pa.uint16, pa.int32, pa.uint32, pa.int64, pa.uint64)),
    *((kind(), 1.5) for kind in (pa.float16, pa.float32, pa.float64)),
    (pa.bool_(), True),
    *((kind, Decimal("1.5")) for kind in (pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(38, 2))),
    (pa.decimal256(50, 2), Decimal("1.5")),
    (pa.date32(), DAY),
    (pa.date64(), DAY),
    *((pa.timestamp(unit, zone), TIME) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
    *((pa.time32(unit), dt.time(12)) for unit in ("s", "ms")),
    *((pa.time64(unit), dt.time(12)) for unit in ("us", "ns")),
    *((pa.duration(unit), dt.timedelta(1)) for unit in ("s", "us", "ns")),
    (pa.null(), None),
    *((list_(pa.string_view()), ["c"]) for list_ in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)),
    (pa.list_(pa.int32(), 1), [1]),
    (pa.struct([("a", pa.string_view())]), {"a": "c"}),
    (pa.map_(pa.string(), pa.binary_view()), [("a", b"c")]),
)


def _arrays() -> list[pa.Array]:
    plain = [pa.array([value, None], kind) for kind, value in VALUES]
    coded = []
    for array in plain:
        with suppress(pa.ArrowException):
            coded.append(array.dictionary_encode())
        with suppress(pa.ArrowException):  # dictionaries of views, which Arrow makes of no array
            coded.append(pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), array))
    return [*plain, *coded]


ARRAYS: Final = _arrays()
