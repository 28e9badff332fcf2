"""Plain batch writes through a format: the writer as Spark passes it around, without Spark."""

from __future__ import annotations

import importlib
import os
import pickle
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset
import pytest
import sqlalchemy as sa

from onceward import FileSink, HttpSink, SqlAlchemySink
from onceward.connectors.spark.formats import run_folder
from onceward.connectors.spark.formats.writers import BatchWriter
from onceward.connectors.spark.session.options import FormatOptions
from onceward.connectors.spark.write.spark_task import TaskPlace
from onceward.core.contract.ledger import Ledger
from onceward.core.errors import CommitPendingError, EpochConflictError, FencedError
from onceward.core.kit.crash_points import Step, hooked

from .sink_kit import TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.core.contract.names import Scope
    from onceward.core.contract.transaction import Progress


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
        writer = BatchWriter(FileSink(options.pop("name", "files"), out), FormatOptions.parse(options))
        self._pickled = pickle.dumps(writer)
        self.out, self.folder = out, Path(writer.temporary)

    def write(self, *numbers: int, meanwhile: Callable[[], object] = lambda: None) -> Any:
        """What a task does; `meanwhile` happens before it has its first row."""

        def batches() -> Iterator[pa.RecordBatch]:
            meanwhile()
            yield pa.RecordBatch.from_pydict({"n": list(numbers)})

        return self._copy().write(batches())

    def commit(self, *messages: Any) -> None:
        self._copy().commit(list(messages))

    def abort(self, *messages: Any) -> None:
        self._copy().abort(list(messages))

    def pending(self) -> list[Path]:
        area = self.out / "_onceward"
        return (
            [path for path in area.iterdir() if path.is_dir() and path.suffix not in {".commit", ".abort"}]
            if area.is_dir()
            else []
        )

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


def test_runs_without_a_key_leave_no_bookkeeping_in_a_folder(tmp_path: Path, temporary: Path) -> None:
    out = tmp_path / "out"
    for number in range(3):
        run = Run(out)
        run.commit(run.write(number))
    failed = Run(out)
    failed.abort(failed.write(3), None)
    kept = Run(out, pipeline="days", runKey="monday", store=str(tmp_path / "log"))
    kept.commit(kept.write(3))
    again = Run(out, pipeline="days", runKey="monday", store=str(tmp_path / "log"))
    again.commit(again.write(3))
    assert again.shown() == [0, 1, 2, 3]
    left = sorted(path.name for path in out.rglob("*") if not path.name.endswith(".parquet"))
    assert [name.split("~")[0] for name in left if "days" not in name] == [".identity", "_onceward"]
    assert list(temporary.iterdir()) == []


@pytest.mark.usefixtures("temporary")
def test_runs_without_a_key_leave_no_claim_of_a_sink_whose_ledger_is_a_folder_of_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples"))
    sink = importlib.import_module("custom_sink").JsonLinesSink("lines", tmp_path / "out")
    for number, options in enumerate(({}, {"pipeline": "days", "runKey": "monday", "store": str(tmp_path / "log")})):
        pickled = pickle.dumps(BatchWriter(sink, FormatOptions.parse(options)))
        message = pickle.loads(pickled).write(iter([pa.RecordBatch.from_pydict({"n": [number]})]))
        pickle.loads(pickled).commit([message])
    assert len(list((tmp_path / "out").glob("*.jsonl"))) == 2
    assert [path.name.split(".")[1] for path in (tmp_path / "out").glob(".*.claim")] == ["days"]


@pytest.mark.usefixtures("temporary")
def test_runs_without_a_key_leave_no_bookkeeping_in_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/target.db"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE words (n bigint)"))

    def run(number: int, **options: str) -> None:
        sink = SqlAlchemySink("words", url=url, table="words")
        pickled = pickle.dumps(BatchWriter(sink, FormatOptions.parse(options)))
        message = pickle.loads(pickled).write(iter([pa.RecordBatch.from_pydict({"n": [number]})]))
        pickle.loads(pickled).commit([message])

    for number in range(3):
        run(number)
    for _ in range(2):
        run(3, pipeline="days", runKey="monday", store=str(tmp_path / "log"))
    with engine.connect() as connection:
        assert sorted(connection.scalars(sa.text("SELECT n FROM words"))) == [0, 1, 2, 3]
        for table in ("ledger", "pipelines", "logs"):
            pipelines = list(connection.scalars(sa.text(f"SELECT pipeline FROM onceward_{table}")))
            assert [name.split(".")[0] for name in pipelines] == ["days"], table
    engine.dispose()


