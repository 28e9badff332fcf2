"""What an operator sees of transactions in doubt, and how they end on an operator's word: never against the log's."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import sqlite3
import sys
from contextlib import chdir, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from rich.table import Table
from typer.testing import CliRunner

from onceward import FileSink
from onceward.cli import command_advice, show
from onceward.cli.main import app, main
from onceward.core import CheckpointConfig, FileBackend
from onceward.core.checkpoint import Backoff, CommitPolicy, Coordinator, OnLost, Swept
from onceward.core.checkpoint.recovery import TransactionStatus, status_of
from onceward.core.contract.names import Scope
from onceward.core.contract.refusals import Refusal, RefusedError
from onceward.core.contract.targets import sinks_target
from onceward.core.contract.transaction import ANY_EPOCH, Committable, Observation
from onceward.core.errors import CommitPendingError, ConfigurationError, DataLossError, EpochConflictError, FencedError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.kit.text_options import pairs
from onceward.core.log import Decide, DirectoryStore, LogView, LogWriter, Resolved, audit_records
from onceward.core.log.view import NONE
from onceward.core.operations.history import GivenUp, History, history
from onceward.core.operations.log_locations import Log, open_log
from onceward.core.operations.resolve import (
    Aborted,
    CommittedEpoch,
    abort_orphaned,
    abort_undecided,
    abortable,
    commit_decided,
)
from onceward.core.operations.survey import Advice, FoundTransaction, advise, survey
from onceward.operations import PipelineState, PipelineStatus
from onceward.sources import SequenceSource
from onceward.testing.sink_case import SinkCase, SinkUnderTest, numbered

from .engine_kit import pipeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typer.testing import Result

JOBS = "from onceward import FileSink\nSINKS = [FileSink('files', {target!r}, format='jsonl')]\n"


class DiedError(Exception):
    """The driver's process ended here."""


