"""Calls of a run's own methods from inside of it: from its functions, sinks and sources, and observers of its events.

The run waits until they return. So `stop` does not wait for its end, and what would wait for it is refused.
"""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward import CheckpointConfig, LiveSource, ProcessFunction, RestartStrategy, SequenceSource
from onceward.core.contract import events
from onceward.core.contract.policy import side_by_side
from onceward.core.errors import CheckpointFailedError, LifecycleError
from onceward.core.log import MemoryStore

from .engine_kit import pipeline
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onceward import Pipeline
    from onceward.core.contract.transaction import CommitOutcome, Committable

SOON = 5.0
"""Seconds; a run that waits for itself takes 30."""
SCHEMA = pa.schema([("n", pa.int64())])


class Case:
    """An endless pipeline, with one place in which something is called, once."""

    def __init__(self, place: str, call: Callable[[Pipeline], object]) -> None:
        self.place, self._call, self.called = place, call, threading.Event()
        self.error: BaseException | None = None
        self.seconds = 0.0
        store = MemoryStore()
        self.pipeline = pipeline(
            "inside", store=store, checkpointing=CheckpointConfig(interval=0.02), restart=RestartStrategy.none()
        )
        stream = self.pipeline.source(Endless(self), uid="source").map(self.at("map"), uid="map")
        stream.key_by("n").process(Everywhere(self), uid="process").sink(Sink(self, "one"))
        stream.sink(Sink(self, "two"))

    def at(self, place: str) -> Callable[..., Any]:
        """What passes a value on, and makes the call if this is the place."""

        def passed(value: Any = None) -> Any:
            if self.place == place and not self.called.is_set():
                began = time.monotonic()
                try:
                    self._call(self.pipeline)
                except BaseException as error:  # noqa: BLE001 - looked at by the test
                    self.error = error
                self.seconds = time.monotonic() - began
                self.called.set()
            return value

        return passed

    def __deepcopy__(self, memo: Any) -> Case:
        return self


class Endless(LiveSource):
    def __init__(self, case: Case) -> None:
        self.case = case

    @property
    def bounded(self) -> bool:
        return False

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def listen(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - signature
        for number in range(10**9):
            self.case.at("listen")()
            time.sleep(0.001)
            yield pa.RecordBatch.from_pydict({"n": [number % 7]}, schema=SCHEMA)


class Everywhere(ProcessFunction):
    def __init__(self, case: Case) -> None:
        self.case = case

    def open(self, context: Any) -> None:  # noqa: ARG002 - signature
        self.case.at("open")()

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        context.timer_at(0.0)
        yield self.case.at("process")(record)

    def on_timer(self, at: float, context: Any) -> tuple[()]:  # noqa: ARG002 - signature
        self.case.at("timer")()
        return ()

    def snapshot(self, checkpoint: int, context: Any) -> tuple[()]:  # noqa: ARG002 - signature
        self.case.at("snapshot")()
        return ()

    def on_checkpoint_complete(self, checkpoint: int, context: Any) -> None:  # noqa: ARG002 - signature
        self.case.at("complete")()


class Sink(TargetSink):
    def __init__(self, case: Case, name: str) -> None:
        super().__init__(Target(), name)
        self.case = case

    def write(self, transaction: Any, batch: pa.RecordBatch) -> None:
        self.case.at("write")()
        super().write(transaction, batch)

    def commit(self, committable: Committable) -> CommitOutcome:
        self.case.at("commit")()
        return super().commit(committable)


PLACES = ["listen", "map", "open", "process", "timer", "snapshot", "complete", "write", "commit", "observer"]


def run(place: str, call: Callable[[Pipeline], object]) -> Case:
    """Run until the call was made."""
    case = Case(place, call)
    observed = case.at("observer")

    def observer(event: object) -> None:
        if isinstance(event, events.CheckpointEnded):
            observed()

    events.observe(observer)
    try:
        job = case.pipeline.start()
        assert case.called.wait(10)
        job.stop()
        assert job.wait(10)
        return case
    finally:
        events._observers.remove(observer)


@pytest.mark.parametrize("place", PLACES)
def test_stop_returns_at_once_and_the_run_ends(place: str):
    began = time.monotonic()
    case = run(place, lambda one: one.stop())
    assert case.error is None
    assert case.seconds < SOON
    assert time.monotonic() - began < 3 * SOON
    job = case.pipeline._job
    assert job is not None
    assert job.state == "stopped"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", ["savepoint", "stop_with_savepoint", "checkpoint"])
def test_a_savepoint_is_refused(place: str, method: str, tmp_path: Path):
    def call(one: Pipeline) -> None:
        if method == "checkpoint":
            assert one._job is not None
            one._job.checkpoint(8)
        else:
            getattr(one, method)(tmp_path / "save", timeout=8)

    case = run(place, call)
    assert isinstance(case.error, CheckpointFailedError)
    assert "by a function, a sink, a source or an observer of the run itself" in str(case.error)
    assert case.seconds < SOON


@pytest.mark.parametrize("place", ["map", "listen", "commit"])
def test_a_run_does_not_wait_for_its_own_end(place: str):
    case = run(place, lambda one: one.wait())
    assert isinstance(case.error, LifecycleError)
    assert "call stop() and return" in str(case.error)


def test_another_thread_of_a_function_may_ask_for_a_savepoint(tmp_path: Path):
    made: list[str] = []
    done = threading.Event()

    def ask(one: Pipeline) -> None:
        def work() -> None:
            made.append(one.savepoint(tmp_path / "save", timeout=30))
            done.set()

        threading.Thread(target=work).start()

    case = Case("map", ask)
    case.pipeline.start()
    assert done.wait(30)
    case.pipeline.stop()
    assert made


def test_a_function_may_run_and_end_another_pipeline():
    def other(_: Pipeline) -> None:
        sink = TargetSink(Target(), "other")
        inner = pipeline("other", restart=RestartStrategy.none())
        inner.source(SequenceSource([{"n": 1}]), uid="source").sink(sink)
        inner.run()
        assert sink.target.rows == [{"n": 1}]

    assert run("map", other).error is None


def test_the_records_of_old_checkpoints_are_dropped_at_each_restart():
    failing = iter(range(10**9))

    def fail(row: dict[str, Any]) -> dict[str, Any]:
        if next(failing) % 50 == 49:
            raise ValueError("again")
        return row

    made = pipeline("again", checkpointing=CheckpointConfig(interval=0.001, history=3))
    source = SequenceSource([{"n": n} for n in range(500)], batch_rows=1)
    made.source(source, uid="source").map(fail, uid="map").sink(TargetSink(Target()))
    with made:
        job = made.start()
        while not job.wait(0.01):
            assert len(job._past) <= 3
    assert job.restarts > 3
    assert len(made.checkpoints) == 3


def test_commits_side_by_side_are_a_part_of_the_run_that_makes_them():
    seen: list[str] = []
    variable: ContextVar[str] = ContextVar("variable", default="outside")
    variable.set("inside")
    side_by_side([lambda: seen.append(variable.get())] * 3)
    assert seen == ["inside"] * 3
