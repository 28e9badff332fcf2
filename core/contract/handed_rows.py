"""The proof that a heal needs: a hash of all that a sink was handed.

A decided epoch of which some is visible may be completed only by the very rows that were lost (rule S). What a sink
itself can prove is less: its proof (proof.py) is of what can be read back from its target, and so leaves out columns
that come back in another form, and whatever decides only where a row goes. So this hash is made where the rows are
handed over (checkpoint/subtask.py), for each sink alike:

1. Every column counts, whatever its type: nested values by the hashes of their parts, lists and maps with the places of
   their elements, extensions by their storage. A type whose values nobody can look into leaves the transaction without
   a hash, and so without a heal.
2. Names count, too: a row whose column is null is another row than one without that column. So the hashes of a batch's
   rows are multiplied by an odd number that its names determine.
3. Types count: of each column, how many values that are not null have which type. Spellings of one type are alike: a
   dictionary is its values, a view or a large text is a text.
4. How the rows came makes no difference: order, batches and subtasks change no sum. For an upsert it does, because of
   two rows with one key the later one stays: there each row counts with its subtask and its place in it.

So equal hashes mean equal rows, for each fault that is not a forgery (proof.py has the limits of the method).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..kit.rows import is_view, without_dictionary
from .row_hash import covers, hexadecimal, known, mixed, row_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]

_PLACE: Final = np.uint64(0x9E3779B97F4A7C15)
_ODD: Final = np.uint64(1)
_NESTED: Final = "nested"
_UNIT_OF_RAW: Final = "ns"
"""Unit of the dates and times that row_hash.py does not take."""


class Handed:
    """Sums up a hash of all rows that a sink was handed, batch by batch.

    Args:
        subtask: Number of the subtask, if the order of rows counts (4); else None.
    """

    def __init__(self, subtask: int | None = None) -> None:
        self._sums: Words | None = np.zeros(2, np.uint64)
        self._subtask = subtask
        self._rows = 0

    @property
    def hash(self) -> str:
        """The hash, 32 hex digits; empty if a value could not be hashed."""
        return "" if self._sums is None else hexadecimal(self._sums)

    def add(self, batch: pa.RecordBatch) -> AbstractContextManager[None]:
        """Add the rows of a batch.

        Returns:
            A context in which a RowHash takes the sum of these rows for granted, instead of making it once more.
        """
        sums = np.zeros(2, np.uint64)
        if self._sums is not None:
            try:
                names, columns = batch.schema.names, [_decoded(column) for column in batch.columns]
                sums = self._sums_of(_flat(names, columns) if names else batch)
                self._sums += sums * _named(tuple(sorted(names))) + _typed(names, columns)
            except Exception:  # noqa: BLE001 - (1) such as a union: that costs the heal, and not the epoch
                self._sums = None
        plain = self._sums is not None and self._subtask is None
        return known(batch, sums if plain else None)

    def _sums_of(self, batch: pa.RecordBatch) -> Words:
        hashes = row_hashes(batch)
        if self._subtask is not None:
            places = np.arange(self._rows, self._rows + hashes.shape[1], dtype=np.uint64)
            hashes = mixed(hashes ^ mixed((places + _ODD) * _PLACE) ^ _key("subtask", self._subtask).reshape(2, 1))
            self._rows += hashes.shape[1]
        sums: Words = hashes.sum(axis=1, dtype=np.uint64)
        return sums


@lru_cache(maxsize=1024)
def _key(*parts: Any) -> Words:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=16, person=b"onceward-handed").digest()
    return np.frombuffer(digest, "<u8")


def _named(names: tuple[str, ...]) -> Words:
    """Return the odd numbers of a batch's column names (2)."""
    return _key("names", names) | _ODD


def _typed(names: Sequence[str], columns: Sequence[pa.Array]) -> Words:
    """Return the sum for the types of the values that are not null (3)."""
    sums = np.zeros(2, np.uint64)
    for name, column in zip(names, columns, strict=True):
        sums += _key("type", name, _token(column.type)) * np.uint64(len(column) - column.null_count)
    return sums


