"""The timers of one subtask by time: those that are due first in memory, all others where the backend has room.

Timers are state: in the table, by key, so that they are in every snapshot. This is an index beside it, made anew at
each start and in no snapshot.

1. With a backend that has room outside of memory, every timer before the bound is in memory, and every other one is in
   the overflow. So the next timer is always in memory, unless none is there.
2. Timers come in the order of time and key, wherever they lie: the bytes of a timer in the overflow are ordered as the
   timer is.
3. A timer is added only if it is not there, and removed only if it is: the table knows.
"""

from __future__ import annotations

import heapq
import struct
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from .row_store import Overflow

Timer: TypeAlias = tuple[float, bytes]
"""Time and encoded key."""
ROOM: Final = 20_000
"""Timers that are in memory at most, where there is an overflow."""
_WRITTEN_AT_ONCE: Final = 1_000
"""Changes of the overflow. Each call into the backend lets another thread take the interpreter."""
_FEW: Final = 64
"""Removed timers that are not worth going through all others."""
_FLOAT: Final = struct.Struct(">d")
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1


def to_bytes(timer: Timer) -> bytes:
    """Return bytes that are ordered as timers are."""  # (2)
    bits = int.from_bytes(_FLOAT.pack(timer[0]), "big")
    return (bits ^ (_ALL if bits & _SIGN else _SIGN)).to_bytes(8, "big") + timer[1]


def from_bytes(data: bytes) -> Timer:
    """Return the timer that `to_bytes` has encoded."""
    bits = int.from_bytes(data[:8], "big")
    return _FLOAT.unpack((bits ^ (_SIGN if bits & _SIGN else _ALL)).to_bytes(8, "big"))[0], data[8:]


class Timers:
    """Timers by time.

    Args:
        overflow: Function that makes room outside of memory when it is needed; None: all timers are in memory.
    """

    def __init__(self, overflow: Callable[[], Overflow] | None) -> None:
        self._make_overflow = overflow
        self._overflow: Overflow | None = None
        self._bound: Timer | None = None
        """Timers from here on are in the overflow; None: it is empty."""
        self._stored = 0
        self._changes: dict[bytes, bool] = {}
        """Changes that the overflow does not have yet: whether the timer is there."""
        self._heap: list[Timer] = []
        self._removed: set[Timer] = set()
        """Those in the heap that were removed; they are taken out when they are as many as the others."""

    def __len__(self) -> int:
        return len(self._heap) - len(self._removed) + self._stored

    @property
    def in_memory(self) -> int:
        """Entries in memory: timers, and some that were removed."""
        return len(self._heap) + len(self._changes)

    def add(self, timer: Timer) -> None:
        """Add a timer that is not there."""
        if self._bound is not None and timer >= self._bound:  # (1)
            self._change(timer, there=True)
        elif timer in self._removed:
            self._removed.remove(timer)
        else:
            heapq.heappush(self._heap, timer)
            if self._make_overflow is not None and len(self._heap) > ROOM:
                self._make_room(self._make_overflow)

    def remove(self, timer: Timer) -> None:
        """Remove a timer that is there."""
        if self._bound is not None and timer >= self._bound:  # (1)
            self._change(timer, there=False)
            return
        self._removed.add(timer)
        if len(self._removed) > max(_FEW, len(self._heap) // 2):
            self._forget_removed()

    def first(self) -> Timer | None:
        """Return the next timer."""
        while True:
            while self._heap and self._heap[0] in self._removed:
                self._removed.remove(heapq.heappop(self._heap))
            if self._heap or not self._stored:
                return self._heap[0] if self._heap else None
            self._load()

    def pop(self) -> None:
        """Remove the timer that `first` has returned."""
        heapq.heappop(self._heap)

    def _forget_removed(self) -> None:
        self._heap = [timer for timer in self._heap if timer not in self._removed]
        heapq.heapify(self._heap)
        self._removed.clear()

    def _make_room(self, make: Callable[[], Overflow]) -> None:
        """Move the later half to the overflow."""
        self._forget_removed()
        self._heap.sort()
        kept = len(self._heap) // 2
        self._heap, later = self._heap[:kept], self._heap[kept:]
        self._overflow = self._overflow or make()
        self._bound = later[0]
        for timer in later:
            self._change(timer, there=True)

    def _change(self, timer: Timer, *, there: bool) -> None:
        self._changes[to_bytes(timer)] = there
        self._stored += 1 if there else -1
        if len(self._changes) >= _WRITTEN_AT_ONCE:
            self._write_changes()

    def _write_changes(self) -> None:
        if self._overflow is not None and self._changes:
            self._overflow.change(self._changes)
        self._changes = {}

    def _load(self) -> None:
        """Take the first timers out of the overflow: the memory has none."""
        assert self._overflow is not None  # noqa: S101 - there are some in it
        assert self._bound is not None  # noqa: S101
        self._write_changes()
        timers = self._overflow.first(to_bytes(self._bound), ROOM // 2 + 1)
        loaded, after = timers[: ROOM // 2], timers[ROOM // 2 :]
        self._overflow.change(dict.fromkeys(loaded, False))
        self._stored -= len(loaded)
        self._heap = [from_bytes(data) for data in loaded]  # in order, so it is a heap
        self._bound = from_bytes(after[0]) if after else None
