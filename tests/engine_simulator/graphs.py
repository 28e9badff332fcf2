"""Random graphs whose results are known beforehand."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from onceward.core import Pipeline, ProcessFunction, ValueState
from onceward.core.log import MemoryStore
from onceward.sources import SequenceSource

from ..engine_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.core.engine.graph import Graph, Operator
    from onceward.core.engine.pipeline import Stream

Rows = list[dict[str, Any]]
COLUMNS = {"plain": ("n",), "counted": ("k", "seen", "total")}
"""What is compared of the rows of each sink."""


def not_divided_by_three(batch: pa.RecordBatch) -> pa.Array:
    """A mask."""
    return pa.array([n % 3 != 0 for n in batch.column("n").to_pylist()], pa.bool_())


LONG = 1e9
"""Seconds."""
PREDICATES: dict[str, Any] = {
    "filter": lambda row: row["n"] % 3,
    "mask": not_divided_by_three,
    "expression": (pc.field("n") - pc.field("n") / 3 * 3) != 0,
}


class InTurn(SequenceSource):
    """Its units have few rows, and still take turns."""

    turn: int | None = 1

    @property
    def rows_per_turn(self) -> int | None:
        return self.turn


class Counting(ProcessFunction):
    """Numbers the rows of each key: 1, 2, 3, …"""

    seen = ValueState(default=0)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        self.seen.set(self.seen.get() + 1)
        yield {**record, "seen": self.seen.get()}


class CountingForAWhile(Counting):
    """The same, with a time to live that no run of the simulator reaches."""

    seen = ValueState(default=0, ttl=LONG)


class Counted(ProcessFunction):
    """Numbers the rows of each key out of running totals: each number comes once, in whatever batches rows came.

    Args:
        totals: By key: how many rows there will be in the end, and the sum of their numbers. The last number has it.
    """

    before = ValueState(default=0)

    def __init__(self, totals: dict[str, tuple[int, int]]) -> None:
        self.totals = totals

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        count, _ = self.totals[context.key]
        for seen in range(self.before.get() + 1, record["rows"] + 1):
            yield {"k": context.key, "seen": seen, "total": record["total"] if seen == count else 0}
        self.before.set(record["rows"])


class Branch:
    """A stream, and the rows that it will give in the end, in any order."""

    def __init__(self, stream: Stream, rows: Rows) -> None:
        self.stream = stream
        self.rows = rows


class RandomGraph:
    """A pipeline with one to three sources, some functions, a keyed count or totals, and one or two sinks."""

    def __init__(self, random: Random, target: Target, **options: Any) -> None:
        self._random = random
        self._others = Random(random.random())
        self.pipeline = Pipeline("simulated", store=MemoryStore(), **options)
        self._target = target
        self._rows = 0
        self.expected: dict[str, Counter[Any]] = {}
        branches = [self._plain(self._source(number)) for number in range(random.choice([1, 1, 2, 3]))]
        branch = branches[0]
        if len(branches) > 1:
            stream = branch.stream.union(*(other.stream for other in branches[1:]), parallelism=self._many())
            branch = Branch(stream, [row for other in branches for row in other.rows])
        if random.random() < 0.4:
            self._sink(branch, "plain")
        branch = self._aggregated(branch) if random.random() < 0.5 else self._counted(branch)
        if random.random() < 0.5:
            branch = Branch(branch.stream.map(dict, parallelism=self._many()), branch.rows)
        self._sink(branch, "counted")

    def _counted(self, branch: Branch) -> Branch:
        """Row by row."""
        counted = branch.stream.key_by("k").process(self._counting(), uid="count", parallelism=self._many())
        totals = Counter(row["k"] for row in branch.rows)
        rows = [{"k": k, "seen": n + 1, "total": 0} for k, total in totals.items() for n in range(total)]
        # Without the record's number: which number a record of a key gets depends on the order of the sources.
        return Branch(counted.map(lambda row: {"k": row["k"], "seen": row["seen"], "total": 0}), rows)

    def _counting(self) -> ProcessFunction:
        return self._others.choice([Counting, CountingForAWhile])()

    def _aggregated(self, branch: Branch) -> Branch:
        """Batch by batch."""
        totals = {"rows": ("*", "count"), "total": ("n", "sum"), "least": ("n", "min")}
        keyed, ttl = branch.stream.key_by("k"), self._others.choice([None, LONG])
        running = keyed.aggregate(totals, ttl=ttl, uid="aggregate", parallelism=self._many())
        numbers: dict[str, list[int]] = {}
        for row in branch.rows:
            numbers.setdefault(row["k"], []).append(row["n"])
        sums = {k: (len(mine), sum(mine)) for k, mine in numbers.items()}
        counted = running.key_by("k").process(Counted(sums), uid="count", parallelism=self._many())
        rows = [
            {"k": k, "seen": seen, "total": total if seen == count else 0}
            for k, (count, total) in sums.items()
            for seen in range(1, count + 1)
        ]
        return Branch(counted, rows)

    def _many(self) -> int:
        return self._random.choice([1, 1, 2, 3])

    def _source(self, number: int) -> Branch:
        count = self._random.randint(1, 40)
        rows = [{"n": self._rows + n, "k": self._random.choice("abcd")} for n in range(count)]
        self._rows += count
        source = InTurn(rows, units=self._many(), batch_rows=self._random.randint(1, 5))
        source.turn = self._random.choice([1, 4, None])
        return Branch(self.pipeline.source(source, uid=f"source{number}", parallelism=self._many()), rows)

    def _plain(self, branch: Branch) -> Branch:
        for _ in range(self._random.choice([0, 0, 1, 2])):
            kind = self._random.choice(["map", "map_batches", "filter", "expression", "mask", "flat_map"])
            if kind in {"map", "map_batches"}:
                function: Any = dict if kind == "map" else lambda batch: batch
                branch = Branch(getattr(branch.stream, kind)(function, parallelism=self._many()), branch.rows)
            elif kind == "flat_map":
                stream = branch.stream.flat_map(lambda row: [row, row], parallelism=self._many())
                branch = Branch(stream, [row for row in branch.rows for _ in range(2)])
            else:
                stream = branch.stream.filter(PREDICATES[kind], batches=kind == "mask", parallelism=self._many())
                branch = Branch(stream, [row for row in branch.rows if row["n"] % 3])
        return branch

    def _sink(self, branch: Branch, name: str) -> None:
        self.expected[name] = Counter(tuple(row[column] for column in COLUMNS[name]) for row in branch.rows)
        branch.stream.sink(TargetSink(self._target, name), parallelism=self._many())

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

    def seen(self, name: str) -> Counter[Any]:
        """What a sink's target shows."""
        return Counter(tuple(row[column] for column in COLUMNS[name]) for row in self._target.by_sink(name))
