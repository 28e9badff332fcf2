"""Checks of values that a column's type allows and its declaration does not. Each raises ValueError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Check: TypeAlias = Callable[[pa.Array], None]

_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
"""Days of 0001-01-01 and 9999-12-31, counted from 1970-01-01: what Python's dates can say."""
_SECOND: Final = 1_000_000
_DAY: Final = 86_400 * _SECOND


def at_most_characters(most: int) -> Check:
    """Texts of at most `most` characters."""

    def check(array: pa.Array) -> None:
        longest = _largest(pc.utf8_length(array))
        if longest > most:
            raise ValueError(f"a value has {longest} characters and the column has room for {most}")

    return check


def at_most_bytes(most: int, *, exactly: bool = False) -> Check:
    """Texts or binaries of at most (or exactly) `most` bytes."""

    def check(array: pa.Array) -> None:
        lengths = pc.binary_length(array)
        longest = _largest(lengths)
        if longest > most:
            raise ValueError(f"a value has {longest} bytes and the column has room for {most}")
        if exactly and (pc.min(lengths).as_py() or most) < most:
            raise ValueError(f"a value has fewer than {most} bytes, and the column would fill it up with zeros")

    return check


def one_of(allowed: tuple[str, ...]) -> Check:
    """Texts out of a list."""

    def check(array: pa.Array) -> None:
        if not allowed:
            return
        known = pc.is_in(array, value_set=pa.array(allowed, array.type))
        strange = pc.unique(array.filter(pc.and_(pc.invert(known), pc.is_valid(array))))
        if len(strange):
            raise ValueError(f"{strange[0].as_py()!r} is not one of {list(allowed)}")

    return check


def not_negative(array: pa.Array) -> None:
    """Integers from zero up."""
    if (pc.min(array).as_py() or 0) < 0:
        raise ValueError("a value is negative and the column is unsigned")


def finite(infinity: bool) -> Check:
    """Numbers; with `infinity` infinite ones too."""

    def check(array: pa.Array) -> None:
        bad = pc.is_nan(array) if infinity else pc.invert(pc.is_finite(array))
        if pc.any(bad).as_py():
            raise ValueError(
                "a value is not a number" + ("" if infinity else ", or infinite") + ", which it cannot hold"
            )

    return check


def in_years(array: pa.Array) -> None:
    """Dates and timestamps of the years 1 to 9999."""
    if pa.types.is_date(array.type):
        numbers, first, last = array.cast(pa.int32()), _FIRST_DAY, _LAST_DAY
    else:
        numbers, first, last = array.cast(pa.int64()), _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1
    ends: Any = pc.min_max(numbers).as_py()
    if ends["min"] is not None and (ends["min"] < first or ends["max"] > last):
        raise ValueError("a value lies outside of the years 1 to 9999")


def in_unix_seconds(array: pa.Array) -> None:
    """Timestamps that fit into 31 bits of seconds: MariaDB's TIMESTAMP, before version 11.5."""
    ends: Any = pc.min_max(array.cast(pa.int64())).as_py()
    if ends["min"] is not None and (ends["min"] < _SECOND or ends["max"] >= (1 << 31) * _SECOND):
        raise ValueError("a value lies outside of the years 1970 to 2038, which is all that a TIMESTAMP holds")


def whole_units(microseconds: int, what: str) -> Check:
    """Times without a remainder below a unit of so many microseconds."""

    def check(array: pa.Array) -> None:
        numbers = array.cast(pa.int64())
        cut = pc.multiply(pc.divide(numbers, microseconds), microseconds)
        if pc.any(pc.not_equal(cut, numbers)).as_py():
            raise ValueError(f"a value would be cut: the column keeps {what}")

    return check


def _largest(numbers: pa.Array) -> int:
    return int(pc.max(numbers).as_py() or 0)
