"""The column types of SQLite, whose declarations limit neither the length of a text nor the size of a number."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from onceward.core.kit.rows import is_binary

from .column_types import BINARY, READ_TIMES, ColumnTypes
from .conversions import BITS, FLOAT_BITS, Conversion, UnfitError, in_years, is_text, is_utf8

_UNTYPED: Final = sa.types.NullType
"""The type of a column without one, which holds texts, bytes and numbers."""
_EXACT_BITS: Final = 53
_INTEGER_BITS: Final = 63


def _integer(arrow: pa.DataType, column: Any) -> Conversion:
    is_float = isinstance(column, sa.Float)
    if BITS[arrow] > (_EXACT_BITS if is_float else _INTEGER_BITS):
        float_ = "a floating-point column does not hold every such integer: cast it to double"
        raise UnfitError(float_ if is_float else "the column is too narrow: cast it, or change the column")
    return Conversion(arrow)


def _decimal(*_: object) -> Conversion:
    raise UnfitError("SQLite has no decimals: cast it to string, or to an integer number of the smallest unit")


def _is_number(array: pa.Array) -> None:
    if pc.any(pc.is_nan(array)).as_py():
        raise ValueError("a value is not a number, which it cannot hold")


def _timestamp(arrow: pa.DataType, _: object) -> Conversion:
    """Return the conversion to a text without a zone; times of the data that have one are UTC."""
    return Conversion(pa.timestamp("us", arrow.tz and "UTC"), (in_years,), lambda value: value.replace(tzinfo=None))


TYPES: Final = ColumnTypes(
    created=((pa.types.is_decimal, None), (pa.types.is_uint64, None)),
    written=(
        (is_text, (sa.String, _UNTYPED), lambda *_: Conversion(pa.large_string(), (is_utf8,))),
        (is_binary, (BINARY, _UNTYPED), lambda *_: Conversion(pa.large_binary())),
        (pa.types.is_boolean, (sa.Boolean, sa.Integer), lambda *_: Conversion(pa.bool_())),
        (BITS.__contains__, (sa.Integer, sa.Float, _UNTYPED), _integer),
        (FLOAT_BITS.__contains__, (sa.Float, _UNTYPED), lambda *_: Conversion(pa.float64(), (_is_number,))),
        (pa.types.is_decimal, object, _decimal),
        (pa.types.is_date, sa.Date, lambda *_: Conversion(pa.date32(), (in_years,))),
        (pa.types.is_timestamp, sa.DateTime, _timestamp),
        (pa.types.is_time, sa.Time, lambda *_: Conversion(pa.time64("us"))),
    ),
    read=(
        (sa.String, pa.large_string()),
        (BINARY, pa.large_binary()),
        ((sa.Integer, sa.Boolean), pa.int64()),
        (sa.Float, pa.float64()),
        *READ_TIMES,
    ),
)
