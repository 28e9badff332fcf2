"""What is noted beside a decision log of starts, epochs, tasks and processes that fail, and by whom."""

from __future__ import annotations

import random
import re
import signal
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from onceward.cli.run import Supervisor
from onceward.core import RestartStrategy
from onceward.core.contract.policy import CommitPolicy
from onceward.core.errors import FencedError, RetryableSinkError
from onceward.core.log import DirectoryStore, LogWriter, RunWriters, open_store
from onceward.core.log.note_kinds import FailureNote, LifeNote, Note
from onceward.core.log.notes import note_life
from onceward.core.log.run_writers import OVERTAKEN, RUN_VARIABLE, register_log, registered_logs
from onceward.core.operations.log_locations import open_log
from onceward.core.operations.status import RESTARTS, PipelineState, assess, pipeline_status
from onceward.core.run.pipeline_log import noting_failed_start

from .formats_kit import Query as FormatQuery
from .sink_kit import TargetSink
from .spark_kit import Query
from .status_kit import NOW, judged, log, noted, written

if TYPE_CHECKING:
    from pathlib import Path


def failures(folder: Path) -> list[FailureNote]:
    return noted(folder, FailureNote)


def unreachable(*_: Any) -> None:
    raise RetryableSinkError("no broker answers", sink="target")


class TestExactlyOnce:
    def test_a_start_whose_target_does_not_answer_is_noted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        query = Query(tmp_path)
        handler = query.driver(store=DirectoryStore(tmp_path / "log"), policy=CommitPolicy.of("replay", 0.1, 0.1))
        monkeypatch.setattr(TargetSink, "lingering", unreachable)
        with pytest.raises(RetryableSinkError):
            query.run(0, handler=handler)
        [failure] = failures(tmp_path / "log")
        assert (failure.epoch, "no broker answers" in failure.error) == (0, True)

    def test_a_run_that_is_fenced_leaves_the_notes_to_the_newer_one(self, tmp_path: Path) -> None:
        query, store = Query(tmp_path), DirectoryStore(tmp_path / "log")
        handler = query.driver(store=store)
        query.run(0, handler=handler)
        query.run(1, handler=query.driver(store=store))
        with pytest.raises(FencedError):
            query.run(1, handler=handler)
        assert failures(store.path) == []

    def test_settings_that_are_refused_before_the_query_starts_are_noted_beside_the_log_that_is_there(
        self, tmp_path: Path
    ) -> None:
        folder = tmp_path / "onceward"
        with pytest.raises(RetryableSinkError), noting_failed_start(None, f"file:{tmp_path}", "p"):
            unreachable()
        assert list(tmp_path.iterdir()) == []  # a start that failed leaves nothing behind
        LogWriter(DirectoryStore(folder), "p", CommitPolicy()).start()
        with pytest.raises(RetryableSinkError), noting_failed_start(None, f"file:{tmp_path}", "p"):
            unreachable()
        [failure] = failures(folder)
        assert "no broker answers" in failure.error


