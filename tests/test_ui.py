"""The local page: what it shows, whom it answers, and that its actions are those of the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from onceward import FileSink
from onceward.cli import show
from onceward.cli.main import app
from onceward.cli.operate import Search
from onceward.cli.ui.desk import Desk, Look, Watch
from onceward.cli.ui.model import EPOCHS
from onceward.connectors.kafka.connector import KafkaConnector
from onceward.core.checkpoint import CommitPolicy
from onceward.core.contract.targets import Target, sinks_target
from onceward.core.contract.transaction import Committable
from onceward.core.errors import NoDecisionLogError, RetryableSinkError
from onceward.core.log import DirectoryStore, LogWriter, MemoryStore, open_store, read
from onceward.core.log.note_kinds import EpochNote
from onceward.core.log.notes import FILE, MOST_BYTES, OLDER, note, notes
from onceward.core.log.sql import SqlStore
from onceward.core.operations.discovery import Unsynced
from onceward.core.operations.history import TRANSACTIONS, decided_epochs
from onceward.core.operations.log_locations import open_log
from onceward.core.operations.status import PipelineState

from .status_kit import noted
from .ui_kit import TOKEN, Folder

starlette = pytest.importorskip("starlette", reason="the extra `ui` is not installed")
pytest.importorskip("httpx", reason="starlette's test client needs httpx")

from starlette.testclient import TestClient  # noqa: E402

from onceward.cli.ui.web import STATIC, make_app  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

HEADERS = {"x-onceward-token": TOKEN}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("ui_jobs", None)
    return Folder(tmp_path)


def _in_two_hours() -> str:
    return (datetime.now(UTC) + timedelta(hours=2)).isoformat(timespec="milliseconds")


def client(folder: Folder, host: str = "127.0.0.1:8461", names: Any = None, **options: Any) -> TestClient:
    return TestClient(make_app(folder.desk(**options), TOKEN, names), base_url=f"http://{host}", headers=HEADERS)


def listed(asked: TestClient) -> list[dict[str, Any]]:
    answer = asked.get("/api/state")
    assert answer.status_code == 200
    parts = answer.json()["parts"]
    return [parts[one] for one in parts[""]["order"]]


def shown(asked: TestClient, name: str = "orders") -> dict[str, Any]:
    [id_] = [one["id"] for one in listed(asked) if one["name"] == name]
    parts = asked.get(f"/api/pipelines/{id_}").json()["parts"]
    told: dict[str, Any] = parts[""]["pipeline"]
    return told | {"epochs": [parts[epoch] for epoch in parts[""]["order"]]}


class TestWhatIsShown:
    def test_epochs_of_a_spark_query_with_rows_durations_and_sparks_own_times(self, folder: Folder) -> None:
        for epoch in range(12):
            folder.finish(epoch)
        told = shown(client(folder))
        assert [row["epoch"] for row in told["epochs"]] == list(range(11, -1, -1))
        newest, oldest = told["epochs"][0], told["epochs"][-1]
        assert (newest["status"], newest["rows"], newest["sinks"]) == ("completed", 6, {"files": 6})
        assert (told["driver"], told["waiting"], newest["transactions"]) == ("Spark", None, 2)
        assert newest["milliseconds"] is not None
        assert newest["logged"] is not None
        assert [one["sink"] for one in newest["written"]] == ["files", "files"]
        assert (oldest["rows"], oldest["written"]) == (6, [])
        assert [step["state"] for step in newest["steps"]] == ["done"] * 6
        assert len(told["starts"]) == 1

    def test_steps_are_in_order_though_the_note_is_written_a_little_later(self, folder: Folder) -> None:
        folder.finish(0)
        note(
            DirectoryStore(folder.orders / "onceward"),
            "epoch",
            {"epoch": 0, "milliseconds": 5, "commit_milliseconds": 0},
        )
        [epoch] = shown(client(folder))["epochs"]
        times = [step["at"] for step in epoch["steps"] if step["at"] and step["step"] != "Spark logs the batch"]
        assert times == sorted(times)

    def test_a_batch_that_spark_has_planned_is_in_progress(self, folder: Folder) -> None:
        folder.finish(0)
        (folder.orders / "offsets" / "1").write_text("v1")
        newest = shown(client(folder))["epochs"][0]
        assert (newest["epoch"], newest["status"]) == (1, "in progress")
        assert [step["state"] for step in newest["steps"]][:2] == ["waiting", "ahead"]

    def test_a_decision_that_waits_is_a_step_in_progress(self, folder: Folder) -> None:
        folder.finish(0)
        folder.die_after_deciding(1)
        told = shown(client(folder))
        newest = told["epochs"][0]
        assert (newest["epoch"], newest["status"], newest["position"]) == (1, "decided", told["waiting"])
        states = {step["step"]: step["state"] for step in newest["steps"]}
        assert (states["decide"], states["commit"], states["complete"]) == ("done", "waiting", "ahead")

    def test_the_wait_of_a_decision_that_was_completed_later_counts_as_no_time_of_the_epoch(
        self, folder: Folder
    ) -> None:
        folder.finish(0)
        folder.die_after_deciding(1)
        began = time.time() - 5
        os.utime(folder.orders / "offsets" / "1", (began, began))
        (decision,) = [d for d, done in read(DirectoryStore(folder.orders / "onceward")).decisions if done is None]
        writer = LogWriter(DirectoryStore(folder.orders / "onceward"), "orders", CommitPolicy(now=_in_two_hours))
        writer.start("txn commit")
        writer.complete(decision.epoch)
        newest = shown(client(folder))["epochs"][0]
        assert (newest["epoch"], newest["status"]) == (1, "completed")
        assert 0 < newest["milliseconds"] < 60_000

    def test_the_engines_checkpoints_with_size_alignment_and_acknowledged_subtasks(self, folder: Folder) -> None:
        folder.run_engine()
        told = shown(client(folder), "totals")
        newest = next(row for row in told["epochs"] if row["subtasks"])
        assert told["driver"] == "embedded engine"
        assert (newest["status"], newest["subtasks"], newest["acknowledged"]) == ("completed", 2, 2)
        assert newest["alignment"] >= 0
        assert newest["size"] is not None
        assert len(newest["tasks"]) == 2

    def test_what_a_start_finished_and_swept_is_shown(self, folder: Folder) -> None:
        swept = folder.case.prepare(0, subtask=7)
        decided = folder.die_after_deciding(0)
        folder.case.start()
        newest = shown(client(folder))["starts"][0]
        assert (newest["finished"], newest["aborted"]) == ([decided.transaction], [swept.transaction])

    def test_pipelines_are_found_in_a_folder_of_checkpoints_and_by_name(self, folder: Folder) -> None:
        folder.finish(0)
        folder.run_engine()
        assert sorted(one.log.pipeline for one in folder.watch().look()) == ["orders", "totals"]
        assert [one.log.pipeline for one in folder.watch(pipeline="totals").look()] == ["totals"]
        for inside in ("", "onceward"):
            assert len(Watch([str(folder.orders / inside)]).look()) == 1
            assert len(Watch([f"{folder.orders / inside}?shared=true"]).look()) == 1

    def test_a_pipeline_appears_when_it_starts(self, folder: Folder) -> None:
        now = [0.0]
        watch = folder.watch(clock=lambda: now[0])
        assert len(watch.look()) == 1
        folder.run_engine()
        assert len(watch.look()) == 1
        now[0] = 60.0
        assert len(watch.look()) == 2

    def test_another_store_is_shown_by_name_with_what_was_seen_of_it(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/log.db"
        from onceward.core.log import EpochInput, open_store

        writer = LogWriter(open_store(url, pipeline="p"), "p", CommitPolicy())
        writer.start()
        writer.decide(0, [], sinks=["out"], epoch_input=EpochInput())
        writer.complete(0)
        [watched] = Watch([url], "p").look()
        assert [(row.epoch, row.status) for row in watched.shown.epochs] == [(0, "completed")]
        unnamed = Watch([url])
        assert unnamed.look() == []
        assert "--pipeline" in unnamed.errors[0]

    @pytest.mark.parametrize("damage", ["garbage", "empty", "folder", "pipe"])
    def test_a_damaged_log_is_told_and_hides_no_other(self, folder: Folder, damage: str) -> None:
        folder.finish(0)
        log = folder.orders.parent / "a-damaged-one"  # searched before the other
        log.mkdir()
        entry = log / f"{0:020}"
        if damage == "folder":
            entry.mkdir()
        elif damage == "pipe":
            os.mkfifo(entry)
        else:
            entry.write_bytes(b"garbage" * (damage == "garbage"))
        asked = client(folder)
        assert [one["name"] for one in listed(asked)] == ["orders"]
        errors = asked.get("/api/state").json()["parts"][""]["errors"]
        assert [str(log) in error for error in errors] == [True]


class TestWorkIsBounded:
    def test_nothing_is_read_while_nothing_changes(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.finish(0)
        watch = folder.watch()
        watch.look()
        reads: list[str] = []
        real = Unsynced.get
        monkeypatch.setattr(Unsynced, "get", lambda self, key: reads.append(key) or real(self, key))
        watch.look()
        assert reads == []
        folder.finish(1)
        watch.look()
        assert 0 < len(reads) < 20

    def test_reading_syncs_nothing(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.finish(0)
        monkeypatch.setattr("os.fsync", lambda _: pytest.fail("the page synced a folder of a running pipeline"))
        assert folder.watch().look()

    def test_the_number_of_epochs_and_the_size_of_the_notes_have_a_limit(self, folder: Folder) -> None:
        store = DirectoryStore(folder.orders / "onceward")
        fields = {"rows": 1, "sinks": {"files": 1}, "transactions": 1, "milliseconds": 5, "pad": "x" * 1000}
        for epoch in range(3 * MOST_BYTES // 1000):
            note(store, "epoch", {"epoch": epoch, **fields})
        kept = [store.path / FILE, store.path / OLDER]
        assert all(path.stat().st_size < MOST_BYTES + 2000 for path in kept)
        assert len(shown(client(folder))["epochs"]) == EPOCHS

    def test_pages_that_ask_at_the_same_time_share_one_look(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.finish(0)
        read: list[int] = []
        look = Watch.look
        monkeypatch.setattr(Watch, "look", lambda self: read.append(1) or look(self))
        desk = Desk(folder.watch(), Search(), clock=lambda: 7.0)
        asked = TestClient(make_app(desk, TOKEN), base_url="http://localhost", headers=HEADERS)
        for _ in range(3):
            shown(asked)
        assert len(read) == 1

    def test_what_did_not_change_is_not_sent_again(self, folder: Folder) -> None:
        for epoch in range(3):
            folder.finish(epoch, subtasks=200)
        asked = client(folder)
        path = f"/api/pipelines/{listed(asked)[0]['id']}"
        first = asked.get(path)
        assert len(first.content) > 20_000
        again = asked.get(path, params={"since": first.json()["version"]})
        assert (again.status_code, again.content) == (204, b"")
        folder.finish(3)
        changed = asked.get(path, params={"since": first.json()["version"]})
        assert len(changed.content) < 5_000
        parts = first.json()["parts"] | changed.json()["parts"]
        whole = asked.get(path).json()["parts"]
        assert {name: parts[name] for name in whole} == whole

    def test_a_running_pipeline_is_not_sent_again_because_time_passes(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.finish(0)
        asked = client(folder)
        first = asked.get("/api/state").json()

        class Later(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return datetime.now(tz) + timedelta(seconds=25)

        monkeypatch.setattr("onceward.cli.ui.desk.datetime", Later)
        assert asked.get("/api/state", params={"since": first["version"]}).status_code == 204

    @pytest.mark.parametrize("since", ["", "0", "-1", "x", "²", "9" * 5000, "10000"])
    def test_a_page_whose_version_is_not_known_gets_everything(self, folder: Folder, since: str) -> None:
        folder.finish(0)
        asked = client(folder)
        assert asked.get("/api/state", params={"since": since}).json() == asked.get("/api/state").json()

    def test_a_pipeline_that_does_not_exist_is_an_error(self, folder: Folder) -> None:
        folder.finish(0)
        answer = client(folder).get("/api/pipelines/none")
        assert (answer.status_code, answer.json()) == (404, {"error": "the pipeline no longer exists"})


class TestNotes:
    def test_a_note_that_cannot_be_written_or_read_fails_nothing(self, tmp_path: Path) -> None:
        store = DirectoryStore(tmp_path / "log")
        note(store, "epoch", {"a": object()})
        note(MemoryStore(), "epoch", {})
        note(store, "epoch", {"epoch": 1})
        with (store.path / FILE).open("ab") as file:
            file.write(b'{"what": "epo\n\xff\n[]\n')
        note(store, "epoch", {"epoch": 2})
        assert [one.epoch for one in noted(store.path, EpochNote)] == [1, 2]
        (store.path / FILE).unlink()
        store.path.rmdir()
        note(store, "epoch", {"epoch": 3})
        assert notes(store.path, 10) == []

    def test_starts_are_shown_behind_any_number_of_later_epochs(self, folder: Folder) -> None:
        folder.finish(0)
        store = DirectoryStore(folder.orders / "onceward")
        for epoch in range(1, 1200):
            note(store, "epoch", {"epoch": epoch, "rows": 1, "sinks": {"files": 1}, "transactions": 1})
        assert len(shown(client(folder))["starts"]) == 1

    def test_notes_are_no_entries_of_the_log(self, folder: Folder) -> None:
        folder.finish(0)
        store = folder.case.store
        assert (folder.orders / "onceward" / FILE).exists()
        assert FILE not in store.list_keys()
        assert read(store).completed == 0


class TestWhoIsAnswered:
    @pytest.mark.parametrize("path", ["/api/state", "/api/pipelines/x", "/api/look", "/api/commit", "/api/abort"])
    @pytest.mark.parametrize("token", [None, "", "wrong", "a-token-for-test", "é"])
    def test_without_the_token_nothing_is_told_or_done(self, folder: Folder, path: str, token: str | None) -> None:
        headers: Any = {} if token is None else {"x-onceward-token": token.encode()}
        asked = TestClient(make_app(folder.desk(), TOKEN), base_url="http://localhost")
        method = "GET" if path in {"/api/state", "/api/pipelines/x"} else "POST"
        answer = asked.request(method, path, headers=headers, content=b"{}")
        assert (answer.status_code, list(answer.json())) == (401, ["error"])

    @pytest.mark.parametrize("path", ["/", "/api/state", "/static/app.js"])
    @pytest.mark.parametrize(
        "host",
        [
            *("evil.example", "evil.example:8461", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.7"),
            *("[", "", "127.0.0.1/x", "127.0.0.1?x", "127.0.0.1#x", "evil@127.0.0.1", "127.0.0.1:abc"),
            "127.0.0.1:99999",
        ],
    )
    def test_another_host_name_is_refused(self, folder: Folder, path: str, host: str) -> None:
        answer = client(folder).get(path, headers={"host": host})
        assert answer.status_code == 403

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9000", "[::1]:8461", "127.8.0.1:80"])
    def test_this_machine_is_answered_under_any_port(self, folder: Folder, host: str) -> None:
        assert client(folder).get("/api/state", headers={"host": host}).status_code == 200

    def test_an_exposed_page_answers_to_addresses_and_its_own_name_only(self, folder: Folder) -> None:
        asked = client(folder, names={"box"})
        for host, status in (("10.0.0.7:8461", 200), ("box:8461", 200), ("evil.example", 403)):
            assert asked.get("/", headers={"host": host}).status_code == status

    @pytest.mark.parametrize(
        "headers",
        [
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ],
    )
    def test_requests_of_other_sites_are_refused_even_with_the_token(
        self, folder: Folder, headers: dict[str, str]
    ) -> None:
        assert client(folder).post("/api/look", headers=headers).status_code == 403

    def test_the_pages_own_requests_are_answered(self, folder: Folder) -> None:
        headers = {"origin": "http://127.0.0.1:8461", "sec-fetch-site": "same-origin"}
        assert client(folder).post("/api/look", headers=headers).status_code == 200

    def test_an_action_needs_a_post(self, folder: Folder) -> None:
        assert client(folder).get("/api/commit").status_code == 405

    def test_every_answer_has_a_policy_without_inline_scripts(self, folder: Folder) -> None:
        asked = client(folder)
        for path in ("/", "/static/app.js", "/api/state", "/nothing"):
            headers = asked.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in headers

    def test_the_page_has_no_inline_script_or_style_and_loads_nothing_from_elsewhere(self) -> None:
        html, script = (STATIC / "index.html").read_text(), (STATIC / "app.js").read_text()
        assert html.count("<script") == html.count('<script type="module" src="/static/app.js"></script>') == 1
        for word in ("<style", "style=", "onclick=", "://", "javascript:"):
            assert word not in html
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "://"):
            assert word not in script

    @pytest.mark.parametrize("path", ["/static/../web.py", "/static/%2e%2e/web.py", "/static//etc/passwd", "/static/"])
    def test_no_other_file_is_served(self, folder: Folder, path: str) -> None:
        assert client(folder).get(path).status_code == 404

    @pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"pipeline": 1}', b'{"position": 1}', b"\xff"])
    def test_a_request_that_cannot_be_read_is_refused(self, folder: Folder, body: bytes) -> None:
        answer = client(folder).post("/api/commit", content=body)
        assert (answer.status_code, list(answer.json())) == (400, ["error"])

    def test_a_request_that_is_too_long_is_refused(self, folder: Folder) -> None:
        assert client(folder).post("/api/commit", content=b"x" * (2 << 20)).status_code == 413


class TestActions:
    def commit(self, asked: TestClient, told: dict[str, Any], **other: Any) -> Any:
        order = {"pipeline": told["id"], "position": told["waiting"], "confirm": "orders", **other}
        return asked.post("/api/commit", json=order)

    def test_a_decision_is_committed_as_by_txn_commit(self, folder: Folder) -> None:
        folder.finish(0)
        committable = folder.die_after_deciding(1)
        asked = client(folder)
        [found] = asked.post("/api/look").json()["done"]["transactions"]
        assert (found["transaction"], found["status"], found["held"]) == (committable.transaction, "decided", True)
        answer = self.commit(asked, shown(asked))
        assert answer.json() == {"done": "Epoch 1 is completed; committed transactions: 1"}
        told = shown(asked)
        assert (told["waiting"], told["epochs"][0]["status"]) == (None, "completed")
        assert asked.post("/api/look").json() == {"done": {"transactions": [], "unanswered": {}}}

    def test_a_decision_that_was_not_seen_is_not_committed(self, folder: Folder) -> None:
        folder.die_after_deciding(0)
        asked = client(folder)
        told = shown(asked)
        answer = self.commit(asked, told, position=told["waiting"] + 1)
        assert answer.status_code == 409
        assert "nothing was done" in answer.json()["error"]
        assert open_log(str(folder.orders)).view.tail == told["waiting"]

    @pytest.mark.parametrize("other", [{"confirm": "order"}, {"confirm": ""}, {"pipeline": "12345678"}])
    def test_without_the_confirmation_nothing_is_done(self, folder: Folder, other: dict[str, str]) -> None:
        folder.die_after_deciding(0)
        asked = client(folder)
        told = shown(asked)
        assert self.commit(asked, told, **other).status_code == 400
        assert open_log(str(folder.orders)).view.tail == told["waiting"]

    def test_a_page_that_only_shows_does_nothing(self, folder: Folder) -> None:
        folder.die_after_deciding(0)
        asked = client(folder, actions=False)
        assert asked.get("/api/state").json()["parts"][""]["actions"] is False
        assert self.commit(asked, shown(asked)).status_code == 400

    def test_what_no_decision_names_is_aborted_by_name_and_what_is_decided_never(self, folder: Folder) -> None:
        doubtful = folder.case.prepare(0, subtask=3).transaction
        decided = folder.die_after_deciding(0).transaction
        asked = client(folder)
        order = {"pipeline": shown(asked)["id"], "confirm": "orders"}
        refused = asked.post("/api/abort", json={**order, "transactions": [doubtful, decided]})
        assert refused.status_code == 400
        assert "never aborted" in refused.json()["error"]
        assert asked.post("/api/abort", json={**order, "transactions": []}).status_code == 400
        rows = asked.post("/api/look").json()["done"]["transactions"]
        [exact] = [one["exact"] for one in rows if one["transaction"] == doubtful]
        another = asked.post("/api/abort", json={**order, "transactions": [f"{doubtful}+{'0' * 12}"]})
        assert another.status_code == 400
        assert f"{doubtful} holds another transaction now" in another.json()["error"]
        done = asked.post("/api/abort", json={**order, "transactions": [exact]})
        assert done.json() == {"done": "Aborted 1 of 1"}
        assert [one["transaction"] for one in asked.post("/api/look").json()["done"]["transactions"]] == [decided]


def test_settings_in_a_file_are_read_again_whenever_targets_are_asked(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password may be changed while the page is open."""
    asked: list[str] = []

    def cluster(connector: KafkaConnector) -> Target:
        asked.append(connector.settings["sasl.password"])
        return sinks_target([], "Kafka")

    monkeypatch.setattr(KafkaConnector, "target", cluster)
    folder.finish(0)
    file = tmp_path / "client.properties"
    file.write_text("sasl.password=first")
    desk = Desk(folder.watch(), Search(at=["kafka=b:1"], set_=[f"kafka:@{file}"]))
    file.write_text("sasl.password=second")
    assert desk.look() == Look(transactions=[], unanswered={})
    assert asked == ["first", "second"]


