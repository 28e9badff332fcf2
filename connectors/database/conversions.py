"""Conversions of Arrow columns to the types of MariaDB and SQLite, and of their values to those of the drivers.

The column's real type decides. Only conversions that keep every value are made: a value reads back as it was written.
Limits that the types do not show (a length, a sign, a fraction of a second, blanks at the end) are checked value by
value when the rows are written, so that a bad value fails the attempt and never a decided epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from onceward.core.kit.rows import without_dictionary

Check: TypeAlias = Callable[[pa.Array], None]
"""A function that raises ValueError for a value that the column's type allows and its declaration does not."""
SqlType: TypeAlias = "sa.types.TypeEngine[Any]"

BITS: Final[dict[pa.DataType, int]] = {
    pa.int8(): 7,
    pa.uint8(): 8,
    pa.int16(): 15,
    pa.uint16(): 16,
    pa.int32(): 31,
    pa.uint32(): 32,
    pa.int64(): 63,
    pa.uint64(): 64,
}
"""Bits of an integer's magnitude."""
DIGITS: Final = {kind: len(str(2**bits)) for kind, bits in BITS.items()}
"""Decimal digits of the largest integers."""
FLOAT_BITS: Final = {pa.float16(): 24, pa.float32(): 24, pa.float64(): 53}
"""Bits of a float's mantissa."""
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
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
"""Days of 0001-01-01 and 9999-12-31, the limits of Python's dates, counted from 1970-01-01."""
_SECOND: Final = 1_000_000
_DAY: Final = 86_400 * _SECOND


_BINARY: Final = sa.types._Binary  # noqa: SLF001 - the only common base of the binary types


class Unknown(sa.types.UserDefinedType[Any]):
    """A type that SQLAlchemy does not know.

    Args:
        declared: The type as SQL spells it.
    """

    cache_ok = True

    def __init__(self, declared: str) -> None:
        self.declared = declared

    def get_col_spec(self, **_: object) -> str:
        """Return the type as SQL spells it."""
        return self.declared.upper()


class UnfitError(Exception):
    """The types do not fit. The text says why, and what to do; `match` catches the error and adds the column's name."""


def is_text(arrow: pa.DataType) -> bool:
    """Return whether values of this type are strings."""
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow))


def is_binary(arrow: pa.DataType) -> bool:
    """Return whether values of this type are bytes."""
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(kind(arrow) for kind in kinds)


@dataclass(frozen=True)
class Conversion:
    """The conversion of one column to values that a driver takes."""

    wire: pa.DataType
    """Arrow type whose Python values the driver takes."""
    checks: tuple[Check, ...] = ()
    """Checks of the array of type `wire`."""
    value: Callable[[Any], Any] | None = None
    """Converts pyarrow's Python value to the driver's; None if they are the same."""

    def prepare(self, array: pa.Array) -> pa.Array:
        """Return the array converted to `wire`, and checked.

        Raises:
            ValueError: A value does not fit (pyarrow.ArrowInvalid is one).
        """
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        array = without_dictionary(array)
        converted = array if array.type == self.wire else pc.cast(array, self.wire, safe=True)
        for check in self.checks:
            check(converted)
        return converted

    def python(self, array: pa.Array) -> list[Any]:
        """Return the values of a prepared array, for the driver."""
        values: list[Any] = array.to_pylist()
        if self.value is None:
            return values
        make = self.value
        return [None if value is None else make(value) for value in values]


