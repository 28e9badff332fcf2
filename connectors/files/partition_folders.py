"""The folders that rows go to, by the values of columns: `country=de/day=2026-11-21`.

The text of a value, and which of its characters are percent-encoded, are those of Spark (ExternalCatalogUtils,
escapePathName): it decodes byte by byte, so what is not ASCII stays as it is. A timestamp with a zone has its offset in
the text too, which Spark reads back as the same instant in any session. Spark refuses to read a folder if it cannot
read one value as the column's type, such as "nan" instead of "NaN".
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceward.core.errors import SchemaError
from onceward.core.kit.rows import is_binary, without_dictionary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_SHOWN: Final = 60
"""Bytes of a wrong value that a message shows."""
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""Spark's and Hive's text of null and of the empty string."""
_ENCODED: Final = {code: f"%{code:02X}" for code in (*range(0x20), 0x7F, *map(ord, "\"#%'*/:<=>?[\\]^{|"))}
"""Escapes of the characters that Spark encodes, those included that Spark encodes on Windows alone, by code point."""
_PLAIN: Final = (-3, 7)
"""Powers of ten from which, and up to which, Java writes a real number without an exponent."""
_UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_LAST_YEAR: Final = 9999


def check_partitions(sink: str, columns: Sequence[str], schema: pa.Schema) -> None:
    """Check that columns can be partitioned by.

    Raises:
        SchemaError: They cannot; the message names the column.
    """
    missing = [column for column in columns if column not in schema.names]
    if missing:
        raise SchemaError(f"sink {sink}: partition_by names {missing}; the columns are {schema.names}")
    for column in columns:
        kind = schema.field(column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_nested(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind) or is_binary(kind):
            raise SchemaError(f"sink {sink}: partition_by column {column!r} is {kind}: cast it to text")
        if column.startswith(("_", ".")):
            raise SchemaError(
                f"sink {sink}: partition_by column {column!r}: many readers treat folders that begin with '_' or '.' "
                "as hidden. Give it another name with select"
            )
    if len(set(columns)) < len(columns):
        raise SchemaError(f"sink {sink}: partition_by names a column twice: {list(columns)}")
    if len(columns) == len(schema.names):
        raise SchemaError(f"sink {sink}: partition_by leaves no column for the files")


def rows_by_folder(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each folder, in order, without these columns; without columns all rows, in the folder ""."""
    if not columns:
        yield "", batch
        return
    rows: dict[str, list[int]] = {}
    names = [encoded(column) for column in columns]
    for number, texts in enumerate(zip(*(_texts_of(batch, column) for column in columns), strict=True)):
        folder = "/".join(f"{name}={text}" for name, text in zip(names, texts, strict=True))
        rows.setdefault(folder, []).append(number)
    rest = batch.drop_columns(list(columns))
    for folder, numbers in rows.items():
        yield folder, _taken(rest, numbers)


def _texts_of(batch: pa.RecordBatch, column: str) -> list[str]:
    try:
        texts: list[str] = folder_texts(batch.column(column)).to_pylist()
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"partition_by column {column!r} holds bytes that are not UTF-8 ({error.object[:_SHOWN]!r}), and a "
            "folder's name is text: decode or encode them before"
        ) from None
    return texts


def _taken(rows: pa.RecordBatch, numbers: list[int]) -> pa.RecordBatch:
    """Return the rows of these numbers, which ascend."""
    try:
        return rows.take(pa.array(numbers, pa.int64()))
    except pa.ArrowNotImplementedError:  # Arrow takes no views (pyarrow 26)
        return pa.concat_batches([rows.slice(number, 1) for number in numbers])


def folder_texts(column: pa.Array) -> pa.Array:
    """Return the name of each value's folder, without that of the column."""
    plain = without_dictionary(column)
    try:
        coded = plain.dictionary_encode(null_encoding="encode")
    except pa.ArrowNotImplementedError:  # views and small decimals (pyarrow 26)
        return _folder_texts(plain)
    return _folder_texts(coded.dictionary).take(coded.indices)


def _folder_texts(values: pa.Array) -> pa.Array:
    kind = values.type
    texts: Iterable[str]
    if pa.types.is_time(kind):
        texts = _times_of_day(values)
    elif pa.types.is_temporal(kind):
        texts = _moments(values)
    else:
        number = np.float64 if pa.types.is_float64(kind) else np.float32
        texts = [_text(number(value) if isinstance(value, float) else value) for value in values.to_pylist()]
    return pa.array([encoded(text) if text else _NULL for text in texts], pa.string())


def _text(value: Any) -> str:
    """Return a value that is no time as Spark casts it to text; an empty text for null."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case Decimal():
            return f"{value:f}"
        case np.floating():
            return _real(value)
        case _:
            return str(value)


def _real(value: np.floating[Any]) -> str:
    """Return the text of Java's Double.toString: two digits or more, as many as tell a number from its neighbors."""
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    digits, _, exponent = np.format_float_scientific(value, trim="-").partition("e")
    if "." not in digits:
        digits, _, exponent = np.format_float_scientific(value, precision=1, unique=False).partition("e")
    power = int(exponent)
    is_plain = _PLAIN[0] <= power < _PLAIN[1]
    whole, _, fraction = f"{Decimal(digits).scaleb(power if is_plain else 0):f}".partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}{'' if is_plain else f'E{power}'}"


def _moments(values: pa.Array) -> Iterator[str]:
    """Yield dates and timestamps; not through Python's, which end with the year 9999."""
    if pa.types.is_date(values.type):
        for days in values.cast(pa.date32()).cast(pa.int32()).to_pylist():
            yield "" if days is None else _date(np.datetime64(days, "D"))
        return
    unit, has_zone = values.type.unit, values.type.tz is not None
    second, instants = _UNITS[unit], values.cast(pa.int64()).to_pylist()
    local = pc.local_timestamp(values).cast(pa.int64()).to_pylist() if has_zone else instants
    for instant, at in zip(instants, local, strict=True):
        if at is None:
            yield ""
            continue
        days, rest = divmod(at, 86400 * second)
        zone = _offset((at - instant) // second) if has_zone else ""
        yield f"{_date(np.datetime64(days, 'D'))} {_clock(rest, second)}{zone}"


def _times_of_day(values: pa.Array) -> Iterator[str]:
    second = _UNITS[values.type.unit]
    for at in values.cast(pa.int32() if pa.types.is_time32(values.type) else pa.int64()).to_pylist():
        yield "" if at is None else _clock(at, second)


def _date(day: np.datetime64) -> str:
    """Return a date with four digits of the year or more, and from the year 10000 on with a sign."""
    text = str(day)
    year, rest = int(text[: -len("-MM-DD")]), text[-len("-MM-DD") :]
    return f"{year:+05d}{rest}" if not 0 <= year <= _LAST_YEAR else f"{year:04d}{rest}"


def _clock(at: int, second: int) -> str:
    """Return a time of day, with a fraction only if it has one."""
    seconds, fraction = divmod(at, second)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{str(second + fraction)[1:].rstrip('0')}" if fraction else text


def _offset(seconds: int) -> str:
    sign, seconds = ("-", -seconds) if seconds < 0 else ("+", seconds)
    text = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}"
    return f"{text}:{seconds % 60:02d}" if seconds % 60 else text


def encoded(text: str) -> str:
    """Return a text as a part of a folder's name."""
    return text.translate(_ENCODED)