class Case:
    """One pipeline `orders` with a FileSink; its driver can die at a step, and an operator looks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = folder / "target"
        self.checkpoint = folder / "checkpoint"
        self.sink_case = SinkCase(
            SinkUnderTest(self.make, self.shown), "orders", DirectoryStore(self.checkpoint / "onceward")
        )
        self.target_of_sinks = sinks_target([self.make()], "the sinks")
        (folder / "jobs.py").write_text(JOBS.format(target=str(self.target)))

    def make(self) -> FileSink:
        return FileSink("files", self.target, format="jsonl")

    def shown(self) -> list[int]:
        lines = [line for path in self.target.glob("*.jsonl") for line in path.read_text().splitlines()]
        return [json.loads(line)["n"] for line in lines]

    def finish_until(self, step: Step, epoch: int, *committables: Committable) -> None:
        def die(at: Step) -> None:
            if at is step:
                raise DiedError

        with hooked(die), pytest.raises(DiedError):
            self.sink_case.finish(epoch, *committables)

    @property
    def log(self) -> Log:
        return open_log(str(self.checkpoint))

    def survey(self) -> Sequence[FoundTransaction]:
        return survey([self.log], [self.target_of_sinks]).transactions

    def commit(self, found: Sequence[FoundTransaction] | None = None, **how: Any) -> CommittedEpoch | None:
        decision = self.log.view.undone
        assert decision is not None
        return commit_decided(self.log, decision, self.survey() if found is None else found, **how)

    def run(self, *arguments: str) -> Result:
        """In this process: a new one takes most of a second."""
        sys.modules.pop("jobs", None)
        with chdir(self.folder):
            return CliRunner().invoke(app, ["txn", *arguments, "--sinks", "jobs:SINKS"])


def names(done: Aborted) -> list[str]:
    return [aborted.name for aborted in done.aborted]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_what_is_decided_is_shown_and_committed_once_and_its_zombie_is_fenced(case: Case) -> None:
    committable = case.sink_case.prepare()
    case.finish_until(Step.COMMIT_BEFORE, 0, committable)
    [found] = case.survey()
    assert (found.status, found.held, found.committable.rows) == (TransactionStatus.DECIDED, True, 3)
    assert found.advice is Advice.COMMIT
    case.sink_case.assert_visible([])
    assert case.commit() == CommittedEpoch(epoch=0, committed=1, given_up=0)
    case.sink_case.assert_visible(case.sink_case.numbers())
    assert (case.survey(), case.log.view.completed) == ((), 0)
    with pytest.raises(FencedError):
        case.sink_case.coordinator.writer.complete(0)


def test_what_is_in_doubt_can_no_longer_be_decided_once_it_is_aborted(case: Case) -> None:
    committable = case.sink_case.prepare()
    [found] = case.survey()
    assert (found.status, found.held) == (TransactionStatus.IN_DOUBT, True)
    assert names(abort_undecided(case.log, [found])) == [committable.transaction]
    with pytest.raises(FencedError):
        case.sink_case.finish(0, committable)
    assert case.log.view.decided == NONE
    case.sink_case.assert_visible([])


def test_what_was_decided_after_it_was_listed_is_not_aborted(case: Case) -> None:
    committable = case.sink_case.prepare()
    found = case.survey()
    case.finish_until(Step.COMMIT_BEFORE, 0, committable)
    swept = abort_undecided(case.log, found)
    assert swept.aborted == ()
    case.commit()
    case.sink_case.assert_visible(case.sink_case.numbers())


def test_only_what_is_named_is_aborted_and_what_is_decided_is_refused(case: Case) -> None:
    decided, one, other = case.sink_case.prepare(), case.sink_case.prepare(1), case.sink_case.prepare(1, subtask=1)
    case.finish_until(Step.COMMIT_BEFORE, 0, decided)
    found = case.survey()
    with pytest.raises(ConfigurationError, match="committed, never aborted"):
        abortable(found, [decided.transaction])
    with pytest.raises(ConfigurationError, match="omit orphaned=True"):
        abortable(found, [one.transaction], orphaned=True)
    with pytest.raises(ConfigurationError, match="is not open or prepared"):
        abortable(found, ["nothing"])
    swept = abort_undecided(case.log, abortable(found, [one.transaction]))
    assert names(swept) == [one.transaction]
    left = {found.name: found.status for found in case.survey()}
    assert left == {decided.transaction: TransactionStatus.DECIDED, other.transaction: TransactionStatus.LINGERING}
    assert [found.name for found in abortable(case.survey())] == [other.transaction]


def test_another_logs_transactions_are_ended_only_by_name_and_word(case: Case) -> None:
    other = case.sink_case.prepare()
    case.checkpoint = case.folder / "another"
    LogWriter(DirectoryStore(case.checkpoint), "orders", CommitPolicy()).start()
    [found] = case.survey()
    assert found.status is TransactionStatus.FOREIGN
    assert abortable([found]) == []
    with pytest.raises(ConfigurationError, match="lost for good"):
        abortable([found], [other.transaction])
    with pytest.raises(ConfigurationError, match="needs the names"):
        abortable([found], [], orphaned=True)
    assert abort_undecided(case.log, [found]).aborted == ()
    done = abort_orphaned(abortable([found], [other.transaction], orphaned=True))
    assert (names(done), done.left) == ([other.transaction], ())
    assert case.survey() == ()


def test_lost_data_is_loud_and_skipping_it_goes_on_record(case: Case) -> None:
    committable = case.sink_case.prepare()
    case.finish_until(Step.COMMIT_BEFORE, 0, committable)
    case.make().abort(committable)
    [found] = case.survey()
    assert (found.status, found.held) == (TransactionStatus.DECIDED, False)
    with pytest.raises(DataLossError):
        case.commit()
    case.commit(skip_lost="the disk was replaced")
    [given_up] = history(case.log).given_up
    assert (given_up.transaction, given_up.action) == (committable.transaction, "skip")
    assert given_up.why.startswith("the disk was replaced; lost: ")
    assert case.log.view.completed == 0


def test_a_target_that_was_not_given_fences_nobody(case: Case) -> None:
    committable = case.sink_case.prepare()
    case.finish_until(Step.COMMIT_BEFORE, 0, committable)
    tail = case.log.view.tail
    found = survey([case.log], [sinks_target([], "none")]).transactions
    assert [(one.target, one.state) for one in found] == [(None, Observation.UNKNOWN)]
    with pytest.raises(ConfigurationError, match=r"sink files.*the pipeline's own sinks"):
        case.commit(found)
    assert case.log.view.tail == tail


@pytest.mark.parametrize("sinks", ["none:SINKS", "wrong:SINKS"])
def test_without_yes_a_commit_is_refused_as_with_it(
    case: Case, sinks: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case.finish_until(Step.COMMIT_BEFORE, 0, case.sink_case.prepare())
    (case.folder / "none.py").write_text("SINKS = []")
    elsewhere = case.folder / "elsewhere"
    FileSink("files", elsewhere, format="jsonl").validate(pa.schema([("n", pa.int64())]))
    (case.folder / "wrong.py").write_text(JOBS.format(target=str(elsewhere)))
    told = []
    for yes in ([], ["--yes"]):
        sys.modules.pop(sinks.partition(":")[0], None)
        arguments = ["txn", "commit", "--store", str(case.checkpoint), "--sinks", sinks, *yes]
        monkeypatch.setattr(sys, "argv", ["onceward", *arguments])
        with chdir(case.folder), pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        told.append((ended.value.code, [line for line in said.err.splitlines() if line.startswith("error:")], said.out))
    assert told[0] == told[1]
    assert told[0][0] == 2
    assert told[0][1]


def test_the_wrong_folder_is_told_before_anybody_is_fenced_and_gives_nothing_up(case: Case) -> None:
    """FileSink's paths are relative to where the operator happens to be. The folder here was used before."""
    case.sink_case.finish(0, case.sink_case.prepare())
    older = case.target
    case.target = case.folder / "moved"
    case.sink_case.sink = case.make()
    case.sink_case.sink.ledger().claim(Scope("orders", "files", case.log.view.log))
    case.finish_until(Step.COMMIT_BEFORE, 1, case.sink_case.prepare(1))
    tail = case.log.view.tail
    wrong = sinks_target([FileSink("files", older, format="jsonl")], "wrong")
    for how in ({}, {"skip_lost": "so be it"}):
        with pytest.raises(ConfigurationError, match="it is the right target"):
            case.commit(survey([case.log], [wrong]).transactions, **how)
    assert case.log.view.tail == tail
    case.target_of_sinks = sinks_target([case.make()], "right")
    case.commit()
    case.sink_case.assert_visible(case.sink_case.numbers(1))


