"""What an operator sees of transactions in doubt, and how they end on an operator's word: never against the log's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from onceward.connectors.operate.epochs import epochs_of, history
from onceward.connectors.operate.logs import Log, open_log
from onceward.connectors.operate.places import SinksPlace
from onceward.connectors.operate.settle import abort_orphaned, abort_undecided, chosen, commit_decided
from onceward.connectors.operate.survey import Found, survey
from onceward.core import CheckpointConfig, FileBackend
from onceward.core.checkpoint import CommitPolicy, Swept
from onceward.core.checkpoint.standing import Standing, advice, standing_of
from onceward.core.errors import ConfigurationError, DataLossError, FencedError
from onceward.core.log import Decide, DirectoryStore, LogView, LogWriter
from onceward.core.log.view import NONE
from onceward.core.steps import Step, hooked
from onceward.core.transaction import ANY_EPOCH, Committable, ExternalState
from onceward.sinks import FileSink
from onceward.sources import SequenceSource
from onceward.testing.exam import Exam, Subject, numbered

from .engine_kit import pipeline
from .test_dev_commands import onceward

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

JOBS = "from onceward.sinks import FileSink\nSINKS = [FileSink('files', {target!r}, format='jsonl')]\n"


class DiedError(Exception):
    """The driver's process ended here."""


