"""What lies before a barrier, or a stop, is bounded by time and not by a number of rows."""

from __future__ import annotations

import time
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core import CheckpointConfig, ProcessFunction, RestartStrategy
from onceward.core.engine.batch_sizing import FIRST_ROWS, WORK_SECONDS, Pace, even_part
from onceward.core.engine.channels import Barrier, Channel, Gate, TaskId, TaskOutput, forward
from onceward.core.engine.logic import Frozen, Guarded, Logic, RecordLogic
from onceward.core.engine.task import Task, TaskWorld
from onceward.core.errors import ConfigurationError
from onceward.sources import SequenceSource

from .engine_kit import pipeline
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def settled(seconds: Any, parts: int = 60) -> Pace:
    """Return the pace of a task whose parts take `seconds(rows)`."""
    pace = Pace()
    for _ in range(parts):
        pace.measured(pace.rows, seconds(pace.rows), pace.rows)
    return pace


@given(st.floats(1e-6, 0.04))
def test_a_part_takes_about_the_same_time_whatever_a_row_costs(each: float):
    pace = settled(lambda rows: rows * each)
    assert 0.4 * WORK_SECONDS <= pace.rows * each <= 1.1 * WORK_SECONDS


@given(st.floats(0.01, 3.0), st.floats(1e-5, 1e-3))
def test_parts_do_not_shrink_because_each_request_takes_a_while(fixed: float, each: float):
    pace = settled(lambda rows: fixed + rows * each)
    assert pace.rows >= 0.4 * WORK_SECONDS / each


def test_a_function_that_becomes_slower_is_noticed_at_once():
    pace = settled(lambda rows: rows * 1e-5)
    assert pace.rows > 1000
    pace.measured(16, 0.16, 16, left_off=True)
    assert pace.rows <= WORK_SECONDS / 0.01


