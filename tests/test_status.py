"""The state of a pipeline, from its decision log, its notes and the clock."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from onceward import FileSink, KafkaSink, PostgresSink, SqlAlchemySink
from onceward.cli.advice import with_advice
from onceward.cli.doctor import _tried, check_store
from onceward.cli.main import app
from onceward.cli.operate import Search
from onceward.cli.ui.desk import Desk, Watch
from onceward.connectors.files.connector import FilesConnector
from onceward.core import FileBackend, RestartStrategy
from onceward.core.checkpoint import CommitPolicy, Coordinator
from onceward.core.contract.connector import address_to_note, noted_address
from onceward.core.contract.findings import Health
from onceward.core.contract.refusals import RefusedError
from onceward.core.contract.transaction import Committable
from onceward.core.errors import OncewardError
from onceward.core.log import DirectoryStore, EpochInput, LogView, LogWriter, MemoryStore
from onceward.core.log.notes import note
from onceward.core.operations.discovery import find_logs
from onceward.core.operations.log_locations import open_log
from onceward.core.operations.status import (
    PipelineState,
    PipelineStatus,
    duration,
    pipeline_status,
)
from onceward.sources import SequenceSource
from onceward.testing.sink_case import numbered

from .engine_kit import pipeline
from .status_kit import at, judged, log, written
from .ui_kit import Folder

if TYPE_CHECKING:
    from pathlib import Path


def test_a_pipeline_whose_epochs_come_is_running() -> None:
    told = judged(log(100), written(9, 6, 3))
    assert (told.state, told.pace, told.advice) == (PipelineState.RUNNING, 3.0, "")


def test_a_pipeline_is_silent_after_many_times_its_usual_pace() -> None:
    noted = written(606, 603, 600)
    told = judged(log(700), noted)
    assert (told.state, told.silent_epochs, told.since) == (PipelineState.SILENT, 200, at(600))
    assert told.what == "nothing was written for 10:00 min, 200 times its usual pace of 3 s"


def test_a_slow_pipeline_is_not_silent_before_ten_of_its_epochs_are_missing() -> None:
    assert judged(log(9000), written(3 * 600, 2 * 600, 600)).state is PipelineState.RUNNING
    assert judged(log(9000), written(8 * 3600, 7 * 3600, 6 * 3600)).state is PipelineState.RUNNING


def test_without_notes_a_pipeline_is_silent_after_ten_minutes() -> None:
    states = [judged(log(ago, decided=True, completed=True), []).state for ago in (599, 601)]
    assert states == [PipelineState.RUNNING, PipelineState.SILENT]


def test_a_waiting_commit_shows_the_rows_and_seconds_that_are_left() -> None:
    told = judged(log(120, decided=True), written(130), expires_in=702)
    assert (told.state, told.rows, told.expires_in) == (PipelineState.WAITING, 538, 702)
    assert told.what == (
        "epoch 0 is decided and has waited for 2:00 min for its commit: 538 rows, which expire in 11:42 min"
    )


def test_a_waiting_commit_shows_what_has_failed_since() -> None:
    noted = written(130, what="failure", error="before") + written(60, what="failure", error="no table sums")
    told = judged(log(120, decided=True), sorted(noted, key=lambda one: one.at))
    assert told.what.endswith("538 rows; the last failure: no table sums")
    assert told.advice == "correct what has failed; then start the pipeline again, or commit it now"
    assert "before" not in judged(log(120, decided=True), noted[:1]).what


def test_rows_that_no_target_ends_are_not_said_to_expire() -> None:
    told = judged(log(120, decided=True, sinks=("topic", "table")), written(130), expires_in=702, expiring=538)
    assert told.what.endswith("538 rows for table, 538 rows for topic, some of which expire in 11:42 min")
    assert told.rows == 538  # the same rows, which are not added up


def test_rows_that_a_target_has_given_up_are_told_at_once() -> None:
    told = judged(log(5, decided=True), written(130), lost={"files": 1})
    assert (told.state, told.lost) == (PipelineState.WAITING, 1)
    assert told.what.endswith("; transactions that a target has ended without a commit: 1 of sink files")
    assert with_advice(told, "/data/orders", []).command == "onceward txn list --store /data/orders --sinks MODULE:NAME"


KAFKA = {"system": "kafka", "address": "broker:9092"}
LOGIN_OF_KAFKA = "the settings of the login and of TLS: --set kafka:@FILE"
COMMIT = "onceward txn commit --store /data/orders"


def waiting(targets: Any, *sinks: str, kind: str = "own") -> PipelineStatus:
    """The status of a pipeline whose sinks have decided transactions that wait, with the targets in the decision."""
    told = judged(log(120, decided=True, sinks=sinks or ("files",), kind=kind, targets=targets), [])
    return with_advice(told, "/data/orders", [])


def noting(targets: Any, kind: str = "own") -> PipelineStatus:
    """The same, of a decision that an older version made, with the targets in a note."""
    told = judged(log(120, decided=True, kind=kind), written(500, what="start", targets=targets))
    return with_advice(told, "/data/orders", [])


def test_the_command_names_the_targets_of_the_decision() -> None:
    told = waiting({"files": KAFKA, "another": {"system": "sql", "address": "x"}})
    assert (told.command, told.fill_in) == (f"{COMMIT} --at kafka=broker:9092 --yes", "")
    assert told.docs.endswith("/docs/operations.md#waiting")
    both = {"a": KAFKA, "b": {"system": "postgres", "address": "host=db user=o", "settings": ["ledger_schema=own"]}}
    told = waiting(both | {"c": KAFKA}, "a", "b", "c")
    more = "--at 'postgres=host=db user=o' --set postgres:ledger_schema=own"
    assert told.command == f"{COMMIT} --at kafka=broker:9092 {more} --yes"


def test_what_is_wrong_is_looked_for_where_the_sinks_write() -> None:
    targets = {"a": KAFKA | {"missing": "a login", "place": "sums"}, "b": {}}
    view = log(120, decided=True, completed=True, sinks=("a", "b"), targets=targets)
    told = judged(view, written(20, what="failure", error="x"))
    shown = with_advice(told, "/data/orders", [])
    assert shown.command == "onceward doctor --store /data/orders --at kafka=broker:9092 --place kafka:sums"
    assert shown.fill_in == f"for sink a add {LOGIN_OF_KAFKA}"
    given = with_advice(
        told, "/data/orders", ["--at", "kafka=other:9092", "--sinks", "a:B"]
    )  # which doctor does not take
    other = "onceward doctor --store /data/orders --at kafka=other:9092 --place kafka:sums"
    assert (given.command, given.fill_in) == (other, "")


def test_a_password_in_the_options_is_not_shown_but_asked_for() -> None:
    told = judged(log(120, decided=True), [])
    shown = with_advice(told, "/data/orders", ["--at", f"postgres=postgresql://o:{SECRET}@db/shop"])
    assert shown.command == f"{COMMIT} --at 'postgres=postgresql://o:***@db/shop' --yes"
    assert shown.fill_in == "replace *** with the password, which is not shown"


def test_of_a_source_that_does_not_answer_its_own_system_is_asked() -> None:
    noted = written(900, what="start", targets={"a": KAFKA})
    source = {"source": "in (topic x)", "seconds": 20, "why": "no broker answers"}
    noted += written(5, what="source", **source, system=KAFKA | {"address": "other:9092"})
    shown = with_advice(judged(log(120), noted), "/data/orders", ["--at", "kafka=broker:9092"])
    assert shown.command == "onceward doctor --store /data/orders"
    assert shown.fill_in.startswith(
        "add --at kafka=ADDRESS for source in (topic x) (a note beside the log says kafka=other:9092: check it"
    )
    unnamed = judged(log(120), written(5, what="source", **source))
    assert with_advice(unnamed, "/data/orders", []).command == "onceward doctor --store /data/orders"


def test_a_target_that_was_not_given_is_added_from_the_decision() -> None:
    targets = {"a": KAFKA, "b": {"system": "sql", "address": "mariadb://o@db/shop", "missing": "the password"}, "c": {}}
    told = judged(log(120, decided=True, sinks=("a", "b", "c"), targets=targets), [])
    shown = with_advice(told, "/data/orders", ["--at", "kafka=other:9092"])
    assert shown.command == f"{COMMIT} --at kafka=other:9092 --at sql=mariadb://o@db/shop --yes"
    assert shown.fill_in == "for sink b add the password in the URL"
    sinks = with_advice(told, "/data/orders", ["--sinks", "jobs:SINKS"])
    assert (sinks.command, sinks.fill_in) == (f"{COMMIT} --sinks jobs:SINKS --yes", "")


def test_two_systems_of_one_kind_are_asked_by_two_commands() -> None:
    told = waiting({"a": KAFKA, "b": KAFKA | {"address": "other:9092"}}, "a", "b")
    assert told.command == f"{COMMIT} --at kafka=broker:9092 --yes; {COMMIT} --at kafka=other:9092 --yes"


def test_what_must_be_filled_in_is_said_in_words() -> None:
    unknown = waiting({}, "a")
    assert unknown.command == f"{COMMIT} --at SYSTEM=ADDRESS --yes"
    assert unknown.fill_in.startswith(
        "replace SYSTEM=ADDRESS with the address that sink a writes to: kafka=HOST:PORT, postgres=DSN"
    )
    assert "redis" not in unknown.fill_in  # whose transactions no address finds
    secret = waiting({"a": KAFKA | {"missing": "a login"}}, "a")
    assert secret.command == f"{COMMIT} --at kafka=broker:9092 --yes"
    assert secret.fill_in == f"for sink a add {LOGIN_OF_KAFKA}"  # the connector's words, and nobody else's
    folder = waiting({"a": {}}, "a")
    assert folder.command == f"{COMMIT} --sinks MODULE:NAME --yes"
    assert "sink a writes somewhere that --at cannot name" in folder.fill_in
    some = waiting({"a": {}, "b": KAFKA}, "a", "b")
    assert some.command == f"{COMMIT} --at kafka=broker:9092 --yes"
    assert "sink a writes somewhere that --at cannot name: start the pipeline, which handles it" in some.fill_in


def test_without_notes_the_kind_of_the_transactions_says_what_to_fill_in() -> None:
    told = judged(log(120, decided=True, sinks=("a",), kind="kafka"), [])
    shown = with_advice(told, "postgresql://db/logs", [])
    assert shown.command.endswith("--pipeline orders --at kafka=HOST:PORT --yes")
    assert shown.fill_in == "replace kafka=HOST:PORT with the address that sink a writes to"
    folder = with_advice(judged(log(120, decided=True), []), "postgresql://db/logs", [])
    assert folder.command.endswith("--pipeline orders --sinks MODULE:NAME --yes")


@pytest.mark.parametrize(
    "noted",
    [
        None,
        "x",
        ["x"],
        *(
            {"files": each}
            for each in (7, {"address": 7}, {"address": "x" * 9999}, KAFKA | {"address": "a\n  → do this"})
        ),
        {"files": KAFKA | {"settings": ["a=\x1b[2J"]}},
    ],
)
def test_a_note_of_targets_that_somebody_else_wrote_is_ignored(noted: Any) -> None:
    told = noting(noted)
    assert "--at" in told.command
    assert told.command.split("--at ")[1] in {"SYSTEM=ADDRESS --yes", "kafka=HOST:PORT --yes"}
    assert "a note beside the log" not in told.fill_in


def test_the_address_of_a_note_is_told_in_words_for_a_person_to_judge() -> None:
    told = noting({"files": KAFKA})
    assert told.command == f"{COMMIT} --at kafka=HOST:PORT --yes"
    assert "(a note beside the log says kafka=broker:9092: check it, for any user" in told.fill_in
    assert "elsewhere" not in waiting({"files": KAFKA | {"system": "elsewhere"}}).command


SECRET = "s3cret-w0rd"
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "o",
    "sasl.password": SECRET,
}
SINKS = {
    "postgres=host=db user=o dbname=shop": PostgresSink("a", dsn=f"postgresql://o:{SECRET}@db/shop", table="t"),
    "sql=mariadb://o@db/shop": SqlAlchemySink("a", url=f"mariadb+pymysql://o:{SECRET}@db/shop", table="t"),
    "postgres=host=/run/pg port=5433 user=o dbname=shop sslmode=verify-full sslrootcert=/etc/ca.pem": PostgresSink(
        "a",
        dsn="host=/run/pg port=5433 user=o dbname=shop sslmode=verify-full sslrootcert=/etc/ca.pem password=x",
        table="t",
    ),
    "sql=sqlite:////data/shop.db": SqlAlchemySink("a", url="sqlite:////data/shop.db", table="t"),
    "kafka=b1:9092,b2:9092": KafkaSink("a", bootstrap_servers="b1:9092,b2:9092", topic="t", config=LOGIN),
}


@pytest.mark.parametrize("at_", SINKS)
def test_a_start_notes_where_its_sinks_write_and_no_secret(tmp_path: Path, at_: str) -> None:
    sink = SINKS[at_]
    coordinator = Coordinator("orders", DirectoryStore(tmp_path / "log"), [sink, FileSink("files", tmp_path / "out")])
    noted = coordinator._targets()  # the target of the sink is not there: the start would wait for it
    assert noted["files"] == {}
    assert SECRET not in str(noted)
    system, _, address = at_.partition("=")
    assert set(address.split()) == set(noted["a"]["address"].split())
    assert noted["a"]["system"] == system
    named, read = noted_address(json.loads(json.dumps(noted["a"])))  # what is noted may become a part of a command
    assert (named, read.address, read.place) == (system, noted["a"]["address"], "t")
    assert bool(noted["a"]["missing"]) == ("sqlite" not in at_)


def test_a_connector_that_fails_only_loses_the_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(part: Any) -> None:
        raise RuntimeError(part)

    monkeypatch.setattr(FilesConnector, "address_of", fail)
    assert address_to_note(FileSink("files", tmp_path)) == {}


def test_without_an_answer_of_the_target_the_time_that_is_left_is_known_at_most() -> None:
    """The targets may be down, or nobody has named them: the pipeline noted their timeouts when it started."""
    noted = written(500, what="start", timeouts={"files": 900.0, "another": 60.0})
    told = judged(log(120, decided=True), noted)
    assert (told.state, told.expires_in) == (PipelineState.WAITING, 780)
    assert told.what.endswith("for its commit: 538 rows, some of which expire in at most 13:00 min")
    answered = judged(log(120, decided=True), noted, expires_in=702, answered={"files"})
    assert answered.what.endswith("538 rows, which expire in 11:42 min")
    committed = judged(log(120, decided=True), noted, answered={"files"})  # it waits for another one
    assert committed.expires_in is None
    over = judged(log(1200, decided=True), noted)
    assert (over.expires_in, over.what.endswith("some of which may have expired")) == (0, True)


@pytest.mark.parametrize("timeouts", [None, [], {"files": "x"}, {"files": -1.0}, {"files": 1e300}, {}])
def test_a_timeout_that_somebody_else_wrote_does_no_harm(timeouts: Any) -> None:
    told = judged(log(120, decided=True), written(500, what="start", timeouts=timeouts))
    assert (told.state, told.expires_in) == (PipelineState.WAITING, None)


def test_a_commit_that_has_just_begun_is_no_waiting_one() -> None:
    assert judged(log(5, decided=True), written(9, 6)).state is PipelineState.RUNNING


def test_a_pipeline_that_starts_again_and_again_is_restarting_with_its_last_failure() -> None:
    noted = [*written(900, 300, 200, 100, what="start"), *written(95, what="failure", epoch=1, error="no such table")]
    told = judged(log(100), noted)
    assert (told.state, told.restarts, told.error) == (PipelineState.RESTARTING, 3, "no such table")
    assert told.what == "started 3 times in 5:00 min; the last failure: no such table"


def test_a_job_that_ends_by_itself_and_completes_an_epoch_each_time_is_not_restarting() -> None:
    notes = [note for ago in range(540, 0, -60) for note in (*written(ago, what="start"), *written(ago - 9))]
    assert judged(log(60), notes).state is PipelineState.RUNNING
    one_more = [*notes, *written(40, what="start"), *written(30, what="failure", error="bad record 7")]
    assert judged(log(60), one_more).state is PipelineState.FAILED
    in_vain = [*one_more, *written(20, what="start"), *written(10, what="failure"), *written(5, what="start")]
    assert judged(log(60), in_vain).state is PipelineState.RESTARTING
    assert judged(log(60), in_vain).restarts == 3


def test_a_waiting_commit_comes_before_the_restarts_that_cannot_end_it() -> None:
    assert judged(log(60, decided=True), written(300, 200, 100, what="start")).state is PipelineState.WAITING


@pytest.mark.parametrize(("what", "state"), [("failure", PipelineState.FAILED), ("end", PipelineState.ENDED)])
def test_the_newest_note_tells_how_the_last_run_ended(what: str, state: PipelineState) -> None:
    ended = written(7000, what=what, error="bad record 7")
    assert judged(log(9000), [*written(8000), *ended]).state is state
    assert judged(log(9000), [*ended, *written(3)]).state is PipelineState.RUNNING


def test_a_log_that_a_savepoint_has_moved_has_ended() -> None:
    assert judged(log(9000, moved="/elsewhere"), []).state is PipelineState.ENDED


def test_a_decision_from_the_future_waits_and_one_whose_clock_is_a_little_ahead_does_not() -> None:
    assert judged(log(-3600, decided=True), []).state is PipelineState.WAITING
    assert judged(log(-5, decided=True), []).state is PipelineState.RUNNING


def test_a_log_from_the_future_is_not_called_running() -> None:
    told = judged(log(-7200, decided=True, completed=True), written(-7200))
    assert (told.state, told.pace) == (PipelineState.SILENT, None)
    assert (
        told.what == "the time of its newest entry is 2:00 h in the future, so it is not known whether it still writes"
    )


def test_notes_from_the_future_hide_no_silence_once_the_clock_is_right() -> None:
    told = judged(log(700, decided=True, completed=True), written(-7200))
    assert (told.state, told.since) == (PipelineState.SILENT, at(700))


def test_the_first_in_the_list_needs_somebody_most(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.finish(0)
    note(folder.case.store, "failure", {"epoch": 1, "error": "no such table"})
    folder.run_engine()
    ended = CliRunner().invoke(app, ["status", "--store", str(folder.checkpoints), "--json"])
    told = json.loads(ended.stdout)
    assert [(one["pipeline"], one["state"]) for one in told] == [("orders", "failed"), ("totals", "ended")]
    assert (told[0]["error"], ended.exit_code) == ("no such table", 1)
    well = CliRunner().invoke(app, ["status", "--store", str(folder.checkpoints / "totals")])
    assert well.exit_code == 0, well.output


def test_a_damaged_log_is_unreadable_and_hides_no_other(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.finish(0)
    folder.run_engine()
    newest = max((folder.orders / "onceward").glob("0*"))
    newest.write_bytes(newest.read_bytes()[:20])
    ended = CliRunner().invoke(app, ["status", "--store", str(folder.checkpoints), "--json"])
    assert [one["state"] for one in json.loads(ended.stdout)] == ["unreadable", "ended"]
    assert ended.exit_code == 1


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.42, "0.4 s"), (59.6, "1:00 min"), (702, "11:42 min"), (11100, "3:05 h"), (400_000, "4 days")],
)
def test_times_are_for_people(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def engine(folder: Path, operator: Any) -> None:
    made = pipeline(
        store=DirectoryStore(folder / "log"),
        backend=FileBackend(folder / "state"),
        restart=RestartStrategy.fixed_delay(attempts=1, delay=0),
    )
    rows = made.source(SequenceSource(pa.Table.from_batches([numbered([1, 2, 3])])), uid="rows")
    rows.map(operator, uid="parse").sink(FileSink("out", folder / "out", format="jsonl"))
    made.run()


def test_a_run_of_the_engine_leaves_a_note_of_its_failure_and_of_its_end(tmp_path: Path) -> None:
    def fails(_: Any) -> Any:
        raise ValueError("bad record 7 of postgresql://me:secret@db/shop")

    with pytest.raises(OncewardError):
        engine(tmp_path, fails)
    told = pipeline_status(open_log(str(tmp_path / "log")))
    assert told.state is PipelineState.FAILED
    assert "bad record 7" in (told.error or "")
    assert "secret" not in (told.error or "")
    engine(tmp_path, lambda row: row)
    assert pipeline_status(open_log(str(tmp_path / "log"))).state is PipelineState.ENDED


def test_a_command_that_is_advised_shows_no_password_of_an_address() -> None:
    waiting = judged(log(120, decided=True), written(130))
    command = with_advice(waiting, "/logs/orders", ["--at", "postgres=postgresql://u:Tulpe@db/shop"]).command
    assert command.startswith("onceward txn commit --store /logs/orders --at 'postgres=postgresql://")
    assert "Tulpe" not in command


def test_the_page_shows_a_new_state_at_once_and_not_the_one_it_has_assessed_before(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.finish(0)
    watch, now = folder.watch(), datetime.now(UTC)
    (watched,) = watch.look()
    assert watched.status(now).state is PipelineState.RUNNING
    note(folder.case.store, "failure", {"epoch": 1, "error": "no such table"})
    (watched,) = watch.look()
    assert watched.status(now).state is PipelineState.FAILED


def test_the_command_for_a_log_that_cannot_be_read_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "orders" / "onceward"
    writer = LogWriter(DirectoryStore(folder), "orders", CommitPolicy())
    writer.start()
    (folder / f"{0:020}").write_text("{broken")
    done = CliRunner().invoke(app, ["status", "--store", str(tmp_path), "--json"])
    [told] = json.loads(done.output)
    assert (done.exit_code, told["state"]) == (1, "unreadable")
    assert told["command"] == f"onceward doctor --store {folder}"


def test_states_are_metrics_too_and_an_error_has_its_time(tmp_path: Path) -> None:
    odd = tmp_path / 'my "own" \\ logs'
    folder = Folder(odd)
    folder.finish(0)
    note(folder.case.store, "failure", {"epoch": 1, "error": "no such table"})
    done = CliRunner().invoke(app, ["status", "--store", str(odd), "--json"])
    [told] = json.loads(done.output)
    assert told["error"] == "no such table"
    assert abs((datetime.fromisoformat(told["error_at"]) - datetime.now(UTC)).total_seconds()) < 60
    done = CliRunner().invoke(app, ["status", "--store", str(odd), "--metrics"])
    assert done.exit_code == 1
    samples = {
        (one.name, one.labels["state"]): one.value
        for family in text_string_to_metric_families(done.output)
        for one in family.samples
        if one.labels["store"] == told["store"]
    }
    assert samples == {("onceward_pipeline_state", str(state)): float(state == "failed") for state in PipelineState}


def altered(folder: Path, change: Any) -> None:
    """Change each decision of a log in a folder, and give it a right checksum."""
    for file in folder.iterdir():
        if file.name.isdigit() and (entry := json.loads(file.read_bytes().partition(b"\n")[2]))["entry"] == "DECIDE":
            change(entry)
            body = json.dumps(entry).encode()
            file.write_bytes(f"onceward-log/1 {sha256(body).hexdigest()}\n".encode() + body + b"\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry["state"].update(checkpoint={"folder": {}}),
        lambda entry: entry["state"].update(checkpoint=7),
        lambda entry: entry.update(targets={"files": 7}, at="x" * 9999, sinks=[""], datasets={"": ""}),
        lambda entry: entry.update(input={"query": "", "end": {"": [None]}}, follows=2**70),
        lambda entry: entry.update(committables=7),
    ],
)
def test_one_odd_entry_hides_no_other_pipeline(tmp_path: Path, change: Any) -> None:
    folder = Folder(tmp_path)
    folder.finish(0)
    folder.run_engine()
    altered(folder.checkpoints / "totals" / "log", change)
    result = CliRunner().invoke(app, ["status", "--store", str(folder.checkpoints)])
    assert result.exit_code in {0, 1}, result.output
    assert "orders: running" in result.stdout
    assert "totals" in result.stdout
    assert Desk(folder.watch(), Search()).state() is not None


@pytest.mark.parametrize("folder_", ["memory://nowhere/1", "s3://nowhere/1", "unknown://nowhere/1", "/root/\0/1"])
def test_a_state_that_this_machine_cannot_read_says_nothing_of_the_log(tmp_path: Path, folder_: str) -> None:
    """Status reads the log and its notes: where the engine's checkpoints are, it may have no access."""
    folder = Folder(tmp_path)
    folder.run_engine()
    log_ = str(folder.checkpoints / "totals" / "log")
    altered(folder.checkpoints / "totals" / "log", lambda entry: entry["state"].update(checkpoint={"folder": folder_}))
    assert pipeline_status(open_log(log_)).state is PipelineState.ENDED
    result = CliRunner().invoke(app, ["checkpoints", "--store", log_, "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["status"]["state"], told["epochs"][-1]["checkpoint"]) == ("ended", folder_)
    assert told["epochs"][-1]["retained"] == []


@pytest.mark.parametrize(
    "noted",
    [
        {"what": "life", "fields": {"code": 1, "again": 10**400}},
        {"what": "life", "fields": {"code": 10**30, "again": float("inf")}},
        {"what": "source", "fields": {"source": {}, "seconds": 10**400, "why": ["x"], "system": 7}},
        {"what": "start", "fields": {"timeouts": {"files": 10**400}, "targets": [7]}},
        {"what": "failure", "at": "9" * 5000, "fields": {"error": {"x": [1]}}},
        {"what": "epoch", "at": "-1", "fields": {"epoch": 10**400}},
    ],
)
def test_one_odd_note_hides_no_pipeline(tmp_path: Path, noted: Any) -> None:
    folder = Folder(tmp_path)
    folder.finish(0)
    folder.run_engine()
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    with (folder.checkpoints / "totals" / "log" / ".history").open("a") as file:
        file.write(json.dumps({"at": now, **noted}) + "\n")
    result = CliRunner().invoke(app, ["status", "--store", str(folder.checkpoints)])
    assert result.exit_code in {0, 1}, result.output
    assert "orders: running" in result.stdout
    assert "totals" in result.stdout
    assert Desk(folder.watch(), Search()).state() is not None


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_folder_that_cannot_be_searched_is_told_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder = Folder(tmp_path)
    folder.finish(0)
    folder.run_engine()
    (folder.checkpoints / "lost+found").mkdir()
    scan = os.scandir

    def scandir(path: Any) -> Any:
        if "totals" in str(path) or "lost+found" in str(path):
            raise OSError(number, os.strerror(number), str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    result = CliRunner().invoke(app, ["status", "--store", str(folder.checkpoints), "--json"])
    told = [(one["state"], one["store"]) for one in json.loads(result.stdout)]
    totals = str(folder.checkpoints / "totals")
    assert (told[0], [state for state, _ in told]) == (("unreadable", totals), ["unreadable", "running"])
    assert result.exit_code == 1
    assert os.strerror(number) in find_logs(str(folder.checkpoints)).errors[totals]
    watch = folder.watch()
    watch.look()
    assert list(watch.unreadable) == [totals]


def test_the_targets_that_answer_hide_no_deadline_of_the_others() -> None:
    """Three states: asked and answered, asked and silent, not asked; each with the latest deadline that is known."""
    noted = written(500, what="start", timeouts={"topic": 900.0}, targets={"topic": {}, "table": {}, "more": {}})
    view = log(120, decided=True, sinks=("topic", "table"))
    some = judged(view, noted, answered={"table"})
    assert (some.expires_in, some.at_most, some.unasked, some.silent) == (780, True, ("topic",), ())
    assert some.what.endswith("some of which expire in at most 13:00 min; the target of sink topic was not asked")
    silent = judged(view, noted, answered={"table"}, silent={"topic"})
    assert (silent.expires_in, silent.at_most, silent.silent) == (780, True, ("topic",))
    assert silent.what.endswith("13:00 min; the target of sink topic does not answer")
    both = judged(view, noted, answered={"table"}, silent={"topic"}, expires_in=100)
    assert (both.expires_in, both.at_most) == (100, False)
    unknown = judged(view, [], answered={"table"}, silent={"topic"})
    assert unknown.expires_in is None
    assert unknown.what.endswith("the target of sink topic does not answer; when rows for topic expire is not known")
    none = judged(view, noted, answered={"topic", "table"})
    assert (none.expires_in, none.what.endswith("538 rows for table, 538 rows for topic")) == (None, True)


def test_rows_that_a_target_has_committed_are_not_counted_as_waiting() -> None:
    told = judged(log(120, decided=True, sinks=("topic", "table")), [], answered={"topic", "table"}, committed={"t1"})
    assert (told.rows, told.what.endswith("for its commit: 538 rows")) == (538, True)


def test_a_decision_of_a_clock_that_is_ahead_has_its_whole_timeout_at_most() -> None:
    told = judged(log(-300, decided=True), written(5, what="start", timeouts={"files": 900.0}))
    assert (told.state, told.expires_in, told.at_most) == (PipelineState.WAITING, 900, True)
    assert "the clock of its driver, or of this machine, is wrong" in told.what


def test_of_two_that_wait_the_one_with_less_time_is_first(tmp_path: Path) -> None:
    left = {"a": None, "b": 840, "c": 16, "d": 100}
    statuses = [
        PipelineStatus(pipeline=name, store="", state=PipelineState.WAITING, what="", expires_in=seconds)
        for name, seconds in left.items()
    ]
    statuses += [PipelineStatus(pipeline="z", store="", state=PipelineState.UNREADABLE, what="")]
    assert [one.pipeline for one in sorted(statuses, key=lambda one: one.urgency)] == ["z", "c", "d", "b", "a"]
    for name, ago in (("aaa", 100), ("zzz", 850)):
        now = datetime.now(UTC) - timedelta(seconds=ago)
        store = DirectoryStore(tmp_path / name)
        writer = LogWriter(store, name, CommitPolicy(now=lambda now=now: now.isoformat(timespec="milliseconds")))
        writer.start()
        mine = Committable(
            kind="files", pipeline=name, sink="f", log=writer.view.log, generation=0, epoch=0, transaction="t", rows=1
        )
        writer.decide(0, [mine], sinks=["f"], epoch_input=EpochInput())
        note(store, "start", {"timeouts": {"f": 900}})
    result = CliRunner().invoke(app, ["status", "--store", str(tmp_path)])
    assert result.stdout.startswith("zzz: waiting")
    order = json.loads(bytes(Desk(Watch([str(tmp_path)]), Search()).state().parts[""]))["order"]  # type: ignore[union-attr]
    watch = Watch([str(tmp_path)])
    assert order == [one.shown.id for one in sorted(watch.look(), key=lambda one: one.log.pipeline, reverse=True)]


def by_tool(tool: str, ago: float = 60) -> LogView:
    """The log of a run, and behind it the START of an operator's command that commits what waited."""
    store = MemoryStore()
    run = LogWriter(store, "orders", CommitPolicy(now=lambda: at(120)))
    run.start()
    run.decide(0, [], sinks=["files"], epoch_input=EpochInput())
    operator = LogWriter(store, "orders", CommitPolicy(now=lambda: at(ago)))
    operator.start(tool)
    operator.complete(0)
    return operator.view


@pytest.mark.parametrize(
    ("tool", "done"), [("txn commit", "committed"), ("txn abort", "aborted"), ("repair-log", "repaired")]
)
def test_after_an_operators_command_the_pipeline_is_to_be_started(tool: str, done: str) -> None:
    noted = [*written(130, what="start"), *written(60, epoch=0, tool=tool)]
    told = judged(by_tool(tool), noted)
    assert (told.state, told.advice) == (PipelineState.FAILED, "start the pipeline")
    assert told.what == f"{done} by hand (onceward {tool}) 60 s ago; no run since".replace("60 s", "1:00 min")
    assert (
        judged(by_tool(tool), [*noted, *written(50, what="life", code=1, again=100.0)]).state
        is PipelineState.RESTARTING
    )
    ended = [*written(130, what="start"), *written(110, what="end"), *written(60, epoch=0, tool=tool)]
    assert judged(by_tool(tool), ended).state is PipelineState.ENDED


def run_after(ago: float) -> LogView:
    """The log of two runs, one after the other."""
    store = MemoryStore()
    for each in (9000, ago):
        writer = LogWriter(store, "orders", CommitPolicy(now=lambda each=each: at(each)))
        writer.start()
    return writer.view


@pytest.mark.parametrize("what", ["end", "failure", "life"])
def test_a_start_that_no_tool_wrote_is_a_run_whatever_older_notes_say(what: str) -> None:
    old = written(100, what=what, error="x", code=0)
    assert judged(run_after(50), old).state is PipelineState.RUNNING
    assert judged(run_after(50), old).what.startswith("started 50 s ago; ")
    assert judged(run_after(5000), written(5100, what=what, error="x", code=0)).state is PipelineState.SILENT
    assert judged(run_after(150), old).state is not PipelineState.RUNNING


def test_the_end_of_the_predecessor_that_is_noted_later_is_not_that_of_the_run() -> None:
    view = run_after(50)
    ended = written(40, what="life", code=0, writers=["another"])
    assert judged(view, ended).state is PipelineState.RUNNING
    assert judged(view, written(40, what="life", code=0, writers=[view.writer_id])).state is PipelineState.ENDED


def test_a_decision_whose_driver_is_known_to_be_dead_waits_at_once() -> None:
    assert judged(log(5, decided=True), written(3, what="failure", error="x")).state is PipelineState.WAITING
    told = judged(log(5, decided=True), written(9, 6))
    assert told.what == "epoch 0 was decided 5 s ago, and is being committed; the last epoch was completed 6 s ago"


def test_a_first_failure_that_onceward_run_ends_by_itself_needs_nobody() -> None:
    noted = written(100, 97, 94) + written(90, what="life", code=137, again=45.0, stopped=False)
    told = judged(log(200), noted)
    assert (told.state, told.needs_somebody) == (PipelineState.RESTARTING, False)
    assert told.what == "starting again since 45 s after exit code 137 (1st time)"
    assert with_advice(told, "/data/orders", []).command == ""


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"f_bavail": 0}, "the disk of its decision log is full (0 bytes are left), so nothing can be decided"),
        ({"f_flag": os.ST_RDONLY}, "the file system of its decision log is read-only, so nothing can be decided"),
        ({"f_favail": 0}, "no inodes are left"),
    ],
)
def test_a_log_that_nobody_can_write_is_not_running_and_doctor_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, int], what: str
) -> None:
    """Its driver cannot note that it fails, so its silence says nothing."""
    folder = Folder(tmp_path)
    folder.finish(0)
    there = os.statvfs(tmp_path)
    names = ("f_flag", "f_bavail", "f_frsize", "f_blocks", "f_files", "f_favail")
    now = SimpleNamespace(**{**{name: getattr(there, name) for name in names}, "f_files": 9, "f_favail": 9, **fields})
    monkeypatch.setattr(os, "statvfs", lambda _: now)
    result = CliRunner().invoke(app, ["status", "--store", str(folder.orders)])
    assert (result.exit_code, what in result.stdout) == (1, True), result.stdout
    assert result.stdout.startswith("orders: failed; ")
    [one] = folder.watch().look()
    assert one.status(datetime.now(UTC)).state is PipelineState.FAILED
    waits = judged(log(120, decided=True), [], obstacle="the disk is full")
    assert (waits.state, "; the disk is full" in waits.what) == (PipelineState.WAITING, True)
    assert judged(log(120), written(100, what="end"), obstacle="the disk is full").state is PipelineState.ENDED


