"""Conversions of Arrow columns to PostgreSQL types, and to the binary form of COPY.

The target's real type decides. Only conversions that keep every value are made; a conversion that would round, cut or
reinterpret values is refused before anything is written, with a hint for the query. pgpq (Arrow to PostgreSQL's binary
COPY) does the encoding. Where it has no encoder (uuid from text, arrays of any element type), its bytea encoder gets a
column of finished binary images, which it sends as they are; their formats are those of the server's receive functions
(uuid_recv, array_recv; documented by the source only).
"""

from __future__ import annotations

import binascii
import struct
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pgpq
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pgpq import encoders
from pgpq import schema as pgpq_schema
from sqlalchemy.dialects import postgresql

from onceward.core.kit.rows import is_binary, without_dictionary

from ..column_types import ColumnTypes
from ..conversions import (
    BITS,
    DIGITS,
    FLOAT_BITS,
    UnfitError,
    at_most_characters,
    is_text,
    keeps_fraction,
    no_blank_at_the_end,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..column_types import SqlType, Takes
    from .catalog import PgType

_SINGLE: Final = 32


def _extends(name: str) -> Takes:
    return lambda arrow: isinstance(arrow, pa.BaseExtensionType) and arrow.extension_name == name


def _is_sent_list(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow))


def _array_type(arrow: pa.DataType, _: bool) -> SqlType | None:
    element = TYPES.column_type(arrow.value_type)
    return None if element is None or isinstance(element, sa.ARRAY) else postgresql.ARRAY(element)


TYPES: Final = ColumnTypes(
    created=(
        (_extends("arrow.uuid"), sa.Uuid()),
        (_extends("arrow.json"), postgresql.JSONB()),
        (_is_sent_list, _array_type),
        (lambda arrow: pa.types.is_floating(arrow) and arrow.bit_width <= _SINGLE, sa.REAL()),
        (pa.types.is_duration, postgresql.INTERVAL()),
    )
)
_TEXT_TARGETS: Final = frozenset({"text", "varchar", "bpchar", "citext", "name", "xml", "json"})
_INTEGERS: Final = {"int2": (15, pa.int16(), 21), "int4": (31, pa.int32(), 23), "int8": (63, pa.int64(), 20)}
_FLOATS: Final = {"float4": (24, pa.float32(), 700), "float8": (53, pa.float64(), 701)}
"""For each type: the bits that it keeps of a number, the Arrow type for pgpq, its oid."""
_PLAIN: Final[dict[str, tuple[Callable[[pa.DataType], bool], pa.DataType, int, str]]] = {
    "bool": (pa.types.is_boolean, pa.bool_(), 16, "boolean"),
    "date": (pa.types.is_date, pa.date32(), 1082, "date"),
}
"""For each type: whether an Arrow type fits, the Arrow type for pgpq, its oid, and the type to cast to."""
_NUMERIC_DIGITS: Final = 38
_WHOLE_INTERVALS: Final = (-1, 0x7FFF0006)
"""Modifiers of `interval` and `interval(6)`: all fields, and all digits of the seconds."""
_HEADER: Final = 4
"""Number that PostgreSQL adds to the length or precision in a modifier (VARHDRSZ)."""
_TOO_MANY_BITS: Final = 99
_EPOCH_DAYS: Final = 10_957
"""Days from 1970 to PostgreSQL's zero, the year 2000."""
_RANGES: Final = {
    "date": (-2_451_545 + _EPOCH_DAYS, 2_145_031_948 + _EPOCH_DAYS),
    "timestamp": (-210_866_803_200_000_000, 2**63 - 1),
}
"""First and last day and microsecond since 1970 that PostgreSQL holds (timestamp.h). Beyond them are its infinities,
which pgpq would send for a number that overflows."""
_UUID_BYTES: Final = 16
_TRAILER: Final = b"\xff\xff"
_INT: Final = struct.Struct(">i")
_ARRAY_EMPTY: Final = struct.Struct(">iiI")
_ARRAY_ONE_DIMENSION: Final = struct.Struct(">iiIii")


