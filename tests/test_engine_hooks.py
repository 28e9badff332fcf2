"""What functions and sources are told of checkpoints: before the barrier, and when it is completed."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.core import CheckpointConfig, MapState, OperatorState, ProcessFunction, RestartStrategy
from onceward.core.errors import CheckpointFailedError, ConfigurationError, OperatorError
from onceward.core.log import MemoryStore
from onceward.sources import LiveSource, SequenceSource

from .engine_kit import Slowly, numbers, pipeline, reach
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = numbers(1000, keys=5)


class Notes:
    """What was told, shared by all copies."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __deepcopy__(self, memo: Any) -> Notes:
        return self


class Buffers(ProcessFunction):
    """Holds rows back in memory, and gives them before each barrier."""

    def __init__(self, notes: Notes, *, fails_at: int | None = None) -> None:
        self.notes = notes
        self.held: list[dict[str, Any]] = []
        self.failing = threading.Lock()
        self.fails_at = fails_at

    def __deepcopy__(self, memo: Any) -> Buffers:
        return Buffers(self.notes, fails_at=self.fails_at)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        if record["n"] == self.fails_at and f"failed at {record['n']}" not in self.notes.lines:
            self.notes.lines.append(f"failed at {record['n']}")
            raise ValueError("told to fail")
        self.held.append(record)
        return iter(())

    def snapshot(self, checkpoint: int, context: Any) -> Iterator[dict[str, Any]]:
        self.notes.lines.append(f"snapshot {checkpoint} in {context.subtask}")
        held, self.held = self.held, []
        yield from held

    def on_checkpoint_complete(self, checkpoint: int, context: Any) -> None:
        self.notes.lines.append(f"complete {checkpoint} in {context.subtask}")


def buffering(target: Target, source: Any, function: ProcessFunction, **options: Any) -> Any:
    p = pipeline(**options)
    p.source(source, uid="numbers").process(function, uid="buffer", parallelism=1).sink(TargetSink(target))
    return p


def test_what_a_function_gives_before_the_barrier_belongs_to_the_checkpoint():
    target, notes, source = Target(), Notes(), Slowly(ROWS, batch_rows=100)
    p = buffering(target, source, Buffers(notes), checkpointing=CheckpointConfig())
    job = p.start()
    reach(source, job, 3)
    assert job.checkpoint(timeout=10) == 1
    assert target.counts("n") == Counter(range(300))
    source.let(100)
    p.wait(20)
    assert target.counts("n") == Counter(range(1000))
    assert notes.lines == ["snapshot 1 in 0", "complete 1 in 0", "snapshot 2 in 0", "complete 2 in 0"]


def test_what_was_held_back_is_read_again_after_a_failure():
    target, notes = Target(), Notes()
    function = Buffers(notes, fails_at=777)
    buffering(
        target, SequenceSource(ROWS, batch_rows=10), function, checkpointing=CheckpointConfig(interval=0.02)
    ).run()
    assert target.counts("n") == Counter(range(1000))
    assert "failed at 777" in notes.lines


def test_an_intermediate_savepoint_asks_for_what_is_held_back_and_completes_nothing(tmp_path: Path):
    target, notes, source = Target(), Notes(), Slowly(ROWS, batch_rows=100)
    p = buffering(target, source, Buffers(notes), checkpointing=CheckpointConfig())
    job = p.start()
    reach(source, job, 3)
    job.savepoint(tmp_path / "save", timeout=10)
    assert notes.lines == ["snapshot 1 in 0"]
    p.stop()
    fork = Target()
    again = buffering(fork, SequenceSource(ROWS), Buffers(notes), name="fork", store=MemoryStore())
    again.run(restore=str(tmp_path / "save"), import_from="p")
    assert fork.counts("n") == Counter(range(300, 1000))


class Fills(ProcessFunction):
    """Puts what it has counted in memory into operator state when it is asked to."""

    total = OperatorState()

    def open(self, context: Any) -> None:  # noqa: ARG002 - signature
        self.counted = sum(self.total.get())

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        self.counted += 1
        yield {"n": record["n"], "counted": self.counted}

    def snapshot(self, checkpoint: int, context: Any) -> None:  # noqa: ARG002 - signature
        self.total.set([self.counted])


