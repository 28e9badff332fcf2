"""Random graphs whose results are known beforehand."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from onceward.core import Pipeline, ProcessFunction, ValueState
from onceward.core.log import MemoryStore
from onceward.sources import SequenceSource

from ..engine_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from onceward.core.engine import Stream

Rows = list[dict[str, Any]]


class Counting(ProcessFunction):
    """Numbers the rows of each key: 1, 2, 3, …"""

    seen = ValueState(default=0)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        self.seen.set(self.seen.get() + 1)
        yield {**record, "seen": self.seen.get()}


class Branch:
    """A stream, and the rows that it will give in the end, in any order."""

    def __init__(self, stream: Stream, rows: Rows) -> None:
        self.stream = stream
        self.rows = rows


class RandomGraph:
    """A pipeline with one to three sources, some functions, a keyed count, and one or two sinks."""

    def __init__(self, random: Random, target: Target, **options: Any) -> None:
        self._random = random
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
            self._sink(branch, "plain", "n")
        counted = branch.stream.key_by("k").process(Counting(), uid="count", parallelism=self._many())
        totals = Counter(row["k"] for row in branch.rows)
        branch = Branch(counted, [{"k": k, "seen": n + 1} for k, total in totals.items() for n in range(total)])
        if random.random() < 0.5:
            branch = Branch(branch.stream.map(dict, parallelism=self._many()), branch.rows)
        self._sink(branch, "counted", "k", "seen")

    def _many(self) -> int:
        return self._random.choice([1, 1, 2, 3])

    def _source(self, number: int) -> Branch:
        count = self._random.randint(1, 40)
        rows = [{"n": self._rows + n, "k": self._random.choice("abcd")} for n in range(count)]
        self._rows += count
        source = SequenceSource(rows, units=self._many(), batch_rows=self._random.randint(1, 5))
        return Branch(self.pipeline.source(source, uid=f"source{number}", parallelism=self._many()), rows)

    def _plain(self, branch: Branch) -> Branch:
        for _ in range(self._random.choice([0, 0, 1, 2])):
            kind = self._random.choice(["map", "filter", "flat_map"])
            if kind == "map":
                branch = Branch(branch.stream.map(dict, parallelism=self._many()), branch.rows)
            elif kind == "filter":
                stream = branch.stream.filter(lambda row: row["n"] % 3, parallelism=self._many())
                branch = Branch(stream, [row for row in branch.rows if row["n"] % 3])
            else:
                stream = branch.stream.flat_map(lambda row: [row, row], parallelism=self._many())
                branch = Branch(stream, [row for row in branch.rows for _ in range(2)])
        return branch

    def _sink(self, branch: Branch, name: str, *columns: str) -> None:
        self.expected[name] = Counter(tuple(row[column] for column in columns) for row in branch.rows)
        branch.stream.sink(TargetSink(self._target, name), parallelism=self._many())

    def seen(self, name: str) -> Counter[Any]:
        """What a sink's target shows."""
        columns = ("n",) if name == "plain" else ("k", "seen")
        shown = self._target.by_sink(name)
        return Counter(tuple(row[column] for column in columns) for row in shown)
