"""Savepoints of a running engine pipeline by command: made once, by the run that was asked, and answered."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from onceward.cli.main import app
from onceward.core import CheckpointConfig, FileBackend, JobState
from onceward.core.engine import job, savepoint_requests
from onceward.core.engine.channels import CheckpointKind
from onceward.core.engine.savepoint_requests import Request, answer_request, send_savepoint_request
from onceward.core.errors import CheckpointFailedError, ConfigurationError
from onceward.core.log import DirectoryStore, LogWriter, read
from onceward.core.log.entries import key_of

from .core_fakes import policy
from .engine_kit import Slowly, numbers, pipeline, reach
from .sink_kit import Target, TargetSink

ROWS = numbers(100, keys=5)


class DiedError(BaseException):
    """The run's process ends here."""


class Run:
    """A pipeline with its log in a folder; ten batches of ten rows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.target = folder, Target()
        self.store = DirectoryStore(folder / "log")
        self.save = str(folder / "save")
        self.source = Slowly(ROWS, batch_rows=10)

    def start(self, **options: Any) -> Any:
        backend = FileBackend(self.folder / "state")
        made = pipeline(checkpointing=CheckpointConfig(interval=0.05), store=self.store, backend=backend)
        made.source(self.source, uid="numbers").sink(TargetSink(self.target))
        return made.start(**options)

    def create(self, *arguments: str, code: int = 0) -> str:
        log = str(self.folder / "log")
        done = CliRunner().invoke(app, ["savepoint", "create", self.save, "--store", log, *arguments])
        assert done.exit_code == code, done.output
        return done.output

    def finish(self, **options: Any) -> None:
        """Each row is there once when it has run to its end."""
        self.source = Slowly(ROWS, batch_rows=10)
        running = self.start(**options)
        self.source.let(10)
        assert running.wait(20)
        assert self.target.counts("n") == Counter(range(100))
        assert self.target.prepared == {}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(job, "POLL_SECONDS", 0.05)
    return Run(tmp_path)


def test_a_running_pipeline_makes_a_savepoint_by_command_and_goes_on(run: Run) -> None:
    running = run.start()
    reach(run.source, running, 3)
    assert "would ask the running pipeline p" in run.create()
    assert f"savepoint {run.save}" in run.create("--yes")
    assert running.state is JobState.RUNNING
    listed = CliRunner().invoke(app, ["savepoint", "list", run.save])
    assert "engine: pipeline p, epoch" in listed.output
    run.source.let(10)
    assert running.wait(20)
    assert run.target.counts("n") == Counter(range(100))
    assert [key for key in run.store.list_keys() if key[0] in "QA"] == []
    refused = CliRunner().invoke(app, ["savepoint", "restore", run.save, "--checkpoint", str(run.folder / "new")])
    assert "its program restores it, with pipeline.run(restore=" in str(refused.exception)
    assert CliRunner().invoke(app, ["savepoint", "delete", run.save, "--yes"]).exit_code == 0
    assert not Path(run.save).exists()


@pytest.mark.parametrize("how", ["--stop", "--drain"])
def test_a_running_pipeline_stops_with_a_savepoint_by_command_and_goes_on_from_it(run: Run, how: str) -> None:
    running = run.start()
    reach(run.source, running, 3)
    run.create("--yes", how)
    assert running.wait(20)
    assert running.state is JobState.FINISHED
    assert run.target.counts("n") == Counter(range(30))
    run.finish(restore=run.save)


def test_the_reason_why_a_savepoint_was_not_made_reaches_the_command(run: Run) -> None:
    running = run.start()
    reach(run.source, running, 1)
    Path(run.save).mkdir()
    (Path(run.save) / "mine").write_text("mine")
    with pytest.raises(CheckpointFailedError, match="the folder is not empty"):
        send_savepoint_request(run.store, CheckpointKind.SAVEPOINT, run.save, timeout=20)
    running.stop()


def test_nobody_answers_for_a_pipeline_that_does_not_run(run: Run) -> None:
    run.finish()
    with pytest.raises(CheckpointFailedError, match=r"no run answers.*No savepoint was made"):
        send_savepoint_request(run.store, CheckpointKind.SUSPEND, run.save, timeout=0.1)
    assert [key for key in run.store.list_keys() if key[0] in "QA"] == []


def test_a_later_run_does_not_find_what_was_asked_of_an_earlier_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.finish()
    start = read(run.store).start
    run.store.put_if_absent(f"Q{key_of(start)[1:]}", msgspec.json.encode(Request("a", "SUSPEND", run.save)))
    LogWriter(run.store, "p", policy()).start()
    made: list[str] = []
    answer_request(run.store, read(run.store).start, lambda _kind, target: made.append(target) or target)
    assert made == []
    monkeypatch.setattr(savepoint_requests.time, "sleep", lambda _: LogWriter(run.store, "p", policy()).start())
    with pytest.raises(CheckpointFailedError, match="was restarted"):
        send_savepoint_request(run.store, CheckpointKind.SAVEPOINT, run.save, timeout=20)
    assert [key for key in run.store.list_keys() if key[0] in "QA"] == []


def test_a_request_is_acted_upon_once_also_when_its_answer_is_lost(run: Run) -> None:
    run.finish()
    start = read(run.store).start
    run.store.put_if_absent(f"Q{key_of(start)[1:]}", msgspec.json.encode(Request("a", "SAVEPOINT", run.save)))
    made: list[str] = []

    def make(_kind: CheckpointKind, target: str) -> str:
        made.append(target)
        raise DiedError

    with pytest.raises(DiedError):
        answer_request(run.store, start, make)
    answer_request(run.store, start, make)
    assert made == [run.save]


@pytest.mark.parametrize("request_", [b"", b"\xff", b"[" * 5000, b'{"id":"a"}', b'{"id":"a","kind":"x","target":"y"}'])
def test_a_request_that_cannot_be_read_leaves_the_run_able_to_answer_the_next_one(run: Run, request_: bytes) -> None:
    running = run.start()
    start = read(run.store).start
    key = f"Q{key_of(start)[1:]}"
    run.store.put_if_absent(key, request_)
    reach(run.source, running, 3)
    while run.store.get(key) is not None:
        assert running.state is JobState.RUNNING
    assert f"savepoint {run.save}" in run.create("--yes")
    run.source.let(10)
    assert running.wait(20)


def test_an_older_answer_is_not_taken_for_the_own_one(run: Run) -> None:
    run.finish()
    start = read(run.store).start
    stop = threading.Event()

    def answering() -> None:
        while not stop.wait(0.01):
            answer_request(run.store, start, lambda _kind, target: f"made {target}")

    thread = threading.Thread(target=answering)
    thread.start()
    try:
        assert send_savepoint_request(run.store, CheckpointKind.SAVEPOINT, "one", timeout=20) == "made one"
        assert send_savepoint_request(run.store, CheckpointKind.SAVEPOINT, "two", timeout=20) == "made two"
    finally:
        stop.set()
        thread.join()


def test_of_two_commands_at_once_each_gets_its_own_savepoint(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.finish()
    start, answers, asked = read(run.store).start, {}, threading.Semaphore(0)
    pause = threading.Event()

    def sleep(_seconds: float) -> None:
        asked.release()
        pause.wait(0.005)

    monkeypatch.setattr(savepoint_requests.time, "sleep", sleep)

    def command(target: str) -> None:
        answers[target] = send_savepoint_request(run.store, CheckpointKind.SAVEPOINT, target, timeout=5)

    threads = [threading.Thread(target=command, args=(target,)) for target in ("one", "two")]
    for thread in threads:
        thread.start()
        asked.acquire()
    while any(thread.is_alive() for thread in threads):
        answer_request(run.store, start, lambda _kind, target: f"made {target}")
        pause.wait(0.2)  # as often as a run looks, the answer is read before
    assert answers == {"one": "made one", "two": "made two"}


def test_the_log_of_a_spark_query_answers_no_request(run: Run) -> None:
    LogWriter(run.store, "p", policy()).start()
    with pytest.raises(ConfigurationError, match="savepoint of a Spark query is made of its checkpoint"):
        send_savepoint_request(run.store, CheckpointKind.SAVEPOINT, run.save, timeout=1)