def test_a_driver_that_skips_what_is_lost_does_not_skip_what_is_elsewhere(case: Case) -> None:
    case.finish_until(Step.COMMIT_BEFORE, 0, case.sink_case.prepare())
    quick = CommitPolicy(on_lost=OnLost.SKIP, commits=Backoff(attempts=0))
    wrong = FileSink("files", case.folder / "wrong", format="jsonl")
    with pytest.raises(CommitPendingError, match="is it the right one, and mounted") as told:
        Coordinator("orders", case.log.store, [wrong], quick).open()
    [(identity, path)] = re.findall(r"write (\w+) into (\S+),", str(told.value))
    assert Path(path).parent == case.folder / "wrong" / "_onceward"
    assert (case.target / "_onceward" / ".identity").read_text() == identity
    Coordinator("orders", case.log.store, [case.make()], quick).open()
    case.sink_case.assert_visible(case.sink_case.numbers())


class Telling(FileSink):
    """A FileSink that can be asked."""

    answer = Observation.UNKNOWN

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        return [self.answer for _ in committables]


def test_a_folder_that_is_gone_for_good_is_a_loss_once_somebody_says_so(case: Case) -> None:
    case.finish_until(Step.COMMIT_BEFORE, 0, case.sink_case.prepare())
    identity = (case.target / "_onceward" / ".identity").read_text()
    shutil.rmtree(case.target)
    quick = CommitPolicy(commits=Backoff(attempts=0))
    with pytest.raises(CommitPendingError):
        Coordinator("orders", case.log.store, [case.make()], quick).open()
    (case.target / "_onceward").mkdir(parents=True, exist_ok=True)  # it may have been claimed
    (case.target / "_onceward" / ".identity").write_text(identity + "\n")
    with pytest.raises(DataLossError):
        Coordinator("orders", case.log.store, [case.make()], quick).open()


def test_nothing_of_a_decision_that_has_lost_something_is_committed_before_somebody_says_so(case: Case) -> None:
    lost, intact = case.sink_case.prepare(), case.sink_case.prepare(0, case.sink_case.numbers(5), subtask=1)
    case.finish_until(Step.COMMIT_BEFORE, 0, lost, intact)
    case.make().abort(lost)
    with pytest.raises(DataLossError):
        case.commit()
    case.sink_case.assert_visible([])
    assert case.commit(skip_lost="gone") == CommittedEpoch(epoch=0, committed=1, given_up=1)
    case.sink_case.assert_visible(case.sink_case.numbers(5))


