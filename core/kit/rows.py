"""Arrow rows as JSON, for targets that take text.

Dates and times are in ISO 8601, decimals are text with every digit and no exponent, bytes are in Base64 (as Spark's
to_json has them), maps are arrays of [key, value]. NaN and the infinities do not exist in JSON (RFC 8259, section 6)
and are refused. The same rows always give the same bytes: servers compare them with those that they have taken under
the same key.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..errors import SchemaError, SinkError, refusing_rows, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

_SIMPLE: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_date,
    pa.types.is_time32,
)
"""Tests of the types that are written; not of those that are refused, because Arrow adds types."""


UNWRITABLE: Final = (ValueError, TypeError, OverflowError)
"""Errors of values that cannot be written: dates after the year 9999, text that is not UTF-8, NaN in JSON."""


def check_columns(sink: str, schema: pa.Schema) -> None:
    """Check that rows of this schema can be written as text; a SchemaError names a column that cannot."""
    if not schema.names:
        raise SchemaError(f"sink {sink}: there are no columns")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise SchemaError(f"sink {sink}: columns {twice} are there more than once")
    for field in schema:
        if _holds_variant(field.type):
            raise SchemaError(f"sink {sink}: column {field.name!r} is a variant: turn it into text with to_json")
        if not _fits(with_leaves(field.type, _time_of_day)):
            fine = " (nanoseconds: cast it to microseconds)" if getattr(field.type, "unit", "") == "ns" else ""
            raise SchemaError(f"sink {sink}: column {field.name!r} of type {field.type} is not supported{fine}")


def _fits(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _fits(kind.value_type)
    if pa.types.is_nested(kind):
        return not pa.types.is_union(kind) and all(_fits(kind.field(n).type) for n in range(kind.num_fields))
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return bool(kind.unit != "ns")
    return any(simple(kind) for simple in _SIMPLE)


def _holds_variant(kind: pa.DataType) -> bool:
    """Return whether a type is or contains a variant of Spark: a struct that pyspark marks with metadata."""
    if not pa.types.is_nested(kind):
        return False
    parts = [kind.field(number) for number in range(kind.num_fields)]
    return any((part.metadata or {}).get(b"variant") == b"true" or _holds_variant(part.type) for part in parts)


def in_microseconds(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert times of day to microseconds: Spark sends them in nanoseconds, though it has no such fractions.

    Raises:
        SchemaError: A value has a fraction of a microsecond; the message names the column.
    """
    return _with_leaves(rows, _time_of_day, "a time of day with a fraction of a microsecond: round it in the query")


def in_python(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert times to microseconds, as Python's are: pyarrow would cut finer ones, or return those of pandas.

    Raises:
        SchemaError: A value has a fraction of a microsecond; the message names the column.
    """
    return _with_leaves(
        rows,
        _in_python,
        "a time with a fraction of a microsecond, which Python's times have not: round it before, for example in "
        "map_batches",
    )


def _in_python(kind: pa.DataType) -> pa.DataType:
    kinds = (pa.timestamp("us", getattr(kind, "tz", None)), pa.duration("us"), pa.time64("us"))
    return next((fine for fine in kinds if fine.id == kind.id), kind)


def _time_of_day(kind: pa.DataType) -> pa.DataType:
    return pa.time64("us") if kind == pa.time64("ns") else kind


def _with_leaves(rows: pa.RecordBatch, change: Callable[[pa.DataType], pa.DataType], refused: str) -> pa.RecordBatch:
    fields = [field.with_type(with_leaves(field.type, change)) for field in rows.schema]
    if fields == list(rows.schema):
        return rows
    schema = pa.schema(fields, rows.schema.metadata)
    return cast(rows, schema, lambda field, _: SchemaError(f"column {field.name!r} has {refused}"))


def cast(
    rows: pa.RecordBatch, schema: pa.Schema, refusal: Callable[[pa.Field, pa.ArrowException], Exception]
) -> pa.RecordBatch:
    """Cast rows to the types of a schema with the same columns.

    Args:
        rows: The rows to cast.
        schema: Schema with the types to cast to.
        refusal: Function that makes the error for a column of `rows` whose values the schema's type cannot hold.
    """
    columns = []
    for field, own, column in zip(schema, rows.schema, rows.columns, strict=True):
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise refusal(own, error) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def with_leaves(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with `change` applied to the types inside its structs, lists and maps at any depth, or to itself.

    Fields of structs may be null then: where a struct is null, its fields are, too, and Spark sends such a field as one
    that never is. Arrow can neither cast such columns nor write them as Parquet.
    """

    def changed(field: pa.Field) -> pa.Field:
        return field.with_type(with_leaves(field.type, change))

    if pa.types.is_struct(kind):
        return pa.struct([changed(field).with_nullable(True) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(changed(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(changed(kind.key_field), changed(kind.item_field), kind.keys_sorted)
    return change(kind)


def without_dictionary(array: pa.Array) -> pa.Array:
    """Return an array without its dictionary, if it has one: texts and bytes behind views become large ones."""
    if not pa.types.is_dictionary(array.type):
        return array
    kind = array.type.value_type
    if is_view(kind):  # of which Arrow can take none (pyarrow 26)
        large = pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(large))
    return array.dictionary_decode()


def is_binary(kind: pa.DataType) -> bool:
    """Return whether values of this type are bytes."""
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(fits(kind) for fits in kinds)


def is_view(kind: pa.DataType) -> bool:
    """Return whether values are texts or bytes behind views, of which Arrow can do less than of others."""
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def without_null_values(array: pa.Array) -> pa.Array:
    """Return an array whose dictionary, if it has one, holds no null: the indices of nulls are null instead."""
    if not pa.types.is_dictionary(array.type) or not array.dictionary.null_count:
        return array
    valid = array.dictionary.is_valid().to_numpy(zero_copy_only=False)
    places = pa.array(np.cumsum(valid) - 1, array.indices.type, mask=~valid)
    values = [array.dictionary.slice(number, 1) for number in np.flatnonzero(valid)]
    kept = pa.concat_arrays(values) if values else array.dictionary.slice(0, 0)
    return pa.DictionaryArray.from_arrays(places.take(array.indices), kept, ordered=array.type.ordered)


def has_nulls(array: pa.Array) -> bool:
    """Return whether a value is null; of a dictionary, which may hold a null among its values, `null_count` is 0."""
    return bool(without_dictionary(array).null_count)


def json_rows(sink: str, rows: pa.RecordBatch) -> list[str]:
    """Return each row as a JSON object; raise SinkError if a value cannot be written as JSON, for example NaN."""
    try:
        return [to_json(row) for row in in_microseconds(rows).to_pylist()]
    except UNWRITABLE as error:
        why = f"a row cannot be written as JSON: {with_column(error, rows, to_json)}"
        raise refusing_rows(SinkError(why, sink=sink)) from error


def with_column(error: Exception, rows: pa.RecordBatch, write: Callable[[Any], object]) -> str:
    """Describe why `write` failed (one of UNWRITABLE), with the first column that has a value which it refuses."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            for value in column.to_pylist():
                if value is not None:
                    write(value)
        except UNWRITABLE as found:
            return f"column {name!r}: {text_of(found)}"
    return text_of(error)


def to_json(value: Any) -> str:
    """Return a value as JSON; raise ValueError if it holds NaN or an infinity."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=text_of_value)


def text_of_value(value: Any) -> str:
    """Return the text of a value that JSON has no form for."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)
