"""The column types of MariaDB, as SQLAlchemy reflects them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from onceward.core.kit.rows import is_binary

from .column_types import BINARY, READ_TIMES, ColumnTypes
from .conversions import (
    BITS,
    DIGITS,
    FLOAT_BITS,
    SECOND,
    Conversion,
    UnfitError,
    at_most_characters,
    ends_of,
    in_years,
    is_text,
    is_utf8,
    keeps_fraction,
    no_blank_at_the_end,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .column_types import SqlType
    from .conversions import Check

_KEY: Final = mysql.VARCHAR(255, collation="utf8mb4_nopad_bin")
"""The type of a text in a key, which needs a length."""
_BYTES: Final[dict[type[Any], int]] = {
    mysql.TINYTEXT: 255,
    mysql.TINYBLOB: 255,
    mysql.TEXT: 65_535,
    mysql.BLOB: 65_535,
    mysql.MEDIUMTEXT: (1 << 24) - 1,
    mysql.MEDIUMBLOB: (1 << 24) - 1,
}
_INTEGER_BITS: Final = ((mysql.TINYINT, 7), (mysql.MEDIUMINT, 23), (sa.SmallInteger, 15), (sa.BigInteger, 63))
_SINGLE_DIGITS: Final = 24


def _text(_: pa.DataType, column: sa.String) -> Conversion:
    room, length, checks = _BYTES.get(type(column)), column.length, list["Check"]([is_utf8])
    if isinstance(column, sa.Enum):
        checks.append(_one_of(column.enums))
    elif isinstance(column, mysql.SET):
        checks.append(_members(column.values))
    elif room is not None:
        checks.append(_at_most_bytes(min(room, length or room)))
    elif length is not None:
        checks.append(at_most_characters(length))
    if isinstance(column, (sa.CHAR, sa.NCHAR)):
        checks.append(no_blank_at_the_end("MariaDB cuts blanks at the end of a CHAR; make the column VARCHAR"))
    return Conversion(pa.large_string(), tuple(checks))


def _bytes(_: pa.DataType, column: Any) -> Conversion:
    length = column.length if column.length is not None else _BYTES.get(type(column))
    if length is None:
        return Conversion(pa.large_binary())
    return Conversion(pa.large_binary(), (_at_most_bytes(length, exactly=isinstance(column, sa.BINARY)),))


def _integer(arrow: pa.DataType, column: Any) -> Conversion | None:
    bits, digits = BITS[arrow], DIGITS[arrow]
    if isinstance(column, sa.Integer):
        room = next((n for kind, n in _INTEGER_BITS if isinstance(column, kind)), 31)
        if bits > room + _is_unsigned(column):
            raise UnfitError("the column is too narrow: cast it, or change the column")
    elif isinstance(column, sa.Float):
        if bits > _mantissa(column):
            raise UnfitError("a floating-point column does not hold every such integer: cast it to double")
        if column.scale is not None:
            return None
    elif column.precision is not None and column.precision - (column.scale or 0) < digits:
        raise UnfitError(f"the column has room for fewer than {digits} digits before the point")
    return Conversion(arrow, _sign(column))


def _is_unsigned(column: SqlType) -> bool:
    return bool(getattr(column, "unsigned", False))


def _sign(column: SqlType) -> tuple[Check, ...]:
    return (_not_negative,) if _is_unsigned(column) else ()


def _mantissa(column: SqlType) -> int:
    if isinstance(column, mysql.FLOAT):
        single = (column.precision or 0) <= _SINGLE_DIGITS
    else:
        single = isinstance(column, sa.REAL) and not isinstance(column, mysql.REAL)
    return 24 if single else 53


def _float(arrow: pa.DataType, column: Any) -> Conversion:
    if FLOAT_BITS[arrow] > _mantissa(column):
        raise UnfitError("the column holds single precision only: cast it to float, or change the column")
    if column.scale is not None:
        raise UnfitError(f"the column rounds to {column.scale} digits: make it DOUBLE, or a DECIMAL and cast to that")
    return Conversion(pa.float64(), (_is_finite, *_sign(column)))


def _decimal(arrow: pa.DataType, column: Any) -> Conversion | None:
    if isinstance(column, sa.Float):
        return None
    if column.precision is not None:
        scale = column.scale or 0
        if arrow.scale > scale or arrow.precision - arrow.scale > column.precision - scale:
            raise UnfitError(f"the column is numeric({column.precision},{scale}), which would round or overflow")
    return Conversion(arrow, _sign(column))


def _timestamp(arrow: pa.DataType, column: SqlType) -> Conversion:
    in_column, checks = isinstance(column, sa.TIMESTAMP), [in_years, _fraction(column)]
    if in_column and arrow.tz is None:
        raise UnfitError("the column has a time zone and the data has none, which would have to be guessed: cast it")
    if arrow.tz is not None and not in_column:
        raise UnfitError("the data has a time zone and the column has none: cast it, or make the column TIMESTAMP(6)")
    if in_column:
        checks.append(_in_unix_seconds)
    return Conversion(pa.timestamp("us", arrow.tz and "UTC"), tuple(checks), lambda value: value.replace(tzinfo=None))


def _fraction(column: SqlType) -> Check:
    """Return a check of fractions of a second: digits that a column does not keep are cut, and its default is none."""
    return keeps_fraction(int(getattr(column, "fsp", None) or 0))


def _read_float(column: sa.Float[Any]) -> pa.DataType | None:
    """Return the type of a double; None for single precision, and for floats that are rounded to some digits."""
    exact = _mantissa(column) == FLOAT_BITS[pa.float64()] and getattr(column, "scale", None) is None
    return pa.float64() if exact else None


def _at_most_bytes(most: int, *, exactly: bool = False) -> Check:
    def check(array: pa.Array) -> None:
        ends = ends_of(pc.binary_length(array))
        if ends is not None and ends[1] > most:
            raise ValueError(f"a value has {ends[1]} bytes and the column has room for {most}")
        if ends is not None and exactly and ends[0] < most:
            raise ValueError(f"a value has fewer than {most} bytes, and the column would fill it up with zeros")

    return check


def _one_of(allowed: list[str]) -> Check:
    def check(array: pa.Array) -> None:
        known = pc.is_in(array, value_set=pa.array(allowed, array.type))
        strange = array.filter(pc.and_(pc.invert(known), pc.is_valid(array)))
        if allowed and len(strange):
            raise ValueError(f"{strange[0].as_py()!r} is not one of {allowed}")

    return check


def _members(allowed: Sequence[str]) -> Check:
    """Return a check that texts are sets of these members: MariaDB takes a text of digits for the bits of a set."""

    def check(array: pa.Array) -> None:
        for text in pc.unique(array.drop_null()).to_pylist():
            members = text.split(",") if text else []
            if not set(members) <= set(allowed) or len(set(members)) < len(members):
                raise ValueError(f"{text!r} is not a set of {list(allowed)}: give each member once, between commas")

    return check


def _not_negative(array: pa.Array) -> None:
    if (pc.min(array).as_py() or 0) < 0:
        raise ValueError("a value is negative and the column is unsigned")


def _is_finite(array: pa.Array) -> None:
    if pc.any(pc.invert(pc.is_finite(array))).as_py():
        raise ValueError("a value is not a number, or infinite, which it cannot hold")


def _in_unix_seconds(array: pa.Array) -> None:
    """Check that values fit into a TIMESTAMP, before version 11.5."""
    ends = ends_of(array.cast(pa.int64()))
    if ends is not None and (ends[0] < SECOND or ends[1] >= (1 << 31) * SECOND):
        raise ValueError("a value lies outside of the years 1970 to 2038, which is all that a TIMESTAMP holds")


TYPES: Final = ColumnTypes(
    created=(
        (is_text, lambda _, key: _KEY if key else mysql.LONGTEXT()),
        (pa.types.is_fixed_size_binary, lambda arrow, _: sa.BINARY(arrow.byte_width)),
        (is_binary, mysql.LONGBLOB()),
        (pa.types.is_timestamp, lambda arrow, _: (mysql.DATETIME if arrow.tz is None else mysql.TIMESTAMP)(fsp=6)),
        (pa.types.is_time, mysql.TIME(fsp=6)),
    ),
    written=(
        (is_text, sa.String, _text),
        (is_binary, BINARY, _bytes),
        (pa.types.is_boolean, (sa.Boolean, mysql.TINYINT), lambda *_: Conversion(pa.bool_())),
        (BITS.__contains__, (sa.Integer, sa.Float, sa.Numeric), _integer),
        (FLOAT_BITS.__contains__, sa.Float, _float),
        (pa.types.is_decimal, sa.Numeric, _decimal),
        (pa.types.is_date, sa.Date, lambda *_: Conversion(pa.date32(), (in_years,))),
        (pa.types.is_timestamp, sa.DateTime, _timestamp),
        (pa.types.is_time, sa.Time, lambda _, column: Conversion(pa.time64("us"), (_fraction(column),))),
    ),
    read=(
        (mysql.SET, None),  # the server sorts its members
        (sa.String, pa.large_string()),
        (BINARY, pa.large_binary()),
        ((sa.Integer, sa.Boolean), lambda column: pa.uint64() if _is_unsigned(column) else pa.int64()),
        (sa.Float, _read_float),
        (sa.Numeric, pa.string()),
        *READ_TIMES,
    ),
)