def test_what_the_operator_has_not_seen_is_not_decided_upon(case: Case) -> None:
    case.finish_until(Step.COMMIT_BEFORE, 0, case.sink_case.prepare())
    seen, found = case.log.view.undone, case.survey()
    assert seen is not None
    case.sink_case.start()
    case.finish_until(Step.COMMIT_BEFORE, 1, case.sink_case.prepare(1))
    with pytest.raises(EpochConflictError, match="look again"):
        commit_decided(case.log, seen, found, skip_lost="a word about epoch 0")
    assert audit_records(case.log.store) == []
    case.sink_case.start()
    tail = case.log.view.tail
    assert commit_decided(case.log, seen, found) is None
    assert case.log.view.tail == tail
    case.sink_case.assert_visible(case.sink_case.numbers(0) + case.sink_case.numbers(1))


def test_an_old_copy_of_the_log_ends_nothing_if_the_targets_show_it(case: Case) -> None:
    case.sink_case.finish(0, case.sink_case.prepare())
    shutil.copytree(case.checkpoint, case.folder / "copy")
    case.sink_case.finish(1, case.sink_case.prepare(1))
    case.finish_until(Step.COMMIT_BEFORE, 2, case.sink_case.prepare(2))
    copy, target = open_log(str(case.folder / "copy")), case.target_of_sinks
    [found] = survey([copy], [target]).transactions
    assert found.status is TransactionStatus.OUTDATED_LOG
    with pytest.raises(ConfigurationError, match="outdated copy"):
        abortable([found])
    for logs in ([case.log, copy], [copy, case.log]):
        assert [one.status for one in survey(logs, [target]).transactions] == [TransactionStatus.DECIDED]


@pytest.mark.parametrize("command", ["commit", "abort"])
def test_a_log_that_a_savepoint_has_moved_says_where_to_also_without_yes(case: Case, command: str) -> None:
    case.sink_case.finish(0, case.sink_case.prepare())
    writer = LogWriter(case.log.store, "orders", CommitPolicy())
    writer.start()
    writer.move("/new/place")
    done = case.run(command, "--store", str(case.checkpoint))
    assert isinstance(done.exception, EpochConflictError)
    assert "has moved the pipeline to /new/place" in str(done.exception)


def test_a_list_from_a_log_that_a_savepoint_has_moved_says_where_it_goes_on(case: Case) -> None:
    case.sink_case.prepare()
    case.sink_case.coordinator.writer.move("/moved")
    told = case.run("list", "--store", str(case.checkpoint))
    assert told.exit_code == 0
    assert "a savepoint has moved orders to /moved" in told.stderr


def test_what_somebody_else_voided_meanwhile_is_not_called_committed(case: Case) -> None:
    case.finish_until(Step.COMMIT_BEFORE, 0, case.sink_case.prepare())
    seen, found = case.log.view.undone, case.survey()
    assert seen is not None
    case.sink_case.coordinator.writer.void(0, ["proof"])
    assert commit_decided(case.log, seen, found) is None
    assert history(case.log).epochs == []
    case.sink_case.assert_visible([])


def test_each_transaction_is_judged_by_its_own_log_of_those_given(case: Case) -> None:
    case.finish_until(Step.COMMIT_BEFORE, 0, case.sink_case.prepare())
    LogWriter(DirectoryStore(case.folder / "other"), "orders", CommitPolicy()).start()
    logs = [case.log, open_log(str(case.folder / "other"))]
    for given in (logs, logs[::-1]):
        assert [one.status for one in survey(given, [case.target_of_sinks]).transactions] == [TransactionStatus.DECIDED]


def test_a_list_names_the_log_that_cannot_be_read_and_shows_the_others(case: Case) -> None:
    case.finish_until(Step.COMMIT_BEFORE, 0, case.sink_case.prepare())
    damaged = DirectoryStore(case.folder / "damaged")
    LogWriter(damaged, "orders", CommitPolicy()).start()
    [entry] = [file for file in damaged.path.iterdir() if not file.name.startswith(".")]
    entry.write_bytes(b"damaged")
    stores = ["--store", str(case.checkpoint), "--store", str(damaged.path)]
    for given in (stores, stores[2:] + stores[:2]):
        done = case.run("list", *given)
        assert done.exit_code == 1
        assert "decided" in done.output
        assert f"the decision log in {damaged.path} cannot be read, so nothing of it is shown" in done.output
    assert "decided" not in case.run("list", *stores[2:]).output


def test_what_two_places_have_counts_once(case: Case) -> None:
    case.sink_case.prepare()
    assert len(survey([case.log], [case.target_of_sinks, sinks_target([case.make()], "again")]).transactions) == 1


