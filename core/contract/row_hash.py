"""Hashes of rows of a record batch, 128 bits each, computed by numpy a column at a time.

A value becomes two words of 64 bits, which depend on its column: those of a row are added up, mixed once more, and are
the row's hash. A null is nothing, so a row hashes alike where a nullable column is missing, and the order of columns
makes no difference. Numbers, dates, times and booleans are one word, which is mixed with the column's key by steps such
as those that end MurmurHash3 (Austin Appleby's fmix64). Texts and bytes are words of eight bytes, the last one filled
with zeros; their sum, each with an odd factor of its own ("multilinear" hashing: Lemire and Kaser, "Strongly Universal
String Hashing is Fast", 2014), is mixed with the length and the column's key.

Equal values are equal words: an int32 and an int64, a float32 and the float64 that it widens to, a text and its bytes
in UTF-8, a timestamp in milliseconds and one in microseconds, 1.5 and 1.50. So are a date and the number of its day, or
a timestamp with a zone and one without. Where the target keeps types, a digest of their kinds tells these apart.

So a row of 100 bytes costs about 0.12 microseconds. A cryptographic hash would be called row by row, for about one.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from ..kit.pieces import pieces
from .proof import Proof

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]

WORDS_AT_ONCE: Final = 2**17
"""Number of 64-bit words that fit into a processor's cache."""
_LONG_BYTES: Final = 8 * WORDS_AT_ONCE
"""Size from which a value is hashed by itself and in parts."""
_DONE: Final = 100
"""Number in place of the logarithm of a long value's size."""
_PADDED_AT_MOST: Final = 2**30
"""Bytes; offsets of 32 bits address less than 2^31."""
_GOLDEN: Final = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio."""
_M1, _M2, _M3 = (np.uint64(m) for m in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0x9FB21C651E98DF25))
_S29, _S32, _S33 = (np.uint64(s) for s in (29, 32, 33))
_NAN: Final = np.array([np.nan]).view(np.uint64)[0]
_ROW: Final = np.uint64(_GOLDEN)
"""First number in the sums of a row: a row of nulls is a row."""


class _Known(threading.local):
    """A batch whose sum the caller has made already, for this thread."""

    layout: tuple[object, ...] | None = None
    sums: Words | None = None


_known: Final = _Known()


class RowHash:
    """Sums up hashes of rows, batch by batch.

    Args:
        typed: True if the proof also says of which kinds the columns were.

    Attributes:
        rows: Number of rows so far.
    """

    def __init__(self, *, typed: bool = False) -> None:
        self.rows = 0
        self._kinds: set[str] | None = set() if typed else None
        self._columns: set[str] = set()
        self._sums = np.zeros(2, np.uint64)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch, whose columns are of types that `covers` accepts."""
        sums = _known.sums if _known.layout is not None and _known.layout == _layout(batch) else None
        self._sums += row_hashes(batch).sum(axis=1, dtype=np.uint64) if sums is None else sums
        self.rows += batch.num_rows
        self._columns.update(batch.schema.names)
        if self._kinds is not None:
            self._kinds.add(kinds_of(batch.schema))

    def proof(self, mark: str = "") -> Proof:
        """Return the proof of all rows so far."""
        return Proof(hexadecimal(self._sums), tuple(sorted(self._columns)), mark, tuple(sorted(self._kinds or ())))


@contextmanager
def known(batch: pa.RecordBatch, sums: Words | None) -> Iterator[None]:
    """Have every RowHash of this thread take `sums` for the sum of this batch's rows; None changes nothing."""
    if sums is None or not all(covers(column.type) for column in batch.columns):
        yield
        return
    _known.layout, _known.sums = _layout(batch), sums
    try:
        yield
    finally:
        _known.layout = _known.sums = None


