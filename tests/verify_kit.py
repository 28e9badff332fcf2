"""Pipelines whose targets are verified."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from onceward import FileSink
from onceward.cli.main import app
from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import DirectoryStore, EpochInput

from .sink_kit import Crash

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


EPOCHS, ROWS, SUBTASKS = 3, 10, 2
FORMATS = ["parquet", "csv", "jsonl", "arrow"]


def row(number: int) -> dict[str, Any]:
    """Some values of each type, a null among them."""
    return {
        "id": number,
        "word": f"wörd {number}" if number % 4 else None,
        "price": Decimal(number) / 4,
        "part": number % 3 or None,
        "at": datetime(2026, 11, 23, 10, number, tzinfo=UTC),
        "day": date(2026, 11, 1 + number % 28),
        "time": time(10, number),
        "yes": bool(number % 2),
        "real": -number / 7,
        "bytes": b"%d" % number,
    }


def batch_of(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row(number) for number in numbers])


def die_in_commit(step: Step) -> None:
    if step is Step.COMMIT_BEFORE:
        raise Crash


class Job:
    """A pipeline of one sink with two subtasks; epoch n writes the rows from 10 n."""

    def __init__(self, sink: Any, folder: Path) -> None:
        self.sink, self.folder, self.written = sink, folder, 0
        self.open()

    def open(self) -> None:
        self.coordinator = Coordinator("orders", DirectoryStore(self.folder), [self.sink])
        self.coordinator.open()

    def run(self, epochs: int = EPOCHS, make: Callable[..., pa.RecordBatch] = batch_of) -> None:
        for _ in range(epochs):
            about = EpochInput(query="q", start=[str(self.written)], end=[str(self.written + 1)])
            self.coordinator.admit(self.written, about)
            acks = [self._acknowledged(subtask, make) for subtask in range(SUBTASKS)]
            self.coordinator.commit(self.written, acks, about)
            self.written += 1

    def _acknowledged(self, subtask: int, make: Callable[..., pa.RecordBatch]) -> Acknowledgement:
        number = self.written
        attempt = SubtaskEpoch(self.sink, self.coordinator.context(self.sink.name, number, subtask=subtask))
        numbers = range(number * ROWS + subtask, (number + 1) * ROWS, SUBTASKS)
        attempt.write(make(*numbers[:2]))
        attempt.write(make(*numbers[2:]))
        committable = attempt.pre_commit()
        assert committable is not None
        return Acknowledgement(
            epoch=number, subtask=subtask, attempt=0, sinks=(self.sink.name,), committables=(committable,)
        )

    def crash_in_commit(self, make: Callable[..., pa.RecordBatch] = batch_of) -> None:
        """Write one more epoch, decide it, die, and let another process finish it."""
        with hooked(die_in_commit), pytest.raises(Crash):
            self.run(1, make)
        self.written += 1
        self.open()

    def audit(self, place: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["verify", str(self.folder), "--target", place, "--json", *arguments])
        assert done.exit_code == code, (done.output, done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        [told] = json.loads(done.stdout)
        return told


def wrong(told: dict[str, Any]) -> list[Any]:
    return [line["epoch"] for line in told["epochs"] if line["verdict"] != "proven"]


class FileJob(Job):
    def __init__(self, tmp_path: Path, **options: Any) -> None:
        self.out = tmp_path / "out"
        super().__init__(FileSink("files", self.out, **options), tmp_path / "log")

    def told(self, code: int = 0) -> dict[str, Any]:
        return self.audit(f"files:{self.out}", code=code)

    def file(self, epoch: int) -> Path:
        """One that holds two rows or more."""
        found = (path for path in sorted(self.out.rglob(f"*~{epoch}~0~0~*")) if path.is_file())
        return max(found, key=lambda path: path.stat().st_size)
