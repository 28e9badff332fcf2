"""Processing-time timers of one subtask: kept in keyed state, so that they are checkpointed and distributed with it."""

from __future__ import annotations

import heapq
import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .state import keys

if TYPE_CHECKING:
    from .state.store import KeyedTable

STATE: Final = "!timers"
_TIME: Final = struct.Struct(">d")


class Timers:
    """One timer for each key and time.

    Args:
        table: Where they are kept.
        groups: The key groups of this subtask.
        max_parallelism: Number of key groups.
    """

    def __init__(self, table: KeyedTable, groups: range, max_parallelism: int) -> None:
        self._table = table
        self._max = max_parallelism
        self._heap: list[tuple[float, bytes]] = []
        for group in groups:
            for row, column, _ in table.scan(keys.row_prefix(group, STATE)):
                self._heap.append((_TIME.unpack(column)[0], keys.key_in(row)))
        heapq.heapify(self._heap)

    def set(self, key: bytes, at: float) -> None:
        """Set a timer; setting it again changes nothing."""
        row, column = self._row(key), _TIME.pack(at)
        if self._table.get(row, column) is None:
            self._table.put(row, b"", column)
            heapq.heappush(self._heap, (at, key))

    def drop(self, key: bytes, at: float) -> None:
        """Take it back; the heap forgets it when its time comes."""
        self._table.delete(self._row(key), _TIME.pack(at))

    def next(self) -> float | None:
        """When the next one is due."""
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> tuple[float, bytes, Any] | None:
        """Take the next one that is due: its time, its key's bytes, its key."""
        while self._heap and self._heap[0][0] <= now:
            at, key = heapq.heappop(self._heap)
            row, column = self._row(key), _TIME.pack(at)
            if self._table.get(row, column) is not None:
                self._table.delete(row, column)
                return at, key, _decode(key)
        return None

    def _row(self, key: bytes) -> bytes:
        return keys.row(keys.group_of(key, self._max), STATE, key)


def _decode(key: bytes) -> Any:
    value = msgspec.msgpack.decode(key)
    return tuple(value) if isinstance(value, list) else value
