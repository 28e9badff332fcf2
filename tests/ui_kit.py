"""A folder of checkpoints as drivers leave it, for tests of the page: a Spark query that died, and an engine's job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward import FileSink
from onceward.cli.operate import Search
from onceward.cli.ui.desk import Desk, Watch
from onceward.core import CheckpointConfig, FileBackend
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import DirectoryStore
from onceward.sources import SequenceSource
from onceward.testing.sink_case import SinkCase, SinkUnderTest, numbered

from .engine_kit import pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from onceward.core.contract.transaction import Committable

TOKEN = "a-token-for-tests"


class DiedError(Exception):
    """The driver's process ended here."""


class Folder:
    """Checkpoints in `checkpoints`, rows in `target`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints = root / "checkpoints"
        self.orders = self.checkpoints / "orders"
        self.case = SinkCase(SinkUnderTest(self.sink, list), "orders", DirectoryStore(self.orders / "onceward"))
        (self.orders / "offsets").mkdir()
        (self.orders / "commits").mkdir()
        (root / "ui_jobs.py").write_text(
            f"from onceward import FileSink\nSINKS = [FileSink('files', {str(root / 'target')!r}, format='jsonl')]\n"
        )

    def sink(self) -> FileSink:
        return FileSink("files", self.root / "target", format="jsonl")

    def finish(self, epoch: int, *, subtasks: int = 2) -> None:
        """An epoch of the query, as Spark and onceward write it down."""
        (self.orders / "offsets" / str(epoch)).write_text("v1")
        self.case.finish(epoch, *(self.case.prepare(epoch, subtask=n) for n in range(subtasks)))
        (self.orders / "commits" / str(epoch)).write_text("v1")

    def die_after_deciding(self, epoch: int) -> Committable:
        """The driver dies before it commits; the handle of the decided transaction."""

        def die(at: Step) -> None:
            if at is Step.COMMIT_BEFORE:
                raise DiedError

        (self.orders / "offsets" / str(epoch)).write_text("v1")
        committable = self.case.prepare(epoch)
        with hooked(die), pytest.raises(DiedError):
            self.case.finish(epoch, committable)
        return committable

    def run_engine(self, rows: int = 50) -> None:
        made = pipeline(
            "totals",
            store=DirectoryStore(self.checkpoints / "totals" / "log"),
            backend=FileBackend(self.checkpoints / "totals" / "state"),
            checkpointing=CheckpointConfig(interval=0.02),
        )
        source = SequenceSource(pa.Table.from_batches([numbered(list(range(rows)))]))
        made.source(source).sink(FileSink("out", self.root / "totals", format="jsonl"))
        made.run()

    def watch(self, **options: Any) -> Watch:
        return Watch([str(self.checkpoints)], **options)

    def desk(self, **options: Any) -> Desk:
        """With the sink as its target; what it reads is never shown twice."""
        ticks = iter(range(0, 10**9, 100))
        search = Search(sinks="ui_jobs:SINKS")
        return Desk(self.watch(), search, clock=lambda: float(next(ticks)), **options)
