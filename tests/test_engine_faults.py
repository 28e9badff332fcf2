"""What went wrong once in the embedded engine: each with the fault that shows it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

from onceward import KafkaSource
from onceward.core import (
    CheckpointConfig,
    FileBackend,
    JobState,
    MemoryBackend,
    OperatorState,
    Pipeline,
    ProcessFunction,
    RestartStrategy,
    RocksDBBackend,
    ValueState,
)
from onceward.core.engine import threads
from onceward.core.engine.channels import Barrier
from onceward.core.engine.state.rocksdb import RocksTable
from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.engine.task import Task
from onceward.core.errors import (
    CheckpointFailedError,
    ConfigurationError,
    EpochConflictError,
    FencedError,
    OperatorError,
    RetryableSinkError,
    SourceError,
    StateError,
)
from onceward.core.log import DirectoryStore, MemoryStore, read
from onceward.core.log.run_writers import OVERTAKEN, RUN_VARIABLE
from onceward.sources import SequenceSource

from .engine_kit import RunningSum, Slowly, drain, feed, gate, numbers, pipeline, reach, sums
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = numbers(1000, keys=5)


def totals(target: Target, source: Any, *, backend: Any = None, function: Any = None, **options: Any) -> Any:
    p = pipeline(backend=backend, **options)
    p.source(source, uid="numbers").key_by("k").process(function or RunningSum(), uid="sum", parallelism=2).sink(
        TargetSink(target)
    )
    return p


def exact(target: Target) -> None:
    assert target.counts("n") == Counter(range(1000))
    assert {row["n"]: row["sum"] for row in target.rows} == sums(ROWS)
    assert target.prepared == {}


class FailsOnce(TargetSink):
    """Fails in one call, once."""

    def __init__(self, target: Target, call: str, error: Exception) -> None:
        super().__init__(target)
        self.left = [(call, error)]

    def _maybe(self, call: str) -> None:
        if self.left and self.left[0][0] == call:
            raise self.left.pop()[1]

    def commit(self, committable: Any) -> Any:
        self._maybe("commit")
        return super().commit(committable)

    def lingering(self, scope: Any) -> Any:
        self._maybe("lingering")
        return super().lingering(scope)


def test_59_a_savepoint_keeps_what_was_prepared_for_a_checkpoint_that_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target, source = Target(), Slowly(ROWS, batch_rows=100)
    config = CheckpointConfig(tolerable_failures=5)
    p = totals(target, source, backend=FileBackend(tmp_path / "state"), checkpointing=config)
    job = p.start()
    reach(source, job, 1)
    write = CheckpointStorage.write

    def full(*_: Any, **__: Any) -> None:
        while not target.prepared:
            time.sleep(0.005)
        raise OSError("disk full")

    monkeypatch.setattr(CheckpointStorage, "write", full)
    with pytest.raises(Exception, match="disk full"):
        job.checkpoint(timeout=10)
    assert target.prepared
    monkeypatch.setattr(CheckpointStorage, "write", write)
    job.savepoint(tmp_path / "save", timeout=10)
    source.let(100)
    p.wait(30)
    assert job.restarts == 0
    exact(target)


@pytest.mark.parametrize("backend", [FileBackend, RocksDBBackend])
def test_a_checkpoint_that_was_given_up_leaves_no_folder_and_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, backend: Any
):
    def folders() -> list[str]:
        return [path.name for path in tmp_path.rglob("chk-*")]

    target, store, source = Target(), MemoryStore(), Slowly(ROWS, batch_rows=100)
    config = CheckpointConfig(tolerable_failures=1)
    p = totals(target, source, store=store, backend=backend(tmp_path), checkpointing=config)
    job = p.start()
    reach(source, job, 3)
    write, failed = CheckpointStorage.write, []

    def full(storage: CheckpointStorage, path: str, *arguments: Any, **options: Any) -> Any:
        if path.startswith("chk-1-0/sum[1]") and (backend is FileBackend or "/MANIFEST" in path):
            failed.append(path)
            raise StateError("disk full")
        return write(storage, path, *arguments, **options)

    monkeypatch.setattr(CheckpointStorage, "write", full)
    with pytest.raises(CheckpointFailedError, match="disk full"):
        job.checkpoint(timeout=10)
    reach(source, job, 1)
    job.checkpoint(timeout=10)
    assert failed
    began = time.monotonic()
    while folders() != ["chk-2-0"]:  # an acknowledgement may come late
        assert time.monotonic() - began < 20
        assert not job.wait(0.01)
    p.stop()
    (tmp_path / f"p/{read(store).log}/chk-3-0").mkdir()  # of a process that was killed while it wrote
    totals(target, SequenceSource(ROWS, batch_rows=100), store=store, backend=backend(tmp_path)).run()
    assert "cannot be kept" not in caplog.text
    assert [name for name in folders() if name.endswith("-0")] == []
    exact(target)


@pytest.mark.parametrize("fault", ["completion.prove", "retention.Retained.keep"])
def test_an_error_of_the_engine_after_the_decision_frees_nothing_and_a_restart_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
):
    """What is decided counts, whatever happens to the engine before anybody is told."""
    target, store, source = Target(), MemoryStore(), Slowly(ROWS, batch_rows=100)
    p = totals(target, source, store=store, backend=FileBackend(tmp_path), checkpointing=CheckpointConfig())
    job = p.start()
    reach(source, job, 3)

    def fails(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        raise RuntimeError("a mistake in the engine")

    monkeypatch.setattr(f"onceward.core.engine.{fault}", fails)
    with pytest.raises(CheckpointFailedError, match=r"interrupted: .*a mistake in the engine"):
        job.checkpoint()
    assert target.counts("n") == Counter(range(300))
    source.let(100)
    assert p.wait(20)
    assert "a mistake in the engine" in str(job.failure)
    assert (job.restarts, job.restored) == (1, 1)
    exact(target)


@pytest.mark.parametrize("policy", ["keep", "delete"])
def test_61_a_fenced_run_deletes_nothing_of_its_successor(tmp_path: Path, policy: str):
    target, store = Target(), MemoryStore()
    config = CheckpointConfig(on_cancel=policy)  # type: ignore[arg-type]
    old_source = Slowly(ROWS, batch_rows=100)
    old = totals(target, old_source, store=store, backend=RocksDBBackend(tmp_path), checkpointing=config)
    old_job = old.start()
    reach(old_source, old_job, 2)
    old_job.checkpoint(timeout=10)
    reach(old_source, old_job, 1)
    new_source = Slowly(ROWS, batch_rows=100)
    new = totals(target, new_source, store=store, backend=RocksDBBackend(tmp_path), checkpointing=CheckpointConfig())
    new_job = new.start()
    reach(new_source, new_job, 4)
    new_job.checkpoint(timeout=10)
    old.stop()
    new.stop()
    totals(target, SequenceSource(ROWS), store=store, backend=RocksDBBackend(tmp_path)).run()
    exact(target)


def test_18_what_was_asked_to_be_restored_is_not_forgotten_when_the_start_fails(tmp_path: Path):
    target, store, source = Target(), MemoryStore(), Slowly(ROWS, batch_rows=100)
    p = totals(target, source, store=store, checkpointing=CheckpointConfig())
    job = p.start()
    reach(source, job, 5)
    job.stop_with_savepoint(tmp_path / "save", timeout=10)
    again = pipeline(store=store)
    sink = FailsOnce(target, "lingering", RetryableSinkError("the target is away"))
    again.source(SequenceSource(ROWS), uid="numbers").key_by("k").process(RunningSum(), uid="sum").sink(sink)
    job = again.start(restore=str(tmp_path / "save"), rewind="a test")
    again.wait(30)
    assert job.restarts == 1
    assert not sink.left
    exact(target)


def test_18_a_start_without_words_does_not_begin_anew_where_a_way_back_was_interrupted(tmp_path: Path):
    target, store = Target(), MemoryStore()
    totals(target, SequenceSource(ROWS), store=store).run()
    again = pipeline(store=store, restart=RestartStrategy.none())
    sink = FailsOnce(target, "lingering", RetryableSinkError("the target is away"))
    again.source(SequenceSource(ROWS), uid="numbers").key_by("k").process(RunningSum(), uid="sum").sink(sink)
    with pytest.raises(RetryableSinkError):
        again.run(rewind="begin anew")
    with pytest.raises(EpochConflictError, match=r"older state\. Pass the same restore=… and rewind=… again"):
        totals(target, SequenceSource(ROWS), store=store).run()
    del tmp_path


def test_a_folder_that_cannot_be_restored_is_the_users_mistake(tmp_path: Path):
    target = Target()
    with pytest.raises(ConfigurationError, match="nothing was started"):
        totals(target, SequenceSource(ROWS), store=MemoryStore()).run(restore=str(tmp_path / "mistyped"))
    assert target.rows == []


def test_84_a_given_up_checkpoint_after_a_restore_deletes_nothing_that_was_restored(tmp_path: Path):
    target, store, source = Target(), MemoryStore(), Slowly(ROWS, batch_rows=100)
    p = totals(
        target, source, store=store, backend=RocksDBBackend(tmp_path), checkpointing=CheckpointConfig(retained=3)
    )
    job = p.start()
    for _ in range(2):
        reach(source, job, 2)
        job.checkpoint(timeout=10)
    p.stop()
    first = min((tmp_path / "p").rglob("chk-*"))
    source = Slowly(ROWS, batch_rows=100)
    again = totals(target, source, store=store, backend=RocksDBBackend(tmp_path), checkpointing=CheckpointConfig())
    job = again.start(restore=str(first), rewind="a test")
    reach(source, job, 3)
    for task in job._attempt.tasks.values():
        task.post = lambda _: None  # type: ignore[method-assign]  # nobody hears of the next one
    threading.Thread(target=lambda: job._attempt and job._attempt.request(Barrier(0).kind, None)).start()
    time.sleep(0.1)
    again.stop()
    totals(target, SequenceSource(ROWS), store=store, backend=RocksDBBackend(tmp_path)).run()
    assert set(target.counts("n")) == set(range(1000))


def test_a_savepoint_is_not_written_over_another(tmp_path: Path):
    source = Slowly(ROWS, batch_rows=100)
    p = totals(Target(), source, checkpointing=CheckpointConfig())
    job = p.start()
    reach(source, job, 1)
    job.savepoint(tmp_path / "save", timeout=10)
    with pytest.raises(ConfigurationError, match="the folder is not empty"):
        job.savepoint(tmp_path / "save", timeout=10)
    with pytest.raises(ConfigurationError, match="nowhere://bucket/save cannot be opened"):
        p.savepoint("nowhere://bucket/save")
    p.stop()


class Counts(ProcessFunction):
    """Operator state that is changed in place."""

    seen = OperatorState()

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        if not self.seen.items:
            self.seen.append({"n": 0, 7: b"any key"})
        self.seen.items[0]["n"] += 1
        yield {"n": record["n"], "seen": self.seen.items[0]["n"]}


def test_operator_state_is_frozen_at_the_barrier():
    target, store, source = Target(), MemoryStore(), Slowly(ROWS, batch_rows=10)
    p = pipeline(store=store, checkpointing=CheckpointConfig())
    p.source(source, uid="numbers").process(Counts(), uid="counts").sink(TargetSink(target))
    job = p.start()
    reach(source, job, 5)
    write_out = Task._write_out
    gate_ = threading.Event()

    def late(self: Any, *arguments: Any) -> None:
        if self.id.uid == "counts":
            gate_.wait(10)
        write_out(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onceward.core.engine.task.Task._write_out", late)
        waiting = threading.Thread(target=lambda: job.checkpoint(timeout=10))
        waiting.start()
        time.sleep(0.1)
        reach(source, job, 5)
        gate_.set()
        waiting.join()
    p.stop()
    again = pipeline(store=store)
    again.source(SequenceSource(ROWS), uid="numbers").process(Counts(), uid="counts").sink(TargetSink(target))
    again.run()
    assert target.counts("seen") == Counter(range(1, 1001))


class Latest(SequenceSource):
    """Begins at its end, as "latest" does; grows when it is told."""

    grown: ClassVar[list[int]] = [0]

    def start(self) -> Any:
        return {"0": self.grown[0]}


def test_a_new_source_is_asked_only_once_where_it_begins(tmp_path: Path):
    target, store = Target(), MemoryStore()
    backend = FileBackend(tmp_path)
    totals(target, SequenceSource(ROWS), store=store, backend=backend).run()
    Latest.grown[0] = 10
    failing = [True]

    def fails(record: dict[str, Any]) -> dict[str, Any]:
        if failing:
            failing.clear()
            Latest.grown[0] = 30
            raise ValueError("told to fail")
        return record

    p = pipeline(store=store, backend=backend)
    old = p.source(SequenceSource(ROWS), uid="numbers")
    new = p.source(Latest(numbers(50)), uid="new").map(fails, uid="fails")
    old.union(new).key_by("k").process(RunningSum(), uid="sum", parallelism=2).sink(TargetSink(target))
    p.run()
    assert target.counts("n") == Counter(range(1000)) + Counter(range(10, 50))


def test_fields_that_only_some_records_have_are_kept():
    target = Target()
    p = pipeline()
    p.source(SequenceSource([{"n": 1}])).flat_map(lambda _: [{"a": 1}, {"a": 2, "b": 3}]).sink(TargetSink(target))
    p.run()
    assert target.rows == [{"a": 1}, {"a": 2, "b": 3}]


class Appends(ProcessFunction):
    """Changes what `get` gave."""

    items = ValueState(default=[])

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        found = self.items.get()
        found.append(record["n"])
        self.items.set(found)
        yield {"k": record["k"], "items": found}


def test_a_default_is_nobodys_own():
    target = Target()
    p = pipeline()
    rows = [{"n": 1, "k": "a"}, {"n": 2, "k": "b"}]
    p.source(SequenceSource(rows)).key_by("k").process(Appends()).sink(TargetSink(target))
    p.run()
    assert sorted(row["items"] for row in target.rows) == [[1], [2]]


def test_state_that_a_function_no_longer_declares_is_not_dropped_in_silence():
    target, store = Target(), MemoryStore()
    totals(target, SequenceSource(ROWS), store=store).run()

    class Other(ProcessFunction):
        other = ValueState[Any](None)

        def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002
            yield record

    with pytest.raises(ConfigurationError, match="states total: it would be lost"):
        totals(target, SequenceSource(ROWS), store=store, function=Other()).run()
    unkeyed = pipeline(store=store)
    unkeyed.source(SequenceSource(ROWS), uid="numbers").process(Counts(), uid="sum").sink(TargetSink(target))
    with pytest.raises(ConfigurationError, match="it would be lost"):
        unkeyed.run()


class OpensSlowly(RunningSum):
    """Takes its time."""

    def open(self, context: Any) -> None:  # noqa: ARG002 - signature
        time.sleep(0.3)


def test_input_that_ends_before_all_tasks_have_opened_is_committed():
    target = Target()
    p = totals(target, SequenceSource(ROWS), function=OpensSlowly(), checkpointing=CheckpointConfig())
    p.start()
    assert p.wait(20)
    exact(target)


def test_57_giving_up_one_checkpoint_leaves_the_alignment_of_another_alone():
    g = gate(2)
    feed(g, 0, Barrier(1), 10)
    assert drain(g) == []
    g.give_up(2)
    feed(g, 1, Barrier(1), Barrier(2), 20)
    assert drain(g)[0] == "barrier 1"


def test_an_error_of_a_sink_that_is_not_ours_goes_to_the_restart_strategy():
    target = Target()
    p = pipeline()
    sink = FailsOnce(target, "commit", ConnectionError("gone"))
    p.source(SequenceSource(ROWS), uid="numbers").key_by("k").process(RunningSum(), uid="sum").sink(sink)
    job = p.start()
    p.wait(20)
    assert job.restarts == 1
    exact(target)


def test_an_upload_that_hangs_keeps_no_run_from_starting_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "JOIN_SECONDS", 0.2)
    write, goes_on, hung = CheckpointStorage.write, threading.Event(), list[str]()

    def hangs(storage: CheckpointStorage, path: str, *arguments: Any, **options: Any) -> Any:
        if not hung and path.endswith(".rows"):
            hung.append(path)
            goes_on.wait()
        return write(storage, path, *arguments, **options)

    monkeypatch.setattr(CheckpointStorage, "write", hangs)
    target = Target()
    config = CheckpointConfig(interval=0.05, timeout=1.5)
    p = totals(target, SequenceSource(ROWS), backend=FileBackend(tmp_path), checkpointing=config)
    job = p.start()
    try:
        assert job.wait(20)
        assert hung
        assert job.restarts == 1
        exact(target)
    finally:
        goes_on.set()


@pytest.mark.parametrize("missing", ["onceward-snapshot_1", "onceward-sum[1]", "onceward-target[0]"])
def test_a_thread_that_cannot_be_started_goes_to_the_restart_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
):
    start, refused = threading.Thread.start, list[str]()

    def refuses(thread: threading.Thread) -> None:
        if thread.name == missing and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    target = Target()
    p = totals(target, SequenceSource(ROWS), backend=RocksDBBackend(tmp_path))
    job = p.start()
    p.wait(20)
    assert refused
    assert job.restarts == 1
    exact(target)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("onceward-numbers")]


def test_a_run_whose_keeper_cannot_be_started_fails_and_hangs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    start = threading.Thread.start

    def refuses(thread: threading.Thread) -> None:
        if thread.name.endswith("-keeper"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    p = totals(Target(), SequenceSource(ROWS), store=DirectoryStore(tmp_path))
    with pytest.raises(RuntimeError, match="can't start"):
        p.start()


def test_a_poison_record_is_logged_with_the_functions_own_traceback_once(caplog: pytest.LogCaptureFixture):
    def poisoned(_: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("poison")

    p = pipeline(restart=RestartStrategy.fixed_delay(attempts=2, delay=0.01))
    p.source(SequenceSource(ROWS), uid="rows").map(poisoned, uid="parse").sink(TargetSink(Target()))
    with pytest.raises(OperatorError, match=r"operator parse, subtask 0: ValueError: poison; at {"):
        p.run()
    told = [record for record in caplog.records if "restarts in" in record.getMessage()]
    assert [record.exc_info is not None and "in poisoned" in caplog.handler.format(record) for record in told] == [
        True,
        False,
    ]


def test_what_is_no_record_is_named():
    p = pipeline(restart=RestartStrategy.none())
    p.source(SequenceSource(ROWS), uid="rows").map(cast("Any", lambda _: None), uid="parse").sink(TargetSink(Target()))
    with pytest.raises(OperatorError, match="operator parse, subtask 0: TypeError: a record must be a dictionary, not"):
        p.run()


class Exits(RunningSum):
    """Ends its thread."""

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        raise SystemExit(3)


def test_a_function_that_exits_fails_the_run():
    p = totals(Target(), SequenceSource(ROWS), function=Exits(), restart=RestartStrategy.none())
    with pytest.raises(OperatorError, match="SystemExit"):
        p.run()


class ClosesBadly(RunningSum):
    """Fails at the very end."""

    def close(self) -> None:
        raise ValueError("told to fail")


def test_a_function_that_cannot_be_closed_after_everything_is_committed_restarts_nothing():
    target = Target()
    p = totals(target, SequenceSource(ROWS), function=ClosesBadly())
    job = p.start()
    assert p.wait(20)
    assert (job.restarts, job.state) == (0, JobState.FINISHED)
    exact(target)


def test_a_run_is_stopped_during_the_pause_before_a_restart():
    p = totals(Target(), SequenceSource(ROWS), function=Exits(), restart=RestartStrategy.fixed_delay(delay=60))
    job = p.start()
    while job.state is not JobState.RESTARTING:
        assert not job.wait(0.01)
    began = time.monotonic()
    p.stop()
    assert time.monotonic() - began < 10


def test_stopping_during_that_pause_begins_no_further_attempt():
    opened: list[int] = []

    class Opens(Exits):
        def open(self, context: Any) -> None:
            opened.append(context.subtask)

    p = totals(Target(), SequenceSource(ROWS), function=Opens(), restart=RestartStrategy.fixed_delay(delay=60))
    job = p.start()
    while job.state is not JobState.RESTARTING:
        assert not job.wait(0.01)
    before = len(opened)
    p.stop()
    assert (job.state, len(opened)) == (JobState.STOPPED, before)


def refuses_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """RocksDB cannot be frozen, once; for which checkpoints it was."""
    freeze, refused = RocksTable.freeze, []

    def refuses(self: RocksTable, checkpoint: int, *, full: bool = False) -> Any:
        if not refused:
            refused.append(checkpoint)
            raise StateError("no space left on device")
        return freeze(self, checkpoint, full=full)

    monkeypatch.setattr(RocksTable, "freeze", refuses)
    return refused


def test_a_state_that_cannot_be_frozen_declines_the_checkpoint_and_restarts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Scenario 32."""
    target, source = Target(), Slowly(ROWS, batch_rows=100)
    config = CheckpointConfig(tolerable_failures=1)
    p = totals(target, source, backend=RocksDBBackend(tmp_path), checkpointing=config)
    job = p.start()
    reach(source, job, 3)
    refused = refuses_once(monkeypatch)
    with pytest.raises(CheckpointFailedError, match=r"declined by sum\[.\]: no space left on device"):
        job.checkpoint(timeout=10)
    reach(source, job, 3)
    job.checkpoint(timeout=10)
    assert target.counts("n") == Counter(range(600))
    source.let(100)
    p.wait(20)
    assert (job.restarts, refused) == (0, [1])
    exact(target)


