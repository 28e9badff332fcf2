"""Sinks, sources and functions for tests of the embedded engine."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from onceward import DirectSink
from onceward.core import CheckpointConfig, Pipeline, ProcessFunction, RestartStrategy, ValueState
from onceward.core.engine.channels import Aligned, Cancel, Channel, End, Gate, Input
from onceward.core.engine.reference import Decided, resolve_reference
from onceward.core.engine.state.keys import key_in
from onceward.core.engine.state.row_store import decode_cells
from onceward.core.log import read
from onceward.sinks import IdempotentSink
from onceward.sources import SequenceSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.core.engine.state.handles import Metadata
    from onceward.core.log import MemoryStore

    from .sink_kit import Target


def typed(value: Any) -> Any:
    """The value with the types of all that is in it: 3 == 3.0, and True == 1. The order of fields does not count."""
    if isinstance(value, dict):
        return {name: typed(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    if isinstance(value, datetime):
        return (datetime, value, value.utcoffset())
    return (type(value), str(value) if isinstance(value, Decimal | float) else value)


class RunningSum(ProcessFunction):
    """The sum so far of each key."""

    total = ValueState(default=0)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        self.total.set(self.total.get() + record["v"])
        yield {"n": record["n"], "k": record["k"], "sum": self.total.get()}


def numbers(count: int, keys: int = 3) -> list[dict[str, Any]]:
    """Rows with a number, a key and a value."""
    return [{"n": n, "k": f"k{n % keys}", "v": n % 7} for n in range(count)]


def sums(rows: list[dict[str, Any]]) -> dict[int, int]:
    """What RunningSum gives for each row's number, if each key's rows come in order."""
    so_far: dict[str, int] = {}
    found = {}
    for row in rows:
        so_far[row["k"]] = so_far.get(row["k"], 0) + row["v"]
        found[row["n"]] = so_far[row["k"]]
    return found


class Slowly(SequenceSource):
    """Gives batches of one unit as tests let it; ends when all were let."""

    def __init__(self, rows: Any, *, batch_rows: int) -> None:
        super().__init__(rows, batch_rows=batch_rows)
        self.state = {"let": 0, "taken": 0, "asked": 0}

    @property
    def bounded(self) -> bool:
        return self.state["let"] >= self._size(0)

    def latest(self, position: Any, limit: int | None = None, until: Any = None) -> Any:
        self.state["taken"] = max(self.state["taken"], *position.values(), 0)
        self.state["asked"] = 1
        let = {"0": self.state["let"]}
        reach = super().latest(position, limit, until)
        return {unit: max(position[unit], min(at, let[unit])) for unit, at in reach.items()}

    @property
    def taken(self) -> int:
        """Batches that were given on."""
        return self.state["taken"] // self._batch_rows

    def let(self, batches: int = 1) -> None:
        """Let so many batches more through."""
        self.state["let"] = max(self.state["let"], self.state["taken"])
        self.state["let"] += batches * self._batch_rows


def reach(source: Slowly, job: Any, batches: int) -> None:
    """Let the source give so many batches more than those that it begins behind."""
    while not source.state["asked"]:
        assert not job.wait(0.005)
    wanted = source.taken + batches
    source.let(batches)
    while source.taken < wanted:
        assert not job.wait(0.005)


def decided(store: MemoryStore) -> Metadata:
    """The checkpoint that the newest decision names."""
    newest = Decided.of(read(store).newest)
    assert newest is not None
    return resolve_reference(newest.checkpoint)[0]


def values(metadata: Metadata, uid: str, state: str) -> dict[Any, Any]:
    """A value state of all keys, out of a checkpoint of the memory backend."""
    found = {}
    for subtask in metadata.operators[uid].subtasks:
        assert subtask.keyed is not None
        for row, _, value in decode_cells(subtask.keyed.inline, "test"):
            if row[3 : 3 + row[2]].decode() == state:
                found[msgspec.msgpack.decode(key_in(row))] = msgspec.msgpack.decode(value)
    return found


def pipeline(name: str = "p", **options: Any) -> Pipeline:
    """A pipeline that restarts at once."""
    options.setdefault("restart", RestartStrategy.fixed_delay(attempts=20, delay=0))
    options.setdefault("checkpointing", CheckpointConfig(interval=0.05))
    return Pipeline(name, **options)


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number]})


def gate(channels: int, *, aligned: bool = True, capacity: int = 8) -> Gate:
    return Gate([Channel(capacity) for _ in range(channels)], aligned=aligned, clock=lambda: 0.0)


def drain(gate_: Gate) -> list[object]:
    """All that can be read now: numbers of rows, and events."""
    found: list[object] = []
    while (event := gate_.poll()) is not None:
        found.append(told(event))
    return found


def told(event: Input) -> object:
    match event:
        case Aligned():
            return f"barrier {event.barrier.checkpoint}"
        case Cancel():
            return f"cancel {event.checkpoint}"
        case End():
            return "end"
        case batch:
            return batch["n"][0].as_py()


def feed(gate_: Gate, channel: int, *elements: object) -> None:
    for element in elements:
        assert gate_.channels[channel].offer(batch(element) if isinstance(element, int) else element)  # type: ignore[arg-type]


Record = dict[str, Any]


class Rows(DirectSink[None]):
    """Keeps what it gets."""

    def __init__(self) -> None:
        super().__init__("rows")
        self.rows: list[Record] = []

    def open(self, context: Any) -> None:
        """Nothing to open."""

    def write(self, writer: None, batch: pa.RecordBatch) -> None:  # noqa: ARG002 - signature
        self.rows += batch.to_pylist()


class ByKey(IdempotentSink[None]):
    """The newest value of each key, and all it ever was."""

    def __init__(self, target: Target) -> None:
        super().__init__("by_key")
        self.target = target

    def open(self, context: Any) -> None:
        """Nothing to open."""

    def write(self, writer: None, batch: pa.RecordBatch) -> None:  # noqa: ARG002 - signature
        for row in batch.to_pylist():
            self.target.committed.setdefault(str(row["k"]), []).append(row)
        self.target.written += batch.num_rows
