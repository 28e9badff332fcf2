"""The stream readers that Spark gets: what is lost is told by the first batch of a restart, too."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pytest

pytest.importorskip("pyspark.sql.datasource", reason="needs pyspark")

from pyspark.sql.datasource import InputPartition

from onceward.connectors.spark.read import any_source
from onceward.connectors.spark.read.any_source import BeforeLimits, batches_of, spark_schema, task_inputs
from onceward.core.errors import ConfigurationError, SourceError
from onceward.core.kit.pieces import pieces
from onceward.sources import ResettableSource, SequenceSource, Split

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


NEW_YORK = "America/New_York"
MOMENT = dt.datetime.fromisoformat("2026-01-02T03:04:05")


@pytest.mark.parametrize(
    ("kind", "value", "taken"),
    [
        (pa.timestamp("s"), MOMENT, pa.timestamp("us")),
        (pa.timestamp("ns"), MOMENT, pa.timestamp("us")),
        (pa.timestamp("us", NEW_YORK), MOMENT.replace(tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
        (pa.duration("s"), dt.timedelta(days=1), pa.duration("us")),
        (pa.large_string(), "a", pa.string()),
        (pa.binary(2), b"ab", pa.binary()),
        (pa.dictionary(pa.int32(), pa.string()), "a", pa.string()),
        (pa.struct({"at": pa.timestamp("ms")}), {"at": MOMENT}, pa.struct({"at": pa.timestamp("us")})),
    ],
    ids=str,
)
def test_spark_gets_the_values_in_the_types_that_pyspark_insists_on(
    kind: pa.DataType, value: object, taken: pa.DataType
):
    """FileSource reads a time in CSV as seconds, and pandas writes nanoseconds and large strings."""
    source = SequenceSource(pa.table({"v": pa.array([value, None], kind)}))
    [batch] = batches_of(source, InputPartition([Split("0", 0, 2)]))
    assert batch.schema.equals(pa.schema({"v": taken}))
    assert batch.column(0).to_pylist() == [value, None]


class Forgetful(SequenceSource):
    """Reads the first rows only."""

    def read(self, split: Split) -> Iterator[Piece]:
        yield next(iter(super().read(split)))


def test_spark_is_told_when_rows_of_a_split_are_missing():
    source = Forgetful(pa.table({"n": range(20)}), batch_rows=12)
    with pytest.raises(SourceError, match="Forgetful delivered 0 rows of 0 from 12 to 20, where 8 must be"):
        list(batches_of(source, InputPartition([Split("0", 0, 20)])))


def test_spark_gets_batches_of_bounded_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(any_source, "pieces", partial(pieces, limit=100))
    rows = pa.table({"v": [bytes([n]) * 40 for n in range(9)]})
    found = list(batches_of(SequenceSource(rows), InputPartition([Split("0", 0, 9)])))
    assert pa.Table.from_batches(found).equals(rows)
    assert max(batch.nbytes for batch in found) <= 100


def test_a_value_that_sparks_type_would_cut_is_an_error():
    source = SequenceSource(pa.table({"at": pa.array([1], pa.timestamp("ns"))}))
    with pytest.raises(SourceError, match=r"column at: .*would lose data.*as timestamp\[us\] only"):
        list(batches_of(source, InputPartition([Split("0", 0, 1)])))


def test_a_column_that_spark_cannot_read_is_named():
    source = SequenceSource(pa.table({"n": pa.array([1], pa.int64()), "small": pa.array([1], pa.uint8())}))
    with pytest.raises(ConfigurationError, match="column small of the source has type uint8"):
        spark_schema(source)
