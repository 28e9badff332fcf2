"""`onceward explain` of pipelines and programs: what weakens the guarantee, and nothing is started or written."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward import (
    CheckpointConfig,
    FileBackend,
    FileSink,
    KafkaSink,
    LiveSource,
    Pipeline,
    PostgresSink,
    RestartStrategy,
    SequenceSource,
    SqlAlchemySink,
    explain,
    open_store,
)
from onceward.cli.doctor import check_log_and_targets, check_store
from onceward.cli.explain import Explanation, load_program, together
from onceward.core.contract.findings import Finding, Health
from onceward.core.contract.policy import CommitPolicy, OnLost
from onceward.core.contract.sink import Guarantee
from onceward.core.contract.targets import sinks_target
from onceward.core.errors import ConfigurationError, OncewardError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import DirectoryStore, LogWriter, read
from onceward.core.operations import description
from onceward.core.operations.description import sink_findings
from onceward.sinks import DirectSink

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
ROWS = [{"n": n} for n in range(3)]


class Socket(LiveSource):
    """Cannot be read again."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    @property
    def bounded(self) -> bool:
        return False

    def listen(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch | None]:
        raise NotImplementedError


class Printed(DirectSink[None]):
    """Shows rows at once."""

    def open(self, context: Any) -> None:
        raise NotImplementedError

    def write(self, writer: None, batch: pa.RecordBatch) -> None:
        raise NotImplementedError


def numbers(folder: Path, *, sink: Any = None, source: Any = None, **options: Any) -> Pipeline:
    """Numbers into files."""
    pipeline = Pipeline("numbers", **options)
    pipeline.source(source or SequenceSource(ROWS), uid="in").sink(sink or FileSink("files", folder / "out"))
    return pipeline


