"""Source kind, sink kind, mode: each cell's guarantee as a real run with one failure, and as the pipeline says it."""

from __future__ import annotations

import time
from collections import Counter, deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.core import CheckpointConfig, CheckpointMode, Pipeline, RestartStrategy
from onceward.core.checkpoint.subtask import DirectlyWritten, SubtaskEpoch
from onceward.core.contract.transaction import WriteContext
from onceward.core.errors import OncewardError
from onceward.core.log import MemoryStore
from onceward.sinks import DirectSink
from onceward.sources import LiveSource, SequenceSource

from .engine_kit import ByKey, Slowly
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = [{"n": n, "k": n % 5, "v": n} for n in range(400)]
FAILS_AT = 237
BATCH = 10


class Once:
    """Fails the run at one row, once, when the rows before it have reached the sink."""

    def __init__(self, target: Target) -> None:
        self.left = [FAILS_AT]
        self.target = target

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        if record["n"] in self.left:
            self.left.clear()
            assert eventually(lambda: self.target.written >= FAILS_AT // BATCH * BATCH)
            raise ValueError("told to fail")
        return record


def eventually(true: Callable[[], bool]) -> bool:
    """Whether it becomes true within ten seconds."""
    return any(true() or time.sleep(0.005) for _ in range(2000))


class Socket(LiveSource):
    """Gives each row once, to whoever asks first."""

    def __init__(self) -> None:
        self.rows = deque(ROWS)
        self.allowed = 0

    def let(self, batches: int) -> None:
        """Let so many batches through."""
        self.allowed += batches

    @property
    def taken(self) -> int:
        """Batches that were given on."""
        return (len(ROWS) - len(self.rows)) // BATCH

    @property
    def schema(self) -> pa.Schema:
        return pa.schema({"n": pa.int64(), "k": pa.int64(), "v": pa.int64()})

    @property
    def bounded(self) -> bool:
        return True

    def listen(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch | None]:
        assert (subtask, parallelism) == (0, 1)
        while self.rows:
            if self.taken >= self.allowed:
                yield None
                continue
            some = [self.rows.popleft() for _ in range(BATCH)]
            yield pa.RecordBatch.from_pylist(some, schema=self.schema)


class Shown(DirectSink[list[Any]]):
    """Shows rows as they are written."""

    def __init__(self, target: Target) -> None:
        super().__init__("shown")
        self.target = target

    def open(self, context: Any) -> list[Any]:  # noqa: ARG002 - signature
        return self.target.committed.setdefault("all", [])

    def write(self, writer: list[Any], batch: pa.RecordBatch) -> None:
        writer += batch.to_pylist()
        self.target.written += batch.num_rows


def ran(source: Any, sink: Any, mode: CheckpointMode = "exactly-once") -> Pipeline:
    """Run to the end: ten batches, a checkpoint, a failure at row 237."""
    p = Pipeline(
        "p",
        checkpointing=CheckpointConfig(mode=mode),
        store=MemoryStore(),
        restart=RestartStrategy.fixed_delay(attempts=1, delay=0),
        max_batch_rows=BATCH,  # so that a sink gets each batch at once
    )
    p.source(source).map(Once(sink.target)).sink(sink)
    source.let(10)
    job = p.start()
    assert eventually(lambda: sink.target.written == 10 * BATCH)
    job.checkpoint(timeout=10)
    source.let(1000)
    p.wait(30)
    assert job.restarts == 1
    return p


def source_of(kind: str) -> Any:
    return Socket() if kind == "live" else Slowly(ROWS, batch_rows=BATCH)


def faults(target: Target) -> tuple[int, int]:
    """Rows that are missing, and rows that show again."""
    expected, seen = Counter(range(400)), target.counts("n")
    return (expected - seen).total(), (seen - expected).total()


@pytest.mark.parametrize("kind", ["resettable", "live"])
def test_a_two_phase_sink(kind: str):
    target = Target()
    p = ran(source_of(kind), TargetSink(target))
    missing, duplicated = faults(target)
    assert duplicated == 0
    if kind == "resettable":
        assert missing == 0
        assert p.guarantee() == ("exactly-once", ())
    else:
        assert missing > 0
        level, [why] = p.guarantee()
        assert level == "at-most-once"
        assert "source source-0 cannot be read again" in why


@pytest.mark.parametrize("kind", ["resettable", "live"])
def test_a_direct_sink(kind: str):
    target = Target()
    p = ran(source_of(kind), Shown(target))
    missing, duplicated = faults(target)
    if kind == "resettable":
        assert missing == 0
        assert duplicated > 0
        assert p.guarantee().level == "at-least-once"
        assert "sink shown makes rows visible as they are written" in p.guarantee().why[0]
    else:
        assert missing > 0
        assert duplicated == 0
        assert p.guarantee().level == "at-most-once"


@pytest.mark.parametrize("kind", ["resettable", "live"])
def test_an_idempotent_sink(kind: str):
    """Its final state is right; in between, after the failure, it goes back to older values."""
    target = Target()
    p = ran(source_of(kind), ByKey(target))
    went_back = any(after["v"] < before["v"] for rows in target.committed.values() for before, after in pairwise(rows))
    final = {key: rows[-1]["v"] for key, rows in target.committed.items()}
    if kind == "resettable":
        assert went_back
        assert final == {str(k): 395 + k for k in range(5)}
        assert p.guarantee() == (
            "effectively-once",
            ("sink by_key is idempotent, not transactional: after a failure older values may be visible",),
        )
    else:
        assert not went_back
        assert faults(target)[0] > 0
        assert p.guarantee().level == "at-most-once"


def test_the_engine_in_at_most_once_mode_reads_nothing_again():
    target = Target()
    p = ran(source_of("resettable"), TargetSink(target), "at-most-once")
    missing, duplicated = faults(target)
    assert missing > 0
    assert duplicated == 0
    assert p.guarantee().level == "at-most-once"
    assert "reads nothing again" in p.guarantee().why[0]


def test_the_engine_in_at_least_once_mode_loses_nothing():
    """That it doubles where streams join is shown by the simulator."""
    target = Target()
    p = ran(source_of("resettable"), TargetSink(target), "at-least-once")
    assert faults(target)[0] == 0
    assert p.guarantee().level == "at-least-once"
    assert "does not align barriers" in p.guarantee().why[0]


def test_the_weakest_part_decides_and_all_weak_parts_are_named():
    p = Pipeline("p", store=MemoryStore(), checkpointing=CheckpointConfig(mode="at-least-once"))
    stream = p.source(SequenceSource(ROWS))
    stream.sink(ByKey(Target()))
    stream.sink(TargetSink(Target()))
    level, why = p.guarantee()
    assert level == "at-least-once"
    assert len(why) == 2


def test_a_writer_whose_close_fails_is_not_closed_again():
    closed: list[str] = []

    class Failing(Shown):
        def close(self, writer: list[Any]) -> None:  # noqa: ARG002 - signature
            closed.append("once")
            raise OSError("the connection broke")

    context = WriteContext(pipeline="p", sink="shown", log="0" * 8, generation=0, epoch=0, subtask=0)
    epoch = SubtaskEpoch(DirectlyWritten(Failing(Target())), context)
    epoch.write(pa.RecordBatch.from_pylist([{"n": 1}]))
    with pytest.raises((OSError, OncewardError), match="the connection broke"):
        epoch.pre_commit()
    epoch.discard()
    assert closed == ["once"]
