"""Which Arrow types fit into which columns of MariaDB and SQLite, and how values become what their drivers take.

The column's real type decides. Only conversions that keep every value are made. What the types alone cannot promise
(a length, a sign, a fraction of a second) is checked value by value when the rows are written, so that it fails the
attempt and never a decided epoch.
"""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - a dataclass field's type
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from .plan import Unfit
from .values import (
    at_most_bytes,
    at_most_characters,
    finite,
    in_unix_seconds,
    in_years,
    not_negative,
    one_of,
    whole_units,
)

if TYPE_CHECKING:
    from .values import Check

_BITS: Final[dict[pa.DataType, int]] = {
    pa.int8(): 7,
    pa.uint8(): 8,
    pa.int16(): 15,
    pa.uint16(): 16,
    pa.int32(): 31,
    pa.uint32(): 32,
    pa.int64(): 63,
    pa.uint64(): 64,
}
_DIGITS: Final = {7: 3, 8: 3, 15: 5, 16: 5, 31: 10, 32: 10, 63: 19, 64: 20}
_FLOAT_BITS: Final = {pa.float16(): 24, pa.float32(): 24, pa.float64(): 53}
_TEXT_BYTES: Final = {mysql.TINYTEXT: 255, mysql.TEXT: 65_535, mysql.MEDIUMTEXT: (1 << 24) - 1}
_BLOB_BYTES: Final = {mysql.TINYBLOB: 255, mysql.BLOB: 65_535, mysql.MEDIUMBLOB: (1 << 24) - 1}
_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True)
class Conversion:
    """How the values of one column are made."""

    wire: pa.DataType
    """Arrow type whose Python values the driver takes."""
    checks: tuple[Check, ...] = ()
    """Called with the array of type `wire`; each raises ValueError for values that do not fit."""
    value: Callable[[Any], Any] | None = None
    """From pyarrow's Python value to the driver's; None if they are the same."""

    def prepare(self, array: pa.Array) -> pa.Array:
        """The array as `wire`, checked.

        Raises:
            ValueError: A value does not fit (pyarrow.ArrowInvalid is one).
        """
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        converted = array if array.type == self.wire else pc.cast(array, self.wire, safe=True)
        for check in self.checks:
            check(converted)
        return converted

    def python(self, array: pa.Array) -> list[Any]:
        """The values of a prepared array, for the driver."""
        values: list[Any] = array.to_pylist()
        if self.value is None:
            return values
        make = self.value
        return [None if value is None else make(value) for value in values]


def conversion(arrow: pa.DataType, column: sa.types.TypeEngine[Any], backend: str) -> Conversion:
    """The conversion that keeps every value.

    Raises:
        Unfit: There is none.
    """
    if pa.types.is_dictionary(arrow):
        return conversion(arrow.value_type, column, backend)
    if pa.types.is_null(arrow):
        return Conversion(pa.null())
    if isinstance(arrow, pa.BaseExtensionType):
        if arrow.extension_name == "arrow.uuid":
            raise Unfit("cast it to string")
        return conversion(arrow.storage_type, column, backend)
    for rule in (_by_text, _by_number, _by_time, _by_bytes):
        found = rule(arrow, column, backend)
        if found is not None:
            return found
    raise Unfit(_advice(arrow))


def _advice(arrow: pa.DataType) -> str:
    if pa.types.is_nested(arrow):
        return "turn it into text, for example with to_json"
    return "no conversion keeps every value; cast it, or change the column"


def _by_text(arrow: pa.DataType, column: sa.types.TypeEngine[Any], backend: str) -> Conversion | None:
    if not (pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow)):
        return None
    if isinstance(column, sa.Enum):
        return Conversion(pa.large_string(), (one_of(tuple(column.enums)),))
    if isinstance(column, sa.types.NullType) and backend == "sqlite":
        return Conversion(pa.large_string())
    if not isinstance(column, sa.String):
        return None
    bytes_allowed = next((most for kind, most in _TEXT_BYTES.items() if type(column) is kind), None)
    checks: tuple[Check, ...] = ()
    if bytes_allowed is not None:
        checks += (at_most_bytes(min(bytes_allowed, column.length or bytes_allowed)),)
    elif column.length is not None and backend != "sqlite":  # SQLite keeps texts of any length
        checks += (at_most_characters(column.length),)
    return Conversion(pa.large_string(), checks)


def _by_number(arrow: pa.DataType, column: sa.types.TypeEngine[Any], backend: str) -> Conversion | None:
    if pa.types.is_boolean(arrow):
        small = isinstance(column, mysql.TINYINT) or (backend == "sqlite" and isinstance(column, sa.Integer))
        return Conversion(pa.bool_()) if isinstance(column, sa.Boolean) or small else None
    untyped = isinstance(column, sa.types.NullType) and backend == "sqlite"
    if arrow in _BITS:
        return _integer(arrow, sa.Integer() if untyped else column, backend)
    if arrow in _FLOAT_BITS:
        return _float(arrow, sa.Double() if untyped else column, backend)
    if pa.types.is_decimal(arrow):
        return _decimal(arrow, column, backend)
    return None