def test_sinks_without_a_log_are_listed_by_their_pipelines_name(case: Case) -> None:
    case.sink_case.prepare()
    [found] = survey([], [case.target_of_sinks], "orders").transactions
    assert found.status is TransactionStatus.UNKNOWN
    assert survey([], [case.target_of_sinks], "orders-eu").transactions == ()
    with pytest.raises(ConfigurationError, match="pass its name"):
        survey([], [case.target_of_sinks])


def test_what_the_target_has_ended_only_in_part_is_still_held(case: Case) -> None:
    case.sink_case.prepare()
    half = Telling("files", case.target, format="jsonl")
    half.answer = Observation.EXPIRED
    [found] = survey([case.log], [sinks_target([half], "half")]).transactions
    assert found.held
    assert found.advice is Advice.WAIT
    assert len(abort_undecided(case.log, [found]).aborted) == 1


def test_what_was_given_up_before_a_crash_says_so(case: Case) -> None:
    lost = case.sink_case.prepare()
    case.finish_until(Step.COMMIT_BEFORE, 0, lost)
    case.make().abort(lost)

    def die(at: Step) -> None:
        if at is Step.COMPLETE_BEFORE:
            raise DiedError

    with hooked(die), pytest.raises(DiedError):
        case.commit(skip_lost="gone")
    [found] = case.survey()
    assert found.advice is Advice.GIVEN_UP
    assert [given.transaction for given in history(case.log).given_up] == [lost.transaction]
    assert case.commit() == CommittedEpoch(epoch=0, committed=0, given_up=1)
    assert [r.transaction for r in audit_records(case.log.store) if isinstance(r, Resolved)] == [lost.transaction]


def committable(**changes: Any) -> Committable:
    name = {"pipeline": "p", "sink": "s", "log": "0123abcd", "generation": 4, "epoch": 2, "transaction": "t"}
    return Committable(**{"kind": "k", **name, **changes})


def view(*, undone: bool, names: tuple[Committable, ...] = ()) -> LogView:
    decision = Decide(pipeline="p", log="0123abcd", position=5, writer_id="w", start=4, epoch=1, committables=names)
    newest = {"newest": decision, "undone": decision if undone else None}
    return LogView(log="0123abcd", tail=5, start=4, decided=1, **newest)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ({}, TransactionStatus.IN_DOUBT),
        ({"generation": 5}, TransactionStatus.IN_DOUBT),
        ({"generation": ANY_EPOCH, "epoch": ANY_EPOCH}, TransactionStatus.IN_DOUBT),
        ({"epoch": 3}, TransactionStatus.OUTDATED_LOG),
        ({"generation": 6}, TransactionStatus.OUTDATED_LOG),
        ({"epoch": 1}, TransactionStatus.LINGERING),
        ({"generation": 3}, TransactionStatus.LINGERING),
        ({"log": "ffffffff"}, TransactionStatus.FOREIGN),
    ],
)
def test_what_no_decision_names_stands_by_its_writer_and_epoch(
    what: dict[str, Any], expected: TransactionStatus
) -> None:
    assert status_of(committable(**what), view(undone=False)) is expected
    assert status_of(committable(**what), None) is TransactionStatus.UNKNOWN


@pytest.mark.parametrize(
    ("undone", "expected"), [(True, TransactionStatus.DECIDED), (False, TransactionStatus.COMPLETED)]
)
def test_what_a_decision_names_stands_by_its_completion(undone: bool, expected: TransactionStatus) -> None:
    named = committable(epoch=1)
    assert status_of(named, view(undone=undone, names=(named,))) is expected
    other = msgspec.structs.replace(named, handle={"producer": 2})
    # Before COMPLETED the name is not used again, whatever the listing knows of the handle.
    assert status_of(other, view(undone=undone, names=(named,))) is (
        expected if undone else TransactionStatus.LINGERING
    )


@pytest.mark.parametrize("status", TransactionStatus)
@pytest.mark.parametrize("state", Observation)
def test_there_is_advice_for_all_that_can_be_seen(status: TransactionStatus, state: Observation) -> None:
    assert advise(status, state).text


@pytest.mark.parametrize("what", [*Advice, *Refusal])
def test_the_library_names_no_command_and_the_command_line_none_of_its_functions(what: Advice | Refusal) -> None:
    if isinstance(what, Advice):
        of_library, of_command_line = what.text, command_advice.advice(what)
    else:
        error = RefusedError("", what)
        assert pickle.loads(pickle.dumps(error)).reason is what
        of_library, of_command_line = str(error), command_advice.message(error)
    assert not re.search(r"--[a-z]|txn |onceward ", of_library)
    assert not re.search(r"_decided|_undecided|_orphaned|skip_lost|=True|`history`|survey", of_command_line)


