"""What a row becomes: an entry of a stream, a hash, an element of a list; under which key; and how it is read back.

Values are text as in JSON (core/kit/rows.py), but text and bytes are as they are, without quotes; structs and lists
are JSON. A null has no field: it is left out of an entry, and deleted from a hash.

Nothing there says which transaction wrote a row, so only all rows together can be compared with what was written. What
is hashed of a row is what is found there: its key, and each field of an entry, or the element of a list.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain, islice
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pyarrow as pa

from onceward.core.contract.names import FORMAT
from onceward.core.contract.place import Place
from onceward.core.contract.proof import ALL_EPOCHS, JSON_LINE, Reread, RereadPiece
from onceward.core.errors import ConfigurationError, SchemaError, SinkError, refusing_rows, text_of
from onceward.core.kit.pieces import pieces, size_of
from onceward.core.kit.rows import UNWRITABLE, check_columns, in_microseconds, text_of_value, to_json, with_column

from .client import RedisSettings, asking, connect, read_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from onceward.core.contract.names import Scope

RESERVED: Final = f"{FORMAT}:"
"""How the keys of markers begin."""
MOST_COLUMNS: Final = 1000
"""A script can hand over some 8,000 words in one request."""
MOST_WORDS: Final = 1_000_000
"""A request has at most 1,048,576 words (proto-max-multibulk-len)."""
_ALWAYS_TAKEN: Final = 1 << 17
"""Bytes of a row that fit into the smallest limits that a server can have (1 MiB), even if each is escaped in JSON."""
_LONGEST_ENTRY: Final = 1 << 30
"""Bytes of an entry of a stream (STREAM_LISTPACK_MAX_SIZE)."""
_HEAD: Final = 1 << 16
"""Bytes of a request beside its rows: the script, names and numbers."""
KEY: Final = "Redis key"
"""The column of each row's key, beside those of its fields, in what is hashed."""
_FIELD_OF_THAT_NAME: Final = f"{KEY} (field)"
_ROWS_AT_ONCE: Final = 1000
_SPECIAL: Final = re.compile(rb"[\]\[*?^\\-]")
"""What has a meaning in a pattern of SCAN."""


Form = Literal["stream", "hash", "list"]
FORMS: Final = {"stream": "XADD", "hash": "HSET", "list": "RPUSH"}
"""What writes a row of each form. A form is called as TYPE calls its key."""


class WrittenEntry(NamedTuple):
    """A row in the form in which Redis takes it.

    Attributes:
        key: Key that the command writes.
        words: Arguments of the command after the key.
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
            raise ConfigurationError(f"key {text!r}: {text_of(error)}") from None
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
        """Check the columns that the key is made of.

        Raises:
            SchemaError: One is missing, or of a type without an unambiguous text form.
        """
        for column in self.columns:
            if column not in schema.names:
                raise SchemaError(f"sink {sink}: key names column {column!r}; the columns are {schema.names}")
            kind = schema.field(column).type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
                raise SchemaError(f"sink {sink}: column {column!r} of type {kind} cannot be part of a key")

    def of(self, row: Mapping[str, Any]) -> bytes:
        """Return the key of a row.

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
    """Return the stored form of a value that is not null.

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
            return text_of_value(value).encode()


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


def to_entries(
    sink: str, form: str, key: KeyTemplate, rows: pa.RecordBatch, maxlen: int | None = None
) -> list[WrittenEntry]:
    """Return rows in the form in which they are written.

    Raises:
        SinkError: A row has no key, or a value has no text.
    """
    try:
        return [_row(form, key, row, maxlen) for row in in_microseconds(rows).to_pylist()]
    except KeyError as error:
        raise SinkError(
            f"rows written before the key was changed have no column {text_of(error)}: run once with the former key",
            sink=sink,
        ) from None
    except UNWRITABLE as error:
        words = with_column(error, rows, to_json if form == "list" else cell)
        raise refusing_rows(SinkError(f"a row cannot be written: {words}", sink=sink)) from error


def check_sizes(sink: str, form: str, key: KeyTemplate, batch: pa.RecordBatch, settings: RedisSettings) -> None:
    """Check that the server takes each row: a longer value or request makes it close the connection, at each attempt.

    Raises:
        SchemaError: It does not.
        RetryableSinkError: It does not answer; it is asked only if a row is large.
    """
    large = [piece for piece in pieces(batch, _ALWAYS_TAKEN) if size_of(piece) > _ALWAYS_TAKEN]
    if not large:
        return
    facts = read_facts(settings)
    request = min(facts.longest_request, _LONGEST_ENTRY) if form == "stream" else facts.longest_request
    for row in (row for piece in large for row in to_entries(sink, form, key, piece)):
        sizes = [len(word) for word in (row.key, *row.words)]
        for what, size, most, setting in (
            ("a value", max(sizes), facts.longest_value, "proto-max-bulk-len"),
            ("a row", sum(sizes) + _HEAD, request, "client-query-buffer-limit"),
        ):
            if size > most:
                why = f"{what} has {size} bytes, and {settings.shown} takes {most} ({setting}); nothing is written"
                raise refusing_rows(SchemaError(why, sink=sink))


def _row(form: str, key: KeyTemplate, row: dict[str, Any], maxlen: int | None) -> WrittenEntry:
    if form == "list":
        return WrittenEntry(key.of(row), [to_json(row).encode()], [])
    fields = [word for name, value in row.items() if value is not None for word in (name.encode(), cell(value))]
    if form == "hash":
        return WrittenEntry(key.of(row), fields, [name.encode() for name, value in row.items() if value is None])
    if not fields:
        raise ValueError("all its columns are null, and a stream has no empty entries")
    trimmed = [] if maxlen is None else [b"MAXLEN", b"~", str(maxlen).encode()]
    return WrittenEntry(key.of(row), [*trimmed, b"*", *fields], [])


def hashed_entry_columns(form: str, key: KeyTemplate, batch: pa.RecordBatch, sink: str = "any") -> pa.RecordBatch:
    """Return the hashed columns of rows that are written into streams or lists.

    Raises:
        SinkError: A row has no key, or a value has no text.
    """
    rows = to_entries(sink, form, key, batch)
    if form == "list":
        return _batch((row.key, {JSON_LINE.encode(): row.words[0]}) for row in rows)
    return _batch((row.key, dict(zip(row.words[1::2], row.words[2::2], strict=True))) for row in rows)


def as_written(batch: pa.RecordBatch, key: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return the hashed columns of a source's rows, if the rows of the target have this schema."""
    form = "list" if JSON_LINE in schema.names else "stream"
    return hashed_entry_columns(
        form, KeyTemplate(key), batch.select([name for name in batch.schema.names if name != KEY])
    )


