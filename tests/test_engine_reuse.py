"""A record is what it was when its function gave it, whatever that function does with its objects later.

So the same program gives the same rows whether they come one by one or together.
"""

from __future__ import annotations

import copy
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onceward import (
    ListState,
    MapState,
    OperatorState,
    Pipeline,
    ProcessFunction,
    RestartStrategy,
    SequenceSource,
    ValueState,
)
from onceward.core.engine.records import copied
from onceward.core.log import MemoryStore

from .engine_kit import Record, Rows, typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Hand:
    """Changes objects that it has seen before, and gives them again; each time as its seed says."""

    def __init__(self, seed: int) -> None:
        self.random, self.seen = Random(seed), [{"n": -1, "items": [0], "at": {"x": 0}}]

    def look_at(self, value: Any) -> None:
        """Remember an object that is somebody else's, too."""
        if isinstance(value, dict) and "items" in value:
            self.seen.append(value)

    def spoil(self) -> None:
        """Change something."""
        record = self.random.choice(self.seen)
        change = self.random.choice(["n", "items", "at"])
        if change == "n":
            record["n"] += 100
        elif change == "items":
            record["items"].append(self.random.randrange(9))
        else:
            record["at"]["x"] -= 1

    def give(self) -> Record:
        """Any of the objects, or one that shares its parts with another."""
        record = self.random.choice(self.seen)
        if self.random.random() < 0.3:
            record = {**record}
            self.seen.append(record)
        return record

    def give_some(self) -> Iterator[Record]:
        """Change things before, between and after the records."""
        for _ in range(self.random.choice([0, 1, 2, 3])):
            self.spoil()
            yield self.give()
        self.spoil()


class Spoiling(ProcessFunction):
    """Changes its input, its output, what it reads of its state, and its key."""

    value = ValueState[Any]({"items": [1], "n": 0, "at": {"x": 0}})
    items = ListState[Any]()
    entries = MapState[Any, Any]()
    of_subtask = OperatorState[Any]()

    def __init__(self, seed: int) -> None:
        self.hand = Hand(seed)

    def process(self, record: Record, context: Any) -> Iterator[Record]:
        hand = self.hand
        key = str(context.key)
        if isinstance(context.key, list):
            context.key.append("spoiled")
        for seen in [record, self.value.get(), *self.items.get(), self.entries.get("a"), *self.of_subtask.get()]:
            hand.look_at(seen)
        hand.spoil()
        given = hand.give()
        hand.random.choice([self.value.set, self.items.append, lambda it: self.entries.put("a", it)])(given)
        self.of_subtask.set([hand.give()])
        self.of_subtask.append(hand.give())
        yield {"n": record["n"], "items": [], "at": {"x": 0}, "key": key, "value": self.value.get()["n"]}
        yield from hand.give_some()

    def finish(self, context: Any) -> Iterable[Record]:  # noqa: ARG002 - signature
        return self.hand.give_some()


def spoiling(kind: str, seed: int) -> Callable[[Record], Any]:
    hand = Hand(seed)

    def one(record: Record) -> Record:
        hand.look_at(record)
        hand.spoil()
        return hand.give()

    def some(record: Record) -> Iterator[Record]:
        hand.look_at(record)
        yield from hand.give_some()

    def chosen(record: Record) -> bool:
        hand.look_at(record)
        hand.spoil()
        return hand.random.random() < 0.5

    return {"map": one, "flat_map": some, "filter": chosen}[kind]


def run(kind: str, seed: int, rows: list[Record], batch_rows: int) -> list[Any]:
    """What a function of this kind gives for the rows, in batches of this size."""
    sink = Rows()
    pipeline = Pipeline("reuse", store=MemoryStore(), restart=RestartStrategy.none(), max_batch_rows=batch_rows)
    stream = pipeline.source(SequenceSource(rows, batch_rows=batch_rows), uid="source")
    if kind == "process":
        stream = stream.key_by("items" if seed % 2 else "n").process(Spoiling(seed), uid="f")
    else:
        stream = getattr(stream, kind)(spoiling(kind, seed), uid="f")
    stream.sink(sink)
    pipeline.run()
    return [typed(row) for row in sink.rows]


def plain(kind: str, seed: int, rows: list[Record]) -> list[Any]:
    """The same without an engine, for functions without state."""
    function, given = spoiling(kind, seed), []
    for row in copy.deepcopy(rows):
        before = copy.deepcopy(row)
        answer = function(row)
        records = {"map": [answer], "flat_map": answer, "filter": [before] if answer is True else []}[kind]
        given += [copy.deepcopy(record) for record in records]
    return [typed(row) for row in given]


@pytest.mark.parametrize("kind", ["map", "flat_map", "filter", "process"])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 12))
@example(seed=1, count=8)
def test_a_record_is_what_it_was_when_it_was_given(kind: str, seed: int, count: int):
    rows = [{"n": n, "items": [n % 2], "at": {"x": n}} for n in range(count)]
    one_by_one = run(kind, seed, rows, 1)
    assert run(kind, seed, rows, count) == one_by_one
    if kind != "process":
        assert plain(kind, seed, rows) == one_by_one


class Held(ProcessFunction):
    """Gives one dict at each occasion there is."""

    def open(self, context: Any) -> None:
        self.given = {"what": "open", "n": 0}
        self.context = context

    def _same(self, what: str) -> Iterator[Record]:
        for _ in range(2):
            self.given |= {"what": what, "n": self.given["n"] + 1}
            yield self.given

    def process(self, record: Record, context: Any) -> Iterable[Record]:  # noqa: ARG002 - signature
        context.timer_at(0.0)
        context.timer_at(1.0)
        return self._same("process")

    def on_timer(self, at: float, context: Any) -> Iterable[Record]:  # noqa: ARG002 - signature
        return self._same("timer")

    def on_end(self, key: Any, context: Any) -> Iterable[Record]:  # noqa: ARG002 - signature
        return self._same("end")

    def snapshot(self, checkpoint: int, context: Any) -> Iterable[Record]:  # noqa: ARG002 - signature
        return self._same("snapshot")

    def finish(self, context: Any) -> Iterable[Record]:  # noqa: ARG002 - signature
        return self._same("finish")


def test_it_is_so_at_timers_ends_and_snapshots_too():
    sink, pipeline = Rows(), Pipeline("held", store=MemoryStore(), restart=RestartStrategy.none())
    rows = [{"k": "a"}, {"k": "b"}, {"k": "a"}]
    pipeline.source(SequenceSource(rows), uid="s").key_by("k").process(Held(), uid="f").sink(sink)
    pipeline.run()
    numbers = [row["n"] for row in sink.rows]
    assert sorted(numbers) == [*range(1, len(numbers) + 1)]
    assert {row["what"] for row in sink.rows} >= {"process", "finish", "snapshot"}


class Strange(dict[str, Any]):
    """Answers for fields that it does not have."""

    def __missing__(self, name: str) -> str:
        return name


def test_a_copy_is_deep_and_plain():
    array = bytearray(b"ab")
    value = {"a": [1, {"b": (2, [3])}], "c": {4}, "d": array, "e": memoryview(b"xy")}
    copy_ = copied(value)
    value["a"][1]["b"][1].append(9)
    value["c"].add(9)
    array += b"c"
    assert copy_ == {"a": [1, {"b": (2, [3])}], "c": {4}, "d": b"ab", "e": b"xy"}
    assert type(copied(Strange(a=1))) is dict
    lock = (part for part in ())
    assert copied(lock) is lock
