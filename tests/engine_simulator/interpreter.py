"""A plain interpreter of a graph: one record after another, on one thread, without batches, barriers or subtasks.

It reads a graph in one of the orders that the engine may choose: each source to its end, then `on_end` of each key,
then all timers by their time. The engine is free in two ways: in which order the rows of several inputs or subtasks
meet, and at which row a timer is due. So the two can be compared only if a program is confluent, which graphs.py sees
to.

At the end of a run some timers have not fired. They are in the state, and `fire` goes on from there: a run is right if
the committed rows, with those that its last state still gives, are the interpreter's, and the state after that is too.
"""

from __future__ import annotations

import copy
import operator
import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from onceward.core.engine.aggregate import Aggregation
from onceward.core.engine.functions import states_of
from onceward.core.engine.logic import RowFilter
from onceward.core.engine.state.keys import key_in
from onceward.core.engine.state.memory import cells_of
from onceward.core.engine.state.ttl import TIME, has_times

from ..engine_kit import typed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onceward.core.engine.graph import Graph, Operator
    from onceward.core.engine.state.handles import Metadata
    from onceward.core.engine.state.storage import CheckpointStorage

Record = dict[str, Any]
encode = msgspec.msgpack.encode
decode = msgspec.msgpack.decode
PARTS = {"count": operator.add, "sum": operator.add, "min": min, "max": max}


class Place(NamedTuple):
    """Where a value of keyed state is. A key is bytes, because in Python 3 == 3.0."""

    uid: str
    state: str
    key: bytes


class State:
    """The keyed state and the timers of all operators."""

    def __init__(self) -> None:
        self.values: dict[Place, Any] = {}
        self.timers: set[tuple[float, str, bytes]] = set()

    @classmethod
    def of(cls, graph: Graph, metadata: Metadata, storage: CheckpointStorage | None) -> State:
        """Read the state of a checkpoint."""
        state = cls()
        for uid, record in metadata.operators.items():
            parts = next((len(o.what.parts) for o in graph.operators if o.uid == uid and is_aggregate(o)), 0)
            for handle in (subtask.keyed for subtask in record.subtasks if subtask.keyed is not None):
                for row, column, data in cells_of(handle, storage, range(handle.first, handle.end)):
                    place = Place(uid, row[3 : 3 + row[2]].decode(), key_in(row))
                    if has_times(record.kinds.get(place.state, "")):
                        data = data[TIME.size :]  # noqa: PLW2901 - that is of a state with a time to live
                    if place.state == "!timers":
                        state.timers.add((struct.unpack(">d", column)[0], uid, place.key))
                    elif column:
                        state.values.setdefault(place, {})[decode(column)] = decode(data)
                    else:
                        assert place not in state.values, f"{place} is in two subtasks"
                        state.values[place] = decode(bytes([0x90 + parts]) + data) if parts else decode(data)
        return state

    def shown(self) -> dict[str, str]:
        """Return all of it with its types, for comparison."""
        timers = {f"timer {uid} {decode(key)!r} {at}": "" for at, uid, key in self.timers}
        return {f"{p.uid} {p.state} {decode(p.key)!r}": repr(typed(v)) for p, v in self.values.items()} | timers


class PlainState:
    """One state of an operator, of whatever kind a function has declared."""

    def __init__(self, interpreter: Interpreter, uid: str, declared: Any) -> None:
        self._values = interpreter.state.values
        self._context = interpreter.contexts[uid]
        self._uid, self._name, self._layout = uid, declared.name, declared.layout
        self._default = getattr(declared, "default", None)

    @property
    def _place(self) -> Place:
        assert self._context.encoded is not None
        return Place(self._uid, self._name, self._context.encoded)

    def get(self, *entry: Any) -> Any:
        if self._layout == "map":
            return self._values.get(self._place, {}).get(*entry)
        return self._values.get(self._place, [] if self._layout == "list" else self._default)

    def set(self, value: Any) -> None:
        self._values[self._place] = value

    def put(self, entry: Any, value: Any) -> None:
        self._values[self._place] = {**self._values.get(self._place, {}), entry: value}

    def append(self, value: Any) -> None:
        self._values[self._place] = [*self.get(), value]

    def clear(self) -> None:
        self._values.pop(self._place, None)