def test_a_state_that_cannot_be_frozen_counts_as_a_failed_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = Target()
    refuses_once(monkeypatch)
    p = totals(target, SequenceSource(ROWS, batch_rows=100), backend=RocksDBBackend(tmp_path))
    job = p.start()
    p.wait(20)
    assert job.restarts == 1
    exact(target)


class Remembers(ProcessFunction):
    """Operator state that grows."""

    seen = OperatorState()

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        self.seen.append("x" * 100)
        yield record


@pytest.mark.parametrize("state", ["keyed", "operator"])
def test_the_memory_backend_refuses_a_snapshot_beyond_its_size(state: str):
    p = pipeline(backend=MemoryBackend(most=1000), restart=RestartStrategy.none())
    stream = p.source(SequenceSource(ROWS), uid="numbers")
    keyed = stream.key_by("n").process(RunningSum(), uid="it") if state == "keyed" else None
    (keyed or stream.process(Remembers(), uid="it")).sink(TargetSink(Target()))
    with pytest.raises(CheckpointFailedError, match="the decision log keeps 1000 at most"):
        p.run()


def test_a_fenced_run_says_so():
    target, store, source = Target(), MemoryStore(), Slowly(ROWS, batch_rows=100)
    p = totals(target, source, store=store, checkpointing=CheckpointConfig())
    job = p.start()
    reach(source, job, 1)
    totals(target, SequenceSource(ROWS), store=store).run()
    with pytest.raises(FencedError):
        job.checkpoint(timeout=10)
    with pytest.raises(FencedError):
        p.wait(20)


