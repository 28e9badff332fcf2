"""What several threads may do with one pipeline, as its docstring promises."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from onceward.core import CheckpointConfig
from onceward.core.engine.job import JobState
from onceward.core.errors import CheckpointFailedError, ConfigurationError
from onceward.core.log import MemoryStore
from onceward.sources import SequenceSource

from .engine_kit import RunningSum, Slowly, numbers, pipeline, reach, sums
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

THREADS = 4


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Call each in a thread of its own, at the same time; its result or its error."""
    ready = threading.Barrier(len(calls))

    def call(function: Callable[[], Any]) -> Any:
        ready.wait(10)
        try:
            return function()
        except (CheckpointFailedError, ConfigurationError) as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return [*pool.map(call, calls)]


class Meeting(SequenceSource):
    """A source in whose check the threads that start wait for each other, if they can get there at once."""

    def __init__(self, rows: Any) -> None:
        super().__init__(rows)
        self.met = threading.Barrier(2)

    def validate(self) -> None:
        try:
            self.met.wait(0.1)
        except threading.BrokenBarrierError:
            self.met.reset()


def test_of_several_threads_that_start_a_pipeline_one_does() -> None:
    target = Target()
    p = pipeline(store=MemoryStore(), checkpointing=CheckpointConfig())
    p.source(Meeting(numbers(100)), uid="numbers").sink(TargetSink(target))
    answers = at_once(*[p.start] * 2)
    p.wait(30)
    assert sorted(type(answer).__name__ for answer in answers) == ["ConfigurationError", "Job"]
    assert target.counts("n") == Counter(range(100))


def test_a_run_may_be_watched_and_ended_by_several_threads_at_once(tmp_path: Path) -> None:
    target, store, source = Target(), MemoryStore(), Slowly(numbers(1000), batch_rows=100)
    p = pipeline(store=store, checkpointing=CheckpointConfig(interval=0.01))
    p.source(source, uid="numbers").key_by("k").process(RunningSum(), uid="sums", parallelism=3).sink(
        TargetSink(target)
    )
    job = p.start()
    reach(source, job, 7)
    savepoints = [lambda n=n: p.savepoint(tmp_path / f"save{n}", timeout=20) for n in range(THREADS)]
    ends = [lambda n=n: p.stop_with_savepoint(tmp_path / f"end{n}", timeout=20) for n in range(2)]
    answers = at_once(*savepoints, *ends, lambda: p.checkpoints, p.guarantee, lambda: p.wait(20))
    assert job.state is JobState.FINISHED
    ended = [answer for answer in answers[THREADS : THREADS + 2] if not isinstance(answer, CheckpointFailedError)]
    assert ended
    again = pipeline(store=store, checkpointing=CheckpointConfig())
    rest = again.source(SequenceSource(numbers(1000), batch_rows=100), uid="numbers")
    rest.key_by("k").process(RunningSum(), uid="sums").sink(TargetSink(target))
    again.run()
    assert target.counts("n") == Counter(range(1000))
    assert {row["n"]: row["sum"] for row in target.rows} == sums(numbers(1000))


def test_the_subtasks_of_an_operator_share_a_plain_function() -> None:
    threads, target, met = set[int](), Target(), threading.Barrier(2)

    def noting(row: dict[str, Any]) -> dict[str, Any]:
        if not threads:
            met.wait(10)  # for the other subtask
        threads.add(threading.get_ident())
        return row

    p = pipeline(store=MemoryStore(), checkpointing=CheckpointConfig())
    p.source(SequenceSource(numbers(40, keys=20), batch_rows=5), uid="numbers").key_by("k").map(
        noting, uid="map", parallelism=2
    ).sink(TargetSink(target))
    p.run()
    assert len(threads) == 2
    assert target.counts("n") == Counter(range(40))
