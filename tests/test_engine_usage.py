"""Each subtask counts its rows and its seconds, and says how far its source is behind."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from onceward.core import CheckpointConfig
from onceward.core.contract.events import SubtaskUsage
from onceward.core.engine.channels import TaskId
from onceward.core.engine.source_and_sink import ResettableLogic
from onceward.core.engine.usage import Usage
from onceward.sources import SequenceSource

from .engine_kit import Slowly, numbers, pipeline, reach
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Iterator

TASK = TaskId("it", 0)


class Clock:
    """Seconds that tests let pass."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_step_is_busy_or_blocked_or_idle():
    clock = Clock()
    usage = Usage(clock)
    for worked, full, seconds, pause in [
        (True, False, 2, 0),
        (False, False, 1, 5),
        (False, True, 1, 4),
        (True, True, 3, 7),
    ]:
        began = usage.begin()
        clock.now += seconds
        usage.end(began, worked=worked, full=full)
        clock.now += pause
    assert usage.total(TASK, lag=None, timers=None) == SubtaskUsage("it", 0, busy=5.0, blocked=4.0)


def test_a_subtask_that_is_blocked_now_says_so_before_it_goes_on():
    clock = Clock()
    usage = Usage(clock)
    usage.end(usage.begin(), worked=False, full=True)
    clock.now += 3
    assert usage.total(TASK, lag=None, timers=None).blocked == 3
    clock.now += 3
    usage.begin()
    assert usage.total(TASK, lag=None, timers=None).blocked == 6


def test_what_was_counted_since_another_time_has_the_timers_and_the_lag_of_now():
    one, two = SubtaskUsage("it", 0, 10, 20, 1.0, 2.0, 5, 7), SubtaskUsage("it", 0, 11, 23, 1.5, 2.25, 4, 0)
    assert two.since(one) == SubtaskUsage("it", 0, 1, 3, 0.5, 0.25, 4, 0)


def test_a_source_lags_by_what_it_has_seen_and_not_read():
    logic = ResettableLogic(SequenceSource(numbers(95), units=3, batch_rows=10), 0, {})
    logic._position = logic._source.start()
    logic.most_rows = 7
    logic.open()
    left, seen = 95, set[int]()
    while left:
        left -= logic.poll().num_rows
        assert logic.lag <= left + 10  # a piece that was begun
        seen.add(logic.lag)
    logic.poll()
    assert logic.lag == 0
    assert len(seen) > 10


def test_a_checkpoint_has_each_subtasks_work_since_the_one_before():
    p, source = pipeline(checkpointing=CheckpointConfig()), Slowly(numbers(60), batch_rows=10)
    p.source(source, uid="rows").map(dict, uid="same").sink(TargetSink(Target()))
    job: Any = p.start()
    for batches in (2, 3):
        reach(source, job, batches)
        while job._attempt.tasks[TaskId("target", 0)].usage().rows_in < source.taken * 10 - 10:
            assert not job.wait(0.005)
        job.checkpoint(10)
    source.let(10)
    assert job.wait(20)
    rows = [{task.task: (task.rows_in, task.rows_out) for task in record.tasks} for record in p.checkpoints]
    assert sum(counts["same[0]"][0] for counts in rows) == 60
    assert sum(counts["target[0]"][0] for counts in rows) == 60
    assert all(counts["rows[0]"][0] == counts["target[0]"][1] == 0 for counts in rows)
    assert all(counts["same[0]"][0] == counts["same[0]"][1] for counts in rows)
    assert max(counts["same[0]"][0] for counts in rows) < 60


def test_a_slow_reader_blocks_those_before_it():
    enough = threading.Event()

    def slowly(row: dict[str, Any]) -> dict[str, Any]:
        enough.wait(0.02)
        return row

    p, source = pipeline(checkpointing=CheckpointConfig()), SequenceSource(numbers(100_000), batch_rows=100)
    p.source(source, uid="rows").map(dict, uid="fast").map(slowly, uid="slow").sink(TargetSink(Target()))
    job: Any = p.start()

    def usage(uid: str) -> SubtaskUsage:
        made: SubtaskUsage = job._attempt.tasks[TaskId(uid, 0)].usage()
        return made

    for _ in until(30):
        if usage("fast").blocked > 0.3 and usage("slow").busy > 0.3:
            break
    assert usage("fast").blocked > 0.3
    assert usage("slow").blocked < 0.1
    assert (usage("rows").lag or 0) > 50_000
    enough.set()
    p.stop()


def until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield time.sleep(0.01)