def test_a_run_that_fails_does_not_drive_out_a_newer_run():
    """Its restart would append a START, and the newer run's next one, in turns for as long as both fail."""
    target, store, source = Target(), MemoryStore(), Slowly(ROWS, batch_rows=100)
    fails = threading.Event()

    class Failing(RunningSum):
        def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
            if fails.is_set():
                raise ConnectionError("the service is away")
            yield from super().process(record, context)

    old = pipeline(store=store, checkpointing=CheckpointConfig())
    old.source(source, uid="numbers").key_by("k").process(Failing(), uid="sum").sink(TargetSink(target))
    job = old.start()
    reach(source, job, 1)
    new_source = Slowly(ROWS, batch_rows=100)
    new = totals(target, new_source, store=store, checkpointing=CheckpointConfig())
    newer = new.start()
    reach(new_source, newer, 1)
    fails.set()
    source.let(1)
    with pytest.raises(FencedError, match="of another run, which has started since"):
        old.wait(20)
    assert job.restarts == 1
    newer.checkpoint(timeout=10)
    new_source.let(100)
    assert new.wait(20)
    exact(target)


def test_a_process_that_onceward_run_starts_again_does_not_drive_out_a_newer_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target, store = Target(), DirectoryStore(tmp_path / "log")

    def process() -> tuple[Pipeline, Slowly]:
        source = Slowly(ROWS, batch_rows=100)
        p = totals(
            target, source, store=store, checkpointing=CheckpointConfig(), backend=FileBackend(tmp_path / "state")
        )
        return p, source

    def live() -> None:
        p, source = process()
        reach(source, p.start(), 1)
        p.stop()

    (tmp_path / "run").mkdir()
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path / "run"))
    live()
    live()
    monkeypatch.delenv(RUN_VARIABLE)
    live()
    newest = read(store)
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path / "run"))
    with pytest.raises(FencedError, match="of another run, which has started since"):
        process()[0].run()
    assert read(store) == newest
    assert (tmp_path / "run" / OVERTAKEN).exists()


