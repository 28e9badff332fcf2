"""Runs a ProcessFunction: keyed state, timers, operator state."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import ConfigurationError, StateError
from .functions import FunctionContext, ProcessFunction, states_of
from .logic import Frozen, Guarded, Logic
from .state.handles import ListHandle, SubtaskState
from .state.keyed import KeyedState, KeyScope, OperatorState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from .channels import Barrier
    from .functions import Record
    from .state.keys import KeyEncoder
    from .state.storage import CheckpointStorage


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class ProcessLogic(Logic):
    """One subtask of `process`."""

    def __init__(
        self,
        function: ProcessFunction,
        guarded: Guarded,
        *,
        keys: KeyEncoder | None,
        scope: KeyScope | None,
        parallelism: int,
        lists: Mapping[str, list[bytes]],
        now: Callable[[], float],
    ) -> None:
        self._function = copy.deepcopy(function)
        self._guarded = guarded
        self._keys = keys
        self._scope = scope
        self._lists = self._bind(lists)
        self._context = FunctionContext(guarded.task.uid, guarded.task.subtask, parallelism, scope, now)

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
            self._scope.enter(key, encoded)
            made += self._process(record)
        self._scope.leave()
        return self._guarded.batch(made)

    def timer(self, now: float) -> Sequence[pa.RecordBatch] | None:
        at = self._scope.enter_due(now) if self._scope is not None else None
        if at is None or self._scope is None:
            return None
        key = self._scope.key
        made = self._listed({"timer": at, "key": key}, lambda: self._function.on_timer(at, self._context))
        self._scope.leave()
        return self._guarded.batch(made)

    def next_timer(self) -> float | None:
        return self._scope.next_timer() if self._scope is not None else None

    def finish(self) -> Sequence[pa.RecordBatch]:
        return self._guarded.batch(self._listed("finish", lambda: self._function.finish(self._context)))

    def before_barrier(self, barrier: Barrier) -> Sequence[pa.RecordBatch]:
        at = f"snapshot {barrier.checkpoint}"
        return self._guarded.batch(self._listed(at, lambda: self._function.snapshot(barrier.checkpoint, self._context)))

    def freeze(self, barrier: Barrier) -> Frozen:
        lists = {name: self._handle(name, state) for name, state in self._lists.items()}
        if self._scope is None:
            return Frozen(lambda _storage, _folder: (SubtaskState(lists=lists), 0))
        freezing = self._scope.table.freeze(barrier.checkpoint, full=barrier.kind.savepoint)

        def write(storage: CheckpointStorage | None, folder: str) -> tuple[SubtaskState, int]:
            handle, written = freezing.write(storage, folder)
            return SubtaskState(keyed=handle, lists=lists), written

        return Frozen(write, discard=freezing.discard)

    def confirm(self, checkpoint: int) -> None:
        if self._scope is not None:
            self._scope.table.confirm(checkpoint)
        at = f"on_checkpoint_complete {checkpoint}"
        self._guarded.call(at, lambda: self._function.on_checkpoint_complete(checkpoint, self._context))

    def close(self) -> None:
        try:
            self._guarded.call("close", self._function.close)
        finally:
            if self._scope is not None:
                self._scope.table.close()

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

    def _process(self, record: Record) -> list[Record]:
        return self._listed(record, lambda: self._function.process(record, self._context))

    def _listed(self, record: Any, function: Callable[[], Iterable[Record] | None]) -> list[Record]:
        return self._guarded.call(record, lambda: list(function() or ()))