def test_operator_state_that_is_filled_before_the_barrier_is_in_the_checkpoint():
    target, store, source = Target(), MemoryStore(), Slowly(ROWS, batch_rows=100)
    p = buffering(target, source, Fills(), store=store, checkpointing=CheckpointConfig())
    job = p.start()
    reach(source, job, 3)
    job.checkpoint(timeout=10)
    p.stop()
    buffering(target, SequenceSource(ROWS), Fills(), store=store).run()
    assert target.counts("counted") == Counter(range(1, 1001))


class AsksForAKey(ProcessFunction):
    """Reads keyed state where no key is at hand."""

    mine = MapState()

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        yield record

    def snapshot(self, checkpoint: int, context: Any) -> None:  # noqa: ARG002 - signature
        self.mine.get("x")


def test_keyed_state_is_not_at_hand_there():
    p = pipeline(restart=RestartStrategy.none())
    p.source(SequenceSource(ROWS)).key_by("k").process(AsksForAKey()).sink(TargetSink(Target()))
    with pytest.raises(ConfigurationError, match="only while a record or timer is handled"):
        p.run()


class FailsThere(ProcessFunction):
    """Fails in one of the hooks."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        yield record

    def snapshot(self, checkpoint: int, context: Any) -> None:  # noqa: ARG002 - signature
        if self.hook == "snapshot":
            raise ValueError("told to fail")

    def on_checkpoint_complete(self, checkpoint: int, context: Any) -> None:  # noqa: ARG002 - signature
        if self.hook == "on_checkpoint_complete":
            raise ValueError("told to fail")


@pytest.mark.parametrize("hook", ["snapshot", "on_checkpoint_complete"])
def test_a_hook_that_fails_is_named_and_fails_the_run(hook: str):
    source = Slowly(ROWS, batch_rows=100)
    p = buffering(Target(), source, FailsThere(hook), checkpointing=CheckpointConfig(), restart=RestartStrategy.none())
    job = p.start()
    reach(source, job, 1)
    with suppress(CheckpointFailedError):
        job.checkpoint(timeout=10)
    with pytest.raises(OperatorError, match=rf"operator buffer, subtask 0: ValueError: told to fail; at '{hook} 1'"):
        p.wait(20)


class Queue(LiveSource):
    """A queue whose messages are taken away only when their checkpoint is completed."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.more = threading.Event()

    @property
    def bounded(self) -> bool:
        return True

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    def listen(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch | None]:  # noqa: ARG002 - signature
        yield pa.RecordBatch.from_pydict({"n": [subtask]})
        while not self.more.wait(0.01):
            yield None

    def snapshot(self, checkpoint: int, subtask: int) -> None:
        self.notes.lines.append(f"snapshot {checkpoint} in {subtask}")

    def on_checkpoint_complete(self, checkpoint: int, subtask: int) -> None:
        self.notes.lines.append(f"complete {checkpoint} in {subtask}")


class TellingSequence(Slowly):
    """A resettable source that is told."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(ROWS, batch_rows=100)
        self.notes = notes

    snapshot = Queue.snapshot
    on_checkpoint_complete = Queue.on_checkpoint_complete


@pytest.mark.parametrize("kind", ["live", "resettable"])
def test_a_source_is_told_of_checkpoints_too(kind: str):
    notes = Notes()
    source: Any = Queue(notes) if kind == "live" else TellingSequence(notes)
    p = pipeline(checkpointing=CheckpointConfig())
    p.source(source, parallelism=2 if kind == "live" else 1).sink(TargetSink(Target()))
    job = p.start()
    job.checkpoint(timeout=10)
    subtasks = [0, 1] if kind == "live" else [0]
    assert sorted(notes.lines[: len(subtasks)]) == [f"snapshot 1 in {subtask}" for subtask in subtasks]
    source.more.set() if kind == "live" else source.let(100)
    assert p.wait(20)
    assert Counter(notes.lines) == Counter(
        f"{what} {checkpoint} in {subtask}"
        for what in ("snapshot", "complete")
        for checkpoint in (1, 2)
        for subtask in subtasks
    )