def test_a_task_works_on_no_more_than_its_readers_work_off_in_time():
    pace = settled(lambda rows: rows * 1e-6)
    slow = TaskOutput([Channel(8, most_rows=20), Channel(8, most_rows=30)], forward)
    assert pace.up_to([slow.rows]) == 50
    twice = Pace()
    for _ in range(20):
        twice.measured(twice.rows, 1e-6, 2 * twice.rows)
    assert twice.up_to([slow.rows]) == 25


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_parts_are_as_few_and_as_even_as_possible(rows: int, most: int):
    sizes, left = [], rows
    while left:
        sizes.append(even_part(left, most))
        left -= sizes[-1]
    assert max(sizes) <= most
    assert len(sizes) == -(-rows // most)
    assert max(sizes) - min(sizes) <= 1


class Clocked:
    """A task whose function takes a while by its clock, and what it gave."""

    def __init__(self, each: float) -> None:
        self.now, self.each, self.seen = 0.0, each, list[int]()
        self.channel, self.output = Channel(8), Channel(1000)
        world = TaskWorld(print, lambda: self.now, lambda: self.now, lambda _: None, lambda _: (None, ""))
        id_ = TaskId("it", 0)
        gate = Gate([self.channel], aligned=True, clock=lambda: self.now)
        logic = RecordLogic("map", Guarded(id_, None), self.takes_a_while)
        self.task = Task(id_, logic, gate, [TaskOutput([self.output], forward)], world)

    def takes_a_while(self, record: dict[str, Any]) -> dict[str, Any]:
        self.now += self.each
        self.seen.append(record["n"])
        return record

    def given(self) -> list[Any]:
        elements: list[Any] = []
        element: Any
        while (element := self.output.take()) is not None:
            elements += element["n"].to_pylist() if isinstance(element, pa.RecordBatch) else [element]
        return elements


@pytest.mark.parametrize("each", [1e-5, 0.003, 0.03, 2.0])
def test_work_is_left_off_in_the_middle_of_a_batch_and_a_barrier_stays_behind_its_rows(each: float):
    rig = Clocked(each)
    rig.channel.offer(pa.RecordBatch.from_pydict({"n": list(range(500))}))
    rig.channel.offer(Barrier(1))
    longest = 0.0
    while True:
        began = rig.now
        if not rig.task.step():
            break
        longest = max(longest, rig.now - began)
    assert rig.given() == [*range(500), Barrier(1)]
    assert rig.seen == list(range(500))
    assert longest <= WORK_SECONDS + 16 * each
    assert rig.channel.most_rows < FIRST_ROWS or each < 0.003


class Joining(Logic):
    """Notes how many rows of which columns it got at once."""

    joins = True

    def __init__(self) -> None:
        self.got: list[tuple[str, list[int]]] = []

    def rows(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        [name] = batch.schema.names
        self.got.append((name, batch.column(0).to_pylist()))
        return []

    def freeze(self, barrier: Barrier) -> Frozen:
        self.got.append(("barrier", [barrier.checkpoint]))
        return super().freeze(barrier)


def test_small_parts_are_joined_for_a_sink_and_written_before_a_barrier():
    """Each would become a request, or a row group. Those of other columns are not joined with them."""
    logic, channel = Joining(), Channel(1000)
    world = TaskWorld(print, lambda: 0.0, lambda: 0.0, lambda _: None, lambda _: (None, ""))
    task = Task(TaskId("it", 0), logic, Gate([channel], aligned=True, clock=lambda: 0.0), [], world)
    for begin, name in ((0, "n"), (1000, "m"), (2000, "n")):
        for at in range(begin, begin + 1000, 10):
            channel.most_rows = 1 << 20
            assert channel.offer(pa.RecordBatch.from_pydict({name: list(range(at, at + 10))}))
    channel.offer(Barrier(1))
    channel.offer(pa.RecordBatch.from_pydict({"n": [3000]}))
    channel.offer(Barrier(2))
    while task.step():
        pass
    names = [name for name, _ in logic.got]
    assert [name for name, _ in groupby(names)] == ["n", "m", "n", "barrier", "n", "barrier"]
    assert [number for name, some in logic.got if name != "barrier" for number in some] == list(range(3001))
    assert len(logic.got) < 20


class Waits(ProcessFunction):
    """Takes a while for each record."""

    calls = 0

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        type(self).calls += 1
        time.sleep(0.002)
        yield record


def test_slow_functions_behind_large_batches_make_checkpoints_and_stop_at_once():
    """It used to be a livelock: no checkpoint was complete within its timeout, and each restart began anew."""
    target = Target()
    p = pipeline(checkpointing=CheckpointConfig(interval=0.2, timeout=5.0), restart=RestartStrategy.none())
    rows = [{"n": n, "k": n % 7} for n in range(100_000)]
    stream = p.source(SequenceSource(rows, batch_rows=10_000)).map(dict)
    stream.key_by("k").process(Waits(), uid="waits").map(dict).sink(TargetSink(target))
    job = p.start()
    until = time.monotonic() + 60
    while len(job.checkpoints) < 4:
        assert time.monotonic() < until
        assert not job.wait(0.05)
    began = time.monotonic()
    p.stop()
    assert time.monotonic() - began < 3
    assert job.error is None
    assert {record.status for record in job.checkpoints[:4]} == {"completed"}
    assert target.rows


def test_a_function_gets_no_more_rows_at_once_than_max_batch_rows():
    sizes: list[int] = []

    def noted(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        return batch

    target = Target()
    p = pipeline(checkpointing=CheckpointConfig(), max_batch_rows=7)
    p.source(SequenceSource([{"n": n} for n in range(500)])).map_batches(noted).sink(TargetSink(target))
    p.run()
    assert sum(sizes) == len(target.rows) == 500
    assert max(sizes) == 7


@pytest.mark.parametrize("rows", [0, -1, "7", 1.5])
def test_a_wrong_max_batch_rows_is_refused(rows: Any):
    with pytest.raises(ConfigurationError, match="max_batch_rows"):
        pipeline(max_batch_rows=rows)


def test_with_linger_small_batches_are_joined_and_nothing_is_left_behind():
    sizes: list[int] = []

    def noted(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        return batch

    target = Target()
    p = pipeline(checkpointing=CheckpointConfig(), linger=5.0)
    p.source(SequenceSource([{"n": n} for n in range(2_000)], batch_rows=1)).map_batches(noted).sink(TargetSink(target))
    began = time.monotonic()
    p.run()
    assert time.monotonic() - began < 4
    assert [row["n"] for row in target.rows] == list(range(2_000))
    assert len(sizes) < 200


@pytest.mark.parametrize("linger", [-1, float("nan"), float("inf"), "1", None])
def test_a_wrong_linger_is_refused(linger: Any):
    with pytest.raises(ConfigurationError, match="linger"):
        pipeline(linger=linger)
