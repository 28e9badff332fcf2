"""A decided checkpoint some of which is lost: the embedded engine computes it again, and writes what is lost alone."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.core import CheckpointConfig, FileBackend, MemoryBackend, RestartStrategy, RocksDBBackend
from onceward.core.contract.outcome import OUTCOMES
from onceward.core.contract.transaction import CommitOutcome, Committable, Observation
from onceward.core.engine.retention import Retained
from onceward.core.errors import DataLossError, OncewardError, SourceError, StateError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import MemoryStore, Replace, read
from onceward.sources import LiveSource, SequenceSource

from .engine_kit import RunningSum, Slowly, numbers, pipeline, reach, sums
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from onceward.core import Pipeline
    from onceward.core.engine.state.row_store import StateBackend

PAUSE = 0.004
ROWS = numbers(600, keys=60)
EPOCH = 3
"""The checkpoint that loses something."""


class Expiring(TargetSink):
    """A sink whose target forgets a prepared transaction at its commit, if `forgets` says so."""

    def __init__(self, target: Target, name: str, forgets: Callable[[Committable], bool]) -> None:
        super().__init__(target, name)
        self.forgets = forgets

    @property
    def transaction_timeout(self) -> float:
        return 60.0

    def commit(self, committable: Committable) -> CommitOutcome:
        if self.forgets(committable) and committable.transaction in self.target.prepared:
            self.target.delete_prepared(committable.transaction)
        if committable.transaction not in {*self.target.prepared, *self.target.committed}:
            return CommitOutcome(OUTCOMES[Observation.EXPIRED][0], "the target has ended it")
        return super().commit(committable)

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        prepared, committed = self.target.prepared, self.target.committed
        return [
            Observation.COMMITTED
            if c.transaction in committed
            else Observation.PREPARED
            if c.transaction in prepared
            else Observation.EXPIRED
            for c in committables
        ]

    def __deepcopy__(self, memo: Any) -> Expiring:
        return self


class Case:
    """A stateful pipeline that writes each row to two sinks, of which the second one loses part of a checkpoint."""

    def __init__(self, backend: StateBackend | None = None, *, lost: tuple[int, ...] = (1,), times: int = 1) -> None:
        self.store, self.backend = MemoryStore(), backend or MemoryBackend()
        self.first, self.second = Target(), Target()
        self.left = times
        self.lost = lost
        self.since = EPOCH
        self.proves = True

    def forgets(self, committable: Committable) -> bool:
        """Lose some subtasks of the first checkpoint from EPOCH on that has rows of all of them."""
        named = [c for c in self.decided() if c.sink == "second"]
        if self.left <= 0 or committable.epoch < self.since or len(named) < 2 or committable.subtask not in self.lost:
            return False
        self.left -= committable.subtask == max(self.lost)
        return True

    def decided(self) -> Sequence[Committable]:
        newest = read(self.store).newest
        return newest.committables if newest is not None else ()

    def pipeline(self, *, source: Any = None, function: Any = None, **options: Any) -> Pipeline:
        options.setdefault("checkpointing", CheckpointConfig(interval=0.02))
        p = pipeline(store=self.store, backend=self.backend, **options)
        second = Expiring(self.second, "second", self.forgets)
        second.proof = self.proves
        stream = p.source(source or Trickle(ROWS, batch_rows=10), uid="in").key_by("k")
        summed = stream.process(function or RunningSum(), uid="sum", parallelism=2)
        summed.sink(Expiring(self.first, "first", lambda _: False))
        summed.sink(second, parallelism=2)
        return p

    @property
    def replaced(self) -> list[Replace]:
        return [entry for entry in read(self.store).entries if isinstance(entry, Replace)]

    def check(self) -> None:
        expected = sums(ROWS)
        for target in (self.first, self.second):
            assert {row["n"]: row["sum"] for row in target.rows} == expected
            assert set(target.counts("n").values()) == {1}
            assert not target.prepared


class Trickle(SequenceSource):
    """A sequence that gives few rows at a time, so that there are many checkpoints."""

    def latest(self, position: Any, limit: int | None = 10, until: Any = None) -> Any:
        time.sleep(PAUSE)
        return super().latest(position, limit, until)


@pytest.mark.parametrize("backend", ["memory", "files", "rocksdb"])
@pytest.mark.parametrize("lost", [(1,), (0, 1)], ids=["one subtask", "the whole sink"])
def test_what_a_checkpoint_lost_is_written_again_and_nothing_else(
    tmp_path: Path, backend: str, lost: tuple[int, ...]
) -> None:
    case = Case(backend_of(backend, tmp_path), lost=lost)
    job = case.pipeline().start()
    assert job.wait(60)
    assert job.error is None, job.error
    assert case.left == 0
    case.check()
    assert job.restarts == 1


def backend_of(name: str, folder: Path) -> StateBackend:
    if name == "memory":
        return MemoryBackend()
    return FileBackend(folder) if name == "files" else RocksDBBackend(folder)


@pytest.mark.parametrize(
    "step", [Step.DECIDE_BEFORE, Step.DECIDE_AFTER, Step.COMPLETE_BEFORE, Step.COMPLETE_AFTER], ids=str
)
def test_a_crash_while_it_is_written_again_changes_nothing(step: Step) -> None:
    """Each crash ends the whole run, so the next one begins with what is in the log."""
    case = Case(times=1)
    passed = itertools.count()

    def hook(reached: Step) -> None:
        if reached is step and case.left == 0 and next(passed) == 0:
            raise ConnectionError("the process is gone")

    once = RestartStrategy.none()
    with hooked(hook):
        ended = [ran(case.pipeline(restart=once)) for _ in range(4)]
    assert ended[-1] is None
    assert len(case.replaced) <= 1
    case.check()


def ran(p: Pipeline) -> BaseException | None:
    """Run it to its end; what it failed with."""
    try:
        job = p.start()
    except OncewardError as error:
        return error
    assert job.wait(60)
    return job.error


class Last(RunningSum):
    """Gives all rows when its input ends, and none before."""

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        for row in super().process(record, context):
            self.kept.append(row)
            yield from ()

    def open(self, context: Any) -> None:  # noqa: ARG002 - signature
        self.kept: list[dict[str, Any]] = []

    def finish(self, context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        yield from self.kept


def test_what_operators_gave_at_the_end_of_the_input_is_part_of_the_epoch() -> None:
    case = Case()
    case.since = 1
    job = case.pipeline(function=Last(), checkpointing=CheckpointConfig()).start()
    assert job.wait(60)
    assert job.error is None
    assert case.left == 0
    case.check()


@pytest.mark.parametrize("drain", [True, False], ids=["drain", "suspend"])
def test_a_savepoint_that_ended_the_run_is_written_again_as_it_was(tmp_path: Path, drain: bool) -> None:
    case = Case(FileBackend(tmp_path / "state"))
    case.since = 1
    source = Slowly(ROWS, batch_rows=300)
    once = RestartStrategy.none()
    job = case.pipeline(source=source, checkpointing=CheckpointConfig(), restart=once).start()
    reach(source, job, 1)
    with pytest.raises(OncewardError, match="were lost while others"):
        job.stop_with_savepoint(tmp_path / "save", drain=drain, timeout=30)
    assert job.wait(30)
    source.let(9)
    assert ran(case.pipeline(source=source)) is None
    assert case.left == 0
    case.check()


def test_other_rows_than_before_are_refused_with_both_sums() -> None:
    class Counting(RunningSum):
        calls = 0

        def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
            type(self).calls += 1
            yield from ({**row, "sum": type(self).calls} for row in super().process(record, context))

    case = Case()
    job = case.pipeline(function=Counting()).start()
    assert job.wait(60)
    assert isinstance(job.error, DataLossError)
    assert "the rows that sink second lost cannot be written again: the decision recorded" in str(job.error)
    assert case.replaced == []
    assert set(case.second.counts("n").values()) <= {1}
    assert not case.second.prepared


def test_without_a_proof_nothing_is_computed_again() -> None:
    case = Case()
    case.proves = False
    job = case.pipeline().start()
    assert job.wait(60)
    assert isinstance(job.error, DataLossError)
    assert "holds no hash of all that second was handed" in str(job.error)


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_loss_of_what_was_written_again_is_healed_too(tmp_path: Path, backend: str) -> None:
    case = Case(backend_of(backend, tmp_path), times=3)
    job = case.pipeline().start()
    assert job.wait(60)
    assert job.error is None
    assert case.left == 0
    case.check()


def test_rows_that_the_source_no_longer_has_are_named() -> None:
    class Forgetful(Trickle):
        def latest(self, position: Any, limit: int | None = 10, until: Any = None) -> Any:
            if case.left == 0 and not self.gone:
                return position
            return super().latest(position, limit, until)

        gone = False

    case = Case()
    job = case.pipeline(source=Forgetful(ROWS, batch_rows=10), restart=RestartStrategy.fixed_delay(1, 0)).start()
    assert job.wait(60)
    assert isinstance(job.error, SourceError)
    assert "no longer gives rows that were read before" in str(job.error)
    Forgetful.gone = True
    again = case.pipeline(source=Forgetful(ROWS, batch_rows=10)).start()
    assert again.wait(60)
    assert again.error is None
    case.check()


def test_a_source_that_cannot_be_read_again_is_said_at_once() -> None:
    class Live(LiveSource):
        @property
        def schema(self) -> pa.Schema:
            return pa.Table.from_pylist(ROWS).schema

        @property
        def bounded(self) -> bool:
            return True

        def listen(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch | None]:  # noqa: ARG002 - signature
            for start in range(0, len(ROWS), 10):
                time.sleep(PAUSE)
                yield pa.RecordBatch.from_pylist(ROWS[start : start + 10], schema=self.schema)

    case = Case()
    job = case.pipeline(source=Live()).start()
    assert job.wait(60)
    assert isinstance(job.error, OncewardError)
    assert "only a pipeline whose sources can be read again" in str(job.error)


@pytest.mark.parametrize("policy", [{"on_failure": "delete"}, {"on_cancel": "delete"}], ids=["on_failure", "on_cancel"])
def test_what_was_lost_is_written_again_also_where_checkpoints_are_deleted_at_the_end(policy: dict[str, str]) -> None:
    case = Case()
    checkpoint = CheckpointConfig(interval=0.02, **policy)  # type: ignore[arg-type]
    assert ran(case.pipeline(checkpointing=checkpoint)) is None
    assert case.left == 0
    case.check()


def test_a_run_that_is_stopped_while_it_computes_a_checkpoint_again_leaves_it_to_the_next() -> None:
    case = Case()
    job = case.pipeline().start()
    deadline = time.monotonic() + 30
    while case.left and time.monotonic() < deadline:
        time.sleep(0.001)
    job.stop()
    assert ran(case.pipeline()) is None
    case.check()


def test_a_lost_checkpoint_with_another_parallelism_is_refused_and_healed_with_the_old_one() -> None:
    case = Case(lost=(1,))
    assert ran(case.pipeline(restart=RestartStrategy.none())) is not None
    other = pipeline(store=case.store, backend=case.backend, restart=RestartStrategy.none())
    second = Expiring(case.second, "second", case.forgets)
    stream = other.source(Trickle(ROWS, batch_rows=10), uid="in").key_by("k")
    summed = stream.process(RunningSum(), uid="sum", parallelism=3)
    summed.sink(Expiring(case.first, "first", lambda _: False))
    summed.sink(second, parallelism=3)
    assert isinstance(ran(other), DataLossError)
    assert case.replaced == []
    assert ran(case.pipeline()) is None
    case.check()


def test_several_checkpoints_at_once_are_no_hindrance() -> None:
    case = Case()
    assert ran(case.pipeline(checkpointing=CheckpointConfig(interval=0.02, max_concurrent=3))) is None
    assert case.left == 0
    case.check()


def test_one_retained_checkpoint_is_enough_after_a_crash_behind_the_replacement(tmp_path: Path) -> None:
    case = Case(RocksDBBackend(tmp_path))
    once, retained = RestartStrategy.none(), CheckpointConfig(interval=0.02, retained=1)

    def hook(reached: Step) -> None:
        if reached is Step.COMPLETE_BEFORE and case.replaced and not crashed:
            crashed.append(reached)
            raise ConnectionError("the process is gone")

    crashed: list[Step] = []
    with hooked(hook):
        ended = [ran(case.pipeline(restart=once, checkpointing=retained)) for _ in range(4)]
    assert crashed
    assert ended[-1] is None
    case.check()


class Ordered(Expiring):
    """A target in which of two rows with one key the later one stays."""

    @property
    def ordered(self) -> bool:
        return True


@pytest.mark.parametrize("lost", [0, 1], ids=["the first epoch", "the second epoch"])
@pytest.mark.parametrize("kind", [Expiring, Ordered])
def test_of_two_epochs_that_one_decision_names_the_lost_one_is_written_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lost: int, kind: type[Expiring]
) -> None:
    """The checkpoint before was given up, so that the next one commits what was prepared for both."""
    target, store, epochs = Target(), MemoryStore(), []

    def forgets(committable: Committable) -> bool:
        named = sorted({c.epoch for c, _ in target.prepared.values()} | set(epochs))
        if len(named) > 1:
            epochs[:] = named
        return len(epochs) == 2 and committable.epoch == epochs[lost] and committable.epoch not in forgotten

    forgotten: set[int] = set()

    class Forgets(kind):  # type: ignore[misc,valid-type]
        def commit(self, committable: Committable) -> CommitOutcome:
            try:
                return super().commit(committable)
            finally:
                if epochs and committable.epoch == epochs[lost]:
                    forgotten.add(committable.epoch)

    source = Slowly(ROWS, batch_rows=10)
    p = pipeline(store=store, checkpointing=CheckpointConfig(tolerable_failures=1))
    p.source(source, uid="in").sink(Forgets(target, "only", forgets))
    job = p.start()
    reach(source, job, 1)
    job.checkpoint(30)
    real = Retained.write

    def fails(*_: Any) -> Any:
        monkeypatch.setattr(Retained, "write", real)
        raise StateError("the disk is full")

    monkeypatch.setattr(Retained, "write", fails)
    reach(source, job, 3)
    with pytest.raises(OncewardError, match="the disk is full"):
        job.checkpoint(30)
    reach(source, job, 4)
    with pytest.raises(OncewardError):
        job.checkpoint(30)
    source.let(1000)
    assert job.wait(60)
    if kind is Expiring or lost == 1:
        assert job.error is None
        assert "1 lost transactions were written again" in caplog.text
        assert target.counts("n") == dict.fromkeys(range(len(ROWS)), 1)
    else:
        assert isinstance(job.error, DataLossError)
        assert "it would overwrite what only has of a later epoch" in str(job.error)