def conversion(arrow: pa.DataType, column: SqlType, backend: str) -> Conversion:
    """Return the conversion that keeps every value.

    Raises:
        UnfitError: There is none.
    """
    if pa.types.is_dictionary(arrow):
        return conversion(arrow.value_type, column, backend)
    if pa.types.is_null(arrow):
        return Conversion(pa.null())
    if isinstance(arrow, pa.BaseExtensionType):
        if arrow.extension_name == "arrow.uuid":
            raise UnfitError("cast it to string")
        return conversion(arrow.storage_type, column, backend)
    sqlite = backend == "sqlite"
    for takes, kind, rule, untyped in _RULES:
        if takes(arrow):
            bare = sqlite and isinstance(column, sa.types.NullType)
            typed = untyped if bare and untyped is not None else column
            if isinstance(typed, kind) and (result := rule(arrow, typed, sqlite)) is not None:
                return result
    if pa.types.is_nested(arrow):
        raise UnfitError("turn it into text, for example with to_json")
    if isinstance(column, Unknown):
        raise UnfitError("no data is written into columns of this type; change the column, for example to VARCHAR")
    raise UnfitError("no conversion keeps every value; cast it, or change the column")


def read_back(column: SqlType, backend: str) -> pa.DataType | None:
    """Return the Arrow type to read and hash a column's values as; None if they may differ from what was written.

    That is so for texts that MariaDB sorts (SET), single precision, floats that MariaDB rounds to some digits, and
    columns of SQLite without a type. A decimal number is read as its shortest text.
    """
    sqlite = backend == "sqlite"
    if isinstance(column, sa.String):
        return None if isinstance(column, mysql.SET) else pa.large_string()
    if isinstance(column, _BINARY):
        return pa.large_binary()
    if isinstance(column, (sa.Integer, sa.Boolean)):
        return pa.uint64() if getattr(column, "unsigned", False) else pa.int64()
    if isinstance(column, sa.Float):
        exact = _mantissa(column, sqlite) == FLOAT_BITS[pa.float64()] and getattr(column, "scale", None) is None
        return pa.float64() if exact else None
    if isinstance(column, sa.Numeric):
        return None if sqlite else pa.string()
    kinds = ((sa.Date, pa.date32()), (sa.DateTime, pa.timestamp("us")), (sa.Time, pa.time64("us")))
    return next((arrow for kind, arrow in kinds if isinstance(column, kind)), None)


