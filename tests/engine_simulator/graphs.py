"""Random programs that are confluent: whatever order the engine chooses, their rows and their last state are the same.

The engine is free in how the rows of several inputs or subtasks meet, in what is a batch, and at which row a timer is
due. A program may depend on none of these:

- Rows are compared as a multiset, whole and with all types.
- Numbers that a function gives to the rows of a key in the order of their arrival do not stay beside the rows
  themselves, unless the stream is ordered: all rows of a key go from one subtask to one subtask, from the source on.
  One unit of a source is read by one subtask, and an edge with `key_by` leads all rows of a key to one. A union, or an
  edge that takes turns between subtasks, ends the order.
- Functions with timers give each record twice, whenever the timer fires, and numbers them together. `InOrder` checks
  that what it reads is in the order in which it was given, and keeps the difference of the numbers only.
- Totals have as many rows as there were batches, and `Counted` gives one row for each number, once.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from onceward.core import Pipeline
from onceward.core.log import MemoryStore
from onceward.sources import SequenceSource

from ..sink_kit import Target, TargetSink
from .functions import LONG, Counted, Counting, CountingForAWhile, InOrder, Record, Windows, shown
from .interpreter import Interpreter
from .ledgers import LedgerSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onceward.core import ProcessFunction
    from onceward.core.engine.graph import Graph, Operator
    from onceward.core.engine.pipeline import Stream
    from onceward.types import AggregateFunction

KEYS = (3.5, 3, 3.0, "3", b"3", "a", True, 1, None, "")
"""Each is a key of its own. Those side by side are in one program, because only they could be taken for one another."""
FLAT = (3.5, 3, 3.0, None, "3", b"3", True, 1)
STRUCTS = ({"a": 1}, {"a": 1.5}, {"a": None}, {}, {"b": 1}, {"a": 1, "b": {"a": "1"}}, {"a": [], "b": {}})
VALUES = (*FLAT, *STRUCTS, [], [1, None], ["1"], [[1.5]])
"""Of the fields of records; also those side by side."""


def not_divided_by_three(batch: pa.RecordBatch) -> pa.Array:
    """A mask."""
    return pa.array([n % 3 != 0 for n in batch.column("n").to_pylist()], pa.bool_())


PREDICATES: dict[str, Any] = {
    "filter": lambda row: row["n"] % 3,
    "shape": lambda row: len(shown(row)) % 5,
    "mask": not_divided_by_three,
    "expression": (pc.field("n") - pc.field("n") / 3 * 3) != 0,
}


def reusing() -> Callable[[Record], Record]:
    """Return a function that gives each record in the same dict, with the same list in it."""
    same: Record = {"list": []}
    inner = same["list"]

    def reused(row: Record) -> Record:
        same.clear()
        inner[:] = [row["n"]]
        same.update(row, list=inner)
        return same

    return reused


FUNCTIONS: dict[str, Any] = {
    "map": dict,
    "map_batches": lambda batch: batch,
    "flat_map": lambda row: [row, row],
    "stamp": lambda row: {**row, "stamp": shown({**row, "stamp": None})},
}


class InTurn(SequenceSource):
    """Its units have few rows, and still take turns."""

    turn: int | None = 1
    rows: list[Record]

    @property
    def rows_per_turn(self) -> int | None:
        return self.turn


class Branch(NamedTuple):
    """A stream; and whether the rows of each key have one order."""

    stream: Stream
    ordered: bool


class RandomGraph:
    """A pipeline with one to three sources, some functions, one or two of them with state, and one or two sinks."""

    def __init__(self, random: Random, target: Target, values: Sequence[Any], **options: Any) -> None:
        self._random = random
        drawn = random.random()
        self._others, self._sinks, self._reuses = Random(drawn), Random(f"sinks {drawn}"), Random(f"reuses {drawn}")
        self.pipeline = Pipeline("simulated", store=MemoryStore(), **options)
        self._target, self._values = target, values
        if random.random() < 0.3:
            self._values = [value for value in values if not isinstance(value, list | dict)] or [None]
        self._rows = 0
        self.timed = self.mixed = self.nested = False
        """Whether it has timers, keys of several types, and lists or structs."""
        branches = [self._plain(self._source(number)) for number in range(random.choice([1, 1, 2, 3]))]
        branch = branches[0]
        if len(branches) > 1:
            stream = branch.stream.union(*(other.stream for other in branches[1:]), parallelism=self._many())
            branch = Branch(stream, ordered=False)
        if random.random() < 0.4:
            self._sink(self._then(branch, "map", lambda row: row if row["n"] % 5 else {}), "plain")
        if self._sinks.random() < 0.5:  # a sink for which most epochs bring nothing
            few = self._sinks.choice([1, 2, 4])
            self._sink(self._then(branch, "filter", lambda row: row["n"] < few), "rare")
        branch = random.choice([self._aggregated, self._counted, self._windows])(branch)
        if random.random() < 0.5:
            branch = Branch(branch.stream.map(dict, parallelism=self._many()), ordered=False)
        self._sink(branch, "counted")
        plain = Interpreter(self.pipeline.graph).read().fire()
        self.state = plain.state.shown()
        """What the keyed state will be."""
        self.expected = self.rows(plain)
        """The rows that each sink will get."""

    def rows(self, plain: Interpreter) -> dict[str, Counter[str]]:
        """Return the rows that an interpreter gave to each sink."""
        return {o.uid: Counter(map(shown, plain.given[o.uid])) for o in self.pipeline.graph.of_kind("sink")}

    def _counted(self, branch: Branch) -> Branch:
        """Row by row."""
        stream = branch.stream.key_by("k").process(self._counting(), uid="count", parallelism=self._many())
        if not branch.ordered:  # which number a record of a key gets depends on the order
            stream = stream.key_by("k").map(lambda row: {"k": row["k"], "seen": row["seen"]}, parallelism=self._many())
        return self._in_order(stream, branch.ordered) if self._random.random() < 0.5 else Branch(stream, branch.ordered)

    def _counting(self) -> ProcessFunction:
        return self._others.choice([Counting, CountingForAWhile])()

    def _windows(self, branch: Branch) -> Branch:
        """Row by row, and again with timers."""
        self.timed = True
        choice = self._random.choice
        function = Windows(
            choice([0.0, 0.02, 0.2, 1.0]), moves=choice([False, True]), ends=choice([False, False, True])
        )
        stream = branch.stream.key_by("k").process(function, uid="windows", parallelism=self._many())
        return self._in_order(stream, branch.ordered)

    def _in_order(self, stream: Stream, ordered: bool) -> Branch:
        function = InOrder(ordered=ordered)
        return Branch(stream.key_by("k").process(function, uid="order", parallelism=self._many()), ordered)

    def _aggregated(self, branch: Branch) -> Branch:
        """Batch by batch."""
        totals: dict[str, tuple[str, AggregateFunction]] = {
            "rows": ("*", "count"),
            "total": ("n", "sum"),
            "least": ("n", "min"),
        }
        keyed, ttl = branch.stream.key_by("k"), self._others.choice([None, LONG])
        running = keyed.aggregate(totals, ttl=ttl, uid="aggregate", parallelism=self._many())
        rows = Interpreter(self.pipeline.graph).read().given["aggregate"]
        sums = {shown(row["k"]): (row["rows"], row["total"]) for row in rows}  # the last one of each key
        counted = running.key_by("k").process(Counted(sums), uid="count", parallelism=self._many())
        return Branch(counted, ordered=False)

    def _many(self) -> int:
        return self._random.choice([1, 1, 2, 3])

    def _source(self, number: int) -> Branch:
        count, units = self._random.randint(1, 40), self._many()
        rows = [{"n": self._rows + n, "k": self._random.choice("abcd")} for n in range(count)]
        self._rows += count
        source = InTurn(rows, units=units, batch_rows=self._random.randint(1, 5))
        source.rows = rows
        source.turn = self._random.choice([1, 4, None])
        return Branch(self.pipeline.source(source, uid=f"source{number}", parallelism=self._many()), units == 1)

    def _plain(self, branch: Branch) -> Branch:
        for _ in range(self._random.choice([0, 0, 1, 2])):
            kind = self._random.choice([*FUNCTIONS, *PREDICATES])
            if kind in FUNCTIONS:
                function = FUNCTIONS[kind]
                if kind == "map" and self._reuses.random() < 0.7:
                    self.nested, function = True, reusing()
                branch = self._then(branch, "map" if kind == "stamp" else kind, function)
            else:
                branch = self._then(branch, "filter", PREDICATES[kind], batches=kind == "mask")
            if self._random.random() < 0.5:
                branch = self._then(branch, "map", self._any_shape())
        return branch

    def _any_shape(self) -> Any:
        """A function that gives its record another key, and fields that others lack, or that have other types."""
        self.mixed = True
        self.nested = self.nested or any(isinstance(value, list | dict) for value in self._values)
        random, most = self._random, len(self._values)
        first, same = random.randrange(len(KEYS)), random.random() < 0.5
        keys = dict(zip("abcd", random.sample([*KEYS, *KEYS][first : first + 4], 4), strict=True))
        first, there = random.randrange(most), random.choice([0.0, 0.5, 1.0])
        values = [*self._values, *self._values][first : first + random.choice([1, 2, 3])]
        fields = [{name: random.choice(values) for name in "vw" if random.random() < there} for _ in range(self._rows)]

        def changed(row: Record) -> Record:
            # A key that was given before is kept: keys that were two stay two, and the rows of each in their order.
            row = {**row, **fields[row["n"]]}
            return row if same or "keyed" in row else {**row, "k": keys[row["k"]], "keyed": None}

        return changed

    def _then(self, branch: Branch, kind: str, function: Any, **options: Any) -> Branch:
        by_key = self._random.random() < 0.7
        stream = branch.stream.key_by("k") if by_key else branch.stream
        stream = getattr(stream, kind)(function, parallelism=self._many(), **options)
        return Branch(stream, branch.ordered and by_key)

    def _sink(self, branch: Branch, name: str) -> None:
        keeps = self._sinks.choice([None, False, True])
        sink = TargetSink(self._target, name) if keeps is None else LedgerSink(self._target, name, counts=keeps)
        branch.stream.sink(sink, parallelism=self._many())

    def rescaled(self) -> Graph:
        """Return the same graph with other numbers of subtasks, and perhaps with or without a time to live."""
        graph = copy.copy(self.pipeline.graph)
        others: dict[str, Operator] = {}
        for operator in graph.operators:
            inputs = [(others[source.uid], keys) for source, keys in operator.inputs]
            what = self._counting() if isinstance(operator.what, Counting) else operator.what
            parallelism = self._others.choice([1, 1, 2, 3])
            others[operator.uid] = replace(operator, what=what, inputs=inputs, parallelism=parallelism)
        graph.operators = list(others.values())
        return graph

    def seen(self, name: str) -> Counter[str]:
        """What a sink's target shows."""
        return Counter(map(shown, self._target.by_sink(name)))
