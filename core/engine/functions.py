"""Functions with state: what their author writes and is handed, and what runs them. docs/operators.md is the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigurationError, OncewardError, StateError
from .logic import Frozen, Guarded, Logic, chunks, copies
from .mixed_records import records_of
from .records import copied
from .state.handles import ListHandle, SubtaskState
from .state.key_types import KeyTypes
from .state.keyed import NO_KEY, KeyedState, KeyScope, OperatorState, State, pack, unpack
from .user_functions import own_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from .channels import Barrier
    from .graph import Operator
    from .records import Record
    from .state.keys import Distinct, KeyEncoder
    from .state.storage import CheckpointStorage

_TIMERS_AT_ONCE: Final = 10_000
"""Number of timers, and of rows at the end of the input, whose output becomes one batch."""


class FunctionContext:
    """The surroundings of a running function: where it runs, and requests that it can make.

    Attributes:
        uid: Uid of the operator.
        subtask: Number of the subtask, from 0.
        parallelism: Number of the operator's subtasks.
    """

    def __init__(
        self, uid: str, subtask: int, parallelism: int, scope: KeyScope | None, now: Callable[[], float]
    ) -> None:
        self.uid = uid
        self.subtask = subtask
        self.parallelism = parallelism
        self._scope = scope
        self._now = now

    @property
    def key(self) -> Any:
        """The key of the current record or timer; None outside of both."""
        return copied(self._scope.key) if self._scope is not None else None

    def now(self) -> float:
        """Return the processing time: seconds since 1970."""
        return self._now()

    def timer_at(self, seconds: float) -> None:
        """Call `on_timer` under the current key at or after this processing time, once.

        Raises:
            ConfigurationError: The stream is not keyed, or there is no current key.
        """
        self._keyed().set_timer(seconds)

    def drop_timer(self, seconds: float) -> None:
        """Cancel a timer of the current key."""
        self._keyed().drop_timer(seconds)

    def _keyed(self) -> KeyScope:
        if self._scope is None:
            raise ConfigurationError(NO_KEY)
        return self._scope


class ProcessFunction:
    """Base class of functions with state and timers. States are class attributes.

    Each subtask has a copy of the object, which one thread at a time uses.
    """

    def open(self, context: FunctionContext) -> None:
        """Prepare for work, once in each subtask, before the first record; operator state is restored."""

    def process(self, record: Record, context: FunctionContext) -> Iterable[Record]:
        """Handle one record; return or yield the resulting records."""
        raise NotImplementedError(f"{type(self).__name__} needs a method process(record, context)")

    def on_timer(self, at: float, context: FunctionContext) -> Iterable[Record]:  # noqa: ARG002 - for subclasses
        """Handle a timer that was set for `at`."""
        return ()

    def on_end(self, key: Any, context: FunctionContext) -> Iterable[Record]:  # noqa: ARG002 - for subclasses
        """Handle the end of a key, for each one that has state or timers when the input has ended, before `finish`.

        Keyed state is that of the key: return the records of windows that are still open, and clear what is done with,
        because state and timers are kept for a later run.
        """
        return ()

    def snapshot(self, checkpoint: int, context: FunctionContext) -> Iterable[Record] | None:  # noqa: ARG002
        """Return records that were held back, and set operator state, before a checkpoint's barrier.

        What it returns and sets belongs to the checkpoint. Keyed state is not accessible.
        """
        return ()

    def on_checkpoint_complete(self, checkpoint: int, context: FunctionContext) -> None:
        """React to a completed checkpoint: the rows before its barrier are committed.

        Not called for a savepoint that commits nothing, nor for a checkpoint whose run has failed since: a call for a
        later checkpoint covers all earlier ones.
        """

    def finish(self, context: FunctionContext) -> Iterable[Record]:  # noqa: ARG002 - for subclasses
        """Return records that were held back when the input has ended. Keyed state is not accessible."""
        return ()

    def close(self) -> None:
        """Release resources, once at the end, even after a failure."""


def states_of(function: ProcessFunction) -> dict[str, State]:
    """Return the states that a function declares, by name."""
    kinds = reversed(type(function).__mro__)
    return {name: value for kind in kinds for name, value in vars(kind).items() if isinstance(value, State)}


def state_layouts(operator: Operator) -> dict[str, str]:
    """Return the layouts of the states that an operator's function declares, by the states' names."""
    declared = states_of(operator.what) if operator.kind == "process" else {}
    return {name: state.stored_as for name, state in sorted(declared.items())}


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
        key_types: KeyTypes | None = None,
        layouts: Mapping[str, str] | None = None,
    ) -> None:
        self._function = own_copy(guarded.task.uid, function)
        self._guarded = guarded
        self._keys = keys
        self._scope = scope
        self._key_types = key_types or KeyTypes(guarded.task.uid, keys.columns if keys is not None else ())
        self._lists = self._bind(lists, layouts or {})
        self._context = FunctionContext(guarded.task.uid, guarded.task.subtask, parallelism, scope, now)

    def open(self) -> None:
        self._guarded.done("open", self._function.open, self._context)

    def some_rows(self, batch: pa.RecordBatch, enough: Callable[[], bool]) -> tuple[int, Sequence[pa.RecordBatch]]:
        records = records_of(batch)
        distinct = self._distinct(self._keys, batch) if self._keys is not None and self._scope is not None else None
        codes = distinct.codes.to_pylist() if distinct is not None else records
        outputs: list[Record] = []
        done = 0
        for some, of_some in zip(chunks(records), chunks(codes), strict=True):
            self._process(some, of_some, distinct, outputs)
            done += len(some)
            if enough():
                break
        if self._scope is not None:
            self._scope.leave()
        return done, self._guarded.batch(outputs)

    def _process(
        self, records: Sequence[Record], codes: Sequence[Any], distinct: Distinct | None, outputs: list[Record]
    ) -> None:
        record, process, context = None, self._function.process, self._context
        try:
            if distinct is None or self._scope is None:
                for record in records:
                    outputs += copies(process(record, context) or ())
                return
            values, encoded, enter = distinct.values, distinct.encoded, self._scope.enter
            for record, code in zip(records, codes, strict=True):
                enter(values[code], encoded[code])
                outputs += copies(process(record, context) or ())
        except OncewardError:
            raise
        except Exception as error:
            raise self._guarded.failed(record, error) from error

    def _distinct(self, keys: KeyEncoder, batch: pa.RecordBatch) -> Distinct:
        distinct = keys.distinct(batch)
        for types in distinct.types:
            self._key_types.learn(types)
        return distinct

    def timers(self, now: float, enough: Callable[[], bool]) -> Sequence[pa.RecordBatch] | None:
        scope = self._scope
        outputs: list[Record] = []
        if scope is None:
            return None
        for number in range(_TIMERS_AT_ONCE):
            at = scope.enter_due(now)
            if at is None:
                return self._guarded.batch(outputs) if number else None
            outputs += self._guarded.listed({"timer": at, "key": scope.key}, self._function.on_timer, at, self._context)
            scope.leave()
            if enough():
                break
        return self._guarded.batch(outputs)

    @property
    def timers_set(self) -> int | None:
        return self._scope.timers if self._scope is not None else None

    def next_timer(self) -> float | None:
        return self._scope.next_timer() if self._scope is not None else None

    def finish(self) -> Sequence[pa.RecordBatch]:
        of_keys = self._ends_of_keys()
        return [
            *of_keys,
            *self._guarded.batch(self._guarded.listed("finish", self._function.finish, self._context)),
        ]

    def _ends_of_keys(self) -> Sequence[pa.RecordBatch]:
        """Return the records that the function gives at the end of each key."""
        batches: list[pa.RecordBatch] = []
        if self._scope is None or type(self._function).on_end is ProcessFunction.on_end:
            return batches
        outputs: list[Record] = []
        for key in self._scope.each_key():
            outputs += self._guarded.listed({"end of": key}, self._function.on_end, key, self._context)
            if len(outputs) >= _TIMERS_AT_ONCE:
                batches += self._guarded.batch(outputs)
                outputs = []
        return batches + self._guarded.batch(outputs)

    def before_barrier(self, barrier: Barrier) -> Sequence[pa.RecordBatch]:
        at = f"snapshot {barrier.checkpoint}"
        return self._guarded.batch(self._guarded.listed(at, self._function.snapshot, barrier.checkpoint, self._context))

    def freeze(self, barrier: Barrier) -> Frozen:
        # The items as they are now: they may be changed in place before the handle is written out.
        lists = {name: self._handle(name, state) for name, state in self._lists.items()}
        if self._scope is None:
            return Frozen(lambda _storage, _folder: (SubtaskState(lists=lists), 0))
        key_types = self._key_types.stored()
        freezing = self._scope.freeze(barrier.checkpoint, full=barrier.kind.savepoint)

        def write(storage: CheckpointStorage | None, folder: str) -> tuple[SubtaskState, int]:
            handle, written = freezing.write(storage, folder)
            return SubtaskState(keyed=handle, lists=lists, key_types=key_types), written

        return Frozen(write, discard=freezing.discard)

    def confirm(self, checkpoint: int) -> None:
        if self._scope is not None:
            self._scope.table.confirm(checkpoint)
        at = f"on_checkpoint_complete {checkpoint}"
        self._guarded.done(at, self._function.on_checkpoint_complete, checkpoint, self._context)

    def close(self) -> None:
        try:
            self._guarded.done("close", self._function.close)
        finally:
            if self._scope is not None:
                self._scope.table.close()

    def _bind(self, lists: Mapping[str, list[bytes]], layouts: Mapping[str, str]) -> dict[str, OperatorState[Any]]:
        bound: dict[str, OperatorState[Any]] = {}
        keyed: list[KeyedState] = []
        for name, declared in states_of(self._function).items():
            if isinstance(declared, OperatorState):
                bound[name] = declared.bound([unpack(item) for item in lists.get(name, ())], name)
                setattr(self._function, name, bound[name])
            elif isinstance(declared, KeyedState) and self._scope is not None:
                keyed.append(declared.bound(self._scope, name))
                setattr(self._function, name, keyed[-1])
            else:
                raise ConfigurationError(
                    f"operator {self._guarded.task.uid}: state {name!r} is keyed, the stream is not: key_by first"
                )
        if self._scope is not None:
            self._scope.take_over(keyed, layouts)
        return bound

    def _handle(self, name: str, state: OperatorState[Any]) -> ListHandle:
        try:
            return ListHandle(state.redistribute, [pack(item) for item in state.items])
        except Exception as error:
            raise StateError(str(self._guarded.failed(name, error))) from error