def _layout(batch: pa.RecordBatch) -> tuple[object, ...]:
    """Return what tells a batch from every other one that exists: names, types and places in memory."""
    columns = [
        (name, column.type, column.offset, len(column), *(b.address if b is not None else 0 for b in column.buffers()))
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return tuple(sorted(columns, key=lambda column: column[0]))


def proof_of(rows: int, digest: RowHash | None) -> Proof | None:
    """Return the proof of this number of rows; None unless all of them were hashed."""
    return digest.proof() if digest is not None and digest.rows == rows else None


def hexadecimal(sums: Words) -> str:
    """Return two sums as text: 16 hex digits each."""
    return "".join(f"{int(lane):016x}" for lane in sums)


def kinds_of(schema: pa.Schema) -> str:
    """Return a digest of the kinds of the columns, whatever their order, width, unit and precision."""
    kinds = {field.name: _kind(field.type) for field in schema if not pa.types.is_null(field.type)}
    text = "\n".join(f"{name!r} {kind}" for name, kind in sorted(kinds.items()))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=4, person=b"onceward-kinds").hexdigest()


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _kind(kind.value_type)
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "instant"
    return next((name for name, fits in _KINDS.items() if fits(kind)), "bytes")


_KINDS: Final = {
    "boolean": pa.types.is_boolean,
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "date": pa.types.is_date,
    "time": pa.types.is_time,
    "duration": pa.types.is_duration,
    "text": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
}


def covers(kind: pa.DataType) -> bool:
    """Return whether values of this type can be hashed: everything but nested values, intervals and nanoseconds."""
    if pa.types.is_dictionary(kind):
        views = pa.types.is_string_view(kind.value_type) or pa.types.is_binary_view(kind.value_type)
        return covers(kind.value_type) and not views  # which Arrow cannot decode
    different = pa.types.is_nested(kind) or pa.types.is_interval(kind) or isinstance(kind, pa.BaseExtensionType)
    return not different and getattr(kind, "unit", "") != "ns"


def row_hashes(batch: pa.RecordBatch) -> Words:
    """Return the hash of each row: an array of two rows, and a column for each row of the batch.

    Raises:
        pyarrow.ArrowInvalid: A value cannot be hashed, for example a timestamp with fractions of a microsecond.
    """
    hashes = np.full((2, batch.num_rows), _ROW)
    start = 0
    for piece in pieces(batch):
        _add_columns(hashes[:, start : start + piece.num_rows], piece)
        start += piece.num_rows
    _finish(hashes)
    return hashes


