"""Keyed state as a function's author sees it: descriptors that read and write the current key's row."""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Self, TypeVar, cast, get_args, overload

import msgspec

from ...errors import ConfigurationError
from ..records import copied
from . import keys
from .timers import Timers
from .ttl import AT_LEAST_PER_SNAPSHOT, CREATED_PER_SWEEP, TIME, WITH_TIMES, checked_ttl, has_times, without_times

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from .row_store import Freezing, KeyedTable

T = TypeVar("T")
K = TypeVar("K")
Redistribution = Literal["split", "union"]
_IMMUTABLE = (type(None), bool, int, float, str, bytes)
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder().decode
NO_KEY: Final = "a timer belongs to a key: key_by first, and set it while a record is handled"
_TIMERS: Final = "!timers"
"""The state that timers are in: so they are checkpointed and distributed as any other."""
_TIME: Final = struct.Struct(">d")
_ZERO, _NEGATIVE_ZERO = pack(0.0), pack(-0.0)


class KeyScope:
    """One subtask's keyed state: the table that holds it, the key at hand, and its timers.

    Args:
        table: Table of the subtask's cells.
        groups: The key groups of the subtask.
        max_parallelism: Number of all key groups.
        now: Seconds since 1970, for the time to live.
    """

    def __init__(self, table: KeyedTable, groups: range, max_parallelism: int, now: Callable[[], float]) -> None:
        self.table = table
        self._max = max_parallelism
        self._now = now
        self._time: float | None = None
        self._mortal: dict[bytes, KeyedState] = {}
        """States with a time to live, by name."""
        self._created = 0
        """Number of cells with times that were created since the last sweep."""
        self.key: Any = None
        self._encoded: bytes | None = None
        self.rows: keys.Memo[str, keys.Memo[bytes, bytes]] = keys.Memo(
            lambda state: keys.Memo(partial(self._row, state))
        )
        """By state and encoded key: where the state is."""
        self._timers = Timers(table.overflow)
        for group in groups:
            for row, column, _ in table.scan(keys.row_prefix(group, _TIMERS)):
                self._timers.add((_TIME.unpack(column)[0], keys.key_in(row)))

    def enter(self, key: Any, encoded: bytes) -> None:
        """Switch all states to this key."""
        self.key, self._encoded, self._time = key, encoded, None

    def leave(self) -> None:
        self.key = self._encoded = self._time = None
        if self._created >= CREATED_PER_SWEEP:
            self.sweep(2 * self._created)

    @property
    def time(self) -> float:
        """Processing time. It stands still while a record or timer is handled, so nothing expires meanwhile."""
        if self._time is None:
            self._time = self._now()
        return self._time

    def take_over(self, states: Collection[KeyedState], layouts: Mapping[str, str]) -> None:
        """Take these states over from a checkpoint in which they had these layouts.

        A value that has no time, and needs one, was written now. A time that is not needed any more is removed. What is
        of a state that was dropped on purpose, or is of another kind now, is deleted: a state declared again later
        must not find it.
        """
        kinds = {state.name: state.layout for state in states}
        keyed = {name: without_times(layout) for name, layout in layouts.items() if layout != OperatorState.layout}
        dropped = {name.encode() for name, layout in keyed.items() if kinds.get(name) != layout}
        self._mortal = {state.name.encode(): state for state in states if state.ttl is not None}
        changed = {
            state.name.encode(): state
            for state in states
            if has_times(layouts.get(state.name, "")) is not (state.ttl is not None)
        }
        now = self._now()

        def taken_over(row: bytes, cell: bytes) -> bytes | None:
            name = keys.state_in(row)
            state = changed.get(name)
            if name in dropped or state is None:
                return None if name in dropped else cell
            return state.plain(cell) if state.ttl is None else state.with_times(cell, now)

        if changed or dropped:
            self.table.revise(taken_over, None)

    def created(self, cells: int = 1) -> None:
        """Note that there are so many more cells with times."""
        self._created += cells

    def sweep(self, most: int | None) -> None:
        """Remove expired entries from the next `most` cells; None: from all."""
        self._created = 0
        if self._mortal:
            now = self._now()
            self.table.revise(lambda row, cell: self._lasting(row, cell, now), most)

    def _lasting(self, row: bytes, cell: bytes, now: float) -> bytes | None:
        state = self._mortal.get(keys.state_in(row))
        return cell if state is None else state.lasting(cell, now)

    def freeze(self, checkpoint: int, *, full: bool) -> Freezing:
        """Freeze the state for a snapshot, without some of what has expired."""
        self.sweep(None if self.table.copied_whole else AT_LEAST_PER_SNAPSHOT + 2 * self._created)
        return self.table.freeze(checkpoint, full=full)

    def row(self, state: str) -> bytes:
        """Return the current key's row of a state."""
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
            self._timers.add((at, keys.key_in(row)))

    def drop_timer(self, at: float) -> None:
        """Drop a timer of the current key, if it is set."""
        row, column = self.row(_TIMERS), _TIME.pack(at + 0.0)
        if self.table.get(row, column) is None:
            return
        self.table.delete(row, column)
        self._timers.remove((at + 0.0, keys.key_in(row)))

    @property
    def timers(self) -> int:
        """The number of timers that are set."""
        return len(self._timers)

    @property
    def entries(self) -> int:
        """The number of timers in memory: those that are set, and some that were dropped."""
        return self._timers.in_memory

    def next_timer(self) -> float | None:
        """Return when the next timer is due."""
        first = self._timers.first()
        return None if first is None else first[0]

    def enter_due(self, now: float) -> float | None:
        """Take the next timer that is due, enter its key, and return its time."""
        first = self._timers.first()
        if first is None or first[0] > now:
            self.leave()
            return None
        self._timers.pop()
        at, encoded = first
        self._enter_encoded(encoded)
        self.table.delete(self.row(_TIMERS), _TIME.pack(at))
        return at

    def each_key(self) -> Iterator[Any]:
        """Enter each key that has state, one after another, and yield it. Its state may be changed meanwhile."""
        self.sweep(None)
        for _, cells in groupby(self.table.scan(b""), lambda cell: keys.group_in(cell[0])):
            # A key is entered once, however many states and entries it has.
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
    """Name of its form in a checkpoint; a state of another layout cannot read it."""
    name = ""

    @property
    def stored_as(self) -> str:
        """The layout, and whether there are times in it."""
        return self.layout

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