class Case:
    """One pipeline `orders` with a FileSink; its driver can die at a step, and an operator looks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = folder / "target"
        self.checkpoint = folder / "checkpoint"
        self.exam = Exam(Subject(self.make, self.shown), "orders", DirectoryStore(self.checkpoint / "onceward"))
        self.place = SinksPlace([self.make()], "the sinks")
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
            self.exam.finish(epoch, *committables)

    @property
    def log(self) -> Log:
        return open_log(str(self.checkpoint))

    def survey(self) -> list[Found]:
        return survey([self.log], [self.place])

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ("txn", *arguments, "--sinks", "jobs:SINKS")
        return onceward(*command, home=self.folder, PYTHONPATH=f"{Path.cwd() / 'src'}:{self.folder}")


def names(swept: Swept) -> list[str]:
    return [aborted.transaction for aborted in swept.aborted]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_what_is_decided_is_shown_and_committed_once_and_its_zombie_is_fenced(case: Case) -> None:
    committable = case.exam.prepare()
    case.finish_until(Step.COMMIT_BEFORE, 0, committable)
    [found] = case.survey()
    assert (found.standing, found.state, found.rows) == (Standing.DECIDED, ExternalState.PREPARED, 3)
    assert "txn commit" in found.next
    case.exam.shows([])
    done = commit_decided(case.log, [case.place])
    assert done is not None
    assert done.epoch == 0
    case.exam.shows(case.exam.numbers())
    assert (case.survey(), case.log.view.completed) == ([], 0)
    assert commit_decided(case.log, [case.place]) is None
    with pytest.raises(FencedError):
        case.exam.coordinator.writer.complete(0)


def test_what_is_in_doubt_can_no_longer_be_decided_once_it_is_aborted(case: Case) -> None:
    committable = case.exam.prepare()
    [found] = case.survey()
    assert (found.standing, found.held) == (Standing.IN_DOUBT, True)
    assert names(abort_undecided(case.log, [case.place], [found])) == [committable.transaction]
    with pytest.raises(FencedError):
        case.exam.finish(0, committable)
    assert case.log.view.decided == NONE
    case.exam.shows([])


def test_what_was_decided_after_it_was_listed_is_not_aborted(case: Case) -> None:
    committable = case.exam.prepare()
    found = case.survey()
    case.finish_until(Step.COMMIT_BEFORE, 0, committable)
    swept = abort_undecided(case.log, [case.place], found)
    assert swept.aborted == ()
    commit_decided(case.log, [case.place])
    case.exam.shows(case.exam.numbers())


def test_only_what_is_named_is_aborted_and_what_is_decided_is_refused(case: Case) -> None:
    decided, one, other = case.exam.prepare(), case.exam.prepare(1), case.exam.prepare(1, subtask=1)
    case.finish_until(Step.COMMIT_BEFORE, 0, decided)
    found = case.survey()
    with pytest.raises(ConfigurationError, match="committed, never aborted"):
        chosen(found, [decided.transaction], orphaned=False)
    with pytest.raises(ConfigurationError, match="leave out --orphaned"):
        chosen(found, [one.transaction], orphaned=True)
    with pytest.raises(ConfigurationError, match="is not open or prepared"):
        chosen(found, ["nothing"], orphaned=False)
    swept = abort_undecided(case.log, [case.place], chosen(found, [one.transaction], orphaned=False))
    assert names(swept) == [one.transaction]
    left = {found.transaction: found.standing for found in case.survey()}
    assert left == {decided.transaction: Standing.DECIDED, other.transaction: Standing.LINGERING}
    assert [found.transaction for found in chosen(case.survey(), [], orphaned=False)] == [other.transaction]


def test_another_logs_transactions_are_ended_only_by_name_and_word(case: Case) -> None:
    other = case.exam.prepare()
    case.checkpoint = case.folder / "another"
    LogWriter(DirectoryStore(case.checkpoint), "orders", CommitPolicy().writer_clock()).start()
    [found] = case.survey()
    assert found.standing is Standing.FOREIGN
    assert chosen([found], [], orphaned=False) == []
    with pytest.raises(ConfigurationError, match="gone for good"):
        chosen([found], [other.transaction], orphaned=False)
    with pytest.raises(ConfigurationError, match="needs the names"):
        chosen([found], [], orphaned=True)
    assert abort_undecided(case.log, [case.place], [found]).aborted == ()
    [outcome] = abort_orphaned([case.place], chosen([found], [other.transaction], orphaned=True))
    assert outcome.done
    assert case.survey() == []


def test_lost_data_is_loud_and_skipping_it_goes_on_record(case: Case) -> None:
    committable = case.exam.prepare()
    case.finish_until(Step.COMMIT_BEFORE, 0, committable)
    case.make().abort(committable)
    [found] = case.survey()
    assert (found.standing, found.held) == (Standing.DECIDED, False)
    with pytest.raises(DataLossError):
        commit_decided(case.log, [case.place])
    commit_decided(case.log, [case.place], skip_lost="the disk was replaced")
    [given_up] = history(case.log).given_up
    assert (given_up.transaction, given_up.action) == (committable.transaction, "skip")
    assert "the disk was replaced" in given_up.who
    assert case.log.view.completed == 0


def test_a_target_that_was_not_given_fences_nobody(case: Case) -> None:
    committable = case.exam.prepare()
    case.finish_until(Step.COMMIT_BEFORE, 0, committable)
    tail = case.log.view.tail
    with pytest.raises(ConfigurationError, match=r"sink files.*--sinks"):
        commit_decided(case.log, [SinksPlace([], "none")])
    assert case.log.view.tail == tail
    [found] = survey([case.log], [SinksPlace([], "none")])
    assert (found.place, found.state) == ("not asked", ExternalState.UNKNOWN)


def committable(**changes: Any) -> Committable:
    fields = {"kind": "k", "pipeline": "p", "sink": "s", "log": "0123abcd", "writer": 4, "epoch": 2, "transaction": "t"}
    return Committable(**{**fields, **changes})


def view(*, undone: bool, names: tuple[Committable, ...] = ()) -> LogView:
    decision = Decide(pipeline="p", log="0123abcd", position=5, writer="w", start=4, epoch=1, committables=names)
    newest = {"newest": decision, "undone": decision if undone else None}
    return LogView(log="0123abcd", tail=5, start=4, decided=1, **newest)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ({}, Standing.IN_DOUBT),
        ({"writer": 5}, Standing.IN_DOUBT),
        ({"writer": ANY_EPOCH, "epoch": ANY_EPOCH}, Standing.IN_DOUBT),
        ({"epoch": 1}, Standing.LINGERING),
        ({"writer": 3}, Standing.LINGERING),
        ({"log": "ffffffff"}, Standing.FOREIGN),
    ],
)
def test_what_no_decision_names_stands_by_its_writer_and_epoch(what: dict[str, Any], expected: Standing) -> None:
    assert standing_of(committable(**what), view(undone=False)) is expected
    assert standing_of(committable(**what), None) is Standing.UNKNOWN


@pytest.mark.parametrize(("undone", "expected"), [(True, Standing.DECIDED), (False, Standing.COMPLETED)])
def test_what_a_decision_names_stands_by_its_completion(undone: bool, expected: Standing) -> None:
    named = committable(epoch=1)
    assert standing_of(named, view(undone=undone, names=(named,))) is expected
    other = msgspec.structs.replace(named, handle={"producer": 2})
    # Before COMPLETED the name is not used again, whatever the listing knows of the handle.
    assert standing_of(other, view(undone=undone, names=(named,))) is (expected if undone else Standing.LINGERING)


@pytest.mark.parametrize("standing", Standing)
@pytest.mark.parametrize("state", ExternalState)
def test_there_is_advice_for_all_that_can_be_seen(standing: Standing, state: ExternalState) -> None:
    assert advice(standing, state)


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
        with pytest.raises(ConfigurationError, match="--pipeline"):
            open_log(f"sqlite:///{path}")
        with pytest.raises(ConfigurationError, match="no such file"):
            open_log(f"sqlite:///{path}", "orders")
        assert not path.exists()


def test_the_engines_checkpoints_are_listed_with_their_folders(tmp_path: Path) -> None:
    made = pipeline(
        "totals",
        store=DirectoryStore(tmp_path / "log"),
        backend=FileBackend(tmp_path / "state"),
        checkpoint=CheckpointConfig(interval=0.02),
    )
    made.source(SequenceSource(pa.Table.from_batches([numbered(list(range(50)))]))).sink(
        FileSink("files", tmp_path / "target", format="jsonl")
    )
    made.run()
    listed = epochs_of(open_log(str(tmp_path / "log")))
    newest = listed[-1]
    assert (newest.pipeline, newest.sinks) == ("totals", ("files",))
    assert newest.completed is not None
    assert newest.checkpoint is not None
    assert Path(newest.checkpoint).is_dir()


class TestCommands:
    def test_list_inspect_dry_run_and_abort(self, case: Case) -> None:
        name = case.exam.prepare().transaction
        store = ("--store", str(case.checkpoint))
        listed = case.run("list", *store)
        assert (listed.returncode, listed.stderr) == (0, "")
        assert name in listed.stdout
        assert "in doubt; prepared" in listed.stdout
        [shown] = json.loads(case.run("inspect", name, *store, "--json").stdout)
        assert (shown["pipeline"], shown["epoch"], shown["standing"]) == ("orders", 0, "in doubt")
        dry = case.run("abort", *store)
        assert "would abort 1" in dry.stdout
        assert len(case.survey()) == 1
        assert case.log.view.tail == 0
        done = case.run("abort", *store, "--yes")
        assert (done.returncode, done.stdout) == (0, "aborted 1 of 1\n")
        assert case.survey() == []

    def test_commit_dry_and_done(self, case: Case) -> None:
        case.finish_until(Step.COMMIT_BEFORE, 0, case.exam.prepare())
        store = ("--store", str(case.checkpoint))
        assert "would commit epoch 0 of orders" in case.run("commit", *store).stdout
        case.exam.shows([])
        assert "committed and completed" in case.run("commit", *store, "--yes").stdout
        case.exam.shows(case.exam.numbers())
        assert "nothing to commit" in case.run("commit", *store, "--yes").stdout
        rows = json.loads(onceward("checkpoints", *store, "--json", home=case.folder).stdout)
        assert [(row["epoch"], row["rows"]) for row in rows["epochs"]] == [(0, 3)]
        assert rows["given_up"] == []

    @pytest.mark.parametrize(
        ("arguments", "answer"),
        [
            (["list"], "say where to look"),
            (["list", "--kafka", "a=b", "--sinks", "jobs:SINKS"], "--kafka needs --bootstrap-servers"),
            (["list", "--sinks", "nothing"], "takes module:name"),
            (["list", "--sinks", "no_such_module:SINKS"], "cannot import"),
            (["list", "--sinks", "json:dumps"], "cannot import"),
            (["list", "--sinks", "json:__name__"], "neither a sink nor a list"),
            (["commit", "--sinks", "json:decoder"], "--store, once"),
            (["abort", "--sinks", "json:decoder"], "--store, once"),
            (["inspect", "x", "--store", "/no/such/folder", "--dsn", "host=x"], "no such folder"),
        ],
    )
    def test_a_mistake_is_one_message(self, tmp_path: Path, arguments: list[str], answer: str) -> None:
        told = onceward("txn", *arguments, home=tmp_path, COLUMNS="200")
        assert told.returncode == 2, told.stderr
        assert answer in told.stderr
        assert "Traceback" not in told.stderr


def test_a_driver_that_starts_meanwhile_wins(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's START is fenced by the driver's before anything is aborted."""
    case.exam.prepare()
    found = case.survey()
    start: Callable[[LogWriter], LogView] = LogWriter.start

    def overtaken(writer: LogWriter) -> LogView:
        view = start(writer)
        monkeypatch.undo()
        LogWriter(case.log.store, "orders", writer._clock).start()
        return view

    monkeypatch.setattr(LogWriter, "start", overtaken)
    assert abort_undecided(case.log, [case.place], found).aborted == ()
    assert len(case.survey()) == 1
