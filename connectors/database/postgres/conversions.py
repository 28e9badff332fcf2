"""Which Arrow types fit into which PostgreSQL types, and how a column gets its binary form.

The target's real type decides. Only conversions that keep every value are made; whatever would round, cut or
re-interpret is refused before anything is written, with a hint how to say it in the query. pgpq (Arrow to
PostgreSQL's binary COPY) does the encoding; where it has no encoder, a column of finished binary images is given
to its bytea encoder, which sends them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pgpq
import pyarrow as pa
from pgpq import encoders
from pgpq import schema as pgpq_schema

from ..plan import Unfit
from .binary_encoding import encode_arrays, encode_nulls, encode_uuid_storage, encode_uuids

if TYPE_CHECKING:
    from collections.abc import Callable

    from .catalog import PgType

Convert = "Callable[[pa.Array], pa.Array]"

_TEXT_TARGETS: Final = frozenset({"text", "varchar", "bpchar", "citext", "name", "xml", "json"})
_MAGNITUDE_BITS: Final[dict[pa.DataType, int]] = {
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
_INTEGER_TARGETS: Final = {"int2": (15, pa.int16(), 21), "int4": (31, pa.int32(), 23), "int8": (63, pa.int64(), 20)}
_FLOAT_TARGETS: Final = {
    "float4": (24, pa.float32(), 700, (pa.float16(), pa.float32())),
    "float8": (53, pa.float64(), 701, (pa.float16(), pa.float32(), pa.float64())),
}
_NUMERIC_DIGITS: Final = 38


@dataclass(frozen=True)
class Conversion:
    """How a column of one Arrow type reaches one PostgreSQL type."""

    wire: pa.DataType
    """What pgpq is given."""
    convert: Callable[[pa.Array], pa.Array]
    """From the arriving array to one of type `wire`; raises pyarrow.ArrowInvalid or ValueError for a bad value."""
    builder: Callable[[pa.Field], Any] = pgpq.ArrowToPostgresBinaryEncoder.infer_encoder
    """Makes pgpq's encoder for a field of type `wire`."""
    oid: int = 0
    """With which element type pgpq marks arrays of this; 0 if it must not be used for arrays."""


def conversion(arrow: pa.DataType, target: PgType) -> Conversion:
    """The conversion that keeps every value.

    Raises:
        Unfit: There is none.
    """
    if pa.types.is_dictionary(arrow):
        return _after(lambda array: array.dictionary_decode(), conversion(arrow.value_type, target))
    if pa.types.is_null(arrow):
        return Conversion(pa.binary(), encode_nulls)
    if target.element is not None:
        return _list(arrow, target.element)
    if isinstance(arrow, pa.BaseExtensionType):
        return _extension(arrow, target)
    return _scalar(arrow, target)


def _scalar(arrow: pa.DataType, target: PgType) -> Conversion:
    if target.name in _TEXT_TARGETS or target.enum:
        return _text(arrow)
    if target.name in _INTEGER_TARGETS:
        return _integer(arrow, target.name)
    if target.name in _FLOAT_TARGETS:
        return _float(arrow, target.name)
    rule = _RULES.get(target.name)
    if rule is None:
        raise Unfit("no conversion to this type is known; write to a text column, or cast it in a view or trigger")
    return rule(arrow, target)


def _after(first: Callable[[pa.Array], pa.Array], then: Conversion) -> Conversion:
    return Conversion(then.wire, lambda array: then.convert(first(array)), then.builder, then.oid)


def _cast(wire: pa.DataType, array: pa.Array) -> pa.Array:
    return array if array.type == wire else array.cast(wire)


def _to(wire: pa.DataType, oid: int, builder: Callable[[pa.Field], Any] | None = None) -> Conversion:
    convert = partial(_cast, wire)
    return Conversion(wire, convert, oid=oid) if builder is None else Conversion(wire, convert, builder, oid)


def _is_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow))


def _text(arrow: pa.DataType) -> Conversion:
    if _is_text(arrow):
        return _to(arrow, 25)
    raise Unfit("cast it to string" if not pa.types.is_nested(arrow) else "turn it into text, for example with to_json")


def _jsonb(arrow: pa.DataType, _: PgType) -> Conversion:
    if not _is_text(arrow):
        raise Unfit("give JSON as text, for example with to_json")
    wire = pa.large_string() if pa.types.is_large_string(arrow) else pa.string()
    builder = encoders.LargeStringEncoderBuilder if wire == pa.large_string() else encoders.StringEncoderBuilder
    return _to(wire, 3802, lambda field: builder.new_with_output(field, pgpq_schema.Jsonb()))


def _integer(arrow: pa.DataType, name: str) -> Conversion:
    bits, wire, oid = _INTEGER_TARGETS[name]
    if _MAGNITUDE_BITS.get(arrow, 99) <= bits:
        return _to(wire, oid)
    raise Unfit("values may not fit; cast it, or make the column wider")


def _float(arrow: pa.DataType, name: str) -> Conversion:
    bits, wire, oid, floats = _FLOAT_TARGETS[name]
    if arrow in floats or _MAGNITUDE_BITS.get(arrow, 99) <= bits:
        return _to(wire, oid)
    raise Unfit("values may be rounded; cast it, or make the column wider")