def _batch(rows: Iterable[tuple[bytes, Mapping[bytes, bytes]]]) -> pa.RecordBatch:
    """Make a batch with a column of keys, and one for each field."""
    every = list(rows)
    columns: dict[str, list[bytes | None]] = {KEY: [key for key, _ in every]}
    for name in sorted({name for _, entry in every for name in entry}):
        shown = name.decode(errors="backslashreplace")
        columns[shown if shown != KEY else _FIELD_OF_THAT_NAME] = [entry.get(name) for _, entry in every]
    return pa.record_batch({name: pa.array(cells, pa.binary()) for name, cells in columns.items()})


class Keys(Place):
    """The keys of a sink.

    Args:
        url: The sink's.
        key: The sink's, with columns in braces.
    """

    holds_bytes = True

    def __init__(self, url: str, key: str) -> None:
        super().__init__(f"redis:{key}")
        self._url, self._key = url, key

    def reread(self, scope: Scope | None, columns: Sequence[str]) -> Reread:  # noqa: ARG002
        """Read the current values of the keys as bytes; nothing there tells an epoch."""
        return reread_keys(self._url, self._key, columns)

    def as_hashed(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return the fields, or the JSON, that the sink writes."""
        return as_written(batch, self._key, schema)


def reread_keys(url: str, key: str, columns: Sequence[str] = ()) -> Reread:
    """Read the current values of the keys.

    Args:
        url: The sink's.
        key: The sink's, with columns in braces.
        columns: Columns that were hashed. Default: those of the first rows.

    Raises:
        ConfigurationError: The URL or the key is not valid.
        SinkError: The server does not answer, or refuses.
    """
    left_out: list[str] = []
    kinds = list(_READERS)
    if columns:  # others that match are not the sink's
        kinds = [b"list" if JSON_LINE in columns else b"stream"]
    pieces = _pieces(RedisSettings(url), KeyTemplate(key), kinds, left_out)
    first = list(islice(pieces, 1))
    names = columns or [name for piece in first for name in piece.rows.schema.names]
    schema = pa.schema([(name, pa.binary()) for name in names])
    return Reread(chain(first, pieces), {}, schema, lambda _: False, unmarked=ALL_EPOCHS, left_out=left_out)


def _pieces(
    settings: RedisSettings, key: KeyTemplate, kinds: Sequence[bytes], left_out: list[str]
) -> Iterator[RereadPiece]:
    others: Counter[bytes] = Counter()
    with asking(settings, f"cannot read {key.text}"), connect(settings) as client:
        names: set[bytes] = set(client.scan_iter(key.pattern, count=_ROWS_AT_ONCE)) if key.columns else {key.of({})}
        for name in sorted(names):
            if name.startswith(RESERVED.encode()):
                continue
            shown, kind = name.decode(errors="replace"), client.type(name)
            if kind not in kinds:
                others[kind] += 1
                continue
            for entries in _READERS[kind](client, name):
                places = [f"{shown} {at}".rstrip() for at, _ in entries]
                yield RereadPiece(_batch((name, entry) for _, entry in entries), [""] * len(entries), places)
    del others[b"none"]  # gone since its name was found
    left_out.extend(f"keys of type {kind.decode()} ({count})" for kind, count in sorted(others.items()))


Entries = list[tuple[str, dict[bytes, bytes]]]
"""Where each is in its key, and its fields."""


def _stream(client: Any, name: bytes) -> Iterator[Entries]:
    after = "-"
    while entries := client.xrange(name, min=after, count=_ROWS_AT_ONCE):
        yield [(number.decode(), fields) for number, fields in entries]
        after = f"({entries[-1][0].decode()}"


def _hash(client: Any, name: bytes) -> Iterator[Entries]:
    yield [("", client.hgetall(name))]


def _list(client: Any, name: bytes) -> Iterator[Entries]:
    at = 0
    while elements := client.lrange(name, at, at + _ROWS_AT_ONCE - 1):
        yield [(str(at + number), {JSON_LINE.encode(): element}) for number, element in enumerate(elements)]
        at += len(elements)


_READERS: Final = {b"stream": _stream, b"hash": _hash, b"list": _list}
