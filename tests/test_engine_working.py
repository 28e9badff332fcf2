"""Working copies of state: those of dead runs are removed, those of living ones are not, and a full disk is named."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from onceward.core import CheckpointConfig, FileBackend, MemoryBackend, RocksDBBackend
from onceward.core.engine.channels import TaskId
from onceward.core.engine.state import keys
from onceward.core.engine.state.rocksdb import RocksTable
from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.engine.state.working import PREFIX, WorkingCopy
from onceward.core.errors import StateError
from onceward.core.log import MemoryStore
from onceward.sources import SequenceSource

from .engine_kit import RunningSum, numbers, pipeline, sums
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.core.engine.state.handles import KeyedHandle
    from onceward.core.engine.state.row_store import KeyedTable

ALL = range(128)
_RUN = """
import sys
from onceward.core import RocksDBBackend
from onceward.core.engine.channels import TaskId
path, local, name, log = sys.argv[1:]
backend = RocksDBBackend(path, local=local).bind(name).bind(log)
tables = [backend.open(TaskId("sum", n), range(64 * n, 64 * n + 64), [], None) for n in range(2)]
print("runs", flush=True)
sys.stdin.read()
"""


class Runs:
    """Processes that have working copies of a pipeline's state."""

    def __init__(self, folder: Path) -> None:
        self.state, self.local = folder / "state", folder / "local"
        self._processes: list[subprocess.Popen[str]] = []

    def begin(self, name: str = "totals", log: str = "1") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _RUN, str(self.state), str(self.local), name, log]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        self._processes.remove(process)

    def end(self) -> None:
        for process in list(self._processes):
            self.kill(process)

    def copies(self) -> set[str]:
        return {path.name for path in self.local.iterdir()}


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    made.end()


def test_the_next_start_removes_what_killed_runs_of_the_pipeline_left(runs: Runs):
    for log in "123":  # a log in memory is another one in each run
        runs.kill(runs.begin(log=log))
    assert len(runs.copies()) == 2
    table = RocksDBBackend(runs.state, local=runs.local).bind("totals").bind("4").open(TaskId("sum", 0), ALL, [], None)
    assert len(runs.copies()) == 1
    table.close()
    assert runs.copies() == set()


def test_nothing_of_a_living_run_or_of_another_pipeline_is_removed(runs: Runs):
    runs.begin()
    runs.kill(runs.begin("totals-eu"))
    before = runs.copies()
    assert len(before) == 4
    backend = RocksDBBackend(runs.state, local=runs.local).bind("totals").bind("1")
    own = [backend.open(TaskId("sum", n), range(64 * n, 64 * n + 64), [], None) for n in range(2)]
    for table in own:
        assert table.get(keys.row(3, "s", b"k")) is None
        table.close()
    assert runs.copies() == before


def test_a_folder_that_only_looks_like_a_working_copy_is_left_alone(tmp_path: Path):
    mine = tmp_path / f"{PREFIX}mine"
    mine.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    name = WorkingCopy(tmp_path, "owner").folder.name
    (tmp_path / f"{name}0").symlink_to(elsewhere)
    WorkingCopy(tmp_path, "owner").close()
    assert mine.exists()
    assert elsewhere.exists()


def a_table(folder: Path, groups: range = ALL, restored: Any = (), **options: Any) -> KeyedTable:
    backend = RocksDBBackend(folder / "state", **options)
    return backend.open(TaskId("sum", 0), groups, restored, backend.storage)


def a_handle(folder: Path) -> KeyedHandle:
    table = a_table(folder)
    for n in range(100):
        table.put(keys.row(n, "s", b"k"), b"v" * 100)
    freezing = table.freeze(1)
    handle, _ = freezing.write(CheckpointStorage(folder / "state"), "chk-1-1")
    freezing.discard()
    table.close()
    return handle


@pytest.fixture
def no_tmpdir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Whoever uses TMPDIR fails."""
    full = tmp_path / "nowhere"
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(full))
        yield full


def test_rescaling_uses_the_folder_for_working_copies(tmp_path: Path, no_tmpdir: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        handle = a_handle(tmp_path)
    table = a_table(tmp_path, range(64), [handle], local=tmp_path / "local")
    assert table.get(keys.row(63, "s", b"k")) == b"v" * 100
    [copy] = (tmp_path / "local").iterdir()
    assert [path.name for path in copy.iterdir()] == ["db"]
    table.close()
    assert not no_tmpdir.exists()


def test_a_temporary_folder_that_cannot_be_used_is_named(tmp_path: Path, no_tmpdir: Path):
    with pytest.raises(StateError, match=f"working copy .*{no_tmpdir}.*local="):
        a_table(tmp_path)


def test_where_there_is_no_temporary_folder_the_choices_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", full)
    with pytest.raises(StateError, match=r"/var/tmp.*local="):
        a_table(tmp_path)


@pytest.mark.parametrize("groups", [ALL, range(64)], ids=["same", "rescaled"])
def test_a_disk_that_is_full_while_state_is_restored_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: range
):
    handle = a_handle(tmp_path)

    def full(_self: Any, _ref: Any, target: Path) -> None:
        target.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(CheckpointStorage, "copy_out", full)
    with pytest.raises(StateError, match=rf"working copy .*{tmp_path / 'local'}.*No space left.*local="):
        a_table(tmp_path, groups, [handle], local=tmp_path / "local")
    assert list((tmp_path / "local").iterdir()) == []


def test_a_working_copy_that_cannot_be_closed_on_a_full_disk_is_deleted_all_the_same(tmp_path: Path):
    """Else each restart would leave one more, and the disk would stay full."""

    class Full:
        def close(self) -> None:
            raise Exception("IO error: No space left on device")  # noqa: TRY002 - as rocksdict

    table = a_table(tmp_path, local=tmp_path / "local")
    assert isinstance(table, RocksTable)
    table._db.close()
    table._db = Full()  # type: ignore[assignment]
    table.close()
    assert list((tmp_path / "local").iterdir()) == []


@pytest.mark.parametrize("backend", [lambda _: MemoryBackend(), lambda path: FileBackend(path / "state")])
def test_another_backend_restores_state_of_rocksdb_and_leaves_nothing(
    tmp_path: Path, backend: Any, monkeypatch: pytest.MonkeyPatch
):
    handle, temporary = a_handle(tmp_path), tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    table = backend(tmp_path).open(TaskId("sum", 0), ALL, [handle], CheckpointStorage(tmp_path / "state"))
    assert table.get(keys.row(99, "s", b"k")) == b"v" * 100
    assert list(temporary.iterdir()) == []


def test_a_pipeline_that_restarts_in_its_process_has_one_working_copy_for_each_subtask(tmp_path: Path):
    target, local = Target(), tmp_path / "local"
    seen: list[int] = []

    class Fails(RunningSum):
        def process(self, record: dict[str, Any], context: Any) -> Any:
            seen.append(len(list(local.iterdir())))
            if record["n"] == 50 and not failed:
                failed.append(1)
                raise ValueError("once")
            return super().process(record, context)

    failed: list[int] = []
    rows = numbers(100)
    p = pipeline(
        backend=RocksDBBackend(tmp_path / "state", local=local), store=MemoryStore(), checkpointing=CheckpointConfig()
    )
    p.source(SequenceSource(rows, batch_rows=10)).key_by("k").process(Fails(), uid="sum", parallelism=2).sink(
        TargetSink(target)
    )
    p.run()
    assert max(seen) == 2
    assert {row["n"]: row["sum"] for row in target.rows} == sums(rows)
    assert list(local.iterdir()) == []