class TestLogs:
    def test_a_checkpoint_and_the_log_in_it_are_the_same(self, case: Case) -> None:
        assert open_log(f"{case.checkpoint}/onceward").pipeline == open_log(f"file://{case.checkpoint}").pipeline

    def test_a_folder_without_a_log_is_told_and_none_is_made(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="no such folder"):
            open_log(str(tmp_path / "missing"))
        with pytest.raises(ConfigurationError, match="has no decision log"):
            open_log(str(tmp_path))
        assert list(tmp_path.iterdir()) == []

    def test_another_pipelines_log_is_refused(self, case: Case) -> None:
        with pytest.raises(ConfigurationError, match="belongs to 'orders', not to 'sales'"):
            open_log(str(case.checkpoint), "sales")

    def test_a_database_needs_the_pipelines_name_and_is_not_made(self, tmp_path: Path) -> None:
        path = tmp_path / "log.db"
        with pytest.raises(ConfigurationError, match="several pipelines: pass its name"):
            open_log(f"sqlite:///{path}")
        with pytest.raises(ConfigurationError, match="has no decision log"):
            open_log(f"sqlite:///{path}", "orders")
        assert not path.exists()

    def test_a_store_that_can_hold_no_log_is_refused_before_a_name_is_asked_for(self) -> None:
        with pytest.raises(ConfigurationError, match="redis:// cannot hold a decision log"):
            open_log("redis://host/0")

    def test_no_table_is_made_where_there_is_no_log(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "other.db")) as database:
            database.execute("CREATE TABLE other (n int)")
            with pytest.raises(ConfigurationError, match="has no decision log"):
                open_log(f"sqlite:///{tmp_path}/other.db", "orders")
            assert [name for (name,) in database.execute("SELECT name FROM sqlite_master")] == ["other"]

    @pytest.mark.parametrize(
        "url", ["postgresql+psycopg://u:s3cret@host:port/db", "postgresql+psycopg://u:s3[cret@h/db"]
    )
    def test_a_url_that_cannot_be_read_is_one_message_without_its_password(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match=r"not a (usable|valid)") as told:
            open_log(url, "orders")
        assert "s3" not in str(told.value)


def test_the_engines_checkpoints_are_listed_with_their_folders(tmp_path: Path) -> None:
    made = pipeline(
        "totals",
        store=DirectoryStore(tmp_path / "log"),
        backend=FileBackend(tmp_path / "state"),
        checkpointing=CheckpointConfig(interval=0.02),
    )
    made.source(SequenceSource(pa.Table.from_batches([numbered(list(range(50)))]))).sink(
        FileSink("files", tmp_path / "target", format="jsonl")
    )
    made.run()
    listed = history(open_log(str(tmp_path / "log"))).epochs
    newest = listed[-1]
    assert [*newest.sinks] == ["files"]
    assert newest.completed is not None
    assert newest.checkpoint is not None
    assert Path(newest.checkpoint).is_dir()