def test_a_source_that_is_not_the_same_again_weakens_the_guarantee():
    p = pipeline()
    source = KafkaSource(bootstrap_servers="localhost:1", topics=["t"], isolation="read_uncommitted")
    p.source(source, uid="in").sink(TargetSink(Target()))
    level, [why] = p.guarantee()
    assert level == "at-least-once"
    assert "source in delivers what is aborted later" in why


@pytest.mark.parametrize("key", [[1, 2], None, 1.5, "x"])
def test_keys_of_any_type_have_state_and_timers(key: Any):
    class Alarm(ProcessFunction):
        def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002
            context.timer_at(0.0)
            return iter(())

        def on_timer(self, at: float, context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002
            yield {"at": at}

    target = Target()
    p = pipeline()
    p.source(SequenceSource([{"k": key}])).key_by("k").process(Alarm(), parallelism=2).sink(TargetSink(target))
    p.run()
    assert target.rows == [{"at": 0.0}]


def test_a_sequence_that_is_dealt_otherwise_than_before_is_refused():
    target, store = Target(), MemoryStore()
    totals(target, SequenceSource(ROWS, units=2), store=store).run()
    with pytest.raises(SourceError, match="the stored position has 2 units, and the sequence has 3"):
        totals(target, SequenceSource(ROWS, units=3), store=store, restart=RestartStrategy.none()).run()


def test_a_setting_of_another_type_is_refused():
    with pytest.raises(ConfigurationError, match="timeout=None"):
        CheckpointConfig(timeout=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="on_lost is 'foo'"):
        pipeline(on_lost="foo")
    with pytest.raises(ConfigurationError, match=r"interval='1s'.*number of seconds"):
        CheckpointConfig(interval="1s")  # type: ignore[arg-type]


def test_the_counter_never_reuses_a_decided_epoch():
    """It goes on from the larger of the restored id and the newest decided epoch."""
    target, store, source = Target(), MemoryStore(), Slowly(ROWS, batch_rows=100)
    p = totals(target, source, store=store, checkpointing=CheckpointConfig())
    job = p.start()
    made = []
    for _ in range(3):
        reach(source, job, 1)
        made.append(job.checkpoint(timeout=10))
    p.stop()
    assert made == [1, 2, 3]
    again = totals(target, SequenceSource(ROWS), store=store, checkpointing=CheckpointConfig())
    again.run()
    assert [record.checkpoint for record in again.checkpoints] == [4]
    back = totals(target, SequenceSource(ROWS), store=store, checkpointing=CheckpointConfig())
    back.run(rewind="begin anew")
    assert [record.checkpoint for record in back.checkpoints] == [6]  # 5 says where it began