def _numeric(arrow: pa.DataType, target: PgType) -> Conversion:
    if arrow in _MAGNITUDE_BITS:
        return _to(pa.decimal128(_DIGITS[_MAGNITUDE_BITS[arrow]], 0), 1700)
    if not pa.types.is_decimal(arrow):
        raise Unfit("values may be rounded; cast it to a decimal")
    scale = max(arrow.scale, 0)
    digits = arrow.precision + scale - arrow.scale
    if digits > _NUMERIC_DIGITS:
        raise Unfit(f"more than {_NUMERIC_DIGITS} digits cannot be sent; cast it")
    if target.modifier >= 0 and scale > _numeric_scale(target.modifier):
        raise Unfit("PostgreSQL would round; cast it to the column's scale")
    return _to(pa.decimal128(digits, scale), 1700)


def _numeric_scale(modifier: int) -> int:
    """Scale as packed in atttypmod (numeric.c: 11 bits, signed)."""
    return (((modifier - 4) & 0x7FF) ^ 1024) - 1024


def _bytea(arrow: pa.DataType, _: PgType) -> Conversion:
    if pa.types.is_binary_view(arrow):
        return _to(pa.large_binary(), 17)
    if pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow) or pa.types.is_fixed_size_binary(arrow):
        return _to(arrow, 17)
    raise Unfit("cast it to binary")


def _bool(arrow: pa.DataType, _: PgType) -> Conversion:
    if pa.types.is_boolean(arrow):
        return _to(arrow, 16)
    raise Unfit("cast it to boolean")


def _date(arrow: pa.DataType, _: PgType) -> Conversion:
    if pa.types.is_date(arrow):
        return _to(pa.date32(), 1082)
    raise Unfit("cast it to date")


def _time(arrow: pa.DataType, _: PgType) -> Conversion:
    if pa.types.is_time(arrow):
        return _to(pa.time64("us"), 1083)
    raise Unfit("cast it to a time of day")


def _timestamp(arrow: pa.DataType, _: PgType) -> Conversion:
    if pa.types.is_timestamp(arrow) and arrow.tz is None:
        return _to(pa.timestamp("us"), 1114)
    if pa.types.is_timestamp(arrow):
        raise Unfit("which zone's clock is meant? Make the column timestamptz, or cast it (in Spark: to timestamp_ntz)")
    raise Unfit("cast it to a timestamp without time zone")


def _timestamptz(arrow: pa.DataType, _: PgType) -> Conversion:
    if pa.types.is_timestamp(arrow) and arrow.tz is not None:
        # pgpq marks arrays of these as timestamp without time zone (1114), which timestamptz[] refuses
        return _to(pa.timestamp("us", arrow.tz), 1114)
    if pa.types.is_timestamp(arrow):
        raise Unfit("in which zone? Make the column timestamp, or cast it to a timestamp with time zone")
    raise Unfit("cast it to a timestamp with time zone")


def _interval(arrow: pa.DataType, _: PgType) -> Conversion:
    if pa.types.is_duration(arrow):
        return _to(pa.duration("us"), 1186)
    raise Unfit("cast it to a duration")


def _uuid(arrow: pa.DataType, _: PgType) -> Conversion:
    if _is_text(arrow):
        return Conversion(pa.binary(16), encode_uuids)
    if pa.types.is_fixed_size_binary(arrow) and arrow.byte_width == 16:  # noqa: PLR2004 - a UUID's bytes
        return _to(arrow, 0)
    raise Unfit("give it as text or as 16 bytes")


def _extension(arrow: pa.BaseExtensionType, target: PgType) -> Conversion:
    if target.name == "uuid" and arrow.extension_name == "arrow.uuid":
        return Conversion(pa.binary(16), encode_uuid_storage)
    return _after(lambda array: array.storage, conversion(arrow.storage_type, target))


def _is_list(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(arrow)
        or pa.types.is_large_list(arrow)
        or pa.types.is_fixed_size_list(arrow)
        or pa.types.is_list_view(arrow)
        or pa.types.is_large_list_view(arrow)
    )


def _list(arrow: pa.DataType, element: PgType) -> Conversion:
    if not _is_list(arrow):
        raise Unfit("give it as a list")
    if _is_list(arrow.value_type):
        raise Unfit("lists of lists cannot be sent; flatten it, or store it as JSON")
    inner = conversion(arrow.value_type, element)
    plain = pa.types.is_list(arrow) or pa.types.is_large_list(arrow)
    if plain and inner.oid == element.oid and inner.wire == arrow.value_type and element.name != "jsonb":
        return _to(arrow, 0)
    return Conversion(pa.large_binary(), partial(encode_arrays, inner.convert, inner.builder, element.oid))


_RULES: Final[dict[str, Callable[[pa.DataType, PgType], Conversion]]] = {
    "jsonb": _jsonb,
    "numeric": _numeric,
    "bytea": _bytea,
    "bool": _bool,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "interval": _interval,
    "uuid": _uuid,
}
