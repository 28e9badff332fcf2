"""Keys, key groups, and which subtask owns which group.

Keyed state is cut into a fixed number of key groups; a subtask owns a contiguous range of them. So state can be
distributed to another number of subtasks without reading a single key (Carbone et al., "State Management in Apache
Flink", 2017).
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

MAX_PARALLELISM: Final = 128
MOST_GROUPS: Final = 1 << 15
_MEMO: Final = 100_000
_UNHASHABLE: Final = (list, dict)
_HEAD: Final = struct.Struct(">HB")
_LENGTH: Final = struct.Struct(">I")

encode_key = msgspec.msgpack.Encoder().encode
"""A key's bytes: equal keys of one type give equal bytes, in every process."""


def group_of(key: bytes, max_parallelism: int) -> int:
    """The key group of an encoded key."""
    return zlib.crc32(key) % max_parallelism


def subtask_of(group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns a group."""
    return group * parallelism // max_parallelism


def groups_of(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """The groups that a subtask owns."""
    first = -(-subtask * max_parallelism // parallelism)
    return range(first, -(-(subtask + 1) * max_parallelism // parallelism))


def row_prefix(group: int, state: str) -> bytes:
    """What the rows of one state in one group begin with."""
    name = state.encode()
    return _HEAD.pack(group, len(name)) + name


def row(group: int, state: str, key: bytes) -> bytes:
    """Where one state of one key is: no row begins with another one."""
    return row_prefix(group, state) + _LENGTH.pack(len(key)) + key


def row_end(data: bytes) -> int:
    """Where the row ends with which these bytes begin."""
    at = _HEAD.size + data[2]
    return at + _LENGTH.size + int(_LENGTH.unpack_from(data, at)[0])


def key_in(row_: bytes) -> bytes:
    """The encoded key of a row."""
    return row_[_HEAD.size + row_[2] + _LENGTH.size :]


def group_in(row_: bytes) -> int:
    """The key group of a row."""
    return int.from_bytes(row_[:2], "big")


class KeyEncoder:
    """Makes rows' keys out of columns: of one column the value itself, of several a tuple."""

    def __init__(self, columns: Sequence[str]) -> None:
        if not columns:
            raise ConfigurationError("key_by needs the name of at least one column")
        self.columns = tuple(columns)
        self._memo: dict[Any, bytes] = {}

    def keys(self, batch: pa.RecordBatch) -> list[Any]:
        missing = [name for name in self.columns if name not in batch.schema.names]
        if missing:
            raise ConfigurationError(f"key_by names columns {missing}; the rows have {batch.schema.names}")
        columns = [batch.column(name).to_pylist() for name in self.columns]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def encoded(self, keys: Sequence[Any]) -> list[bytes]:
        if len(self.columns) > 1:
            return [encode_key(tuple(map(_normal, key))) for key in keys]
        memo = self._memo
        if len(memo) > _MEMO:
            memo.clear()
        found = []
        for key in keys:
            if key.__class__ in _UNHASHABLE:
                found.append(encode_key(key))
                continue
            data = memo.get((key.__class__, key))
            if data is None:
                data = memo[key.__class__, key] = encode_key(_normal(key))
            found.append(data)
        return found

    def groups(self, batch: pa.RecordBatch, max_parallelism: int) -> list[int]:
        return [group_of(key, max_parallelism) for key in self.encoded(self.keys(batch))]


def _normal(key: Any) -> Any:
    """Of -0.0 and 0.0, which are equal, one."""
    return 0.0 if key.__class__ is float and key == 0 else key


def check_parallelism(what: str, parallelism: int, max_parallelism: int) -> None:
    """Refuse a number of subtasks that the key groups cannot be distributed to."""
    if not 1 <= max_parallelism <= MOST_GROUPS:
        raise ConfigurationError(f"max_parallelism must be 1 to {MOST_GROUPS}, not {max_parallelism}")
    if not 1 <= parallelism <= max_parallelism:
        raise ConfigurationError(
            f"{what} has parallelism {parallelism}; give 1 to max_parallelism, which is {max_parallelism}"
        )
