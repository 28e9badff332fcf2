"""The embedded engine on a full disk: under its checkpoints, its decision log, its working copies, or its sink's files.

What was committed stays; a run that goes on, and one that is started again with room, end exactly.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from onceward import (
    CheckpointConfig,
    FileBackend,
    FileSink,
    MemoryBackend,
    Pipeline,
    ProcessFunction,
    RestartStrategy,
    RocksDBBackend,
    SequenceSource,
    ValueState,
)
from onceward.core.errors import OncewardError

from .disk_kit import Disk, mounted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.core.engine.state.row_store import StateBackend

ROWS = [{"n": n, "k": f"k{n % 300}"} for n in range(6_000)]
FULL = ("No space left", "full", "space")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path / "disk", "24m") as small:
        yield small


class Count(ProcessFunction):
    """Numbers the rows of each key, with a state that has some bytes for each."""

    seen = ValueState[Any]([0, ""])

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        number = self.seen.get()[0] + 1
        self.seen.set([number, f"{record['n']:0500d}"])
        yield {"n": record["n"], "seen": number}


class Case:
    """A pipeline of which one part is on the small disk."""

    def __init__(self, part: str, disk: Disk, elsewhere: Path) -> None:
        def at(name: str) -> str:
            return str((disk.folder if name == part else elsewhere) / name)

        self.part, self.out, self.disk = part, at("files"), disk
        self.store = at("log")
        self.sqlite = part == "sqlite"
        self.local = at("working")
        self.state = at("state")
        self.rows = 0
        self.reached = threading.Event()
        self.filled = threading.Event()

    def backend(self) -> StateBackend:
        if self.part == "working":
            return RocksDBBackend(self.state, local=self.local)
        return MemoryBackend() if self.part == "log" else FileBackend(self.state)

    def slowly(self, row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.0003)
        self.rows += 1
        if self.rows == 2_000:
            self.reached.set()
        return row

    def make(self, restart: RestartStrategy) -> Pipeline:
        pipeline = Pipeline(
            "full",
            store=self.store,
            backend=self.backend(),
            checkpointing=CheckpointConfig(interval=0.1, tolerable_failures=2),
            restart=restart,
        )
        rows = pipeline.source(SequenceSource(ROWS, batch_rows=20), uid="rows").map(self.slowly, uid="slowly")
        counts = rows.key_by("k").process(Count(), uid="count", parallelism=2)
        counts.sink(FileSink("files", self.out, format="jsonl"))
        return pipeline

    def visible(self) -> list[tuple[int, int]]:
        from pathlib import Path

        texts = [path.read_text() for path in Path(self.out).glob("*.jsonl")]
        rows = [json.loads(line) for text in texts for line in text.splitlines()]
        return sorted((row["n"], row["seen"]) for row in rows)


EXACTLY = sorted((row["n"], row["n"] // 300 + 1) for row in ROWS)


def mentions_the_disk(error: BaseException | None) -> bool:
    return error is not None and any(words in str(error) for words in FULL)


@pytest.mark.parametrize("part", ["log", "state", "working", "files"])
def test_a_full_disk_fails_the_run_by_name_and_a_start_with_room_ends_exactly(
    part: str, disk: Disk, tmp_path: Path
) -> None:
    case = Case(part, disk, tmp_path)
    job = case.make(RestartStrategy.none()).start()
    assert case.reached.wait(60)
    disk.fill()
    assert job.wait(60)
    assert isinstance(job.error, OncewardError)
    assert mentions_the_disk(job.error), job.error
    before = case.visible()
    assert len(before) == len(set(before))
    disk.make_room()
    case.make(RestartStrategy.none()).run()
    assert case.visible() == EXACTLY


@pytest.mark.parametrize("part", ["log", "state", "working", "files"])
def test_a_run_that_starts_again_by_itself_ends_exactly_once_there_is_room(
    part: str, disk: Disk, tmp_path: Path
) -> None:
    case = Case(part, disk, tmp_path)
    job = case.make(RestartStrategy.fixed_delay(attempts=1000, delay=0.2)).start()
    assert case.reached.wait(60)
    disk.fill()
    deadline = time.monotonic() + 30
    while job.restarts < 3 and not job.wait(0.05):
        assert time.monotonic() < deadline, "it does not notice"
    assert mentions_the_disk(job.failure), job.failure
    disk.make_room()
    assert job.wait(120)
    assert job.error is None
    assert case.visible() == EXACTLY