def as_read_back(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return prepared values as they are hashed: as the kind of number that the column holds."""
    if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        return array.cast(kind)
    return pc.add(array, 0.0) if pa.types.is_floating(array.type) else array  # -0.0 is 0.0


def _text(_: pa.DataType, column: sa.String, sqlite: bool) -> Conversion:
    room, length, checks = _BYTES.get(type(column)), column.length, list[Check]([_utf8])
    if isinstance(column, sa.Enum):
        checks.append(_one_of(column.enums))
    elif isinstance(column, mysql.SET):
        checks.append(_members(column.values))
    elif room is not None:
        checks.append(_at_most_bytes(min(room, length or room)))
    elif length is not None and not sqlite:  # SQLite keeps texts of any length
        checks.append(at_most_characters(length))
    if isinstance(column, (sa.CHAR, sa.NCHAR)) and not sqlite:
        checks.append(no_blank_at_the_end("MariaDB cuts blanks at the end of a CHAR; make the column VARCHAR"))
    return Conversion(pa.large_string(), tuple(checks))


def _bytes(_: pa.DataType, column: Any, sqlite: bool) -> Conversion:
    length = column.length if column.length is not None else _BYTES.get(type(column))
    if sqlite or length is None:
        return Conversion(pa.large_binary())
    return Conversion(pa.large_binary(), (_at_most_bytes(length, exactly=isinstance(column, sa.BINARY)),))


def _boolean(_: pa.DataType, column: SqlType, sqlite: bool) -> Conversion | None:
    kinds = (sa.Boolean, sa.Integer if sqlite else mysql.TINYINT)
    return Conversion(pa.bool_()) if isinstance(column, kinds) else None


def _integer(arrow: pa.DataType, column: SqlType, sqlite: bool) -> Conversion | None:
    bits, digits = BITS[arrow], DIGITS[arrow]
    if isinstance(column, sa.Integer):
        unsigned = bool(getattr(column, "unsigned", False))
        room = 63 if sqlite else next((n for kind, n in _INTEGER_BITS if isinstance(column, kind)), 31)
        if bits > room + unsigned:
            raise UnfitError("the column is too narrow: cast it, or change the column")
        return Conversion(arrow, _sign(column))
    if isinstance(column, sa.Float) and bits > _mantissa(column, sqlite):
        raise UnfitError("a floating-point column does not hold every such integer: cast it to double")
    if isinstance(column, sa.Float) and (sqlite or column.scale is None):
        return Conversion(arrow, _sign(column))
    if isinstance(column, sa.Numeric) and not sqlite:
        if column.precision is not None and column.precision - (column.scale or 0) < digits:
            raise UnfitError(f"the column has room for fewer than {digits} digits before the point")
        return Conversion(arrow, _sign(column))
    return None


def _sign(column: SqlType) -> tuple[Check, ...]:
    return (_not_negative,) if getattr(column, "unsigned", False) else ()


def _mantissa(column: SqlType, sqlite: bool) -> int:
    if isinstance(column, mysql.FLOAT):
        single = (column.precision or 0) <= _SINGLE_DIGITS
    else:
        single = isinstance(column, sa.REAL) and not isinstance(column, mysql.REAL)
    return 24 if single and not sqlite else 53


def _float(arrow: pa.DataType, column: Any, sqlite: bool) -> Conversion:
    if FLOAT_BITS[arrow] > _mantissa(column, sqlite):
        raise UnfitError("the column holds single precision only: cast it to float, or change the column")
    if not sqlite and column.scale is not None:
        raise UnfitError(f"the column rounds to {column.scale} digits: make it DOUBLE, or a DECIMAL and cast to that")
    return Conversion(pa.float64(), (_number if sqlite else _finite, *_sign(column)))


def _decimal(arrow: pa.DataType, column: SqlType, sqlite: bool) -> Conversion | None:
    if sqlite:
        raise UnfitError("SQLite has no decimals: cast it to string, or to an integer number of the smallest unit")
    if not isinstance(column, sa.Numeric) or isinstance(column, sa.Float):
        return None
    if column.precision is not None:
        scale = column.scale or 0
        if arrow.scale > scale or arrow.precision - arrow.scale > column.precision - scale:
            raise UnfitError(f"the column is numeric({column.precision},{scale}), which would round or overflow")
    return Conversion(arrow, _sign(column))


def _timestamp(arrow: pa.DataType, column: SqlType, sqlite: bool) -> Conversion:
    checks = (_in_years, *_fraction(column, sqlite))
    in_column = isinstance(column, sa.TIMESTAMP)
    if not sqlite:  # whose times are text without a zone; those of the data that have one are UTC
        if in_column and arrow.tz is None:
            raise UnfitError(
                "the column has a time zone and the data has none, which would have to be guessed: cast it"
            )
        if arrow.tz is not None and not in_column:
            raise UnfitError(
                "the data has a time zone and the column has none: cast it, or make the column TIMESTAMP(6)"
            )
        checks += (_in_unix_seconds,) if in_column else ()
    return Conversion(pa.timestamp("us", arrow.tz and "UTC"), checks, lambda value: value.replace(tzinfo=None))


_Rule: TypeAlias = Callable[[pa.DataType, Any, bool], Conversion | None]
_RULES: Final[tuple[tuple[Callable[[pa.DataType], bool], type, _Rule, SqlType | None], ...]] = (
    (is_text, sa.String, _text, sa.Text()),
    (is_binary, _BINARY, _bytes, sa.LargeBinary()),
    (pa.types.is_boolean, object, _boolean, None),
    (BITS.__contains__, object, _integer, sa.Integer()),
    (FLOAT_BITS.__contains__, sa.Float, _float, sa.Double()),
    (pa.types.is_decimal, object, _decimal, None),
    (pa.types.is_date, sa.Date, lambda *_: Conversion(pa.date32(), (_in_years,)), None),
    (pa.types.is_timestamp, sa.DateTime, _timestamp, None),
    (pa.types.is_time, sa.Time, lambda _, column, lite: Conversion(pa.time64("us"), _fraction(column, lite)), None),
)
"""Arrow types and columns, the function for their conversion, and the type to assume for an untyped SQLite column."""


def _fraction(column: SqlType, sqlite: bool) -> tuple[Check, ...]:
    """Return checks of fractions of a second. MariaDB cuts digits that a column does not keep; its default is none."""
    return () if sqlite else (keeps_fraction(int(getattr(column, "fsp", None) or 0)),)


def keeps_fraction(digits: int) -> Check:
    """Return a check that no value has more digits in its fraction of a second than the column keeps."""
    unit = _SECOND // 10**digits

    def check(array: pa.Array) -> None:
        numbers = array.cast(pa.int64())
        if pc.any(pc.not_equal(pc.multiply(pc.divide(numbers, unit), unit), numbers)).as_py():
            raise ValueError(f"a value would be cut: the column keeps {digits} digits of a second's fraction")

    return check


def _utf8(array: pa.Array) -> None:
    array.validate(full=True)  # Arrow's readers need not have looked, and Python's strings are made of it


def at_most_characters(most: int) -> Check:
    """Return a check of the length of texts.

    Bytes are counted first, which reads no text, because most texts are short enough.
    """

    def check(array: pa.Array) -> None:
        if (pc.max(pc.binary_length(array)).as_py() or 0) <= most:
            return
        longest = pc.max(pc.utf8_length(array)).as_py() or 0
        if longest > most:
            raise ValueError(f"a value has {longest} characters and the column has room for {most}")

    return check


def _at_most_bytes(most: int, *, exactly: bool = False) -> Check:
    def check(array: pa.Array) -> None:
        ends = _ends(pc.binary_length(array))
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


def no_blank_at_the_end(why: str) -> Check:
    """Return a check that no text ends with a blank, because blanks at the end are lost, or ignored in keys."""

    def check(array: pa.Array) -> None:
        if pc.any(pc.ends_with(array, pattern=" ")).as_py():
            raise ValueError(f"a value ends with a blank: {why}")

    return check


def _not_negative(array: pa.Array) -> None:
    if (pc.min(array).as_py() or 0) < 0:
        raise ValueError("a value is negative and the column is unsigned")


def _number(array: pa.Array) -> None:
    if pc.any(pc.is_nan(array)).as_py():
        raise ValueError("a value is not a number, which it cannot hold")


def _finite(array: pa.Array) -> None:
    if pc.any(pc.invert(pc.is_finite(array))).as_py():
        raise ValueError("a value is not a number, or infinite, which it cannot hold")


def _in_years(array: pa.Array) -> None:
    day = pa.types.is_date(array.type)
    ends = _ends(array.cast(pa.int32()) if day else array.cast(pa.int64()))
    unit = 1 if day else _DAY
    if ends is not None and (ends[0] < _FIRST_DAY * unit or ends[1] >= (_LAST_DAY + 1) * unit):
        raise ValueError("a value lies outside of the years 1 to 9999")


def _in_unix_seconds(array: pa.Array) -> None:
    """Check that values fit into MariaDB's TIMESTAMP, before version 11.5."""
    ends = _ends(array.cast(pa.int64()))
    if ends is not None and (ends[0] < _SECOND or ends[1] >= (1 << 31) * _SECOND):
        raise ValueError("a value lies outside of the years 1970 to 2038, which is all that a TIMESTAMP holds")


def _ends(numbers: pa.Array) -> tuple[int, int] | None:
    ends: Any = pc.min_max(numbers).as_py()
    return None if ends["min"] is None else (ends["min"], ends["max"])