class RefusingLedger(Ledger):
    def check_claim(self, scope: Scope, newest: Progress) -> None:  # noqa: ARG002 - signature
        raise EpochConflictError("no")


class Refuses(FileSink):
    """A target that refuses the log."""

    def ledger(self) -> Any:
        return RefusingLedger()


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


def of_monday(out: Path, log: Path, *, name: str = "files", pipeline: str = "days") -> Run:
    return Run(out, name=name, store=str(log), pipeline=pipeline, runKey="monday")


def test_each_target_of_a_job_has_a_run_of_its_own(tmp_path: Path) -> None:
    """One pipeline, one runKey and one store for all that a job writes."""
    shown = {}
    for target, name in (("a", "files"), ("b", "files"), ("a", "files"), ("b", "others")):
        run = of_monday(tmp_path / target, tmp_path / "log", name=name)
        run.commit(run.write(1))
        shown[target] = run.shown()
    assert shown == {"a": [1], "b": [1, 1]}


def test_pipelines_whose_long_names_begin_alike_have_runs_of_their_own(tmp_path: Path) -> None:
    for number in range(2):
        run = of_monday(tmp_path / f"{number}", tmp_path / "log", pipeline=f"{'p' * 60}{number}")
        run.commit(run.write(number))
        assert run.shown() == [number]


class Somewhere(FileSink):
    """A target that has an address."""

    address = "first"

    def dataset(self) -> tuple[str, str]:
        return self.address, "table"


def test_a_target_of_the_same_name_at_another_address_is_no_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = FormatOptions.parse({"store": str(tmp_path / "log"), "pipeline": "days", "runKey": "monday"})
    for expected in (False, True):
        writer = pickle.loads(pickle.dumps(BatchWriter(Somewhere("files", tmp_path), options)))
        assert writer.opened.replay is expected
        writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"n": [1]})]))])
    monkeypatch.setattr(Somewhere, "address", "second")
    with pytest.raises(EpochConflictError) as caught:
        pickle.dumps(BatchWriter(Somewhere("files", tmp_path), options))
    assert "at another address, nothing was written here" in caught.value.__notes__[0]


def test_a_task_that_prepares_after_its_run_was_given_up_is_waited_for_and_swept(
    tmp_path: Path, temporary: Path
) -> None:
    """Spark kills the other tasks of a failed job late, and calls abort at once."""
    run, waiting, go_on, ended = Run(tmp_path / "out"), threading.Event(), threading.Event(), threading.Event()
    refusals = []

    def slow() -> None:
        with pytest.raises(FencedError, match="was given up") as caught:
            run.write(1, meanwhile=lambda: (waiting.set(), go_on.wait(10)))
        refusals.append(caught)
        ended.set()

    task = threading.Thread(target=slow)
    task.start()
    assert waiting.wait(10)
    threading.Timer(0.3, go_on.set).start()
    run.abort(None, None)  # no task has answered
    assert ended.wait(10)
    task.join()
    assert len(refusals) == 1
    assert run.pending() == []
    assert list(temporary.iterdir()) == []
    with pytest.raises(FencedError, match="has ended already"):
        run.write(2)
    assert run.pending() == []


