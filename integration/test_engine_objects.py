"""State, checkpoints and savepoints of the engine in an S3 server (SeaweedFS)."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from tests.engine_kit import RunningSum, Slowly, numbers, pipeline, reach, sums
from tests.sink_kit import Target, TargetSink

from onceward.core import CheckpointConfig, FileBackend, RestartStrategy, RocksDBBackend
from onceward.core.errors import CheckpointFailedError, ConfigurationError, StateDamagedError
from onceward.sources import SequenceSource

from .s3_kit import S3Server, s3, url

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["s3", "url"]
ROWS = numbers(3000, keys=7)
BACKENDS: dict[str, Callable[[str], Any]] = {"files": FileBackend, "rocksdb": RocksDBBackend}


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest, url: str) -> Any:
    return BACKENDS[request.param](f"{url}/state")


class Rig:
    """A pipeline whose decision log, state and savepoints are in the object store."""

    def __init__(self, url: str, backend: Any) -> None:
        self.url, self.backend, self.target = url, backend, Target()
        self.files, self.root = fsspec.core.url_to_fs(url)

    def pipeline(self, source: Any = None, *, parallelism: int = 2, **options: Any) -> Any:
        options.setdefault("checkpointing", CheckpointConfig())
        options.setdefault("restart", RestartStrategy.none())
        p = pipeline(store=f"{self.url}/log", backend=self.backend, **options)
        stream = p.source(source or SequenceSource(ROWS, batch_rows=100), uid="numbers").key_by("k")
        stream.process(RunningSum(), uid="sum", parallelism=parallelism).sink(TargetSink(self.target))
        return p

    def begun(self, batches: int, **options: Any) -> tuple[Any, Any, Slowly]:
        source = Slowly(ROWS, batch_rows=100)
        p = self.pipeline(source, **options)
        job = p.start()
        reach(source, job, batches)
        return p, job, source

    def found(self, name: str) -> list[str]:
        self.files.invalidate_cache()
        return [str(path) for path in self.files.find(self.root) if str(path).endswith(name)]

    def check(self) -> None:
        assert self.target.counts("n") == Counter(range(3000))
        assert {row["n"]: row["sum"] for row in self.target.rows} == sums(ROWS)
        assert self.target.prepared == {}


@pytest.fixture
def rig(url: str, backend: Any) -> Rig:
    return Rig(url, backend)


def test_a_run_goes_on_from_its_checkpoint_at_another_parallelism(rig: Rig) -> None:
    p, job, source = rig.begun(3)
    for _ in range(3):
        job.checkpoint(timeout=60)
        reach(source, job, 2)
    p.stop()
    assert len(rig.found("/metadata")) == len(rig.found("/decided")) == 1  # one is retained
    rig.pipeline(parallelism=3).run()
    rig.check()


def test_a_savepoint_is_restored_by_its_url_once_and_deleted_when_claimed(rig: Rig) -> None:
    _, job, _ = rig.begun(5)
    where = job.stop_with_savepoint(f"{rig.url}/save/", timeout=60)
    assert where == f"{rig.url}/save"
    with pytest.raises(ConfigurationError, match="the folder is not empty"):
        rig.begun(1)[1].savepoint(where)
    again = rig.pipeline(parallelism=3)
    again.run(restore=where, claim=True)
    rig.check()
    assert not [path for path in rig.files.find(rig.root) if "/save/" in str(path)]
    rig.pipeline().run(restore=where, claim=True)  # its command line, once more
    rig.check()


def test_a_damaged_and_a_missing_object_are_named(rig: Rig) -> None:
    p, job, _ = rig.begun(5)
    job.checkpoint(timeout=60)
    p.stop()
    damaged = [path for path in rig.files.find(rig.root) if "/state/" in str(path) and "decided" not in str(path)]
    assert len(damaged) > 2
    for path in damaged:
        whole = rig.files.cat_file(path)
        for damage in (whole[:-1], None) if whole else (None,):
            rig.files.pipe_file(path, damage) if damage is not None else rig.files.rm_file(path)
            with pytest.raises(StateDamagedError, match=str(path).rpartition("/")[2].replace("[", r"\[")):
                rig.pipeline().run()
        rig.files.pipe_file(path, whole)
    rig.pipeline().run()
    rig.check()


def test_while_the_store_is_away_checkpoints_fail_and_rows_go_on(url: str, s3: S3Server, tmp_path: Any) -> None:
    """State alone is there; the decision log is on this disk."""
    target, source = Target(), Slowly(ROWS, batch_rows=100)
    p = pipeline(
        store=f"file://{tmp_path}",
        backend=FileBackend(f"{url}/state"),
        checkpointing=CheckpointConfig(tolerable_failures=100),
        restart=RestartStrategy.none(),
    )
    p.source(source, uid="numbers").key_by("k").process(RunningSum(), uid="sum").sink(TargetSink(target))
    job = p.start()
    reach(source, job, 5)
    s3.kill()
    try:
        with pytest.raises(CheckpointFailedError, match="declined by sum"):
            job.checkpoint(timeout=120)
        reach(source, job, 5)
        assert target.rows == []
    finally:
        s3.start()
    deadline = time.monotonic() + 60
    while not target.rows:
        assert time.monotonic() < deadline
        try:
            job.checkpoint(timeout=60)
        except CheckpointFailedError:
            time.sleep(0.5)
    source.let(100)
    assert p.wait(60)
    assert target.counts("n") == Counter(range(3000))
    assert {row["n"]: row["sum"] for row in target.rows} == sums(ROWS)