class TestFormats:
    def test_a_start_that_fails_is_noted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        query = FormatQuery(tmp_path)
        query.run(0)
        query.checkpoint.plan(1)
        monkeypatch.setattr(TargetSink, "lingering", unreachable)
        with pytest.raises(RetryableSinkError):
            query.begin()
        [failure] = failures(query.log)
        assert (failure.epoch, "no broker answers" in failure.error) == (1, True)

    def test_the_failure_of_an_epoch_names_the_error_of_its_task(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        query = FormatQuery(tmp_path)
        query.run(0)
        query.checkpoint.plan(1)
        begun = query.begin()
        monkeypatch.setattr(TargetSink, "write", lambda *_: (_ for _ in ()).throw(OSError("the target is full")))
        for attempt in range(2):
            with pytest.raises(OSError, match="full"):
                query.write(begun, 1, [10], attempt=attempt)
        assert failures(query.log) == []  # Spark may try again
        query.abort([None], batch=1)
        [failure] = failures(query.log)
        why = "Spark aborted the batch, because a task or the commit failed: OSError: the target is full"
        assert (failure.epoch, failure.error) == (1, why)

    def test_the_failure_of_a_commit_is_noted_once_with_its_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        query = FormatQuery(tmp_path)
        query.options["commitTimeout"] = "0.2"
        query.run(0)
        query.checkpoint.plan(1)
        messages = query.write(query.begin(), 1, [10])
        monkeypatch.setattr(TargetSink, "inspect_many", unreachable)
        monkeypatch.setattr(TargetSink, "commit", unreachable)
        with pytest.raises(Exception, match="no broker answers"):
            query.commit(messages, 1)
        query.abort(messages, 1)
        [failure] = failures(query.log)
        assert (failure.epoch, "no broker answers" in failure.error) == (1, True)

    def test_a_run_that_is_fenced_leaves_the_notes_to_the_newer_one(self, tmp_path: Path) -> None:
        query = FormatQuery(tmp_path)
        query.run(0)
        query.checkpoint.plan(1)
        messages = query.write(query.begin(), 1, [10])
        query.begin()  # a newer START
        query.abort(messages, 1)
        assert failures(query.log) == []


class TestOncewardRun:
    """`onceward run` notes how each process of its driver has ended, beside the logs that the processes have used."""

    def driver(self, folder: Path, *codes: int) -> list[str]:
        program = (
            "import os, sys; from onceward.core.log import RunWriters, open_store; "
            f"RunWriters.of('orders', open_store({str(folder)!r})); "
            f"lives = {str(folder / '.lives')!r}; n = os.path.getsize(lives) if os.path.exists(lives) else 0; "
            f"open(lives, 'a').write('x'); code = {list(codes)}[n]; "
            "os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)"
        )
        return [sys.executable, "-c", program]

    def lives(self, folder: Path) -> list[tuple[Any, ...]]:
        return [(one.code, one.again, one.stopped) for one in noted(folder, LifeNote)]

    def test_each_life_is_noted_with_its_exit_code(self, tmp_path: Path) -> None:
        store = open_store(str(tmp_path))
        LogWriter(store, "orders", CommitPolicy()).start()
        assert Supervisor(self.driver(tmp_path, 1, -9, 0), RestartStrategy.fixed_delay(3, 0.0)).run() == 0
        assert self.lives(tmp_path) == [(1, 0.0, False), (137, 0.0, False), (0, None, False)]

    def test_the_end_of_a_run_names_its_writers(self, tmp_path: Path) -> None:
        """Whoever has taken the pipeline over has another writer, and is not said to have ended."""
        store = open_store(str(tmp_path / "log"))
        program = (
            "from onceward.core.log import LogWriter, RunWriters, open_store; "
            "from onceward.core.checkpoint import CommitPolicy; "
            f"store = open_store({str(tmp_path / 'log')!r}); writers = RunWriters.of('orders', store); "
            "LogWriter(store, 'orders', CommitPolicy(token=lambda: 'a' * 16), run_writers=writers).start()"
        )
        assert Supervisor([sys.executable, "-c", program], RestartStrategy.none()).run() == 0
        assert [one.writers for one in noted(tmp_path / "log", LifeNote)] == [["a" * 16]]
        assert pipeline_status(open_log(str(tmp_path / "log"))).state is PipelineState.ENDED
        LogWriter(store, "orders", CommitPolicy()).start()
        with (tmp_path / "log" / ".history").open("rb+") as file:
            last = file.read().splitlines()[-1]
            at = datetime.now(UTC) + timedelta(seconds=1)
            file.write(re.sub(rb'"at":"[^"]*"', b'"at":"' + at.isoformat().encode() + b'"', last) + b"\n")
        assert pipeline_status(open_log(str(tmp_path / "log"))).state is PipelineState.RUNNING

    def test_the_last_one_says_that_nobody_starts_it_again(self, tmp_path: Path) -> None:
        open_store(str(tmp_path))
        assert Supervisor(self.driver(tmp_path, 1, 1), RestartStrategy.fixed_delay(1, 0.0)).run() == 1
        assert self.lives(tmp_path) == [(1, 0.0, False), (1, None, False)]
        assert Supervisor(self.driver(tmp_path, 0, 0, 78), RestartStrategy.none()).run() == 78
        assert self.lives(tmp_path)[-1] == (78, None, False)

    def test_a_run_that_another_one_has_overtaken_notes_nothing(self, tmp_path: Path) -> None:
        open_store(str(tmp_path))
        command = self.driver(tmp_path, 1)
        command[2] = f"import os; open(os.environ[{RUN_VARIABLE!r}] + '/{OVERTAKEN}', 'w').write('x'); {command[2]}"
        assert Supervisor(command, RestartStrategy.fixed_delay(1, 0.0)).run() == 1
        assert self.lives(tmp_path) == []

    def test_a_driver_that_was_stopped_in_a_pause_is_noted_as_stopped(self, tmp_path: Path) -> None:
        open_store(str(tmp_path))
        supervisor = Supervisor(self.driver(tmp_path, 1), RestartStrategy.fixed_delay(1, 600.0))

        def stop() -> None:
            while not self.lives(tmp_path):
                time.sleep(0.01)
            signal.raise_signal(signal.SIGTERM)

        stopper = threading.Thread(target=stop)
        stopper.start()
        assert supervisor.run() == 1
        stopper.join()
        assert self.lives(tmp_path) == [(1, 600.0, False), (1, None, True)]

    def test_only_directories_are_registered(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "run").mkdir()
        monkeypatch.setenv(RUN_VARIABLE, str(tmp_path / "run"))
        monkeypatch.chdir(tmp_path)
        for store in (open_store("log"), open_store(f"sqlite:///{tmp_path}/db", pipeline="p")):
            register_log(store)
            RunWriters.of("p", store)
        assert registered_logs(tmp_path / "run") == [tmp_path / "log"]


def lives(*ago_code_again: tuple[float, int, float | None], stopped: bool = False) -> list[Note]:
    return [
        note
        for ago, code, again in ago_code_again
        for note in written(ago, what="life", code=code, seconds=5.0, again=again, stopped=stopped)
    ]


class TestStates:
    """What `onceward status`, `checkpoints` and the page make of it."""

    def test_a_driver_that_dies_before_it_starts_is_restarting_with_its_exit_code(self) -> None:
        told = judged(log(900), [*written(800), *lives((180, 1, 10.0), (100, 1, 20.0), (15, 3, 40.0))])
        assert (told.state, told.restarts, told.exit_code) == (PipelineState.RESTARTING, 3, 3)
        assert told.what == "started 3 times in 3:00 min; the last exit code: 3; onceward run starts it again in 25 s"

    def test_a_start_its_failure_and_the_end_of_its_process_are_one_life(self) -> None:
        noted: list[Note] = []
        for ago in (200, 100):
            noted += written(ago, what="start")
            noted += written(ago - 5, what="failure", error="no such table")
            noted += lives((ago - 6, 1, 50.0))
        told = judged(log(900), [*written(800), *noted])
        assert (told.state, told.restarts) == (PipelineState.RESTARTING, 2)
        assert told.what == (
            "starting again since 44 s after exit code 1 (2 times in a row); the last failure: no such table"
        )
        assert not told.needs_somebody
        third = [*written(40, what="start"), *written(35, what="failure", error="no such table"), *lives((34, 1, 50.0))]
        told = judged(log(900), [*written(800), *noted, *third])
        assert (told.state, told.restarts, told.exit_code) == (PipelineState.RESTARTING, 3, 1)
        assert told.error == "no such table"
        assert told.what == (
            "started 3 times in 3:20 min; the last exit code: 1; the last failure: no such table; "
            "onceward run starts it again in 16 s"
        )

    def test_starts_that_fail_before_their_start_is_noted_count_too(self) -> None:
        noted = written(300, 200, 100, what="failure", epoch=None, error="no broker answers")
        told = judged(log(900), [*written(800), *noted])
        assert (told.state, told.restarts) == (PipelineState.RESTARTING, 3)
        again = judged(log(900), [*written(800), *noted, *written(50, what="start"), *written(40)])
        assert again.state is PipelineState.RUNNING  # an epoch is completed: whatever failed so is over

    @pytest.mark.parametrize(("again", "ago"), [(None, 5), (10.0, 100)])
    def test_a_driver_that_nobody_starts_again_has_failed(self, again: float | None, ago: int) -> None:
        many = lives((ago + 30, 1, 5.0), (ago + 20, 1, 5.0), (ago, 7, again))
        told = judged(log(900), [*written(800), *many])
        assert (told.state, told.exit_code) == (PipelineState.FAILED, 7)
        assert "started again" in told.what

    def test_a_driver_that_ended_well_or_was_stopped_has_ended(self) -> None:
        assert judged(log(900), [*written(800), *lives((5, 0, None))]).state is PipelineState.ENDED
        told = judged(log(900), [*written(800), *lives((5, 143, None), stopped=True)])
        assert (told.state, told.what) == (PipelineState.ENDED, "the last run was stopped")

    def test_a_task_that_failed_changes_no_state(self) -> None:
        failed = [*written(9), *written(5, what="failure", error="disk full")]
        assert judged(log(100), [*failed, *written(3, what="task", epoch=1, error="x")]).state is PipelineState.FAILED
        assert judged(log(100), [*written(9, 6), *written(3, what="task", epoch=1)]).state is PipelineState.RUNNING

    @pytest.mark.parametrize("fields", [{}, {"code": "x"}, {"code": 1, "again": "soon"}, {"code": [], "stopped": 3}])
    def test_a_note_that_somebody_else_wrote_does_no_harm(self, fields: dict[str, Any]) -> None:
        assert judged(log(900), written(5, what="life", **fields)).state is PipelineState.FAILED

    def test_each_process_of_a_pipeline_is_counted_once_whatever_it_has_noted(self) -> None:
        """Of each life there may be any of: a start, epochs after it, a failure, the end of its process."""
        for seed in range(300):
            self.check_lives(seed)

    def check_lives(self, seed: int) -> None:
        seeded = random.Random(seed)
        noted: list[Note] = []
        in_vain, early, ago = 0, 0, 590.0
        supervised = seeded.random() < 0.5
        for _ in range(seeded.randrange(1, 7)):
            begins, fails = seeded.random() < 0.6, not supervised or seeded.random() < 0.7
            epochs = seeded.randrange(3) if begins else 0
            if not begins and not fails and not supervised:
                continue
            marks = [("start", {})] * begins + [("epoch", {})] * epochs + [("failure", {"error": "e"})] * fails
            marks += [("life", {"code": 1, "again": 1.0, "stopped": False})] * supervised
            for what, fields in marks:
                ago -= 1
                noted += written(ago, what=what, **fields)
            if epochs:
                early = 0
            if begins:
                in_vain += not epochs or fails or supervised
            else:
                early += 1
        told = assess("orders", "a", log(900), noted, NOW + timedelta(seconds=1))
        if told.state is PipelineState.RESTARTING:
            assert told.restarts == in_vain + early
        else:
            assert in_vain + early < RESTARTS or told.state is PipelineState.FAILED


def test_a_note_of_a_life_fails_nothing_if_the_log_is_gone(tmp_path: Path) -> None:
    note_life(tmp_path / "gone", 1, 2.0, again=None)
    assert list(tmp_path.iterdir()) == []