def killed_while_it_prepares(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a transaction as a Python worker does that is killed right after it prepared."""

    def killed(self: BatchWriter, *arguments: Any) -> Any:
        written(self, *arguments)
        raise KeyboardInterrupt

    written = BatchWriter._write
    with monkeypatch.context() as patch:
        patch.setattr(BatchWriter, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            run.write(1)


def test_a_task_that_is_killed_after_it_has_prepared_is_swept_without_any_answer(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "out")
    killed_while_it_prepares(run, monkeypatch)
    assert len(run.pending()) == 1
    run.abort(None)
    assert run.pending() == []
    assert list(temporary.iterdir()) == []


@pytest.fixture
def on_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Run, int], Any]:
    """Run a task on a machine that does not see the run's folder, so that nobody can wait for the task."""

    def write(run: Run, number: int) -> Any:
        folder, hidden = run.folder, tmp_path / "hidden"
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(
                "onceward.connectors.spark.formats.writers.place", lambda: TaskPlace(0, 0, -1, "spark://master:7077")
            )
            if folder.exists():
                folder.rename(hidden)
            message = run.write(number)
            if hidden.exists():
                hidden.rename(folder)
        return message

    return write


def test_what_a_task_prepares_on_another_machine_is_swept_by_the_next_run_into_the_same_target(
    tmp_path: Path, temporary: Path, on_another_machine: Callable[[Run, int], Any]
) -> None:
    run = Run(tmp_path / "out")
    run.abort(None)
    [folder] = temporary.iterdir()
    on_another_machine(run, 1)
    assert len(run.pending()) == 1
    other = Run(tmp_path / "elsewhere")
    other.commit(other.write(2))
    assert len(run.pending()) == 1
    following = Run(tmp_path / "out")
    assert run.pending() == []
    following.commit(following.write(3))
    assert following.shown() == [3]
    assert list(temporary.iterdir()) == [folder]  # such a task may still be alive


def test_what_an_attempt_that_lost_prepares_on_another_machine_after_the_run_succeeded_is_swept_too(
    tmp_path: Path, temporary: Path, on_another_machine: Callable[[Run, int], Any]
) -> None:
    run = Run(tmp_path / "out")
    run.commit(on_another_machine(run, 1))
    [folder] = temporary.iterdir()
    on_another_machine(run, 1)
    assert len(run.pending()) == 1
    following = Run(tmp_path / "out")
    assert run.pending() == []
    following.commit(following.write(2))
    tail = len(list(folder.glob("[0-9]*")))
    again = Run(tmp_path / "out")
    again.commit(again.write(3))
    assert len(list(folder.glob("[0-9]*"))) == tail, "swept at each run: a thousand such runs would take minutes"
    long_ago = time.time() - 700
    os.utime(folder / ".failed", (long_ago, long_ago))
    last = Run(tmp_path / "out")
    last.commit(last.write(4))
    assert last.shown() == [1, 2, 3, 4]
    assert list(temporary.iterdir()) == []
    assert [path for path in (tmp_path / "out").rglob("*") if path.name.endswith((".claim", ".commit"))] == []


def test_a_sink_that_sends_is_known_by_its_folder_and_a_sink_without_a_dataset_is_reported(
    tmp_path: Path, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sends = HttpSink("http", tmp_path / "log", url="http://localhost/rows")
    assert run_folder.target_text(sends) == f"HttpSink {tmp_path / 'log'}"
    run_folder.mark_failed(temporary, "batch.x", TargetSink("key"))
    assert f"onceward txn abort --store {temporary}" in caplog.text


def test_two_runs_with_one_key_that_fail_together_leave_nothing(tmp_path: Path, temporary: Path) -> None:
    options = {"pipeline": "days", "runKey": "monday", "store": str(tmp_path / "log")}
    first = Run(tmp_path / "out", **options)
    early = first.write(1)
    second = Run(tmp_path / "out", **options)  # sweeps, and fences the first
    with pytest.raises(FencedError, match="with the same runKey has started"):
        first.write(2)
    first.abort(early, None)
    second.write(3)
    second.abort(None)
    assert first.pending() == []
    third = Run(tmp_path / "out", **options)
    third.commit(third.write(4))
    assert third.shown() == [4]
    assert list(temporary.iterdir()) == []


def test_an_attempt_that_lost_is_still_at_work_when_the_run_succeeds(tmp_path: Path, temporary: Path) -> None:
    run = Run(tmp_path / "out")
    winner = run.write(1)
    with pytest.raises(FencedError):
        run.write(1, meanwhile=lambda: run.commit(winner))
    assert run.pending() == []
    assert len(list(temporary.iterdir())) == 1
    following = Run(tmp_path / "out")
    following.commit(following.write(2))
    assert list(temporary.iterdir()) == []
    assert following.shown() == [1, 2]
