"""Keys, key groups, and which subtask owns which group.

Keyed state is cut into a fixed number of key groups; a subtask owns a contiguous range of them. So state can be
distributed to another number of subtasks without reading a single key (Carbone et al., "State Management in Apache
Flink", 2017).
"""

from __future__ import annotations

import math
import struct
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ConfigurationError
from ...kit.rows import in_python
from ..mixed_records import by_shape, is_mixed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

K = TypeVar("K")
V = TypeVar("V")
MAX_PARALLELISM: Final = 128
MOST_GROUPS: Final = 1 << 15
_MEMO: Final = 100_000
_HEAD: Final = struct.Struct(">HB")
_LENGTH: Final = struct.Struct(">I")

encode_key = msgspec.msgpack.Encoder().encode
"""A key's bytes: equal keys of one type give equal bytes, in every process."""


def group_of(key: bytes, max_parallelism: int) -> int:
    """Return the key group of an encoded key."""
    return zlib.crc32(key) % max_parallelism


def subtask_of(group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that owns a group."""
    return group * parallelism // max_parallelism


def groups_of(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """Return the groups that a subtask owns."""
    first = -(-subtask * max_parallelism // parallelism)
    return range(first, -(-(subtask + 1) * max_parallelism // parallelism))


@lru_cache(_MEMO)
def row_prefix(group: int, state: str) -> bytes:
    """Return the bytes with which the rows of one state in one group begin."""
    name = state.encode()
    return _HEAD.pack(group, len(name)) + name


def row(group: int, state: str, key: bytes) -> bytes:
    """Return the row of one state of one key: no row begins with another one."""
    return row_prefix(group, state) + _LENGTH.pack(len(key)) + key


def row_end(data: bytes) -> int:
    """Return the length of the row with which these bytes begin."""
    at = _HEAD.size + data[2]
    return at + _LENGTH.size + int(_LENGTH.unpack_from(data, at)[0])


def key_in(row_: bytes) -> bytes:
    """Return the encoded key of a row."""
    return row_[_HEAD.size + row_[2] + _LENGTH.size :]


def state_in(row_: bytes) -> bytes:
    """Return the name of the state that a row belongs to."""
    return row_[_HEAD.size : _HEAD.size + row_[2]]


def group_in(row_: bytes) -> int:
    """Return the key group of a row."""
    return int.from_bytes(row_[:2], "big")


class Memo(dict[K, V]):
    """The results of a function for the newest keys."""

    def __init__(self, function: Callable[[K], V]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: K) -> V:
        if len(self) >= _MEMO:
            self.clear()
        value = self[key] = self._function(key)
        return value


class Distinct(NamedTuple):
    """The keys of a batch, each once."""

    values: list[Any]
    encoded: list[bytes]
    codes: pa.Array
    """Index of each row's key in those lists."""
    types: Sequence[tuple[pa.DataType, ...]]
    """Types of the key's columns, for each shape of records."""


class KeyEncoder:
    """The keys of rows, made of columns: of one column the value itself, of several a tuple."""

    def __init__(self, columns: Sequence[str]) -> None:
        if not columns:
            raise ConfigurationError("key_by needs the name of at least one column")
        self.columns = tuple(columns)
        self._memos: Memo[tuple[pa.DataType, ...], Memo[Any, bytes]] = Memo(lambda _: Memo(encode_key))

    def distinct(self, batch: pa.RecordBatch) -> Distinct:
        if not is_mixed(batch):
            return self._distinct(batch)
        values: list[Any] = []
        encoded: list[bytes] = []
        codes = np.empty(batch.num_rows, np.int32)
        types: list[tuple[pa.DataType, ...]] = []
        for shape, at in by_shape(batch):
            distinct = self._distinct(shape)
            codes[at] = distinct.codes.to_numpy() + len(values)
            values += distinct.values
            encoded += distinct.encoded
            types += distinct.types
        return _merged(values, encoded, pa.array(codes), types)

    def _distinct(self, batch: pa.RecordBatch) -> Distinct:
        missing = [name for name in self.columns if name not in batch.schema.names]
        if missing:
            raise ConfigurationError(f"key_by names columns {missing}; the rows have {batch.schema.names}")
        columns = in_python(batch.select(self.columns)).columns
        try:
            values, codes = _dictionary(columns)
        except pa.ArrowNotImplementedError:  # lists and structs
            rows = [column.to_pylist() for column in columns]
            values, codes = rows[0] if len(rows) == 1 else list(zip(*rows, strict=True)), None
        types = tuple(column.type for column in columns)
        if codes is not None and all(map(_is_plain, types)):
            return Distinct(values, [*map(self._memos[types].__getitem__, values)], codes, [types])
        values = [*map(normal, values)]
        return _merged(values, [*map(encode_key, values)], codes, [types])


def _dictionary(columns: Sequence[pa.Array]) -> tuple[list[Any], pa.Array]:
    """Return the combinations of values in these columns, and the number of each row's combination."""
    found, codes = _one_dictionary(columns[0])
    if len(columns) > 1:
        found = [(value,) for value in found]
    for column in columns[1:]:
        values, each = _one_dictionary(column)
        pairs = pc.add(pc.multiply(codes.cast(pa.int64()), len(values)), each.cast(pa.int64())).dictionary_encode()
        numbers = [divmod(pair, len(values)) for pair in pairs.dictionary.to_pylist()]
        found, codes = [(*found[left], values[right]) for left, right in numbers], pairs.indices
    return found, codes


def _one_dictionary(column: pa.Array) -> tuple[list[Any], pa.Array]:
    plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    if pa.types.is_string_view(plain.type) or pa.types.is_binary_view(plain.type):  # Arrow would take nulls for empty
        plain = plain.cast(pa.large_string() if pa.types.is_string_view(plain.type) else pa.large_binary())
    encoded = plain.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices


def _is_plain(type_: pa.DataType) -> bool:
    """Return whether values are encoded alike exactly if they are equal: not so floats, nor datetimes by fold."""
    is_ = pa.types
    return any(kind(type_) for kind in (is_.is_integer, is_.is_string, is_.is_large_string, is_.is_binary))


def _merged(
    values: list[Any], encoded: list[bytes], codes: pa.Array | None, types: Sequence[tuple[pa.DataType, ...]]
) -> Distinct:
    """Make one key of those that are encoded alike, such as 0.0 and -0.0."""
    numbers: dict[bytes, int] = {}
    of_each = pa.array([numbers.setdefault(data, len(numbers)) for data in encoded], pa.int32())
    first = dict(zip(reversed(encoded), reversed(values), strict=True))
    keys = [first[data] for data in numbers]
    return Distinct(keys, list(numbers), of_each if codes is None else of_each.take(codes), types)


def normal(key: Any) -> Any:
    """Return the one form of a key's equals: 0.0 in place of -0.0, and one NaN; also inside of lists and structs."""
    if isinstance(key, float):
        return 0.0 if key == 0 else math.nan if math.isnan(key) else float(key)
    if isinstance(key, list | tuple):
        return type(key)(map(normal, key))
    if isinstance(key, dict):
        return {name: normal(value) for name, value in key.items()}
    return key


def check_parallelism(what: str, parallelism: int, max_parallelism: int) -> None:
    """Refuse a number of subtasks that the key groups cannot be distributed to."""
    if not 1 <= max_parallelism <= MOST_GROUPS:
        raise ConfigurationError(f"max_parallelism must be 1 to {MOST_GROUPS}, not {max_parallelism}")
    if not 1 <= parallelism <= max_parallelism:
        raise ConfigurationError(
            f"{what} has parallelism {parallelism}; give 1 to max_parallelism, which is {max_parallelism}"
        )