@dataclass(frozen=True)
class CopyConversion:
    """The conversion of a column from one Arrow type to one PostgreSQL type."""

    wire: pa.DataType
    """The Arrow type that pgpq gets."""
    convert: Callable[[pa.Array], pa.Array]
    """Converts the arriving array to `wire`; raises pyarrow.ArrowInvalid or ValueError for a bad value."""
    builder: Callable[[pa.Field], Any] = pgpq.ArrowToPostgresBinaryEncoder.infer_encoder
    """Makes pgpq's encoder for a field of type `wire`."""
    oid: int = 0
    """The element type with which pgpq marks arrays of this; 0 if it must not be used for arrays."""


def copy_conversion(arrow: pa.DataType, target: PgType) -> CopyConversion:
    """Return the conversion that keeps every value.

    Raises:
        UnfitError: There is none.
    """
    if pa.types.is_dictionary(arrow):
        return _after(without_dictionary, copy_conversion(arrow.value_type, target))
    if pa.types.is_null(arrow):
        return CopyConversion(pa.binary(), lambda array: pa.nulls(len(array), pa.binary()))
    if target.element is not None:
        return _list(arrow, target.element)
    if isinstance(arrow, pa.BaseExtensionType):
        if target.name == "uuid" and arrow.extension_name == "arrow.uuid":
            return CopyConversion(pa.binary(_UUID_BYTES), lambda array: array.storage)
        return _after(lambda array: array.storage, copy_conversion(arrow.storage_type, target))
    return _scalar(arrow, target)


def _scalar(arrow: pa.DataType, target: PgType) -> CopyConversion:
    if target.name in _TEXT_TARGETS or target.enum:
        return _text(arrow, target)
    if target.name in _INTEGERS:
        bits, wire, oid = _INTEGERS[target.name]
        if BITS.get(arrow, _TOO_MANY_BITS) <= bits:
            return _to(wire, oid)
        raise UnfitError("values may not fit; cast it, or make the column wider")
    if target.name in _FLOATS:
        bits, wire, oid = _FLOATS[target.name]
        if (BITS | FLOAT_BITS).get(arrow, _TOO_MANY_BITS) <= bits:
            return _to(wire, oid)
        raise UnfitError("values may be rounded; cast it, or make the column wider")
    if target.name in _PLAIN:
        fits, wire, oid, name = _PLAIN[target.name]
        if fits(arrow):
            return _in_range(_to(wire, oid), "date") if target.name == "date" else _to(wire, oid)
        raise UnfitError(f"cast it to {name}")
    rule = _RULES.get(target.name)
    if rule is None:
        raise UnfitError(
            "no conversion to this type is known; write to a text column, from which a generated column or a trigger "
            "can cast it"
        )
    return rule(arrow, target)


def _after(first: Callable[[pa.Array], pa.Array], then: CopyConversion) -> CopyConversion:
    return CopyConversion(then.wire, lambda array: then.convert(first(array)), then.builder, then.oid)


def _to(wire: pa.DataType, oid: int, builder: Callable[[pa.Field], Any] = CopyConversion.builder) -> CopyConversion:
    return CopyConversion(wire, lambda array: array if array.type == wire else array.cast(wire), builder, oid)


def _text(arrow: pa.DataType, target: PgType) -> CopyConversion:
    if is_text(arrow):
        return _short_text(arrow, target) if _has_length(target) else _to(arrow, 25)
    nested = pa.types.is_nested(arrow)
    raise UnfitError("turn it into text, for example with to_json" if nested else "cast it to string")


def _has_length(target: PgType) -> bool:
    return target.name in ("varchar", "bpchar") and target.modifier >= 0


def _short_text(arrow: pa.DataType, target: PgType) -> CopyConversion:
    """Return the conversion to varchar(n) or char(n), which refuses texts that PostgreSQL would change.

    It cuts spaces beyond the n-th character silently, and it fills a shorter char(n) up with spaces, so that texts that
    differ in their number would be equal.
    """
    wire = pa.large_string() if pa.types.is_string_view(arrow) else arrow
    most = target.modifier - _HEADER
    check = at_most_characters(most)

    def convert(array: pa.Array) -> pa.Array:
        texts = array.cast(wire)
        check(texts)
        if target.name == "bpchar":
            _not_filled_up(texts.filter(pc.less(pc.utf8_length(texts), most)))
        return texts

    return CopyConversion(wire, convert, oid=25)


_not_filled_up: Final = no_blank_at_the_end("char(n) does not tell it from those that it adds; use varchar")


