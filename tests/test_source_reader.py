"""The stream readers that Spark gets: what is lost is told by the first batch of a restart, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pytest

pytest.importorskip("pyspark.sql.datasource", reason="needs pyspark")

from onceward.connectors.spark.any_source import BeforeLimits, task_inputs
from onceward.core.errors import SourceError
from onceward.sources import ResettableSource, Split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onceward.sources import Piece, Position


class Shelves(ResettableSource):
    """Units with lengths; a unit that a position knows and that is gone is a loss."""

    def __init__(self, **lengths: int) -> None:
        self.lengths = lengths
        self.asked: list[Position] = []

    @property
    def schema(self) -> pa.Schema:
        return pa.schema({"n": pa.int64()})

    @property
    def bounded(self) -> bool:
        return False

    def start(self) -> Position:
        return dict.fromkeys(self.lengths, 0)

    def end(self) -> Position:
        return dict(self.lengths)

    def latest(self, position: Position, limit: int | None = None, until: Position | None = None) -> Position:  # noqa: ARG002
        self.asked.append(position)
        gone = sorted(position.keys() - self.lengths.keys())
        if gone:
            raise SourceError(f"{gone} deleted")
        return dict(self.lengths)

    def splits(self, start: Position, end: Position, parallelism: int = 1) -> Sequence[Split]:  # noqa: ARG002
        return [Split(unit, start.get(unit, 0), stop) for unit, stop in end.items()]

    def read(self, split: Split) -> Iterator[Piece]:
        raise NotImplementedError

    def advance(self, position: Position, split: Split, to: int) -> Position:
        raise NotImplementedError

    def share(self, subtask: int, parallelism: int) -> Self:
        raise NotImplementedError

    def merge(self, positions: Sequence[Position]) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("least", "tasks"),
    [(1, [["a"], ["b"], ["c"], ["d"]]), (4, [["a", "b"], ["c"], ["d"]]), (99, [["a", "b", "c", "d"]])],
)
def test_a_task_reads_so_many_ranges_in_order_that_it_has_enough_rows(
    least: int, tasks: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Shelves, "rows_per_task", least)
    found = task_inputs(Shelves(), {}, {"a": 1, "b": 3, "c": 4, "d": 2})
    assert [[split.unit for split in task.value] for task in found] == tasks


def test_before_pyspark_4_2_the_first_batch_after_a_restart_tells_what_is_lost():
    reader = BeforeLimits(Shelves(a=10))
    end = reader.latestOffset()
    with pytest.raises(SourceError, match="'b'"):
        reader.partitions({"a": 3, "b": 5}, end)


def test_before_pyspark_4_2_a_batch_that_is_replayed_first_tells_what_is_lost():
    with pytest.raises(SourceError, match="'b'"):
        BeforeLimits(Shelves(a=10)).partitions({"a": 3, "b": 5}, {"a": 7})


def test_before_pyspark_4_2_what_is_lost_is_looked_for_once_where_the_batch_before_is_not_known():
    source = Shelves(a=10)
    reader = BeforeLimits(source)
    end = reader.latestOffset()
    [task] = reader.partitions({"a": 3}, end)
    assert task.value == [Split("a", 3, 10)]
    reader.partitions({"a": 3}, end)
    assert source.asked == [{"a": 3}]
    assert reader.latestOffset() == {"a": 10}
    assert source.asked == [{"a": 3}, {"a": 10}]


def test_before_pyspark_4_2_a_new_query_knows_where_it_begins():
    source = Shelves(a=10)
    reader = BeforeLimits(source)
    start = reader.initialOffset()
    end = reader.latestOffset()
    assert source.asked == [start]
    reader.partitions(start, end)
    assert source.asked == [start]
