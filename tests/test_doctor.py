"""`onceward doctor` works on a broken installation, changes nothing, and its advice can be copied."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka.admin import AdminClient

from onceward.cli.doctor import check_store
from onceward.connectors.files.checks import check_folder
from onceward.connectors.kafka import checks
from onceward.core.contract.policy import CommitPolicy
from onceward.core.log import DirectoryStore, EpochInput, LogWriter, open_store

SOURCE = Path(__file__).parent.parent / "src"
EXTRAS = ("confluent_kafka", "kafka", "psutil", "psycopg", "pgpq", "sqlalchemy", "fsspec", "pyspark")
NO_BROKER = "127.0.0.1:1"


def doctor(*arguments: str, without: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    main = "from onceward.cli.main import main; main()"
    hidden = f"import sys; sys.modules.update(dict.fromkeys({without!r})); "
    return subprocess.run(
        [sys.executable, "-c", hidden + main, "doctor", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
    )


def contents(folder: Path) -> dict[str, tuple[float, int]]:
    return {str(path): (path.stat().st_mtime, path.stat().st_size) for path in [folder, *folder.rglob("*")]}


def write_log(folder: Path) -> None:
    writer = LogWriter(DirectoryStore(folder), "orders", CommitPolicy())
    writer.start()
    writer.decide(0, [], sinks=[], epoch_input=EpochInput())


def test_doctor_works_without_any_extra() -> None:
    told = doctor("--json", "--at", f"kafka={NO_BROKER}", "--at", "postgres=host=127.0.0.1", without=EXTRAS)
    assert "Traceback" not in told.stderr
    assert told.returncode == 1
    advice = {finding["check"]: finding["advice"] for finding in json.loads(told.stdout)}
    assert "onceward[kafka]" in advice["kafka client"]
    assert "onceward[postgres]" in advice["postgres client"]


def test_a_client_that_cannot_be_loaded_is_told() -> None:
    told = doctor(
        "--json", "--at", "postgres=host=127.0.0.1", PSYCOPG_IMPL="c"
    )  # the locked packages hold the binary one
    assert "Traceback" not in told.stderr
    found = {finding["check"]: finding["found"] for finding in json.loads(told.stdout)}
    assert "cannot be loaded: couldn't import requested psycopg 'c'" in found["postgres client"]


def test_what_no_target_was_given_for_is_refused() -> None:
    told = doctor("--set", "postgres:ledger_schema=books")
    assert (told.returncode, told.stderr) == (2, "error: --set postgres:… needs --at postgres=DSN\n")


def test_an_extra_that_nobody_asked_about_may_be_missing() -> None:
    told = doctor("--json", without=("confluent_kafka", "psycopg"))
    findings = {finding["check"]: finding for finding in json.loads(told.stdout)}
    assert findings["kafka"]["health"] == findings["postgres"]["health"] == "skipped"
    assert findings["kafka"]["found"] == "give --at kafka=HOST:PORT to check it"


def test_a_python_that_the_program_may_still_set_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o700)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for python, health in (("", "warning"), ("python3", "failed")):
        told = doctor("--json", PATH=path, PYSPARK_PYTHON=python)
        finding = next(one for one in json.loads(told.stdout) if one["check"] == "python of the executors")
        assert finding["health"] == health


def test_what_is_to_be_copied_is_on_one_line_however_narrow_the_terminal_is() -> None:
    told = doctor(COLUMNS="40", PYSPARK_PYTHON="/nowhere/python")
    assert "there is no /nowhere/python" in told.stdout
    assert f"PYSPARK_PYTHON={sys.executable} before" in told.stdout


@pytest.mark.parametrize("name", ["a%20b", "100%", "#1", "why?", "what?shared=1"])
def test_a_checkpoint_is_found_whatever_its_name_is(tmp_path: Path, name: str) -> None:
    write_log(tmp_path / name / "onceward")
    quoted = f"file://{quote(str(tmp_path / name))}"
    for url, health in ((quoted, "warning"), (f"{tmp_path / name}?shared=true", "ok"), (f"{quoted}?shared=true", "ok")):
        finding = check_store(url, None)
        assert (finding.health, "pipeline orders" in finding.found) == (health, True)
    plain = f"{tmp_path / name}{'?shared=false' if 'shared' in name else ''}"
    assert "pipeline orders" in check_store(plain, None).found


@pytest.mark.parametrize("url", ["{}/nope/log", "file://{}/nope/log", "sqlite:///{}/nope.db"])
def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, url: str) -> None:
    before = contents(tmp_path)
    finding = check_store(url.format(tmp_path), "orders")
    assert contents(tmp_path) == before
    assert finding.health == "warning"
    assert "no decision log exists yet" in finding.found


def test_a_store_is_not_changed(tmp_path: Path) -> None:
    write_log(tmp_path / "onceward")
    before = contents(tmp_path)
    for url in (tmp_path, tmp_path / "onceward"):
        finding = check_store(str(url), None)
        assert finding.health == "warning"
        assert "pipeline orders, newest decided epoch 0" in finding.found
        assert "runs on this machine" in finding.advice
    assert contents(tmp_path) == before


def test_a_log_that_no_start_accepts_is_told_with_what_it_says(tmp_path: Path) -> None:
    write_log(tmp_path / "onceward")
    other = check_store(str(tmp_path), "sales")
    assert (other.health, "belongs to 'orders', not to 'sales'" in other.found) == ("failed", True)
    writer = LogWriter(DirectoryStore(tmp_path / "onceward"), "orders", CommitPolicy())
    writer.start()
    writer.move("/new/place")
    moved = check_store(str(tmp_path), None)
    assert (moved.health, "has moved the pipeline to /new/place" in moved.found) == ("failed", True)
    (tmp_path / "onceward" / "00000000000000000001").write_bytes(b"cut off")
    damaged = check_store(str(tmp_path), None)
    assert (damaged.health, "is damaged" in damaged.found) == ("failed", True)
    assert "another store" not in other.advice + moved.advice + damaged.advice


def test_a_store_in_a_database_is_not_changed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    open_store(url, pipeline="orders")
    with sqlite3.connect(tmp_path / "log.db") as database:
        before = list(database.iterdump())
        finding = check_store(url, "orders")
        assert list(database.iterdump()) == before
    assert "no decision log exists yet" in finding.found


@pytest.mark.parametrize("url", ["{}/file", "{}/file/log"])
def test_a_store_that_can_never_be_made_is_told(tmp_path: Path, url: str) -> None:
    (tmp_path / "file").write_text("")
    finding = check_store(url.format(tmp_path), None)
    assert finding.health == "failed"
    assert str(tmp_path / "file") in finding.found


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        finding = check_store(str(tmp_path / "log"), None)
    finally:
        tmp_path.chmod(0o700)
    assert finding.health == "failed"


def test_no_answer_about_a_topic_is_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_ANSWER_SECONDS", 0.2)
    admin = AdminClient({"bootstrap.servers": NO_BROKER, "log_level": 0})
    began = time.monotonic()
    [factor, _] = checks._replication(admin, {"transaction.state.log.replication.factor": "3"}, brokers=3)
    [replication] = checks.check_replication(admin, "orders")
    assert (factor.health, replication.health) == ("ok", "skipped")
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_a_broker_that_does_not_answer_is_told_in_a_few_lines() -> None:
    told = doctor("--at", f"kafka={NO_BROKER}", "--place", "kafka:orders", "--pipeline", "orders")
    assert told.returncode == 1
    broker = next(line for line in told.stdout.splitlines() if "kafka broker" in line)
    assert NO_BROKER in broker
    assert "Connection refused" in broker
    assert not told.stderr


def test_a_folders_file_system_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    told = doctor("--json", "--place", f"files:{tmp_path}/out", "--place", f"files:{tmp_path}/missing")
    good, missing = (found for found in json.loads(told.stdout) if found["check"] == "file system")
    assert good["health"] == "ok"
    for ability in ("exclusive creation", "hard links", "renames", "locks", "fsync of folders"):
        assert ability in good["found"]
    assert (missing["health"], missing["advice"]) == ("failed", "create it, or correct the path")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("module", "function", "ability"),
    [("os", "link", "hard links"), ("fcntl", "flock", "locks"), ("pathlib.Path", "rename", "renames")],
)
def test_what_a_file_system_cannot_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, function: str, ability: str
) -> None:
    def refuses(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(f"{module}.{function}", refuses)
    finding = check_folder(tmp_path)
    assert finding.health == "failed"
    assert f"has no {ability}" in finding.found
    assert list(tmp_path.iterdir()) == []
