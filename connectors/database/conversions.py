"""Conversions of Arrow columns to the types of a database, of their values to those of its driver, and checks of them.

The column's real type decides, see column_types.py. Only conversions that keep every value are made: a value reads back
as it was written. Limits that the types do not show (a length, a sign, a fraction of a second, blanks at the end) are
checked value by value when the rows are written, so that a bad value fails the attempt and never a decided epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from onceward.core.kit.rows import without_dictionary

Check: TypeAlias = Callable[[pa.Array], None]
"""A function that raises ValueError for a value that the column's type allows and its declaration does not."""

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
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
"""Days of 0001-01-01 and 9999-12-31, the limits of Python's dates, counted from 1970-01-01."""
SECOND: Final = 1_000_000
_DAY: Final = 86_400 * SECOND


class UnfitError(Exception):
    """The types do not fit. The text says why, and what to do; `match` catches the error and adds the column's name."""


def is_text(arrow: pa.DataType) -> bool:
    """Return whether values of this type are strings."""
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow))


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


def as_read_back(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return prepared values as they are hashed: as the kind of number that the column holds."""
    if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        return array.cast(kind)
    return pc.add(array, 0.0) if pa.types.is_floating(array.type) else array  # -0.0 is 0.0


def keeps_fraction(digits: int) -> Check:
    """Return a check that no value has more digits in its fraction of a second than the column keeps."""
    unit = SECOND // 10**digits

    def check(array: pa.Array) -> None:
        numbers = array.cast(pa.int64())
        if pc.any(pc.not_equal(pc.multiply(pc.divide(numbers, unit), unit), numbers)).as_py():
            raise ValueError(f"a value would be cut: the column keeps {digits} digits of a second's fraction")

    return check


def is_utf8(array: pa.Array) -> None:
    """Check that texts are UTF-8."""
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


def no_blank_at_the_end(why: str) -> Check:
    """Return a check that no text ends with a blank, because blanks at the end are lost, or ignored in keys."""

    def check(array: pa.Array) -> None:
        if pc.any(pc.ends_with(array, pattern=" ")).as_py():
            raise ValueError(f"a value ends with a blank: {why}")

    return check


def in_years(array: pa.Array) -> None:
    """Check that dates or times are ones that Python has."""
    day = pa.types.is_date(array.type)
    ends = ends_of(array.cast(pa.int32()) if day else array.cast(pa.int64()))
    unit = 1 if day else _DAY
    if ends is not None and (ends[0] < _FIRST_DAY * unit or ends[1] >= (_LAST_DAY + 1) * unit):
        raise ValueError("a value lies outside of the years 1 to 9999")


def ends_of(numbers: pa.Array) -> tuple[int, int] | None:
    """Return the smallest and the largest number; None if there is none."""
    ends: Any = pc.min_max(numbers).as_py()
    return None if ends["min"] is None else (ends["min"], ends["max"])
