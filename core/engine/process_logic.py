"""Runs a ProcessFunction: keyed state, timers, operator state."""

from __future__ import annotations

import copy
import heapq
import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..errors import ConfigurationError, StateError
from .functions import FunctionContext, ProcessFunction, states_of
from .logic import Frozen, Guarded, Logic
from .state import keys as key_groups
from .state.handles import ListHandle, SubtaskState
from .state.keyed import KeyedState, KeyScope, OperatorState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from .channels import Barrier
    from .functions import Record
    from .state.keys import KeyEncoder
    from .state.storage import CheckpointStorage
    from .state.store import KeyedTable


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
_TIMERS: Final = "!timers"
_TIME: Final = struct.Struct(">d")


class ProcessLogic(Logic):
    """One subtask of `process`.

    Args:
        function: The user's; this subtask works on a copy.
        guarded: Names the operator in errors.
        keys: How keys are made; None for a stream without.
        table: Keyed state; None for a stream without keys.
        groups: The key groups of this subtask.
        max_parallelism: Number of key groups.
        parallelism: Number of subtasks.
        lists: Restored operator state.
        now: Processing time.
    """

    def __init__(
        self,
        function: ProcessFunction,
        guarded: Guarded,
        *,
        keys: KeyEncoder | None,
        table: KeyedTable | None,
        groups: range,
        max_parallelism: int,
        parallelism: int,
        lists: Mapping[str, list[bytes]],
        now: Callable[[], float],
    ) -> None:
        self._function = copy.deepcopy(function)
        self._guarded = guarded
        self._keys = keys
        self._table = table
        self._scope = KeyScope(table, max_parallelism) if table is not None else None
        self._timers = Timers(table, groups, max_parallelism) if table is not None else None
        self._encoded = b""
        self._lists = self._bind(lists)
        self._context = FunctionContext(
            guarded.task.uid,
            guarded.task.subtask,
            parallelism,
            scope=self._scope,
            now=now,
            set_timer=self._set_timer,
            clear_timer=self._drop_timer,
        )

    def open(self) -> None:
        self._guarded.call("open", lambda: self._function.open(self._context))

    def rows(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        records: list[Record] = batch.to_pylist()
        made: list[Record] = []
        if self._keys is None or self._scope is None:
            for record in records:
                made += self._process(record)
            return self._guarded.batch(made)
        keys = self._keys.keys(batch)
        for record, key, encoded in zip(records, keys, self._keys.encoded(keys), strict=True):
            self._enter(key, encoded)
            made += self._process(record)
        self._scope.leave()
        return self._guarded.batch(made)

    def timer(self, now: float) -> Sequence[pa.RecordBatch] | None:
        due = self._timers.due(now) if self._timers is not None else None
        if due is None or self._scope is None:
            return None
        at, encoded, key = due
        self._enter(key, encoded)
        made = self._listed({"timer": at, "key": key}, lambda: self._function.on_timer(at, self._context))
        self._scope.leave()
        return self._guarded.batch(made)

    def next_timer(self) -> float | None:
        return self._timers.next() if self._timers is not None else None

    def finish(self) -> Sequence[pa.RecordBatch]:
        return self._guarded.batch(self._listed("finish", lambda: self._function.finish(self._context)))

    def before_barrier(self, barrier: Barrier) -> Sequence[pa.RecordBatch]:
        at = f"snapshot {barrier.checkpoint}"
        return self._guarded.batch(self._listed(at, lambda: self._function.snapshot(barrier.checkpoint, self._context)))

    def freeze(self, barrier: Barrier) -> Frozen:
        lists = {name: self._handle(name, state) for name, state in self._lists.items()}
        if self._table is None:
            return Frozen(lambda _storage, _folder: (SubtaskState(lists=lists), 0))
        freezing = self._table.freeze(barrier.checkpoint, full=barrier.kind.savepoint)

        def write(storage: CheckpointStorage | None, folder: str) -> tuple[SubtaskState, int]:
            handle, written = freezing.write(storage, folder)
            return SubtaskState(keyed=handle, lists=lists), written

        return Frozen(write, discard=freezing.discard)

    def confirm(self, checkpoint: int) -> None:
        if self._table is not None:
            self._table.confirm(checkpoint)
        at = f"on_checkpoint_complete {checkpoint}"
        self._guarded.call(at, lambda: self._function.on_checkpoint_complete(checkpoint, self._context))

    def close(self) -> None:
        try:
            self._guarded.call("close", self._function.close)
        finally:
            if self._table is not None:
                self._table.close()

    def _bind(self, lists: Mapping[str, list[bytes]]) -> dict[str, OperatorState]:
        """Put states of this subtask in the place of the declarations."""
        bound: dict[str, OperatorState] = {}
        for name, declared in states_of(self._function).items():
            if isinstance(declared, OperatorState):
                bound[name] = declared.bound([_unpack(item) for item in lists.get(name, ())])
                setattr(self._function, name, bound[name])
            elif isinstance(declared, KeyedState):
                if self._scope is None:
                    raise ConfigurationError(
                        f"operator {self._guarded.task.uid}: state {name!r} is keyed, the stream is not: key_by first"
                    )
                setattr(self._function, name, declared.bound(self._scope))
        return bound

    def _handle(self, name: str, state: OperatorState) -> ListHandle:
        """The items as they are now: they may be changed in place before the handle is written out."""
        try:
            return ListHandle(state.redistribute, [_pack(item) for item in state.items])
        except Exception as error:
            raise StateError(str(self._guarded.failed(name, error))) from error

    def _enter(self, key: Any, encoded: bytes) -> None:
        self._encoded = encoded
        if self._scope is not None:
            self._scope.enter(key, encoded)

    def _process(self, record: Record) -> list[Record]:
        return self._listed(record, lambda: self._function.process(record, self._context))

    def _listed(self, record: Any, function: Callable[[], Iterable[Record] | None]) -> list[Record]:
        return self._guarded.call(record, lambda: list(function() or ()))

    def _set_timer(self, at: float) -> None:
        self._keyed_timers().set(self._encoded, at)

    def _drop_timer(self, at: float) -> None:
        self._keyed_timers().drop(self._encoded, at)

    def _keyed_timers(self) -> Timers:
        if self._timers is None or self._scope is None or not self._scope.entered:
            raise ConfigurationError("a timer belongs to a key: key_by first, and set it while a record is handled")
        return self._timers


class Timers:
    """Processing-time timers, one for each key and time: in keyed state, so checkpointed and distributed with it.

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
            for row, column, _ in table.scan(key_groups.row_prefix(group, _TIMERS)):
                self._heap.append((_TIME.unpack(column)[0], key_groups.key_in(row)))
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
                value = _unpack(key)
                return at, key, tuple(value) if isinstance(value, list) else value
        return None

    def _row(self, key: bytes) -> bytes:
        return key_groups.row(key_groups.group_of(key, self._max), _TIMERS, key)
