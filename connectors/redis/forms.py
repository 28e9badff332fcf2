"""What a row becomes: an entry of a stream, a hash, an element of a list; and under which key.

Values are text as in JSON (core/kit/rows.py), but text and bytes are as they are, without quotes; structs and lists
are JSON. A null has no field: it is left out of an entry, and deleted from a hash.
"""

from __future__ import annotations

import re
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from onceward.core.errors import ConfigurationError, SchemaError, SinkError
from onceward.core.kit.rows import UNWRITABLE, check_columns, in_microseconds, plain, to_json, with_column
from onceward.core.names import FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping

RESERVED: Final = f"{FORMAT}:"
"""How the keys of markers begin."""
MOST_COLUMNS: Final = 1000
"""A script can hand over some 8,000 words at once."""
MOST_WORDS: Final = 1_000_000
"""A request has at most 1,048,576 words (proto-max-multibulk-len)."""


_SPECIAL: Final = re.compile(rb"[\]\[*?^\\-]")
"""What has a meaning in a pattern of SCAN."""


class Form(NamedTuple):
    """A form of rows.

    Attributes:
        command: That writes a row.
        kind: Type of the key, as TYPE says it.
    """

    command: str
    kind: str


FORMS: Final = {"stream": Form("XADD", "stream"), "hash": Form("HSET", "hash"), "list": Form("RPUSH", "list")}


class Written(NamedTuple):
    """A row as it is written.

    Attributes:
        key: Where.
        words: What follows the command and the key.
        gone: Fields to delete.
    """

    key: bytes
    words: list[bytes]
    gone: list[bytes]


class KeyTemplate:
    """The key of each row: text with columns in braces, as `total:{user}`; `{{` and `}}` are braces.

    Raises:
        ConfigurationError: It cannot be read.
    """

    def __init__(self, text: str) -> None:
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            raise ConfigurationError(f"key {text!r}: {error}") from None
        if not text or any(spec or conversion for _, _, spec, conversion in parts):
            raise ConfigurationError(f"key {text!r}: give text with columns in braces, as 'total:{{user}}'")
        self.text = text
        self._parts = [(literal.encode(), column) for literal, column, _, _ in parts]
        self.columns = tuple(column for _, column in self._parts if column is not None)
        if "" in self.columns:
            raise ConfigurationError(f"key {text!r} has empty braces")
        if self._parts[0][0].startswith(RESERVED.encode()):
            raise ConfigurationError(f"key {text!r}: keys under {RESERVED} are reserved for markers")

    @property
    def pattern(self) -> bytes:
        """A pattern of SCAN that matches each key that it can make, and perhaps others."""
        parts = ((_SPECIAL.sub(rb"\\\g<0>", literal), column) for literal, column in self._parts)
        return b"".join(literal if column is None else literal + b"*" for literal, column in parts)

    def check(self, sink: str, schema: pa.Schema) -> None:
        """Check its columns.

        Raises:
            SchemaError: One is missing, or of a type without an unambiguous text form.
        """
        for column in self.columns:
            if column not in schema.names:
                raise SchemaError(f"sink {sink}: key names column {column!r}; the columns are {schema.names}")
            kind = schema.field(column).type
            if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
                raise SchemaError(f"sink {sink}: column {column!r} of type {kind} cannot be part of a key")

    def of(self, row: Mapping[str, Any]) -> bytes:
        """The key of a row.

        Raises:
            ValueError: A column is null, or the key is a marker's.
        """
        key = b""
        for literal, column in self._parts:
            key += literal
            if column is not None:
                if row[column] is None:
                    raise ValueError(f"column {column!r} of the key is null")
                key += cell(row[column])
        if key.startswith(RESERVED.encode()):
            raise ValueError(f"keys under {RESERVED} are reserved for markers")
        return key


def cell(value: Any) -> bytes:
    """A value, not null, as it is stored.

    Raises:
        ValueError: It holds NaN inside of a list or struct.
    """
    match value:
        case bytes():
            return value
        case str():
            return value.encode()
        case bool() | list() | dict() | tuple():
            return to_json(value).encode()
        case int() | float():
            return repr(value).encode()
        case _:
            return plain(value).encode()


def check_form(sink: str, form: str, key: KeyTemplate, schema: pa.Schema, rows_per_send: int) -> None:
    """Check that rows of this schema can be written.

    Raises:
        SchemaError: They cannot; the message names the column.
        ConfigurationError: Hashes under one key, or too much in one delivery.
    """
    check_columns(sink, schema)
    key.check(sink, schema)
    if form == "hash" and not key.columns:
        raise ConfigurationError(f"sink {sink}: form 'hash' needs a column in its key, not {key.text!r} for all rows")
    words = rows_per_send * (2 * len(schema.names) + 7)
    if len(schema.names) > MOST_COLUMNS or words > MOST_WORDS:
        raise ConfigurationError(
            f"sink {sink}: {len(schema.names)} columns and {rows_per_send} rows of a delivery are too much for one "
            f"request: at most {MOST_COLUMNS} columns, and {MOST_WORDS} words"
        )


def written(sink: str, form: str, key: KeyTemplate, rows: pa.RecordBatch, maxlen: int | None = None) -> list[Written]:
    """Rows as they are written.

    Raises:
        SinkError: A row has no key, or a value has no text.
    """
    try:
        return [_row(form, key, row, maxlen) for row in in_microseconds(rows).to_pylist()]
    except KeyError as error:
        raise SinkError(
            f"rows written before the key was changed have no column {error}: run once with the former key",
            sink=sink,
        ) from None
    except UNWRITABLE as error:
        words = with_column(error, rows, to_json if form == "list" else cell)
        raise SinkError(f"a row cannot be written: {words}", sink=sink) from error


def _row(form: str, key: KeyTemplate, row: dict[str, Any], maxlen: int | None) -> Written:
    if form == "list":
        return Written(key.of(row), [to_json(row).encode()], [])
    fields = [word for name, value in row.items() if value is not None for word in (name.encode(), cell(value))]
    if form == "hash":
        return Written(key.of(row), fields, [name.encode() for name, value in row.items() if value is None])
    if not fields:
        raise ValueError("all its columns are null, and a stream has no empty entries")
    trimmed = [] if maxlen is None else [b"MAXLEN", b"~", str(maxlen).encode()]
    return Written(key.of(row), [*trimmed, b"*", *fields], [])