def _jsonb(arrow: pa.DataType, _: PgType) -> CopyConversion:
    if not is_text(arrow):
        raise UnfitError("give JSON as text, for example with to_json")
    wire = pa.large_string() if pa.types.is_large_string(arrow) else pa.string()
    builder = encoders.LargeStringEncoderBuilder if wire == pa.large_string() else encoders.StringEncoderBuilder
    return _to(wire, 3802, lambda field: builder.new_with_output(field, pgpq_schema.Jsonb()))


def _numeric(arrow: pa.DataType, target: PgType) -> CopyConversion:
    if arrow in BITS:
        digits, scale = DIGITS[arrow], 0
    elif pa.types.is_decimal(arrow):
        scale = max(arrow.scale, 0)
        digits = arrow.precision + scale - arrow.scale
    else:
        raise UnfitError("values may be rounded; cast it to a decimal")
    if digits > _NUMERIC_DIGITS:
        raise UnfitError(f"more than {_NUMERIC_DIGITS} digits cannot be sent; cast it")
    # The scale as packed in atttypmod (numeric.c: 11 bits, signed)
    if target.modifier >= 0 and scale > (((target.modifier - _HEADER) & 0x7FF) ^ 1024) - 1024:
        raise UnfitError("PostgreSQL would round; cast it to the column's scale, or change the column")
    return _to(pa.decimal128(digits, scale), 1700)


def _interval(arrow: pa.DataType, target: PgType) -> CopyConversion:
    if not pa.types.is_duration(arrow):
        raise UnfitError("cast it to a duration")
    if target.modifier not in _WHOLE_INTERVALS:
        raise UnfitError("such a column cuts durations; make it interval without fields and precision")
    return _to(pa.duration("us"), 1186)


def _bytea(arrow: pa.DataType, _: PgType) -> CopyConversion:
    if not is_binary(arrow):
        raise UnfitError("cast it to binary")
    return _to(pa.large_binary() if pa.types.is_binary_view(arrow) else arrow, 17)


def _timestamp(arrow: pa.DataType, target: PgType) -> CopyConversion:
    zoned = target.name == "timestamptz"
    if not pa.types.is_timestamp(arrow):
        raise UnfitError(f"cast it to a timestamp {'with' if zoned else 'without'} time zone")
    if zoned and arrow.tz is None:
        raise UnfitError("in which zone? Make the column timestamp, or cast it to a timestamp with time zone")
    if arrow.tz is not None and not zoned:
        raise UnfitError(
            "which zone's clock is meant? Make the column timestamptz, or cast it (in Spark: to timestamp_ntz)"
        )
    # pgpq marks arrays of both as timestamp without time zone (1114), which timestamptz[] refuses
    return _whole(_in_range(_to(pa.timestamp("us", arrow.tz), 1114), "timestamp"), target)


def _time(arrow: pa.DataType, target: PgType) -> CopyConversion:
    if not pa.types.is_time(arrow):
        raise UnfitError("cast it to a time of day")
    return _whole(_to(pa.time64("us"), 1083), target)


def _whole(then: CopyConversion, target: PgType) -> CopyConversion:
    """Return a conversion that refuses a fraction of a second with more digits than the column keeps."""
    if target.modifier < 0:
        return then
    check = keeps_fraction(target.modifier)

    def convert(array: pa.Array) -> pa.Array:
        converted = then.convert(array)
        check(converted)
        return converted

    return CopyConversion(then.wire, convert, then.builder, then.oid)


def _in_range(then: CopyConversion, name: str) -> CopyConversion:
    """Return a conversion that refuses a date or time that PostgreSQL does not have, which would become -infinity."""
    first, last = _RANGES[name]

    def convert(array: pa.Array) -> pa.Array:
        converted = then.convert(array)
        numbers = converted.cast(pa.int32() if name == "date" else pa.int64())
        ends: Any = pc.min_max(numbers).as_py()
        if ends["min"] is not None and (ends["min"] < first or ends["max"] > last):
            raise ValueError(f"a {name} lies before the year 4713 BC, or after the last one that PostgreSQL has")
        return converted

    return CopyConversion(then.wire, convert, then.builder, then.oid)


def _uuid(arrow: pa.DataType, _: PgType) -> CopyConversion:
    if is_text(arrow):
        return CopyConversion(pa.binary(_UUID_BYTES), encode_uuids)
    if pa.types.is_fixed_size_binary(arrow) and arrow.byte_width == _UUID_BYTES:
        return _to(arrow, 0)
    raise UnfitError("give it as text or as 16 bytes")


