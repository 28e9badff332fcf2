"""Records as record batches, so that what is read from a batch never depends on which records travel in it.

Arrow gives a column one type, and would make 3 beside 3.5 into 3.0, "a" beside b"a" into bytes, and a field that one
record lacks into a null. So only records of one shape share columns: the same fields, each with the same kind of value
in all of them. None, and an empty list, fit with everything. Where the shape changes seldom, the next batch begins.
Where it changes often, records of several shapes share a batch of another form (mixed_records.py).

A record becomes part of a batch later than a function gives it, so it is copied where it is given: a function may give
the same dict again, and change it meanwhile.
"""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Coroutine, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from .mixed_records import MOST_SHAPES, cut_by_shape, mix_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Record = dict[str, Any]
Shape: TypeAlias = Any
"""The part of a value that decides how it is read back. The shape of None fits with every other one."""

_PLAIN: Final = frozenset({int, float, str, bool, bytes, date, timedelta})
"""Types whose values all have one shape."""
_PLAIN_OR_NONE: Final = _PLAIN | {type(None)}
_IMMUTABLE: Final = _PLAIN_OR_NONE | {datetime, time, Decimal}
_LONG_RUN: Final = 100
"""Number of records of one shape in a row, on average, from which on each run becomes a batch."""
_LISTS: Final = (list, tuple, set, frozenset)
_NONE_FITS: Final = object()
"""No shape: of values that none fits."""


def copied(value: Any) -> Any:
    """Return a copy of a value, or of a record, and of all that is in it and can change.

    What cannot be copied is returned itself: whoever converts it accepts or refuses it.

    Raises:
        TypeError: It is a coroutine, or has one in it.
    """
    kind = value.__class__
    if kind is dict:
        same = value.copy()
        for name, one in value.items():
            if one.__class__ not in _IMMUTABLE:
                same[name] = copied(one)
        return same
    if kind is list:
        return [one if one.__class__ in _IMMUTABLE else copied(one) for one in value]
    return value if kind in _IMMUTABLE else _copied(value)


def _copied(value: Any) -> Any:
    if value.__class__ is tuple:
        return tuple(map(copied, value))
    if isinstance(value, Mapping):  # of another kind: its own fields, whatever it answers for those that it lacks
        return {name: copied(one) for name, one in value.items()}
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, Coroutine):
        value.close()  # or Python complains, too
        raise TypeError("a coroutine is no record, and no value of one: nobody waits for it")
    try:
        return copy.deepcopy(value)
    except TypeError:
        return value


def batches(records: Sequence[Record], schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """Make record batches of all these records, in their order.

    Raises:
        pa.ArrowException, TypeError, ValueError, OverflowError: Some of them cannot be converted.
    """
    if schema is not None:
        if records:
            yield _of_schema(records, schema)
        return
    columns = _columns_of_one_shape(records)
    if columns:
        yield pa.RecordBatch.from_pydict(columns)
    else:
        groups = _Groups()
        for record in records:
            if not groups.add(record):
                yield from groups.batches()
                groups = _Groups()
                groups.add(record)
        yield from groups.batches()


class _Groups:
    """Records by their shape."""

    def __init__(self) -> None:
        self._records: list[list[Record]] = []
        self._shapes: list[Shape] = []
        self._numbers: list[int] = []
        """Of each record, its group."""
        self._known: dict[Any, int] = {}

    def add(self, record: Record) -> bool:
        """Add a record; return False if it has one shape too many for a batch."""
        kinds = tuple(map(type, record.values()))
        # Only of plain values does the type say the whole shape, so only such records are remembered.
        key = (tuple(record), kinds) if _PLAIN_OR_NONE.issuperset(kinds) else None
        number = self._known.get(key) if key is not None else None
        if number is None:
            number = self._number_of(_shape_of_fields(record))
            if number == MOST_SHAPES:
                return False
            if key is not None:
                self._known[key] = number
        self._records[number].append(record)
        self._numbers.append(number)
        return True

    def _number_of(self, shape: Shape) -> int:
        for number, of_group in enumerate(self._shapes):
            merged = _merged(of_group, shape)
            if merged is not _NONE_FITS:
                self._shapes[number] = merged
                return number
        if len(self._shapes) < MOST_SHAPES:
            self._shapes.append(shape)
            self._records.append([])
            return len(self._shapes) - 1
        return MOST_SHAPES

    def batches(self) -> Iterator[pa.RecordBatch]:
        shapes = [_of_one_shape(records) for records in self._records]
        if len(shapes) < 2:  # noqa: PLR2004 - nothing is mixed
            yield from shapes
            return
        batch = mix_records(shapes, self._numbers)
        changes = sum(left != right for left, right in pairwise(self._numbers))
        if changes * _LONG_RUN < len(self._numbers):
            yield from cut_by_shape(batch)
        else:
            yield batch


def _columns_of_one_shape(records: Sequence[Record]) -> dict[str, list[Any]] | None:
    """Return the columns of records that have one shape; None of others, and of records without fields."""
    columns = _columns(records)
    return columns if columns and all(map(_have_one_shape, columns.values())) else None


def _columns(records: Sequence[Record]) -> dict[str, list[Any]] | None:
    """Return the columns of records that have the same fields; None of others."""
    if set(map(type, records)) != {dict} or len(set(map(len, records))) != 1:
        return None
    try:
        return {name: [record[name] for record in records] for name in records[0]}
    except KeyError:  # as many fields, but not the same
        return None


def _have_one_shape(values: Sequence[Any]) -> bool:
    """Return whether all these values have one shape. To be quick, it returns False for rare types without a look."""
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) != 1:
        return not kinds
    (kind,) = kinds
    if kind in _PLAIN:
        return True
    present = [value for value in values if value is not None]
    if kind is dict:
        columns = _columns(present)
        return columns is not None and all(map(_have_one_shape, columns.values()))
    if kind is list:
        return _have_one_shape([*chain.from_iterable(present)])
    if kind is datetime:
        # A column has one time zone.
        return len({str(value.tzinfo) for value in present}) == 1
    return False


