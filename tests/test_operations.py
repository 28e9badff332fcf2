"""`onceward.operations`: what the commands for operators do, from Python, with values that nobody can change."""

from __future__ import annotations

import dataclasses
import json
import re
import sqlite3
import sys
from contextlib import chdir, closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from onceward import FileSink, operations
from onceward.cli.main import app
from onceward.core.checkpoint.recovery import TransactionStatus
from onceward.core.contract.refusals import RefusedError
from onceward.core.contract.transaction import Committable, Observation
from onceward.core.errors import ConfigurationError, DataLossError, SinkError, SqlError
from onceward.core.operations.discovery import log_folders
from onceward.core.operations.resolve import abortable
from onceward.core.operations.survey import FoundTransaction

from .golden_kit import SUBTASKS, Driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.connectors import Target

ROOT = Path(__file__).parent.parent


def targets_of(driver: Driver) -> list[Target]:
    return [operations.sinks_target(driver.sinks, "the pipeline's sinks")]


def rows_in(folder: Path) -> list[int]:
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["n"] for line in lines)


@pytest.mark.parametrize("name", operations.__all__)
def test_each_name_is_documented_and_its_values_cannot_be_changed(name: str) -> None:
    public = getattr(operations, name)
    assert public.__doc__
    assert public.__module__.startswith(("onceward.core.", "onceward.connectors.spark.savepoints."))
    if dataclasses.is_dataclass(public):
        assert vars(public)["__dataclass_params__"].frozen
    elif isinstance(public, type) and issubclass(public, msgspec.Struct):
        assert public.__struct_config__.frozen


def test_the_reference_has_each_name() -> None:
    page = (ROOT / "docs" / "reference" / "operations.md").read_text()
    assert sorted(re.findall(r"^::: onceward\.operations\.(\w+)$", page, re.MULTILINE)) == sorted(operations.__all__)


def test_a_decision_that_waits_is_surveyed_and_committed(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    driver.finish(0, dies=True)
    log = operations.open_log(str(tmp_path / "orders"), writing=True)
    found = operations.survey([log], targets_of(driver))
    assert {one.status for one in found.transactions} == {TransactionStatus.DECIDED}
    assert not found.unanswered
    decision = log.view.undone
    assert decision is not None
    done = operations.commit_decided(log, decision, found.transactions)
    assert done == operations.CommittedEpoch(epoch=0, committed=2 * SUBTASKS, given_up=0)
    assert rows_in(tmp_path / "orders-files") == [0, 1, 2, 3]
    assert [epoch.completed is None for epoch in operations.history(log).epochs] == [False]


def test_a_commit_that_reaches_some_targets_says_what_is_left(tmp_path: Path) -> None:
    Driver(tmp_path, "orders").finish(0, dies=True)
    where = ["--store", str(tmp_path / "orders"), "--at", f"sql=sqlite:///{tmp_path / 'orders.db'}"]
    done = CliRunner().invoke(app, ["txn", "commit", *where, "--yes"])
    assert isinstance(done.exception, SinkError)
    assert "of epoch 0, waits: files 4 rows, table 4 rows; nothing of it expires" in done.stderr.replace("\n", " ")


def test_the_program_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "operations-api.md").read_text()
    _, program, example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert example == (ROOT / "examples" / "nightly_check.py").read_text()
    driver = Driver(tmp_path, "orders", "checkpoints/orders")
    driver.finish(0, dies=True)
    monkeypatch.setitem(sys.modules, "jobs", SimpleNamespace(SINKS=driver.sinks))
    with chdir(tmp_path):
        exec(program, {})
    *listed, committed = capsys.readouterr().out.splitlines()
    assert len(listed) == 2 * SUBTASKS
    assert committed == str(operations.CommittedEpoch(0, 2 * SUBTASKS, 0))