def _integer(arrow: pa.DataType, column: sa.types.TypeEngine[Any], backend: str) -> Conversion | None:
    bits = _BITS[arrow]
    signed = pa.types.is_signed_integer(arrow)
    if isinstance(column, sa.Integer):
        unsigned = bool(getattr(column, "unsigned", False))
        if bits > _integer_bits(column, backend) + unsigned:
            raise Unfit("the column is too narrow: cast it, or change the column")
        return Conversion(arrow, (not_negative,) if unsigned and signed else ())
    if isinstance(column, sa.Float):
        if bits > _mantissa(column, backend):
            raise Unfit("a floating-point column does not hold every such integer: cast it to double")
        return Conversion(arrow)
    if isinstance(column, sa.Numeric) and backend != "sqlite":
        if column.precision is not None and column.precision - (column.scale or 0) < _DIGITS[bits]:
            raise Unfit(f"the column has room for fewer than {_DIGITS[bits]} digits before the point")
        return Conversion(arrow)
    return None


def _integer_bits(column: sa.types.TypeEngine[Any], backend: str) -> int:
    if backend == "sqlite":
        return 63
    for kind, bits in ((mysql.TINYINT, 7), (mysql.MEDIUMINT, 23), (sa.SmallInteger, 15), (sa.BigInteger, 63)):
        if isinstance(column, kind):
            return bits
    return 31


def _mantissa(column: sa.types.TypeEngine[Any], backend: str) -> int:
    single = isinstance(column, sa.REAL) or (isinstance(column, mysql.FLOAT) and (column.precision or 0) < 25)  # noqa: PLR2004
    return 24 if single and backend != "sqlite" and not isinstance(column, mysql.REAL) else 53


def _float(arrow: pa.DataType, column: sa.types.TypeEngine[Any], backend: str) -> Conversion | None:
    if not isinstance(column, sa.Float):
        return None
    if _FLOAT_BITS[arrow] > _mantissa(column, backend):
        raise Unfit("the column holds single precision only: cast it to float, or change the column")
    return Conversion(pa.float64(), (finite(backend == "sqlite"),))


def _decimal(arrow: pa.DataType, column: sa.types.TypeEngine[Any], backend: str) -> Conversion | None:
    if backend == "sqlite":
        raise Unfit("SQLite has no decimals: cast it to string, or to an integer number of the smallest unit")
    if not isinstance(column, sa.Numeric) or isinstance(column, sa.Float):
        return None
    if column.precision is not None:
        scale = column.scale or 0
        if arrow.scale > scale or arrow.precision - arrow.scale > column.precision - scale:
            raise Unfit(f"the column is numeric({column.precision},{scale}), which would round or overflow")
    return Conversion(arrow)


def _by_time(arrow: pa.DataType, column: sa.types.TypeEngine[Any], backend: str) -> Conversion | None:
    if pa.types.is_date(arrow):
        return Conversion(pa.date32(), (in_years,)) if isinstance(column, sa.Date) else None
    if pa.types.is_timestamp(arrow):
        return _timestamp(arrow, column, backend)
    if pa.types.is_time(arrow) and isinstance(column, sa.Time):
        return Conversion(pa.time64("us"), _fraction(column, backend))
    return None


def _timestamp(arrow: pa.DataType, column: sa.types.TypeEngine[Any], backend: str) -> Conversion | None:
    if not isinstance(column, sa.DateTime):
        return None
    checks = (in_years, *_fraction(column, backend))
    if backend == "sqlite":  # its times are text without a zone; those of the data that have one are UTC
        return Conversion(pa.timestamp("us", arrow.tz and "UTC"), checks, _naive)
    in_column = isinstance(column, sa.TIMESTAMP)
    if in_column and arrow.tz is None:
        raise Unfit("the column has a time zone and the data has none, which would have to be guessed: cast it")
    if arrow.tz is not None and not in_column:
        raise Unfit("the data has a time zone and the column has none: cast it, or make the column TIMESTAMP(6)")
    limits = (in_unix_seconds,) if in_column else ()
    return Conversion(pa.timestamp("us", arrow.tz and "UTC"), (*checks, *limits), _naive)


def _naive(value: Any) -> Any:
    return value.replace(tzinfo=None)


def _fraction(column: sa.types.TypeEngine[Any], backend: str) -> tuple[Check, ...]:
    """MariaDB cuts what a column's fraction of a second has no digits for; its default is none."""
    if backend == "sqlite":
        return ()
    digits = int(getattr(column, "fsp", None) or 0)
    return (whole_units(_MICROSECONDS // 10**digits, f"{digits} digits of a second's fraction"),)


def _by_bytes(arrow: pa.DataType, column: sa.types.TypeEngine[Any], backend: str) -> Conversion | None:
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    if not any(test(arrow) for test in binary):
        return None
    if isinstance(column, sa.types.NullType) and backend == "sqlite":
        return Conversion(pa.large_binary())
    if not isinstance(column, sa.types._Binary):  # noqa: SLF001 - the only common base of the binary types
        return None
    most = next((most for kind, most in _BLOB_BYTES.items() if type(column) is kind), None)
    length = column.length if column.length is not None else most
    if backend == "sqlite" or length is None:
        return Conversion(pa.large_binary())
    return Conversion(pa.large_binary(), (at_most_bytes(length, exactly=isinstance(column, sa.BINARY)),))