def _shape_of_fields(record: Record) -> Shape:
    return {name: _shape(value, name) for name, value in record.items()}


def _shape(value: Any, field: str) -> Shape:
    """Return the shape of a value that lies in this field, whose name is for errors."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.tolist()
    if isinstance(value, dict):
        return {name: _shape(inner, f"{field}.{name}") for name, inner in value.items()}
    if isinstance(value, _LISTS):
        return (type(value), _shape_of_elements(value, field))
    if isinstance(value, datetime):
        return (type(value), str(value.tzinfo))
    if isinstance(value, Decimal):
        # A column has one scale, and would give 1.0 back as 1.00.
        return (type(value), value.as_tuple().exponent)
    if isinstance(value, np.ndarray):
        return (type(value), str(value.dtype))
    return None if value is None else type(value)


def _shape_of_elements(elements: Iterable[Any], field: str) -> Shape:
    shape: Shape = None
    for element in elements:
        shape = _merged(shape, _shape(element, field))
        if shape is _NONE_FITS:
            raise TypeError(
                f"field {field!r} has a list in which {reprlib.repr(element)} has another type, or other fields, than "
                "the elements before it. Without a schema one of them would be altered: give schema="
            )
    return shape


def _merged(left: Shape, right: Shape) -> Shape:
    """Return the shape that both have; `_NONE_FITS` if there is none."""
    if left == right or right is None:
        return left
    if left is None:
        return right
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        merged = {name: _merged(shape, right[name]) for name, shape in left.items()}
        return _NONE_FITS if any(shape is _NONE_FITS for shape in merged.values()) else merged
    if isinstance(left, tuple) and isinstance(right, tuple) and left[0] == right[0] and issubclass(left[0], _LISTS):
        inner = _merged(left[1], right[1])
        return _NONE_FITS if inner is _NONE_FITS else (left[0], inner)
    return _NONE_FITS


def _of_one_shape(records: Sequence[Record]) -> pa.RecordBatch:
    if not records[0]:  # a batch without columns still has rows
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(records), pa.struct([])))
    return pa.RecordBatch.from_pydict({name: [record[name] for record in records] for name in records[0]})


def _of_schema(records: Sequence[Record], schema: pa.Schema) -> pa.RecordBatch:
    known = set(schema.names)
    unknown = {name for record in records if not record.keys() <= known for name in record} - known
    if unknown:
        raise TypeError(f"fields {sorted(unknown)} are not in the schema {schema.names}")
    return pa.RecordBatch.from_pylist(records, schema=schema)