class KeyedState(State):
    """Base of all keyed states.

    Args:
        ttl: Seconds for which a value is kept after it was written; None: forever. Reading it does not renew it.
    """

    layout = "value"

    def __init__(self, ttl: float | None = None) -> None:
        self._scope: KeyScope | None = None
        self.ttl = checked_ttl(type(self).__name__, ttl)

    @property
    def stored_as(self) -> str:
        return self.layout if self.ttl is None else self.layout + WITH_TIMES

    def bound(self, scope: KeyScope, name: str = "") -> Self:
        """Return this state in one subtask's table; `name` is the attribute's: one object may be two of a class."""
        # The state itself is an attribute of the class, which all subtasks share.
        state = copy.copy(self)
        state._scope, state.name = scope, name or self.name  # noqa: SLF001 - of the same class
        return state

    def _place(self) -> tuple[KeyScope, bytes]:
        scope = self._scope
        if scope is None:
            raise ConfigurationError(
                f"state {self.name!r} can be used only by a function that runs in a pipeline, whose class has it as an "
                "attribute"
            )
        return scope, scope.row(self.name)

    def _get(self, column: bytes = b"") -> bytes | None:
        """Return the current key's value, packed; None if there is none, or it has expired."""
        scope, row = self._place()
        cell = scope.table.get(row, column)
        return cell if self.ttl is None or cell is None else self._fresh(scope, row, column, cell)

    def _fresh(self, scope: KeyScope, row: bytes, column: bytes, cell: bytes) -> bytes | None:
        """Return the value of a cell with times, and delete it if it has expired."""
        lasting = self.lasting(cell, scope.time)
        if lasting is None:
            scope.table.delete(row, column)
            return None
        return self.plain(lasting)

    def _put(self, data: bytes, column: bytes = b"") -> None:
        """Set the current key's value, packed."""
        scope, row = self._place()
        if self.ttl is not None:
            data = self.with_times(data, scope.time)
            scope.created(scope.table.get(row, column) is None)
        scope.table.put(row, data, column)

    def with_times(self, data: bytes, now: float) -> bytes:
        """Return a cell with a value that is written now."""
        return TIME.pack(now) + data

    def plain(self, cell: bytes) -> bytes:
        """Return the value of a cell with times."""
        return cell[TIME.size :]

    def lasting(self, cell: bytes, now: float) -> bytes | None:
        """Return a cell with times without its expired entries; None if all have expired."""
        assert self.ttl is not None  # noqa: S101 - else there are no times
        return cell if TIME.unpack_from(cell)[0] + self.ttl > now else None

    def clear(self) -> None:
        """Forget the current key's value."""
        scope, row = self._place()
        # A list, because the loop deletes what it would walk through.
        for column, _ in list(scope.table.columns(row)):
            scope.table.delete(row, column)


