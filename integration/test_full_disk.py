"""Scenario 55. A full disk under the decision log: nothing is aborted or forgotten; a restart with room goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward import FileSink
from onceward.connectors.spark.write.spark_task import write_partition
from onceward.core.checkpoint import Admission, Backoff, CommitPolicy, Coordinator
from onceward.core.errors import DecisionInDoubtError, StoreError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import EpochInput, open_store

from .disk_kit import Disk, mounted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = "512k"
STORES = {"directory": "file://{}/log", "SQLite": "sqlite:///{}/log.db"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path / "disk", SIZE) as small:
        yield small


class Pipeline:
    """Ten rows an epoch into files, which are on another disk than the decision log."""

    def __init__(self, url: str, out: Path) -> None:
        self.url, self.out = url, out
        self.sink = FileSink("out", out, format="jsonl")
        self.stores: list[Any] = []

    def open(self) -> Coordinator:
        store = open_store(self.url, pipeline="full")
        self.stores.append(store)
        coordinator = Coordinator("full", store, [self.sink], CommitPolicy(puts=Backoff(attempts=2)))
        coordinator.open()
        return coordinator

    def run(self, coordinator: Coordinator, epoch: int) -> None:
        about = EpochInput(query="q", start=epoch, end=epoch + 1)
        if coordinator.admit(epoch, about) is Admission.REPLAY:
            return
        rows = pa.record_batch({"n": list(range(10 * epoch, 10 * epoch + 10))})
        contexts = [coordinator.context("out", epoch, subtask=0)]
        coordinator.commit(epoch, [write_partition([self.sink], contexts, [rows])], about)

    def rows(self) -> list[int]:
        import json

        files = [file for file in self.out.glob("*.json*") if not file.name.startswith(("_", "."))]
        return sorted(json.loads(line)["n"] for file in files for line in file.read_text().splitlines())

    def close(self) -> None:
        for store in self.stores:
            getattr(store, "close", int)()


@pytest.mark.parametrize("moment", [Step.DECIDE_BEFORE, Step.COMPLETE_BEFORE])
@pytest.mark.parametrize("kind", STORES)
def test_a_full_disk_under_the_decision_log_stops_the_pipeline_and_loses_nothing(
    disk: Disk, tmp_path: Path, kind: str, moment: Step
) -> None:
    pipeline = Pipeline(STORES[kind].format(disk.folder), tmp_path / "out")
    coordinator = pipeline.open()
    pipeline.run(coordinator, 0)
    with hooked(lambda step: disk.fill() if step is moment else None), pytest.raises(DecisionInDoubtError) as told:
        pipeline.run(coordinator, 1)
    assert "Nothing was aborted" in str(told.value)
    assert any(words in str(told.value) for words in ("No space left", "full")), told.value
    with pytest.raises(StoreError):
        pipeline.open()
    assert pipeline.rows() == list(range(10 if moment is Step.DECIDE_BEFORE else 20))
    disk.make_room()
    coordinator = pipeline.open()
    for epoch in (1, 2):
        pipeline.run(coordinator, epoch)
    assert pipeline.rows() == list(range(30))
    assert list(pipeline.sink.lingering(coordinator.context("out", 2, subtask=0).scope)) == []
    pipeline.close()
