"""Rows that are read back from streams, hashes and lists.

Nothing there says which transaction wrote a row, so only all rows together can be compared with what was written. What
is hashed of a row is what is found there: its key, and each field of an entry, or the element of a list.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from onceward.core.proof import ALL_EPOCHS, JSON_LINE, Piece, Reread

from .client import RedisSettings, asking, connect
from .forms import RESERVED, KeyTemplate, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

KEY: Final = "Redis key"
"""The column of each row's key, beside those of its fields."""
_FIELD_OF_THAT_NAME: Final = f"{KEY} (field)"
_ROWS_AT_ONCE: Final = 1000


def hashed(form: str, key: KeyTemplate, batch: pa.RecordBatch, sink: str = "any") -> pa.RecordBatch:
    """What is hashed of rows that are written into streams or lists.

    Raises:
        SinkError: A row has no key, or a value has no text.
    """
    rows = written(sink, form, key, batch)
    if form == "list":
        return _batch((row.key, {JSON_LINE.encode(): row.words[0]}) for row in rows)
    return _batch((row.key, dict(zip(row.words[1::2], row.words[2::2], strict=True))) for row in rows)


def as_written(batch: pa.RecordBatch, key: str, schema: pa.Schema) -> pa.RecordBatch:
    """What is hashed of a source's rows, if the rows of the target have this schema."""
    form = "list" if JSON_LINE in schema.names else "stream"
    return hashed(form, KeyTemplate(key), batch.select([name for name in batch.schema.names if name != KEY]))


def _batch(rows: Iterable[tuple[bytes, Mapping[bytes, bytes]]]) -> pa.RecordBatch:
    """A column of keys, and one for each field."""
    every = list(rows)
    columns: dict[str, list[bytes | None]] = {KEY: [key for key, _ in every]}
    for name in sorted({name for _, entry in every for name in entry}):
        shown = name.decode(errors="backslashreplace")
        columns[shown if shown != KEY else _FIELD_OF_THAT_NAME] = [entry.get(name) for _, entry in every]
    return pa.record_batch({name: pa.array(cells, pa.binary()) for name, cells in columns.items()})


def reread(url: str, key: str, columns: Sequence[str] = ()) -> Reread:
    """What the keys hold now.

    Args:
        url: The sink's.
        key: The sink's, with columns in braces.
        columns: What was hashed; none: that of the first rows.

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


def _pieces(settings: RedisSettings, key: KeyTemplate, kinds: Sequence[bytes], left_out: list[str]) -> Iterator[Piece]:
    others: Counter[bytes] = Counter()
    with asking(settings, f"cannot read {key.text}"), connect(settings) as client:
        found: set[bytes] = set(client.scan_iter(key.pattern, count=_ROWS_AT_ONCE)) if key.columns else {key.of({})}
        for name in sorted(found):
            if name.startswith(RESERVED.encode()):
                continue
            shown, kind = name.decode(errors="replace"), client.type(name)
            if kind not in kinds:
                others[kind] += 1
                continue
            for entries in _READERS[kind](client, name):
                places = [f"{shown} {at}".rstrip() for at, _ in entries]
                yield Piece(_batch((name, entry) for _, entry in entries), [""] * len(entries), places)
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