def by_check(findings: tuple[Finding, ...] | list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def test_the_checks_that_the_page_on_guarantees_names_for_each_setup_are_made_by_the_code() -> None:
    table = (ROOT / "docs" / "guarantees.md").read_text().partition("| setup | what happens |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    covered = {row[0]: re.findall(r"`([^`]+)`", row[-1]) for row in rows}
    files = [ROOT / "cli/doctor.py", ROOT / "cli/explain.py", *(ROOT / "connectors").rglob("checks.py")]
    files += [ROOT / "core/operations/description.py", ROOT / "connectors/spark/query_description.py"]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    made = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert covered
    for checks in covered.values():
        assert checks
        assert made.issuperset(checks)


class TestPipelines:
    def test_an_exactly_once_pipeline_is_told_to_be_one(self, tmp_path: Path) -> None:
        backend = FileBackend(tmp_path / "state")
        told = explain(numbers(tmp_path, store=open_store(str(tmp_path / "log")), backend=backend))
        assert told.guarantee is Guarantee.EXACTLY_ONCE
        assert told.name == "numbers"
        assert told.exit_code == 0
        assert by_check(told.findings)["checkpoints"].health is Health.WARNING  # on a local disk

    @pytest.mark.parametrize(
        ("weak", "level", "check"),
        [
            ({"source": Socket()}, Guarantee.AT_MOST_ONCE, "source"),
            ({"sink": Printed("printed")}, Guarantee.AT_LEAST_ONCE, "sink"),
            ({"store": None}, Guarantee.AT_LEAST_ONCE, "decision log"),
            ({"checkpointing": CheckpointConfig(mode="at-least-once")}, Guarantee.AT_LEAST_ONCE, "engine"),  # type: ignore[arg-type]
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_the_weakest_part_decides_and_is_named(
        self, tmp_path: Path, weak: dict[str, Any], level: Guarantee, check: str
    ) -> None:
        told = explain(numbers(tmp_path, **{"store": str(tmp_path / "log"), **weak}))
        assert told.guarantee is level
        assert told.exit_code == 1
        assert by_check(told.findings)[check].guarantee is level
        assert by_check(told.findings)[check].advice

    def test_a_stream_without_checkpoints_is_told(self, tmp_path: Path) -> None:
        told = explain(numbers(tmp_path, source=Socket()))
        assert "none is made" in by_check(told.findings)["checkpoints"].found

    def test_two_of_one_name_are_told(self, tmp_path: Path) -> None:
        one, other = together([numbers(tmp_path), numbers(tmp_path)])
        assert by_check(one.findings)["names"].health is by_check(other.findings)["names"].health is Health.FAILED

    def test_a_database_that_does_not_answer(self, tmp_path: Path) -> None:
        sink = SqlAlchemySink("rows", url="mariadb+pymysql://root@127.0.0.1:1/shop", table="rows")
        told = explain(numbers(tmp_path, sink=sink))
        finding = by_check(told.findings)["database"]
        assert (finding.health, finding.where) == (Health.FAILED, "mariadb+pymysql://root@127.0.0.1:1/shop")

    @pytest.mark.parametrize(("store", "health"), [("file://{}/log", ["failed"]), ("sqlite:///{}/logs.db", [])])
    def test_two_in_one_folder_are_told_and_two_in_one_database_are_not(
        self, tmp_path: Path, store: str, health: list[str]
    ) -> None:
        url = store.format(tmp_path)
        both = [description.Described(name, pipeline=name, store=url) for name in ("one", "other")]
        assert [finding.health for finding in description.shared_names(both[0], both)] == health

    def test_something_else_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="got list"):
            explain([])  # type: ignore[arg-type]


PROGRAM = """
import sys
from onceward import FileBackend, FileSink, Pipeline, SequenceSource, open_store

def build():
    pipeline = Pipeline("numbers", store="log", backend=FileBackend("state"))
    pipeline.source(SequenceSource([{"n": 1}])).sink(FileSink("files", "out"))
    return pipeline

def several():
    other = Pipeline("others", store="log")
    other.source(SequenceSource([{"n": 1}])).sink(FileSink("files", "out"))
    return [build(), other]

def broken():
    raise ValueError("no such thing")

def nothing():
    return None

if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    job = build().start()
    build().run()
    print("never")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program in the current folder."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "program.py"
    sys.modules.pop("program", None)


@pytest.mark.usefixtures("program")
class TestPrograms:
    def test_a_program_runs_up_to_where_it_would_wait(self, capsys: pytest.CaptureFixture[str]) -> None:
        first, second = load_program("program.py", ["x"])
        assert isinstance(first, Pipeline)
        assert first is not second
        assert capsys.readouterr().err == "arguments ['x']\n"

    @pytest.mark.parametrize("reference", ["program:build", "program.py:build"])
    def test_a_function_returns_it(self, reference: str) -> None:
        [found] = load_program(reference)
        assert explain(found).guarantee is Guarantee.EXACTLY_ONCE

    def test_a_function_returns_several(self) -> None:
        told = together(load_program("program:several"))
        assert [one.name for one in told] == ["numbers", "others"]
        assert all("store log is also that of" in by_check(one.findings)["names"].found for one in told)

    def test_nothing_is_written(self, program: Path) -> None:
        together(load_program("program.py"))
        assert [path.name for path in program.parent.iterdir() if path.name != "__pycache__"] == ["program.py"]

    @pytest.mark.parametrize(
        ("reference", "answer"),
        [
            ("nowhere.py", "there is no 'nowhere.py'"),
            ("program", "there is no 'program': give a file, file.py:function or module:function"),
            ("program:broken", "ValueError: no such thing"),
            ("program:unknown", "AttributeError"),
            ("nowhere:build", "ModuleNotFoundError"),
            ("program:nothing", "started no query and returned none"),
        ],
    )
    def test_what_cannot_be_explained_is_told(self, reference: str, answer: str) -> None:
        with pytest.raises(ConfigurationError, match=re.escape(answer)):
            load_program(reference)

    @pytest.mark.parametrize("command", ["explain", "doctor"])
    def test_the_command_prints_it(self, command: str) -> None:
        run = [sys.executable, "-c", "from onceward.cli.main import main; main()"]
        options = ["explain", "program:build"] if command == "explain" else ["doctor", "--query", "program:build"]
        done = subprocess.run([*run, *options, "--json"], capture_output=True, text=True, check=False)
        assert not done.stderr
        told = json.loads(done.stdout)
        findings = told[0]["findings"] if command == "explain" else told
        assert {"source", "sink", "checkpoints"} <= {finding["check"] for finding in findings}
        if command == "explain":
            assert done.returncode == 0
            assert told[0]["guarantee"] == "exactly-once"


class TestTheLog:
    """What the decision log and the targets know of a pipeline's name."""

    def run(self, folder: Path, **options: Any) -> None:
        numbers(folder, store=str(folder / "log"), backend=FileBackend(folder / "state")).run(**options)

    def told(self, folder: Path) -> dict[str, Finding]:
        target = sinks_target([FileSink("files", folder / "out")], "files")
        return by_check(check_log_and_targets(str(folder / "log"), "numbers", [target]))

    def test_a_pipeline_that_is_well(self, tmp_path: Path) -> None:
        self.run(tmp_path)
        assert {finding.health for finding in self.told(tmp_path).values()} == {Health.OK}

    def test_a_deleted_log(self, tmp_path: Path) -> None:
        self.run(tmp_path)
        shutil.rmtree(tmp_path / "log")
        found = self.told(tmp_path)["ownership"]
        assert found.health is Health.FAILED
        assert re.search(
            r"knows this pipeline and sink from decision log \w{8}, but there is no decision log", found.found
        )
        assert found.found.endswith(f"There is none in {tmp_path / 'log'}")

    def test_a_log_that_is_looked_for_from_another_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.run(tmp_path)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        target = sinks_target([FileSink("files", tmp_path / "out")], "files")
        found = by_check(check_log_and_targets("log", "numbers", [target]))["ownership"]
        assert found.found.endswith(f"{tmp_path / 'elsewhere' / 'log'} (log is relative to the current folder)")

    def test_a_log_from_a_backup(self, tmp_path: Path) -> None:
        self.run(tmp_path)
        shutil.copytree(tmp_path / "log", tmp_path / "backup")
        self.run(tmp_path, rewind="once more")
        shutil.rmtree(tmp_path / "log")
        shutil.move(tmp_path / "backup", tmp_path / "log")
        found = self.told(tmp_path)["ownership"]
        assert found.health is Health.FAILED
        assert "outdated" in found.found

    def test_starts_without_a_decision(self, tmp_path: Path) -> None:
        self.run(tmp_path)
        for number in range(3):
            writer = LogWriter(DirectoryStore(tmp_path / "log"), "numbers", numbered(number))
            writer.start()
        assert self.told(tmp_path)["starts"].health is Health.WARNING

    def test_a_decided_transaction_that_somebody_ended(self, tmp_path: Path) -> None:
        decisions: list[Step] = []

        def die(step: Step) -> None:
            decisions.extend([step] if step is Step.DECIDE_AFTER else [])
            if len(decisions) > 1:  # the first one is that of the start
                raise OSError("the machine is gone")

        url = f"sqlite:///{tmp_path}/target.db"
        with sqlite3.connect(tmp_path / "target.db") as database:
            database.execute("CREATE TABLE numbers (n bigint)")
        sink = SqlAlchemySink("table", url=url, table="numbers")
        target = sinks_target([sink], "the database")
        store = str(tmp_path / "log")
        with hooked(die), pytest.raises(OncewardError, match="the machine is gone"):
            numbers(tmp_path, sink=sink, store=store, restart=RestartStrategy.none()).run()
        waits = by_check(check_log_and_targets(store, "numbers", [target]))["decided transactions"]
        assert (waits.health, waits.found) == (Health.OK, "wait for their commit")
        decision = read(DirectoryStore(store)).undone
        assert decision is not None
        for committable in decision.committables:
            sink.abort(committable)  # what an operator may do in SQL
        lost = by_check(check_log_and_targets(store, "numbers", [target]))["decided transactions"]
        assert lost.health is Health.FAILED
        assert "1 of epoch" in lost.found
        assert "alone" in lost.advice

    def test_a_store_that_is_only_named_is_not_made(self, tmp_path: Path) -> None:
        assert check_store(str(tmp_path / "log"), "numbers").health is Health.WARNING
        assert not (tmp_path / "log").exists()


def numbered(number: int) -> CommitPolicy:
    return CommitPolicy(token=lambda: f"{number:016x}", now=lambda: f"time {number}")


def test_an_explanation_is_shown_in_lines_that_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    told = Explanation("p", Guarantee.AT_LEAST_ONCE, (Finding("sink", Health.WARNING, "weak", "do it", "files"),))
    told.show()
    assert capsys.readouterr().out == "p: at-least-once (1 warning)\nwarning  sink (files): weak\n         → do it\n"


UNLESS = "(unless it has a union column, which cannot be hashed; column types are not looked at here)"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, f"if some of it is visible, only what was lost {UNLESS}"),
        ({"key": "id"}, f"if some of it is visible, only what was lost {UNLESS}"),
        ({"proof": False}, f"only what was lost for topic {UNLESS}; for table the query stops then"),
    ],
)
def test_which_sinks_can_be_healed_is_said_beforehand(settings: dict[str, Any], words: str) -> None:
    sinks = [
        KafkaSink("topic", bootstrap_servers="b:1", topic="t"),
        PostgresSink("table", dsn="postgresql://u@h/d", table="x", **settings),
    ]
    policy = CommitPolicy(on_lost=OnLost.REPLAY)
    assert words in sink_findings(sinks, policy, heals=True)[-1].found
    assert "if some of it is visible, the run stops" in sink_findings(sinks, policy)[-1].found