def test_a_target_that_does_not_answer_is_named_beside_what_the_log_says_of_it(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise RetryableSinkError("no answer from the database")

    decided = folder.die_after_deciding(0)
    desk = folder.desk()
    monkeypatch.setattr(FileSink, "lingering", away)
    told = desk.look()
    [one] = told.transactions
    assert (one["transaction"], one["status"], one["state"]) == (decided.transaction, "decided", "no answer")
    assert list(told.unanswered.values()) == ["no answer from the database"]


class TestHostileNames:
    def test_names_are_told_as_json_text_and_stay_in_it(self, folder: Folder) -> None:
        """The page writes text, not HTML; the browser's test shows it."""
        evil = "</script><img src=x onerror=alert(1)>\u202e\x00"
        store = DirectoryStore(folder.orders / "onceward")
        note(store, "epoch", {"epoch": 7, "sinks": {evil: 1}, "rows": 1, "transactions": 1, "milliseconds": 1})
        note(store, "start", {"finished": [evil], "aborted": [], "milliseconds": "soon"})
        asked = client(folder)
        answer = asked.get(f"/api/pipelines/{listed(asked)[0]['id']}")
        assert answer.headers["content-type"] == "application/json"
        row = answer.json()["parts"]["7"]
        assert row["sinks"] == {evil: 1}

    def test_an_error_is_told_as_json(self, folder: Folder) -> None:
        order = {"pipeline": "<b>", "position": 0, "confirm": "<script>"}
        answer = client(folder).post("/api/commit", json=order)
        assert answer.headers["content-type"] == "application/json"

    def test_a_damaged_log_is_an_error_on_its_pipeline_and_not_of_the_page(self, folder: Folder) -> None:
        folder.finish(0)
        asked = client(folder)
        assert shown(asked)["error"] == ""
        next(path for path in sorted((folder.orders / "onceward").iterdir()) if path.name[0] != ".").write_text("<i>")
        (folder.orders / "offsets" / "1").write_text("v1")
        assert "damaged" in shown(asked)["error"]


@pytest.mark.usefixtures("folder")
class TestCommand:
    def run(self, *arguments: str) -> Any:
        return CliRunner().invoke(app, ["ui", *arguments])

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ([], "--store"),
            (["--store", "nowhere"], "no such folder: nowhere"),
            (["--store", ".", "--host", "0.0.0.0"], "--expose"),
            (["--store", ".", "--host", "192.0.2.1"], "--expose"),
            (["--store", ".", "--host", "192.0.2.1", "--expose"], "cannot listen on 192.0.2.1"),
            (["--store", ".", "--sinks", "nothing"], "--sinks"),
            (["--store", "sqlite:///nothing.db"], "--pipeline"),
            (["--store", "ftp://x/y", "--pipeline", "p"], "ftp"),
        ],
    )
    def test_a_mistake_is_one_message(self, arguments: list[str], words: str) -> None:
        done = self.run(*arguments)
        assert done.exception is not None
        assert words in str(done.exception)
        assert not isinstance(done.exception, SystemExit) or words in done.output

    def test_the_tunnel_that_is_advised_names_a_port_that_can_be_forwarded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("onceward.cli.ui.server.serve_page", lambda _, listening: listening.close())
        done = self.run("--store", ".", "--host", "0.0.0.0", "--port", "0", "--expose")
        assert "ssh -L 8461:127.0.0.1:8461 with the default --host and --port" in done.output

    def test_a_port_that_is_in_use_is_one_message(self) -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as taken:
            done = self.run("--store", ".", "--port", str(taken.getsockname()[1]))
        assert "Give another --port" in str(done.exception)

    def test_a_missing_extra_is_one_message(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        monkeypatch.delitem(sys.modules, "onceward.cli.ui.server", raising=False)
        assert "pip install 'onceward[ui]'" in str(self.run("--store", ".").exception)


def test_committables_of_many_transactions_are_shown_in_part(folder: Folder) -> None:
    folder.finish(0, subtasks=2)
    view = read(folder.case.store)
    decision = view.newest
    assert decision is not None
    many = tuple(msgspec.structs.replace(decision.committables[0], subtask=n) for n in range(1000))
    entries = [msgspec.structs.replace(decision, committables=many)]
    [row] = decided_epochs(dataclasses.replace(view, entries=entries)).values()
    assert (row.transactions, len(row.written)) == (1000, TRANSACTIONS)
    assert isinstance(json.loads(msgspec.json.encode(row)), dict)
    assert isinstance(many[0], Committable)


def test_the_page_shows_the_same_characters_as_the_command_line_and_no_other() -> None:
    script = (STATIC / "app.js").read_text()
    [pattern] = re.findall(r"^const UNSEEN = /(.+)/g;$", script, re.MULTILINE)
    every = [chr(number) for number in range(0x3000) if not 0xD800 <= number < 0xE000]
    assert [one for one in every if re.match(pattern, one)] == [one for one in every if show._CONTROL.match(one)]
    assert 'typeof child === "string" ? visible(child) : child' in script  # what every element is made with


def test_a_store_that_never_answers_holds_up_no_other_and_shows_the_age_of_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    LogWriter(open_store(url, pipeline="sales"), "sales", CommitPolicy()).start()
    watch = Watch([url], "sales", patience=5)
    [first] = watch.look()
    assert not first.shown.error

    go_on = Event()
    lists = SqlStore.list_keys

    def hang(self: SqlStore) -> list[str]:
        go_on.wait(30)
        return lists(self)

    monkeypatch.setattr(SqlStore, "list_keys", hang)
    monkeypatch.setattr(first, "_signature", None)
    monkeypatch.setattr(first, "_patience", 0.2)
    began = time.monotonic()
    watch.look()
    watch.look()
    assert time.monotonic() - began < 2
    assert "has not answered for" in first.shown.error
    assert first.shown.read is not None
    told = first.status(datetime.now(UTC))
    assert (told.pipeline, told.state) == ("sales", PipelineState.UNREADABLE)
    go_on.set()
    for _ in range(100):
        watch.look()
        if not first.shown.error:
            break
        time.sleep(0.05)
    assert (first.shown.error, first.shown.read) == ("", None)


def test_a_store_that_cannot_even_be_opened_in_time_is_told_and_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, opened = Event(), []

    def hang(url: str, _: str | None) -> Any:
        opened.append(url)
        go_on.wait(30)
        raise NoDecisionLogError("there is none")

    monkeypatch.setattr("onceward.cli.ui.desk.open_log", hang)
    ticks = iter(range(0, 10**9, 100))
    watch = Watch(["postgresql+psycopg://u:pw@db/x"], "sales", lambda: next(ticks), patience=0.1)
    began = time.monotonic()
    assert watch.look() == []
    assert watch.look() == []
    assert time.monotonic() - began < 2
    [(url, error)] = watch.unreadable.items()
    assert error.startswith("postgresql+psycopg://u:***@db/x has not answered for")
    assert opened == [url]  # asked once, not once for each look
    go_on.set()
    time.sleep(0.2)
    assert watch.look() == []
    assert watch.unreadable == {}