class ValueState(KeyedState, Generic[T]):
    """One value for each key: None, a boolean, a number, text, bytes, or lists and dicts of these.

    The type parameter is that of the value: `ValueState(0)`, or `ValueState[int | None](None)`.

    Args:
        default: Value that `get` returns where none was set.
        ttl: Seconds for which the value is kept after it was set; None: forever. Reading it does not renew it.
    """

    def __init__(self, default: T, *, ttl: float | None = None) -> None:
        super().__init__(ttl)
        self.default = default

    def get(self) -> T:
        """Return the current key's value."""
        if self.ttl is None:  # as in _get, without its cost
            scope, row = self._place()
            data = scope.table.get(row)
        else:
            data = self._get()
        if data is None:
            default = self.default
            # The caller may change what it gets, and all keys share the default.
            return default if isinstance(default, _IMMUTABLE) else copy.deepcopy(default)
        value: T = unpack(data)
        return value

    def set(self, value: T) -> None:
        """Set the current key's value."""
        if self.ttl is None:
            scope, row = self._place()
            scope.table.put(row, pack(value))
        else:
            self._put(pack(value))

    def clear(self) -> None:
        """Delete the current key's value."""
        scope, row = self._place()
        scope.table.delete(row)

    def get_many(self, scope: KeyScope, rows: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of many keys, packed."""
        cells = scope.table.get_many(rows)
        if self.ttl is None:
            return cells
        pairs = zip(rows, cells, strict=True)
        values = [None if cell is None else self._fresh(scope, row, b"", cell) for row, cell in pairs]
        scope.created(values.count(None))
        return values

    def put_many(self, scope: KeyScope, rows: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set the values of many keys, which `get_many` has read before."""
        if self.ttl is not None:
            values = [self.with_times(value, scope.time) for value in values]
        scope.table.put_many(rows, values)


class ListState(ValueState[list[T]]):
    """A list for each key. The type parameter is that of an item.

    Args:
        ttl: Seconds for which an item is kept after it was added; None: forever. Each item has its own time.
    """

    layout = "list"

    def __init__(self, *, ttl: float | None = None) -> None:
        super().__init__(cast("list[T]", None), ttl=ttl)

    def get(self) -> list[T]:
        """Return the current key's items, oldest first."""
        return super().get() or []

    def set(self, value: Iterable[T]) -> None:
        """Replace the current key's items."""
        super().set(_as_list(self, value))

    def append(self, value: T) -> None:
        """Add an item, without reading the others."""
        scope, row = self._place()
        cell = scope.table.get(row)
        number, items = _items(cell)
        item: Any = value
        if self.ttl is not None:
            item = [scope.time, value]
            scope.created()  # an item, too, is looked at again
        # The longest of MessagePack's three heads, which has room for any number of items.
        scope.table.put(row, b"\xdd" + (number + 1).to_bytes(4, "big") + items + pack(item))

    def with_times(self, data: bytes, now: float) -> bytes:
        return pack([(now, item) for item in unpack(data)])

    def plain(self, cell: bytes) -> bytes:
        return pack([item for _, item in unpack(cell)])

    def lasting(self, cell: bytes, now: float) -> bytes | None:
        assert self.ttl is not None  # noqa: S101 - else there are no times
        items = unpack(cell)
        left = [item for item in items if item[0] + self.ttl > now]
        if not left:
            return None
        return cell if len(left) == len(items) else pack(left)


def _items(data: bytes | None) -> tuple[int, bytes | memoryview]:
    """Return the number of items of a packed list, and their bytes; MessagePack has three forms of the head."""
    if data is None:
        return 0, b""
    header = {0xDD: 5, 0xDC: 3}.get(data[0], 1)
    number = data[0] & 0x0F if header == 1 else int.from_bytes(data[1:header], "big")
    return number, memoryview(data)[header:]


class ReducingState(ValueState[T | None]):
    """One value for each key, into which others are folded; None before the first. The type parameter is the value's.

    Args:
        reduce: Function of the value so far and the one added; it returns the next value.
        ttl: Seconds for which the value is kept after one was added; None: forever. Reading it does not renew it.
    """

    def __init__(self, reduce: Callable[[T, T], T], *, ttl: float | None = None) -> None:
        super().__init__(None, ttl=ttl)
        self.reduce = reduce

    def add(self, value: T) -> None:
        """Fold a value in."""
        data = self._get()
        self._put(pack(value if data is None else self.reduce(unpack(data), value)))


class MapState(KeyedState, Generic[K, T]):
    """A map for each key, whose entries are read and written one by one.

    The type parameters are those of the entries' keys and values.

    Args:
        ttl: Seconds for which an entry is kept after it was put; None: forever. Each entry has its own time.
    """

    layout = "map"

    def __init__(self, *, ttl: float | None = None) -> None:
        super().__init__(ttl)

    @overload
    def get(self, key: K, default: None = None) -> T | None: ...
    @overload
    def get(self, key: K, default: T) -> T: ...
    def get(self, key: K, default: T | None = None) -> T | None:
        """Return an entry's value, or `default` if there is none."""
        data = next((data for data in map(self._get, _columns(key)) if data is not None), None)
        if data is None:
            return default
        value: T = unpack(data)
        return value

    def put(self, key: K, value: T) -> None:
        """Set an entry."""
        column, *older = _columns(key)
        self._delete(older)
        self._put(pack(value), column)

    def remove(self, key: K) -> None:
        """Remove an entry, if it is there."""
        self._delete(_columns(key))

    def _delete(self, columns: Iterable[bytes]) -> None:
        scope, row = self._place()
        for column in columns:
            scope.table.delete(row, column)

    def items(self) -> Iterator[tuple[K, T]]:
        """Yield the current key's entries, in the order of their keys' bytes."""
        scope, row = self._place()
        # A list, because the caller, and the time to live, may change the map meanwhile.
        for column, cell in list(scope.table.columns(row)):
            data = cell if self.ttl is None else self._fresh(scope, row, column, cell)
            if data is not None:
                yield unpack(column), unpack(data)


def _columns(key: Any) -> list[bytes]:
    """Return the column of a map's entry, and those in which an older version kept the entry of an equal key."""
    column = pack(keys.normal(key))
    return [column, _NEGATIVE_ZERO] if column == _ZERO else [column]


def _as_list(state: State, items: Any) -> list[Any]:
    """Return the items as a list; a text would become its letters, and a dict its keys."""
    if isinstance(items, str | bytes | bytearray | memoryview | Mapping) or not isinstance(items, Iterable):
        raise TypeError(f"state {state.name!r} is a list: set takes a list of items, not {type(items).__name__}")
    return list(items)


class OperatorState(State, Generic[T]):
    """A list that belongs to a subtask, not to a key. The type parameter is that of an item.

    Args:
        redistribute: Rule at a restore: "split" distributes all subtasks' items, "union" gives all of them to each.
    """

    layout = "operator"

    def __init__(self, redistribute: Redistribution = "split") -> None:
        if redistribute not in get_args(Redistribution):
            raise ConfigurationError(f"OperatorState(redistribute={redistribute!r}): give 'split' or 'union'")
        self.redistribute = redistribute
        self.items: list[T] = []

    def bound(self, items: list[T], name: str) -> OperatorState[T]:
        """Return this state in one subtask; `name` is the attribute's."""
        state = copy.copy(self)
        state.items, state.name = items, name
        return state

    def get(self) -> list[T]:
        """Return a copy of the items."""
        items: list[T] = copied(self.items)
        return items

    def set(self, items: Iterable[T]) -> None:
        """Replace all items."""
        self.items = copied(_as_list(self, items))

    def append(self, item: T) -> None:
        """Add an item at the end."""
        # The caller may go on to change the item.
        self.items.append(copied(item))