class TestCommands:
    def test_list_inspect_dry_run_and_abort(self, case: Case) -> None:
        name = case.sink_case.prepare().transaction
        store = ("--store", str(case.checkpoint))
        listed = case.run("list", *store)
        assert (listed.exit_code, listed.stderr) == (0, "")
        assert name in listed.stdout
        assert "in doubt; prepared" in listed.stdout
        [shown] = json.loads(case.run("inspect", name, *store, "--json").stdout)
        assert (shown["pipeline"], shown["epoch"], shown["status"]) == ("orders", 0, "in doubt")
        dry = case.run("abort", *store)
        assert "would abort 1" in dry.stdout
        assert len(case.survey()) == 1
        assert case.log.view.tail == 0
        done = case.run("abort", *store, "--yes")
        assert (done.exit_code, done.stdout) == (0, "aborted 1 of 1\n")
        assert case.survey() == ()

    def test_commit_dry_and_done(self, case: Case) -> None:
        case.finish_until(Step.COMMIT_BEFORE, 0, case.sink_case.prepare())
        store = ("--store", str(case.checkpoint))
        assert "would commit epoch 0 of orders" in case.run("commit", *store).stdout
        case.sink_case.assert_visible([])
        assert "committed transactions: 1" in case.run("commit", *store, "--yes").stdout
        case.sink_case.assert_visible(case.sink_case.numbers())
        assert "nothing to commit" in case.run("commit", *store, "--yes").stdout
        shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["checkpoints", *store]).stdout
        time = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"
        assert re.search(rf"epoch 0: files 3 rows in 1 transactions\n  decided {time}, completed {time}\n", shown), (
            shown
        )
        assert "the newest epochs only" in shown
        rows = json.loads(CliRunner().invoke(app, ["checkpoints", *store, "--json"]).stdout)
        assert [(row["epoch"], row["rows"]) for row in rows["epochs"]] == [(0, {"files": 3})]
        assert rows["given_up"] == []

    def test_a_log_with_a_gap_is_repaired_if_what_is_left_says_enough(self, case: Case) -> None:
        """Its store went back while the driver put the decision of epoch 1."""
        case.sink_case.finish(0, case.sink_case.prepare())
        log = case.checkpoint / "onceward"
        repair = ("repair-log", "--store", str(case.checkpoint))

        def run(*more: str) -> Result:
            return CliRunner(env={"COLUMNS": "300"}).invoke(app, [*repair, *more])

        assert "nothing to repair: the decision log of orders has no gap" in run().stdout
        case.finish_until(Step.COMMIT_BEFORE, 1, case.sink_case.prepare(epoch=1))
        entries = sorted(path for path in log.iterdir() if path.name.isdigit())
        newest = entries[-1].read_bytes()
        for path in entries[-3:-1]:
            path.unlink()
        told = CliRunner().invoke(app, ["checkpoints", "--store", str(case.checkpoint)])
        assert "`onceward repair-log` says" in str(told.exception)
        dry = run().stdout
        assert "would make void what is below entry" in dry
        assert "epoch 1 of orders (not completed; the pipeline's next start commits it)" in dry
        assert "--yes needs --why" in str(run("--yes").exception)
        done = run("--yes", "--why", "the standby lagged")
        assert done.stdout == "the decision log of orders is readable again; it goes on with epoch 1\n"
        assert entries[-1].read_bytes() == newest
        assert case.commit() == CommittedEpoch(1, 1, 0)
        case.sink_case.assert_visible(case.sink_case.numbers(0, 1))
        shown = CliRunner().invoke(app, ["checkpoints", "--store", str(case.checkpoint)]).stdout
        assert "repair of epoch 1" in shown
        assert "the standby lagged" in shown

    def test_a_dry_commit_counts_what_is_lost(self, case: Case) -> None:
        lost = case.sink_case.prepare()
        case.finish_until(Step.COMMIT_BEFORE, 0, lost)
        case.make().abort(lost)
        commit = ("commit", "--store", str(case.checkpoint))
        dry = " ".join(case.run(*commit).stdout.split())
        assert "would commit epoch 0 of orders, except for lost transactions (1), and end with an error" in dry
        dry = " ".join(case.run(*commit, "--skip-lost", "gone").stdout.split())
        assert "except for lost transactions (1);" in dry

    @pytest.mark.parametrize(
        ("arguments", "answer"),
        [
            (["list"], "no target was given"),
            (["list", "--set", "kafka:a=b", "--sinks", "jobs:SINKS"], "--set kafka:… needs --at kafka=HOST:PORT"),
            (["list", "--at", "kafka=x:1", "--set", "kafka:a=s3cret", "--set", "kafka:s3cret"], "number 2 of those"),
            (["list", "--sinks", "ends:SINKS"], "cannot import ends:SINKS: SystemExit"),
            (["commit", "--skip-lost", " ", "--sinks", "jobs:SINKS"], "--skip-lost is empty"),
            (["list", "--sinks", "nothing"], "takes module:name"),
            (["list", "--sinks", "no_such_module:SINKS"], "cannot import"),
            (["list", "--sinks", "json:dumps"], "cannot import"),
            (["list", "--sinks", "json:__name__"], "neither a sink nor a list"),
            (["commit", "--sinks", "json:decoder"], "--store, once"),
            (["abort", "--sinks", "json:decoder"], "--store, once"),
            (["inspect", "x", "--store", "/no/such/folder", "--at", "postgres=host=x"], "no such folder"),
        ],
    )
    def test_a_mistake_is_one_message(
        self,
        tmp_path: Path,
        arguments: list[str],
        answer: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        (tmp_path / "ends.py").write_text("raise SystemExit(0)")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["onceward", "txn", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr().err
        assert ended.value.code == 2, told
        assert answer in told
        assert "Traceback" not in told
        assert "s3cret" not in told

    def test_a_name_is_printed_as_it_is(self, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
        """Console markup and emoji would change `:key:` and `:100:`."""
        found = FoundTransaction(
            committable(sink="key", transaction="onceward:1:orders:key:0a0b0c0d:100:42:1:0:ab [red]"),
            case.target_of_sinks,
            TransactionStatus.IN_DOUBT,
            Observation.PREPARED,
            listed=True,
        )
        show.table([found])
        show.details([found], as_json=False)
        assert capsys.readouterr().out.count("onceward:1:orders:key:0a0b0c0d:100:42:1:0:ab [red]") == 4

    def test_control_characters_of_a_log_are_shown_and_not_sent_to_the_terminal(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        evil = "a\x1b]0;owned\x07\x1b[2J\r\x9b1A\x7f \u202e\u2066 \u00e9 \u6f22 \U0001f389"
        said = r"a\x1b]0;owned\x07\x1b[2J\r\x9b1A\x7f \u202e\u2066" + " \u00e9 \u6f22 \U0001f389"
        show.table(
            [
                found := FoundTransaction(
                    committable(sink=evil), None, TransactionStatus.IN_DOUBT, Observation.PREPARED, listed=True
                )
            ]
        )
        show.details([found], as_json=False)
        rows = Table("sink")
        rows.add_row(evil)
        show.console().print(rows)
        monkeypatch.setattr(sys, "argv", ["onceward", "checkpoints", "--store", f"/no/such/{evil}"])
        with pytest.raises(SystemExit):
            main()
        shown = capsys.readouterr()
        assert shown.out.count(said) == 3
        assert said in shown.err
        assert not set(shown.out + shown.err) & set("\x1b\x07\r\x9b\x7f\u202e\u2066")


def test_settings_of_kafka_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# of the cluster\n\n  sasl.password=pa=ss # word \nsasl.username=alice\n")
    given = pairs("--set kafka:", ["sasl.username=bob", f"@{file}", "client.id=x"])
    assert given == {"sasl.username": "alice", "sasl.password": "pa=ss # word", "client.id": "x"}
    assert pairs("--set kafka:", None) == {}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read the file .*No such file"),
        (b"\xff", "it is not text"),
        (b"a=b\ns3cret", "number 1 of those given"),
    ],
)
def test_a_file_of_settings_that_cannot_be_read_is_one_message(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "client.properties"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=says) as caught:
        pairs("--set kafka:", [f"@{file}"])
    assert "s3cret" not in str(caught.value)


def test_a_driver_that_starts_meanwhile_wins(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's START is fenced by the driver's before anything is aborted."""
    case.sink_case.prepare()
    found = case.survey()
    start = LogWriter.start

    def overtaken(writer: LogWriter, tool: str = "") -> LogView:
        view = start(writer, tool)
        monkeypatch.undo()
        LogWriter(case.log.store, "orders", writer.policy).start()
        return view

    monkeypatch.setattr(LogWriter, "start", overtaken)
    with pytest.raises(FencedError, match="nothing was aborted"):
        abort_undecided(case.log, found)
    assert len(case.survey()) == 1


def test_what_was_not_aborted_says_why_it_may_be(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = case.sink_case.prepare()
    monkeypatch.setattr("onceward.core.operations.resolve.sweep", lambda *_, **__: Swept())  # it was decided meanwhile
    done = case.run("abort", "--store", str(case.checkpoint), "--yes")
    assert (done.exit_code, done.stdout) == (1, "aborted 0 of 1\n")
    assert f"not aborted: {prepared.transaction}: it was decided or ended meanwhile, or its target" in done.stderr


def test_what_was_given_up_as_a_whole_has_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    given = GivenUp(epoch=3, transaction="", action="replay", who="a", why="b", at="now")
    status = PipelineStatus(
        pipeline="orders", store="s", state=PipelineState.RUNNING, what="the last epoch is completed"
    )
    show.past(History(pipeline="orders", store="s", given_up=[given]), status, as_json=False)
    assert "replay of epoch 3, now\n" in capsys.readouterr().out


def test_a_list_that_could_not_ask_says_so_where_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs_away.py").write_text(
        "from onceward import SqlAlchemySink\n"
        f"AWAY = [SqlAlchemySink('table', url='sqlite:///{tmp_path}/away/x.db', table='t')]\n"
    )
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["txn", "list", "--pipeline", "orders", "--sinks", "jobs_away:AWAY"])
    assert result.exit_code == 1
    assert result.stdout == (
        "transactions found: 0; there may be more where nobody answered: sinks of jobs_away:AWAY\n"
    )