def _token(kind: pa.DataType) -> str:
    """Return the name of a type, the same for all spellings of it."""
    if isinstance(kind, pa.BaseExtensionType):
        return f"{kind.extension_name}: {_token(kind.storage_type)}"
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _token(kind.value_type)
    if pa.types.is_nested(kind):
        return _NESTED  # the types of its parts count with their values
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    if pa.types.is_decimal(kind):
        return f"decimal of {kind.scale} places"
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return "bytes" if binary or pa.types.is_fixed_size_binary(kind) else str(kind)


def _decoded(column: Any) -> pa.Array:
    """Return a column as its values, if its encoding hides a null, or values that row_hash.py does not take."""
    kind = column.type
    if pa.types.is_run_end_encoded(kind):
        import pyarrow.compute as pc  # noqa: PLC0415 - a tenth of a second in each process, and few columns come here

        return _decoded(pc.run_end_decode(column))
    if pa.types.is_dictionary(kind) and (column.dictionary.null_count or not covers(kind)):
        values = column.dictionary
        return without_dictionary(column) if is_view(values.type) else values.take(column.indices)
    return column


def _flat(names: Sequence[str], columns: Sequence[pa.Array], *, inside: bool = False) -> pa.RecordBatch:
    """Return columns that row_hash.py takes, in place of those that it does not.

    Args:
        names: Names of the columns.
        columns: The columns, in the same order.
        inside: True if they are parts of nested values: then their types are hashed with their names (3).
    """
    count: Counter[str] = Counter()
    flat: list[tuple[str, pa.Array]] = []
    for name, column in zip(names, columns, strict=True):
        label = f"{name}: {_token(column.type)}" if inside else name
        count[label] += 1
        label = label if count[label] == 1 else f"{label}\0{count[label]}"  # two columns may have one name
        flat.extend(_pieces_of(label, column))
    return pa.RecordBatch.from_arrays([piece for _, piece in flat], names=[label for label, _ in flat])


def _pieces_of(label: str, column: Any) -> Iterator[tuple[str, pa.Array]]:
    column = _decoded(column)
    kind = column.type
    if covers(kind):
        yield label, column
    elif isinstance(kind, pa.BaseExtensionType):
        yield from _pieces_of(label, column.storage)
    elif pa.types.is_nested(kind):
        missing = None if column.null_count == 0 else column.is_null().to_numpy(zero_copy_only=False)
        for lane, words in enumerate(_words(column)):
            yield f"{label}\0{lane}", pa.array(words, pa.uint64(), mask=missing)
    elif getattr(kind, "unit", "") == _UNIT_OF_RAW:
        yield label, column.view(pa.int64())
    else:  # an interval
        yield label, column.view(pa.binary(kind.bit_width // 8)).cast(pa.binary())


def _words(column: Any) -> Words:
    """Return two words for each nested value; those of a null are undefined."""
    kind = column.type
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if not names:
            return np.zeros((2, len(column)), np.uint64)
        parts = row_hashes(_flat(names, column.flatten(), inside=True))
        return mixed(parts ^ _key("struct", *sorted(names)).reshape(2, 1))
    if pa.types.is_map(kind):  # no kernel of Arrow's takes one
        ends = column.offsets.to_numpy().astype(np.int64)
        return _sequences(column.values.slice(ends[0], ends[-1] - ends[0]), np.diff(ends))
    if pa.types.is_union(kind):
        raise NotImplementedError(f"values of type {kind} cannot be hashed")
    import pyarrow.compute as pc  # noqa: PLC0415 - a tenth of a second in each process, and few columns come here

    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64()).to_numpy()
    return _sequences(column.flatten(), lengths)


def _sequences(elements: pa.Array, lengths: npt.NDArray[np.int64]) -> Words:
    """Return the words of sequences of elements, each of which counts with its place."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    places = np.arange(1, len(elements) + 1, dtype=np.int64) - np.repeat(ends[:-1], lengths)
    words = row_hashes(_flat(["element"], [elements], inside=True))
    words = mixed(words ^ mixed(places.view(np.uint64) * _PLACE))
    summed = np.zeros((2, len(elements) + 1), np.uint64)
    np.cumsum(words, axis=1, out=summed[:, 1:])
    sums = summed[:, ends[1:]] - summed[:, ends[:-1]]
    return mixed(sums ^ mixed((lengths.view(np.uint64) + _ODD) * _PLACE))