def test_a_plan_says_what_a_commit_would_do_and_changes_nothing(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    file, *_ = driver.finish(0, dies=True)
    log = operations.open_log(str(tmp_path / "orders"))
    decision, tail = log.view.undone, log.view.tail
    assert decision is not None
    plan = operations.plan_commit(log, decision, operations.survey([log], targets_of(driver)).transactions)
    assert plan is not None
    assert (plan.epoch, len(plan.transactions), plan.lost) == (0, 2 * SUBTASKS, ())
    assert log.view.tail == tail
    assert driver.sinks[0].abort(file).done
    found = operations.survey([log], targets_of(driver)).transactions
    plan = operations.plan_commit(log, decision, found)
    assert plan is not None
    assert [one.name for one in plan.lost] == [file.transaction]
    with pytest.raises(DataLossError):
        operations.commit_decided(log, decision, found)
    assert operations.commit_decided(log, decision, found, skip_lost="the disk was replaced")
    assert operations.plan_commit(log, decision, found) is None


def test_a_commit_is_refused_when_it_is_planned_as_when_it_is_done(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    driver.finish(0, dies=True)
    log = operations.open_log(str(tmp_path / "orders"))
    decision, tail = log.view.undone, log.view.tail
    assert decision is not None
    found = operations.survey([log], [operations.sinks_target([], "none")]).transactions
    for act in (operations.plan_commit, operations.commit_decided):
        with pytest.raises(operations.RefusedError) as refused:
            act(log, decision, found)
        assert refused.value.reason is operations.Refusal.NEEDS_TARGET
    assert log.view.tail == tail


def test_undecided_transactions_are_aborted_by_name(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    driver.prepare(0)
    log = operations.open_log(str(tmp_path / "orders"), writing=True)
    found = operations.survey([log], targets_of(driver)).transactions
    [one] = operations.abortable(found, [found[0].name])
    assert operations.abort_undecided(log, [one]) == operations.Aborted(aborted=(one,))
    left = operations.survey([log], targets_of(driver)).transactions
    assert [each.name for each in left] == [each.name for each in found[1:]]


def test_a_transaction_that_was_decided_meanwhile_is_left_and_the_reason_is_told(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    log = operations.open_log(str(tmp_path / "orders"), writing=True)
    prepared = driver.prepare(0)
    found = operations.survey([log], targets_of(driver))
    driver.decide(0, prepared, dies=True)
    done = operations.abort_undecided(log, operations.abortable(found.transactions))
    assert not done.aborted
    assert len(done.left) == 2 * SUBTASKS
    assert done.left[0].why.startswith("it was decided or ended meanwhile")


def test_only_orphans_are_aborted_as_orphans(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    driver.prepare(0)
    log = operations.open_log(str(tmp_path / "orders"))
    with pytest.raises(ConfigurationError, match="its decision log was given"):
        operations.abort_orphaned(operations.survey([log], targets_of(driver)).transactions)
    found = operations.survey([], targets_of(driver), "orders").transactions
    assert len(operations.abort_orphaned(found).aborted) == len(found) == 2 * SUBTASKS
    assert not operations.survey([], targets_of(driver), "orders").transactions


def test_a_target_that_does_not_answer_is_an_error_unless_the_rest_is_asked_for(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    driver.finish(0, dies=True)
    log = operations.open_log(str(tmp_path / "orders"))
    files, table = driver.sinks
    (tmp_path / "orders.db").write_bytes(b"no database, however long it may be" * 100)
    targets = [operations.sinks_target([sink], sink.name) for sink in (files, table)]
    with pytest.raises(SqlError):
        operations.survey([log], targets)
    found = operations.survey([log], targets, must_answer=False)
    assert list(found.unanswered) == ["table"]
    states = {one.committable.sink: one.state for one in found.transactions}
    assert states == {"files": Observation.PREPARED, "table": Observation.NO_ANSWER}


def test_a_file_sink_of_another_folder_is_refused_before_a_run_is_fenced(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    driver.finish(0, dies=True)
    log = operations.open_log(str(tmp_path / "orders"), writing=True)
    elsewhere = operations.sinks_target([FileSink("files", tmp_path / "elsewhere", format="jsonl")], "elsewhere")
    decision, tail = log.view.undone, log.view.tail
    assert decision is not None
    with pytest.raises(ConfigurationError, match="Nothing was done"):
        operations.commit_decided(log, decision, operations.survey([log], [elsewhere]).transactions)
    assert log.view.tail == tail


def test_an_overview_tells_of_epochs_that_the_log_has_forgotten(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    for epoch in range(12):
        driver.finish(epoch)
    driver.finish(12, dies=True)
    log = operations.open_log(str(tmp_path / "orders"))
    told = operations.overview(log)
    assert [epoch.newest_time for epoch in told.epochs] == sorted((e.newest_time for e in told.epochs), reverse=True)
    by_number = {epoch.epoch: epoch for epoch in told.epochs}
    assert sorted(by_number) == list(range(13))
    waiting, completed, oldest = by_number[12], by_number[11], by_number[0]
    assert (waiting.status, waiting.position, waiting.completed) == ("decided", told.waiting, None)
    assert [one.sink for one in waiting.written] == ["files", "table"] * SUBTASKS
    assert (completed.status, oldest.status, oldest.sinks) == ("completed", "completed", {"files": 4, "table": 4})
    assert oldest.written == []
    assert len(told.starts) == 1
    assert len(operations.overview(log, epochs=2).epochs) == 2


def test_an_overview_tells_of_an_epoch_that_was_committed_by_hand(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    driver.finish(0, dies=True)
    log = operations.open_log(str(tmp_path / "orders"), writing=True)
    decision = log.view.undone
    assert decision is not None
    found = operations.survey([log], targets_of(driver)).transactions
    assert operations.commit_decided(log, decision, found)
    again = Driver(tmp_path, "orders", run="again")
    for epoch in (1, 2):
        again.finish(epoch)
    assert 0 not in [decision.epoch for decision, _ in log.view.decisions]
    records = {record.epoch: record for record in operations.overview(log).epochs}
    assert (records[0].status, records[0].sinks) == ("completed", {"files": 4, "table": 4})
    assert (records[0].decided, records[0].milliseconds) == (decision.at, None)


def test_logs_are_found_below_a_folder_and_a_damaged_one_hides_no_other(tmp_path: Path) -> None:
    for name in ("orders", "totals"):
        Driver(tmp_path, name).finish(0)
    damaged = tmp_path / "a" / "deep"
    damaged.mkdir(parents=True)
    (damaged / f"{0:020}").write_bytes(b"garbage")
    found = operations.find_logs(str(tmp_path))
    assert [log.pipeline for log in found.logs] == ["orders", "totals"]
    assert list(found.errors) == [str(damaged)]
    with pytest.raises(ConfigurationError, match="no such folder"):
        operations.find_logs(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="below a local folder"):
        operations.find_logs("s3://bucket/logs")


def test_an_audit_proves_what_a_target_holds_or_names_the_epoch_that_differs(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    for epoch in range(3):
        driver.finish(epoch)
    log = operations.open_log(str(tmp_path / "orders"))
    place = operations.open_place(f"files:{tmp_path / 'orders-files'}")
    told = operations.audit(log, "files", place)
    assert (told.sink, told.target, told.foreign, told.waiting) == ("files", place.title, 0, None)
    assert [(line.epoch, line.written, line.verdict) for line in told.lines] == [
        (epoch, 2 * SUBTASKS, operations.EpochVerdict.PROVEN) for epoch in range(3)
    ]
    assert told.proven
    file = next(path for path in (tmp_path / "orders-files").glob("*.jsonl") if '"n":10' in path.read_text())
    file.write_text(file.read_text().replace('"n":10', '"n":77'))
    told = operations.audit(log, "files", place)
    assert [line.epoch for line in told.lines if not line.proven] == [1]
    assert operations.audit(log, "files", place, epochs=range(2, 3)).proven


def test_an_audit_of_an_unknown_sink_or_of_epochs_that_wrote_nothing_is_refused(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    driver.finish(0)
    log = operations.open_log(str(tmp_path / "orders"))
    place = operations.open_place("sql:numbers", f"sqlite:///{tmp_path / 'orders.db'}")
    assert operations.audit(log, "table", place).proven
    with pytest.raises(ConfigurationError, match="knows no sink 'tabel': it has files, table"):
        operations.audit(log, "tabel", place)
    with pytest.raises(ConfigurationError, match="sink files has written nothing in these epochs"):
        operations.audit(log, "files", operations.open_place(f"files:{tmp_path / 'orders-files'}"), epochs=range(5, 7))


def test_two_places_are_compared_without_a_log(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    driver.finish(0)
    files = operations.open_place(f"files:{tmp_path / 'orders-files'}")
    table = operations.open_place("sql:numbers", f"sqlite:///{tmp_path / 'orders.db'}")
    assert operations.compare_places(files, table, key="n").exact
    with closing(sqlite3.connect(tmp_path / "orders.db")) as database:
        database.execute("DELETE FROM numbers WHERE n = 2")
        database.commit()
    [missing] = operations.compare_places(files, table, key="n").findings
    assert (missing.kind, missing.row) == (operations.Mismatch.MISSING, {"n": 2})


def test_a_target_at_an_address_needs_no_code_of_the_pipeline(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "orders")
    driver.finish(0, dies=True)
    log = operations.open_log(str(tmp_path / "orders"))
    target = operations.open_target("sql", f"sqlite:///{tmp_path / 'orders.db'}")
    found = operations.survey([log], [target]).transactions
    assert {one.committable.sink for one in found if one.target is target} == {"table"}


@pytest.mark.parametrize(
    ("open_it", "message"),
    [
        (lambda: operations.open_target("files", ""), "cannot be found by its address. Pass the pipeline's own sinks"),
        (lambda: operations.open_target("kafka", ""), "give its address, which looks like HOST:PORT"),
        (lambda: operations.open_target("nothing", "x"), "there is no connector 'nothing': there are "),
        (lambda: operations.open_place("files:x", "x"), "files: it has no address"),
        (lambda: operations.open_place("files"), "'files' is not a place: give files:FOLDER"),
        (lambda: operations.open_place("http:x"), "nothing can be read back"),
    ],
)
def test_a_place_or_target_that_cannot_be_opened_says_why(open_it: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        open_it()


def a_log(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / f"{0:020}").touch()
    return folder


def test_every_checkpoint_in_a_large_folder_is_found(tmp_path: Path) -> None:
    for number in range(600):
        for own in ("offsets", "commits", "state/0/0", "sources/0"):
            (tmp_path / f"c{number}" / own).mkdir(parents=True)
        a_log(tmp_path / f"c{number}" / ("onceward" if number % 2 else "log"))
    assert len(list(log_folders(tmp_path))) == 600


def test_a_search_that_is_not_finished_is_an_error_behind_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = a_log(tmp_path / "log")
    for number in range(50):
        (tmp_path / "others" / f"{number}").mkdir(parents=True)
    monkeypatch.setattr("onceward.core.operations.discovery._FOLDERS", 20)
    found = log_folders(tmp_path)
    assert next(found) == first
    with pytest.raises(ConfigurationError, match="not all were searched"):
        next(found)
    assert "not all were searched" in operations.find_logs(str(tmp_path)).errors[str(tmp_path)]
    assert "not all were searched" in CliRunner().invoke(app, ["status", "--store", str(tmp_path)]).output


def test_a_name_that_holds_another_transaction_by_now_is_not_aborted() -> None:
    """Kafka's transactional ids are used again: what was seen is what is aborted, or nothing."""
    seen, now = (
        FoundTransaction(
            Committable(
                kind="kafka", pipeline="p", sink="s", log="0123abcd", generation=0, epoch=2, transaction="t",
                handle={"producer_epoch": epoch},
            ),
            None, TransactionStatus.IN_DOUBT, Observation.OPEN, listed=True,
        )
        for epoch in (2, 3)
    )  # fmt: skip
    assert abortable([now], ["t", now.exact]) == [now]
    with pytest.raises(RefusedError, match=r"t\+[0-9a-f]{12} is not open .* t holds another transaction now"):
        abortable([now], [seen.exact])
