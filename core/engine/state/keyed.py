"""Keyed state as a function's author sees it: descriptors that read and write the current key's row."""

from __future__ import annotations

import copy
import heapq
import math
import struct
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import msgspec

from ...errors import ConfigurationError
from . import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .store import KeyedTable

_IMMUTABLE = (type(None), bool, int, float, str, bytes)
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder().decode
NO_KEY: Final = "a timer belongs to a key: key_by first, and set it while a record is handled"
_TIMERS: Final = "!timers"
"""The state that timers are in: so they are checkpointed and distributed as any other."""
_TIME: Final = struct.Struct(">d")
_FEW: Final = 64
"""Dropped timers that are not worth going through all others."""


class KeyScope:
    """One subtask's keyed state: the table that holds it, the key at hand, and its timers."""

    def __init__(self, table: KeyedTable, groups: range, max_parallelism: int) -> None:
        self.table = table
        self._max = max_parallelism
        self.key: Any = None
        self._encoded: bytes | None = None
        self.rows: keys.Memo[str, keys.Memo[bytes, bytes]] = keys.Memo(
            lambda state: keys.Memo(partial(self._row, state))
        )
        """By state and encoded key: where the state is."""
        self._heap: list[tuple[float, bytes]] = []
        """Timers by time; those that were dropped are still in it for a while."""
        self._dropped: set[tuple[float, bytes]] = set()
        """Those in the heap that were dropped; they are taken out when they are as many as the others."""
        for group in groups:
            for row, column, _ in table.scan(keys.row_prefix(group, _TIMERS)):
                self._heap.append((_TIME.unpack(column)[0], keys.key_in(row)))
        heapq.heapify(self._heap)

    def enter(self, key: Any, encoded: bytes) -> None:
        """States are now those of this key."""
        self.key, self._encoded = key, encoded

    def leave(self) -> None:
        self.key = self._encoded = None

    def row(self, state: str) -> bytes:
        """The current key's row of a state."""
        key = self._encoded
        if key is None:
            if state == _TIMERS:
                raise ConfigurationError(NO_KEY)
            raise ConfigurationError(f"state {state!r} is keyed: it is there only while a record or timer is handled")
        return self.rows[state][key]

    def _row(self, state: str, key: bytes) -> bytes:
        return keys.row(keys.group_of(key, self._max), state, key)

    def set_timer(self, at: float) -> None:
        """Set a timer of the current key; setting it again changes nothing.

        Raises:
            ConfigurationError: `at` is no number.
        """
        try:
            at = math.nan if isinstance(at, str) else float(at) + 0.0  # not -0.0, which is the same time
        except (TypeError, ValueError, OverflowError):
            at = math.nan
        if math.isnan(at):
            raise ConfigurationError("a timer's time must be a number: seconds since 1970")
        row, column = self.row(_TIMERS), _TIME.pack(at)
        if self.table.get(row, column) is None:
            self.table.put(row, b"", column)
            timer = (at, keys.key_in(row))
            if timer in self._dropped:
                self._dropped.remove(timer)
            else:
                heapq.heappush(self._heap, timer)

    def drop_timer(self, at: float) -> None:
        """Drop a timer of the current key, if it is set."""
        row, column = self.row(_TIMERS), _TIME.pack(at + 0.0)
        if self.table.get(row, column) is None:
            return
        self.table.delete(row, column)
        self._dropped.add((at + 0.0, keys.key_in(row)))
        if len(self._dropped) > max(_FEW, len(self._heap) // 2):
            self._heap = [timer for timer in self._heap if timer not in self._dropped]
            heapq.heapify(self._heap)
            self._dropped.clear()

    @property
    def timers(self) -> int:
        """The number of timers that are set."""
        return len(self._heap) - len(self._dropped)

    @property
    def entries(self) -> int:
        """The number of timers in memory: those that are set, and some that were dropped."""
        return len(self._heap)

    def next_timer(self) -> float | None:
        """Return when the next timer is due."""
        while self._heap and self._heap[0] in self._dropped:
            self._dropped.remove(heapq.heappop(self._heap))
        return self._heap[0][0] if self._heap else None

    def enter_due(self, now: float) -> float | None:
        """Take the next timer that is due, enter its key, and return its time."""
        at = self.next_timer()
        if at is None or at > now:
            self.leave()
            return None
        at, encoded = heapq.heappop(self._heap)
        self._enter_encoded(encoded)
        self.table.delete(self.row(_TIMERS), _TIME.pack(at))
        return at

    def each_key(self) -> Iterator[Any]:
        """Enter each key that has state, one after another, and yield it. Its state may be changed meanwhile."""
        for _, cells in groupby(self.table.scan(b""), lambda cell: keys.group_in(cell[0])):
            for encoded in dict.fromkeys(keys.key_in(row) for row, _, _ in cells):
                self._enter_encoded(encoded)
                yield self.key
        self.leave()

    def _enter_encoded(self, encoded: bytes) -> None:
        key = unpack(encoded)
        self.enter(tuple(key) if isinstance(key, list) else key, encoded)


class State:
    """Base of all states. A class attribute of a ProcessFunction; its name is the attribute's."""

    layout: ClassVar[str]
    """How it lies in a checkpoint: one of another layout cannot read it."""
    name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


class KeyedState(State):
    """Base of all keyed states."""

    layout = "value"

    def __init__(self) -> None:
        self._scope: KeyScope | None = None

    def bound(self, scope: KeyScope) -> Self:
        """This state in one subtask's table."""
        mine = copy.copy(self)
        mine._scope = scope  # noqa: SLF001 - of the same class
        return mine

    def _place(self) -> tuple[KeyedTable, bytes]:
        if self._scope is None:
            raise ConfigurationError(f"state {self.name!r} can be used only by a function that runs in a pipeline")
        return self._scope.table, self._scope.row(self.name)

    def clear(self) -> None:
        """Forget the current key's value."""
        table, row = self._place()
        for column, _ in list(table.columns(row)):
            table.delete(row, column)


class ValueState(KeyedState):
    """One value for each key.

    Args:
        default: What `get` gives where nothing was set.
    """

    def __init__(self, default: Any = None) -> None:
        super().__init__()
        self.default = default

    def get(self) -> Any:
        """The current key's value."""
        table, row = self._place()
        data = table.get(row)
        if data is None:
            return self.default if isinstance(self.default, _IMMUTABLE) else copy.deepcopy(self.default)
        return unpack(data)

    def set(self, value: Any) -> None:
        """Set the current key's value."""
        table, row = self._place()
        table.put(row, pack(value))

    def clear(self) -> None:
        """Delete the current key's value."""
        table, row = self._place()
        table.delete(row)


class ListState(ValueState):
    """A list for each key."""

    layout = "list"

    def __init__(self) -> None:
        super().__init__()

    def get(self) -> list[Any]:
        """The current key's items, oldest first."""
        return super().get() or []

    def append(self, value: Any) -> None:
        """Add an item, without reading the others."""
        table, row = self._place()
        number, items = _items(table.get(row))
        table.put(row, b"\xdd" + (number + 1).to_bytes(4, "big") + items + pack(value))


def _items(data: bytes | None) -> tuple[int, bytes | memoryview]:
    """How many items a packed list has, and their bytes; MessagePack has three forms of its first bytes."""
    if data is None:
        return 0, b""
    header = {0xDD: 5, 0xDC: 3}.get(data[0], 1)
    number = data[0] & 0x0F if header == 1 else int.from_bytes(data[1:header], "big")
    return number, memoryview(data)[header:]


class ReducingState(ValueState):
    """One value for each key, into which others are folded.

    Args:
        reduce: Of the value so far and the one added, the next.
    """

    def __init__(self, reduce: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._reduce = reduce

    def add(self, value: Any) -> None:
        """Fold a value in."""
        table, row = self._place()
        data = table.get(row)
        table.put(row, pack(value if data is None else self._reduce(unpack(data), value)))


class MapState(KeyedState):
    """A map for each key, whose entries are read and written one by one."""

    layout = "map"

    def get(self, key: Any, default: Any = None) -> Any:
        """An entry's value."""
        table, row = self._place()
        data = table.get(row, pack(key))
        return default if data is None else unpack(data)

    def put(self, key: Any, value: Any) -> None:
        """Set an entry."""
        table, row = self._place()
        table.put(row, pack(value), pack(key))

    def remove(self, key: Any) -> None:
        """Remove an entry, if it is there."""
        table, row = self._place()
        table.delete(row, pack(key))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """The current key's entries, in the order of their keys' bytes."""
        table, row = self._place()
        for column, value in list(table.columns(row)):
            yield unpack(column), unpack(value)


class OperatorState(State):
    """A list that belongs to a subtask, not to a key.

    Args:
        redistribute: At a restore: "split" distributes the items of all subtasks, "union" gives all of them to each.
    """

    layout = "operator"

    def __init__(self, redistribute: str = "split") -> None:
        if redistribute not in {"split", "union"}:
            raise ConfigurationError(f"OperatorState(redistribute={redistribute!r}): give 'split' or 'union'")
        self.redistribute = redistribute
        self.items: list[Any] = []

    def bound(self, items: list[Any]) -> OperatorState:
        """This state in one subtask."""
        mine = copy.copy(self)
        mine.items = items
        return mine

    def get(self) -> list[Any]:
        """The items."""
        return list(self.items)

    def set(self, items: list[Any]) -> None:
        """Set all of them."""
        self.items = list(items)

    def append(self, item: Any) -> None:
        """Add one."""
        self.items.append(item)