def _add_columns(hashes: Words, batch: pa.RecordBatch) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        array = _plain(column)
        if array is None:
            continue
        words = 1 + array.nbytes // 8 // max(1, len(array))
        step = max(64, WORDS_AT_ONCE // words)
        for start in range(0, len(array), step):
            _add_column(hashes[:, start : start + step], _key(name), array.slice(start, step))


@lru_cache(maxsize=1024)
def _key(column: str) -> int:
    return int.from_bytes(hashlib.blake2b(column.encode(), digest_size=8, person=b"onceward-row").digest(), "little")


_CASTS: Final = (
    (pa.types.is_boolean, (pa.uint8(), pa.uint64())),
    (pa.types.is_unsigned_integer, (pa.uint64(),)),
    (pa.types.is_integer, (pa.int64(),)),
    (pa.types.is_floating, (pa.float64(),)),
    (pa.types.is_date, (pa.date32(), pa.int32(), pa.int64())),
    (pa.types.is_time, (pa.time64("us"), pa.int64())),
    (pa.types.is_duration, (pa.duration("us"), pa.int64())),
)


def _plain(array: pa.Array) -> pa.Array | None:
    """Return the values as int64, uint64, float64 or bytes; None if there are only nulls."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_decimal(kind):
        return _decimal_texts(array)
    if pa.types.is_timestamp(kind):
        return array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    for fits, steps in _CASTS:
        if fits(kind):
            for step in steps:
                array = array.cast(step)
            return array
    narrow = kind in (pa.binary(), pa.string()) and array.nbytes < _PADDED_AT_MOST
    return array if narrow else array.cast(pa.large_binary())


def _decimal_texts(array: pa.Array) -> pa.Array:
    """Return the shortest texts without exponent: 1.5 for 1.50."""
    import pyarrow.compute as pc  # noqa: PLC0415 - a tenth of a second in each process that hashes nothing

    texts = array.cast(pa.string())
    if array.type.scale <= 0 or pc.any(pc.match_substring(texts, "E"), min_count=0).as_py():
        texts = pa.array([None if value is None else f"{value:f}" for value in array.to_pylist()], pa.string())
    whole = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
    return pc.if_else(pc.match_substring(texts, "."), whole, texts)


def _add_column(hashes: Words, key: int, array: pa.Array) -> None:
    valid = None if array.null_count == 0 else array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_primitive(array.type):
        words = array.fill_null(0).to_numpy(zero_copy_only=False)
        if pa.types.is_floating(array.type):
            words = np.where(np.isnan(words), _NAN, words.view(np.uint64))
        one = mixed(words.view(np.uint64) ^ np.uint64(key))
        two = one * _M3
        two ^= two >> _S32
    else:
        one, two = _bytes(key, array)
    if valid is not None:
        one[~valid], two[~valid] = 0, 0
    hashes[0] += one
    hashes[1] += two


def _bytes(key: int, array: pa.Array) -> tuple[Words, Words]:
    """Sum the words of each value, mixed with its length and the column's key; a null's sums are undefined."""
    wide = pa.types.is_large_binary(array.type)
    _, ends, data = array.buffers()
    offsets = np.frombuffer(ends, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets).astype(np.int64)
    sums = lengths.view(np.uint64) * np.array([[_GOLDEN], [_GOLDEN]], np.uint64)
    # Arrow's padding takes text only, but does not mind bytes that are none.
    kind = pa.large_string() if wide else pa.string()
    text = pa.Array.from_buffers(kind, len(array), [None, ends, data], offset=array.offset)
    sizes = np.frexp((lengths + 7) // 8 - 0.5)[1]  # logarithms of the numbers of words, rounded up
    if lengths.max(initial=0) > _LONG_BYTES:
        long = np.flatnonzero(lengths > _LONG_BYTES)
        for row in long:  # padded beside others, each would take several times its bytes
            sums[:, row] += _long_sums(np.frombuffer(data, np.uint8)[offsets[row] : offsets[row + 1]])
        sizes[long] = _DONE
    for size in np.flatnonzero(np.bincount(sizes)):
        if size == _DONE:
            continue
        matches = sizes == size
        if matches.all():
            sums += _sums(text, int(lengths.max()))
        else:
            sums[:, matches] += _sums(text.filter(pa.array(matches)), int(lengths[matches].max()))
    sums ^= np.uint64(key)
    return mixed(sums[0]), mixed(sums[1])


def _sums(text: pa.Array, longest: int) -> Words:
    """Return two sums over the words of each value; the zeros behind it add nothing."""
    import pyarrow.compute as pc  # noqa: PLC0415

    count = (longest + 7) // 8
    if not count:
        return np.zeros((2, len(text)), np.uint64)
    padded = pc.ascii_rpad(text, width=8 * count, padding="\0")
    words = np.frombuffer(padded.buffers()[2], "<u8", len(text) * count).reshape(len(text), count)
    shifted = words >> _S29
    shifted ^= words  # else the highest bits of two words would cancel out
    sums: Words = (shifted @ _factors((count - 1).bit_length())[:, :count].T).T
    return sums


def _long_sums(value: npt.NDArray[np.uint8]) -> Words:
    """Return the two sums over the words of one value, of which a part is copied at a time."""
    sums = np.zeros(2, np.uint64)
    for start in range(0, len(value), _LONG_BYTES):
        part = value[start : start + _LONG_BYTES]
        words = np.zeros((len(part) + 7) // 8, "<u8")
        words.view(np.uint8)[: len(part)] = part
        shifted = words >> _S29
        shifted ^= words
        sums += shifted @ _factors_from(start // 8, len(words)).T
    return sums


@lru_cache
def _factors(bits: int) -> Words:
    """Return odd factors of the first words of a value, 2 to the power of `bits`, one row for each sum."""
    return _factors_from(0, 2**bits)


def _factors_from(first: int, count: int) -> Words:
    """Return the factors of `count` words from the word `first` on, one row for each sum."""
    numbers = np.arange(2 * first + 1, 2 * (first + count) + 1, dtype=np.uint64).reshape(-1, 2).T.copy()
    return mixed(numbers * np.uint64(_GOLDEN)) | np.uint64(1)


def mixed(words: Words) -> Words:
    """Mix words in place and return them; no two different ones become the same."""
    words *= _M1
    words ^= words >> _S32
    words *= _M2
    words ^= words >> _S29
    return words


def _finish(hashes: Words) -> None:
    hashes ^= hashes >> _S33
    hashes *= _M1
    hashes ^= hashes >> _S29
    hashes *= _M2
    hashes ^= hashes >> _S32
