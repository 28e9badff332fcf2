"""Plain batch writes through a format: the writer as Spark passes it around, without Spark."""

from __future__ import annotations

import pickle
import tempfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset
import pytest

from onceward import FileSink
from onceward.connectors.spark.options import FormatOptions
from onceward.connectors.spark.writer import BatchWriter
from onceward.core.errors import CommitPendingError, EpochConflictError
from onceward.core.steps import Step, hooked

if TYPE_CHECKING:
    from pathlib import Path

    from onceward.core.names import Scope
    from onceward.core.transaction import Progress


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, for this test."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


class Run:
    """A batch write as Spark drives it: the writer is pickled in one process, used and completed in others."""

    def __init__(self, out: Path, **options: str) -> None:
        writer = BatchWriter(FileSink("files", out), FormatOptions.parse(options))
        self._pickled = pickle.dumps(writer)
        self.out = out

    def write(self, *numbers: int) -> Any:
        return self._copy().write(iter([pa.RecordBatch.from_pydict({"n": list(numbers)})]))

    def commit(self, *messages: Any) -> None:
        self._copy().commit(list(messages))

    def abort(self, *messages: Any) -> None:
        self._copy().abort(list(messages))

    def shown(self) -> list[int]:
        return sorted(pyarrow.dataset.dataset(self.out).to_table()["n"].to_pylist())

    def _copy(self) -> BatchWriter:
        copy: BatchWriter = pickle.loads(self._pickled)
        return copy


def test_each_plain_run_keeps_its_log_in_a_folder_of_its_own_and_deletes_it(tmp_path: Path, temporary: Path) -> None:
    first, second = Run(tmp_path / "out"), Run(tmp_path / "out")
    folders = list(temporary.iterdir())
    assert len(folders) == 2
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    first.commit(first.write(1, 2, 3))
    assert len(list(temporary.iterdir())) == 1
    second.commit(second.write(4))
    assert list(temporary.iterdir()) == []
    assert second.shown() == [1, 2, 3, 4]


def test_nobody_can_take_the_folders_name_before(tmp_path: Path, temporary: Path) -> None:
    (temporary / "onceward-batch").write_text("squatted")
    run = Run(tmp_path / "out")
    run.commit(run.write(1))
    assert run.shown() == [1]


def test_a_run_that_was_given_up_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    run = Run(tmp_path / "out")
    run.abort(run.write(1), None)
    assert list(temporary.iterdir()) == []
    assert list((tmp_path / "out").rglob("*.pending")) == []


class Refuses(FileSink):
    """A target that refuses the log."""

    def check_claim(self, scope: Scope, newest: Progress) -> None:  # noqa: ARG002 - signature
        raise EpochConflictError("no")


def test_a_run_that_cannot_be_opened_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    with pytest.raises(EpochConflictError):
        pickle.dumps(BatchWriter(Refuses("files", tmp_path), FormatOptions.parse({})))
    assert list(temporary.iterdir()) == []


def fail(step: Step) -> None:
    if step is Step.COMPLETE_BEFORE:
        raise CommitPendingError("not yet")


def test_a_decision_that_is_not_completed_is_kept_and_the_error_says_where(tmp_path: Path, temporary: Path) -> None:
    """Spark calls abort after commit has raised, in a process of its own."""
    run = Run(tmp_path / "out")
    message = run.write(1)
    with hooked(fail), pytest.raises(CommitPendingError) as caught:
        run.commit(message)
    run.abort(message)
    [folder] = temporary.iterdir()
    assert str(folder) in caught.value.__notes__[0]


@pytest.mark.parametrize("name", ["store", "runKey"])
def test_a_log_that_somebody_chose_is_never_deleted(tmp_path: Path, temporary: Path, name: str) -> None:
    options = {"store": str(tmp_path / "log")}
    if name == "runKey":
        options |= {"pipeline": "days", "runKey": "monday"}
    run = Run(tmp_path / "out", **options)
    run.commit(run.write(1))
    run = Run(tmp_path / "out", **options)
    run.commit(run.write(1))
    assert [path for path in (tmp_path / "log").rglob("*") if path.is_file()] != []
    assert list(temporary.iterdir()) == []
    assert run.shown() == ([1] if name == "runKey" else [1, 1])