class Context:
    """What a function is handed: the key, the time, and timers."""

    def __init__(self, state: State, uid: str) -> None:
        self._state, self._uid = state, uid
        self.encoded: bytes | None = None
        self.time = 0.0

    @property
    def key(self) -> Any:
        return decode(self.encoded or b"")

    def now(self) -> float:
        return self.time

    def timer_at(self, seconds: float) -> None:
        self._state.timers.add((seconds, self._uid, self.encoded or b""))

    def drop_timer(self, seconds: float) -> None:
        self._state.timers.discard((seconds, self._uid, self.encoded or b""))


class Interpreter:
    """Reads a graph.

    Args:
        graph: The program.
        state: Where to go on; by default from the beginning.
    """

    def __init__(self, graph: Graph, state: State | None = None) -> None:
        self.graph = graph
        self.state = state or State()
        self.given: defaultdict[str, list[Record]] = defaultdict(list)
        """What each operator has given, by its uid; under a sink's, what the sink got."""
        self.contexts = {o.uid: Context(self.state, o.uid) for o in graph.of_kind("process")}
        self._functions = {o.uid: copy.deepcopy(o.what) for o in graph.of_kind("process")}
        for uid, function in self._functions.items():
            for name, declared in states_of(function).items():
                setattr(function, name, PlainState(self, uid, declared))

    def read(self) -> Interpreter:
        """Read all sources to their end."""
        for source in self.graph.of_kind("source"):
            self._give(source, source.what.rows)
        for each in self.graph.of_kind("process"):
            for key in sorted({place.key for place in self.state.values if place.uid == each.uid}):
                context = self._enter(each.uid, key)
                self._give(each, self._functions[each.uid].on_end(context.key, context))
        return self

    def fire(self) -> Interpreter:
        """Let all timers fire."""
        while self.state.timers:
            timer = at, uid, key = min(self.state.timers)
            self.state.timers.remove(timer)
            context = self._enter(uid, key)
            context.time = at
            reader = next(o for o in self.graph.operators if o.uid == uid)
            self._give(reader, self._functions[uid].on_timer(at, context))
        return self

    def _enter(self, uid: str, key: bytes) -> Context:
        context = self.contexts[uid]
        context.encoded = key
        return context

    def _give(self, giver: Operator, records: Iterable[Record]) -> None:
        for given in records:
            record = copy.deepcopy(given)  # its function may give the same object again
            self.given[giver.uid].append(record)
            for reader in self.graph.operators:
                for source, _ in reader.inputs:
                    if source.uid == giver.uid:
                        self._give(reader, self._answer(reader, record))

    def _answer(self, reader: Operator, record: Record) -> Iterable[Record]:
        function = reader.what
        match reader.kind:
            case "flat_map":
                return function(record)
            case "map_batches":
                return function(pa.RecordBatch.from_pylist([record])).to_pylist()
            case "filter" if isinstance(function, RowFilter):
                return [record] if function(pa.RecordBatch.from_pylist([record])).num_rows else []
            case "filter":
                return [record] if function(record) else []
            case "process":
                return self._process(reader, record)
            case _:
                return [function(record)] if reader.kind == "map" else [record]

    def _process(self, reader: Operator, record: Record) -> Iterable[Record]:
        assert reader.keys is not None
        (column,) = reader.keys.columns
        context = self._enter(reader.uid, encode(record[column]))
        if is_aggregate(reader):
            return [{column: record[column], **self._totals(reader, record, context)}]
        return self._functions[reader.uid].process(record, context)

    def _totals(self, reader: Operator, record: Record, context: Context) -> Record:
        (name,) = (name for name, state in states_of(reader.what).items() if state.layout == "value")
        place = Place(reader.uid, name, context.encoded or b"")
        parts = reader.what.parts
        values = [1 if part.column == "*" else record[part.column] for part in parts]
        if place in self.state.values:
            pairs = zip(parts, self.state.values[place], values, strict=True)
            values = [PARTS[part.function](old, value) for part, old, value in pairs]
        self.state.values[place] = values
        return {name: values[parts.index(part)] for name, part in reader.what.totals.items()}


def is_aggregate(each: Operator) -> bool:
    """Return whether an operator keeps totals."""
    return isinstance(each.what, Aggregation)