_RULES: Final[dict[str, Callable[[pa.DataType, PgType], CopyConversion]]] = {
    "jsonb": _jsonb,
    "numeric": _numeric,
    "bytea": _bytea,
    "timestamp": _timestamp,
    "timestamptz": _timestamp,
    "time": _time,
    "uuid": _uuid,
    "interval": _interval,
}


def _is_list(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(arrow)
        or pa.types.is_large_list(arrow)
        or pa.types.is_fixed_size_list(arrow)
        or pa.types.is_list_view(arrow)
        or pa.types.is_large_list_view(arrow)
    )


def _list(arrow: pa.DataType, element: PgType) -> CopyConversion:
    if not _is_list(arrow):
        raise UnfitError("give it as a list")
    if _is_list(arrow.value_type):
        raise UnfitError("lists of lists cannot be sent; flatten it, or store it as JSON")
    inner = copy_conversion(arrow.value_type, element)
    plain = pa.types.is_list(arrow) or pa.types.is_large_list(arrow)
    if plain and inner.oid == element.oid and inner.wire == arrow.value_type and element.name != "jsonb":
        return CopyConversion(arrow, partial(_checked_elements, inner))
    return CopyConversion(pa.large_binary(), partial(encode_arrays, inner, element.oid))


def _checked_elements(inner: CopyConversion, array: pa.Array) -> pa.Array:
    inner.convert(array.flatten())  # which raises
    return array


def encode_uuids(array: pa.Array) -> pa.Array:
    """Encode texts such as `12345678-1234-5678-1234-567812345678` as 16 bytes each; hyphens and braces are optional.

    Raises:
        ValueError: One is not a UUID; the message shows it.
    """
    texts = array.cast(pa.large_string())
    digits = pc.replace_substring_regex(texts, pattern="[-{}]", replacement="")
    bad = pc.filter(texts, pc.invert(pc.match_substring_regex(digits, "^[0-9a-fA-F]{32}$")))
    if len(bad):
        raise ValueError(f"{bad[0].as_py()!r} is not a UUID")
    filled = pc.fill_null(digits, "0" * 2 * _UUID_BYTES)
    data = binascii.unhexlify("".join(filled.to_pylist()))
    images = pa.Array.from_buffers(pa.binary(_UUID_BYTES), len(array), [None, pa.py_buffer(data)])
    return pc.if_else(array.is_valid(), images, pa.scalar(None, pa.binary(_UUID_BYTES)))


def encode_arrays(inner: CopyConversion, oid: int, array: pa.Array) -> pa.Array:
    """Encode lists as one-dimensional arrays, marked with the element type's oid; pgpq encodes the elements."""
    elements = _encode_elements(inner.convert(array.flatten()), inner.builder)
    images: list[bytes | None] = []
    position = 0
    for length in pc.list_value_length(array).to_pylist():
        if length is None:
            images.append(None)
            continue
        images.append(_array(elements[position : position + length], oid))
        position += length
    return pa.array(images, pa.large_binary())


def _array(elements: list[bytes], oid: int) -> bytes:
    if not elements:
        return _ARRAY_EMPTY.pack(0, 0, oid)
    has_null = any(len(element) == _INT.size and element == b"\xff\xff\xff\xff" for element in elements)
    return _ARRAY_ONE_DIMENSION.pack(1, int(has_null), oid, len(elements), 1) + b"".join(elements)


def _encode_elements(values: pa.Array, builder: Callable[[pa.Field], Any]) -> list[bytes]:
    """Encode each value as its length (-1 for null) and its bytes, which are the same in rows of COPY and in arrays."""
    schema = pa.schema([pa.field("element", values.type)])
    encoder = pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, {"element": builder(schema.field(0))})
    encoder.write_header()
    batch = pa.RecordBatch.from_arrays([values], schema=schema)
    rows = encoder.write_batch(batch) + encoder.finish()
    images: list[bytes] = []
    start = 0
    while start < len(rows) - len(_TRAILER):
        first = start + 2  # after the row's count of columns
        (length,) = _INT.unpack_from(rows, first)
        start = first + _INT.size + max(length, 0)
        images.append(rows[first:start])
    return images