def test_doctor_tries_a_write_and_a_sync_beside_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path)
    folder.finish(0)
    before = sorted(path.name for path in (folder.orders / "onceward").iterdir())
    assert check_store(str(folder.orders), None).health is not Health.FAILED

    store = DirectoryStore(folder.orders / "onceward")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        found = _tried(store)
    assert found is not None
    assert (found.health, "No space left on device" in found.found) == (Health.FAILED, True)
    assert sorted(path.name for path in (folder.orders / "onceward").iterdir()) == before


def test_a_store_of_several_pipelines_needs_a_name_and_one_that_is_down_has_one() -> None:
    url = "postgresql+psycopg://u@127.0.0.1:1/x"
    assert isinstance(CliRunner().invoke(app, ["status", "--store", url]).exception, RefusedError)  # exit code 2
    result = CliRunner().invoke(app, ["status", "--store", url, "--pipeline", "orders", "--json"])
    [told] = json.loads(result.stdout)
    assert (told["pipeline"], told["state"], result.exit_code) == ("orders", "unreadable", 1)
    assert told["command"] == f"onceward doctor --store {url} --pipeline orders"


def test_two_logs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for name in ("a", "b"):
        LogWriter(DirectoryStore(tmp_path / name), "orders", CommitPolicy()).start()
    result = CliRunner().invoke(app, ["status", "--store", str(tmp_path)])
    assert [line.partition(":")[0] for line in result.stdout.splitlines() if line.startswith("orders")] == [
        f"orders (folder {tmp_path / name})" for name in ("a", "b")
    ]
