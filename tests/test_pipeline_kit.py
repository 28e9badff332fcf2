"""The kit for pipelines: the judge, the selections of faults, and cases on files and SQLite, which need no service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.core.errors import ConfigurationError
from onceward.core.kit.crash_points import Step
from onceward.core.operations.comparison import Comparison, Mismatch, Record, Verdict, compare
from onceward.testing.pipeline.driver import arguments_of
from onceward.testing.pipeline.timed_faults import (
    FAULTS,
    NothingToHitError,
    NotReachedError,
    PlannedFault,
    planned_faults,
)
from onceward.testing.sink_case import ALWAYS

SOURCE = Path(__file__).parent.parent / "src"


def rows(*numbers: int, value: str = "v") -> list[dict[str, Any]]:
    return [{"id": number, "value": value} for number in numbers]


def judged(expected: list[dict[str, Any]], found: list[dict[str, Any]], output: str = "out") -> Comparison:
    return compare(output, expected, [Record(row, f"{output}@{n}") for n, row in enumerate(found)], "id")


def counts(comparison: Comparison) -> tuple[int, int, int]:
    return comparison.count(Mismatch.MISSING), comparison.count(Mismatch.DUPLICATED), comparison.count(Mismatch.WRONG)


@pytest.mark.parametrize(
    ("expected", "found", "missing_duplicated_wrong"),
    [
        (rows(1, 2), rows(2, 1), (0, 0, 0)),
        (rows(1, 1), rows(1, 1), (0, 0, 0)),
        (rows(1, 2), rows(2), (1, 0, 0)),
        (rows(1, 1), rows(1), (1, 0, 0)),
        (rows(1), rows(1, 1, 1), (0, 2, 0)),
        (rows(1), rows(1, 9), (0, 0, 1)),
        (rows(1), rows(1, value="other"), (0, 0, 1)),
        (rows(1), rows(1) + rows(1, value="other"), (0, 0, 1)),
        (rows(1, 2), rows(1, value="other"), (1, 0, 1)),
        ([], [], (0, 0, 0)),
    ],
)
def test_rows_are_compared_as_multisets(
    expected: list[dict[str, Any]], found: list[dict[str, Any]], missing_duplicated_wrong: tuple[int, int, int]
) -> None:
    assert counts(judged(expected, found)) == missing_duplicated_wrong


def test_the_evidence_names_the_rows_their_positions_and_their_source() -> None:
    topic, table = judged(rows(1, 2, 3), rows(1, 1, 2), "topic"), judged(rows(1, 2, 3), rows(1, 3), "table")
    verdict = Verdict((topic, table), ("t1 is prepared",), "id", {"1": ["orders-0@4"], "3": ["orders-1@5"]})
    assert list(verdict.lines()) == [
        "topic: 3 rows expected, 3 found: 1 missing, 1 duplicated, 0 wrong",
        '  missing: {"id": 3, "value": "v"}; input orders-1@5',
        '  duplicated: {"id": 1, "value": "v"}, at topic@0, topic@1; input orders-0@4',
        "table: 3 rows expected, 2 found: 1 missing, 0 duplicated, 0 wrong",
        '  missing: {"id": 2, "value": "v"}',
        "torn: in table and missing in topic: id 3",
        "torn: in topic and missing in table: id 2",
        "left open: t1 is prepared",
    ]
    assert not verdict.exact
    assert Verdict((judged(rows(1), rows(1)),)).exact
    assert not Verdict((judged(rows(1), rows(1)),), ("t1 is prepared",)).exact


def test_long_values_are_compared_whole_and_shown_in_part() -> None:
    long = "x" * 5_000
    right, wrong = [{"id": 1, "text": f"{long}a"}], [{"id": 1, "text": f"{long}b"}]
    assert judged(right, [{"id": 1, "text": f"{long}a"}]).exact
    [finding] = judged(right, wrong).findings
    assert (finding.kind, finding.row["text"]) == (Mismatch.WRONG, f"{'x' * 1_000}… (5001 characters)")
    nested = judged([], [{"id": 1, "data": b"x" * 5_000, "tags": [long, "y"]}])
    assert "(5000 bytes)" in str(nested.findings[0].row["data"])
    assert "(5009 characters)" in nested.findings[0].row["tags"]


def test_only_rows_that_can_still_come_or_change_are_waited_for() -> None:
    assert Verdict((judged(rows(1), []),)).may_improve
    assert Verdict((judged(rows(1), rows(1, value="other")),)).may_improve
    assert not Verdict((judged(rows(1), rows(1, 1)),)).may_improve


def test_a_selection_has_the_faults_of_the_systems_that_are_used_and_the_steps_if_onceward_is() -> None:
    smoke = {fault.id for fault in planned_faults("smoke", FAULTS, frozenset({"kafka"}), steps=False)}
    assert "kill-kafka-1" in smoke
    assert not any("postgres" in name or name.startswith("crash") for name in smoke)
    full = planned_faults("full", FAULTS, frozenset({"kafka", "postgres"}), steps=True)
    assert {fault.name for fault in full} == {*FAULTS, *(f"crash-at-{step}" for step in Step)}
    assert len({fault.id for fault in full}) == len(full) == 3 * (len(FAULTS) + len(Step))
    assert len(planned_faults("hours", FAULTS, frozenset(), steps=False)) > 500


def test_a_function_that_no_file_holds_at_its_top_level_cannot_be_started() -> None:
    with pytest.raises(ConfigurationError, match="top level of a file"):
        arguments_of(lambda: None)


TESTS = """
import json, os, random, sqlite3, time
from pathlib import Path
from onceward.testing.pipeline import FAULTS, Folder, NothingToHitError, PipelineTest, Table

URL = "sqlite:///{folder}/out.db"

def copy(once):
    folder = Path(os.environ["PIPELINE_FOLDER"])
    database = sqlite3.connect(folder / "out.db", timeout=30, isolation_level=None)
    database.execute("CREATE TABLE IF NOT EXISTS done (file text)")
    while True:
        for file in sorted((folder / "in").glob("[!.]*.jsonl")):  # hidden files are not complete
            database.execute("BEGIN IMMEDIATE")
            done = database.execute("SELECT 1 FROM done WHERE file = ?", [file.name]).fetchone()
            for line in () if done else file.read_text().splitlines():
                row = json.loads(line)
                database.execute("INSERT INTO copies VALUES (?, ?)", [row["id"], row["value"]])
            if not once and not done:  # nearly all of its time is between the rows and the note that they are done
                database.execute("COMMIT")
                time.sleep(0.4)
                database.execute("BEGIN IMMEDIATE")
            if not done:
                database.execute("INSERT INTO done VALUES (?)", [file.name])
            database.execute("COMMIT")
        time.sleep(0.02)

def copy_once():
    copy(True)

def copy_at_least_once():
    copy(False)

def hit_nothing(scene):
    raise NothingToHitError("there is nothing")

class TestExact(PipelineTest):
    command = copy_once
    inputs = Folder("in")
    outputs = [Table("copies", "id int, value text", url=URL)]
    faults = {"kill-driver": FAULTS["kill-driver"], "kill-jvm": FAULTS["kill-jvm"], "mine": hit_nothing}
    feed_seconds = 1.0
    quiet = 0.2

class TestLoose(TestExact):
    command = copy_at_least_once
    faults = {"kill-driver": FAULTS["kill-driver"]}

class TestLossy(TestExact):
    timeout = 2.5
    faults = {"clean": FAULTS["clean"]}

    def expected(self, rows):
        return {"copies": [*rows, {"id": 1000, "value": ""}]}

class TestLikeTheReference(TestExact):
    reference_run = True
    quiet = 1.0
    faults = {"kill-driver": FAULTS["kill-driver"]}

    def expected(self, rows):
        return []

class TestUnlikeTheReference(TestLoose):
    reference_run = True
    quiet = 1.0
    row_count = 10

class TestRandom(TestExact):
    reference_run = True
    row_count = 10
    faults = {"clean": FAULTS["clean"]}

    def row(self, number):
        return {"id": number, "value": str(random.random())}

class Blocked(Table):
    def left_open(self, addresses):
        age = time.time() - (addresses.folder / "in").stat().st_mtime
        return ["t1 is prepared"] if age < 1.5 else []

class TestBlocked(TestExact):
    outputs = [Blocked("copies", "id int, value text", url=URL)]
    faults = {"clean": FAULTS["clean"]}
    max_blocked_seconds = 0.5

class TestSilent(TestExact):
    command = ["sleep", "60"]
    timeout = 1.0
    faults = {"clean": FAULTS["clean"]}

class TestSlow(TestSilent):
    command = ["sh", "-c", "mkdir \\"$PIPELINE_FOLDER/begun\\" && exit 7; sleep 60"]

def copy_into_own_table():
    database = sqlite3.connect(Path(os.environ["PIPELINE_FOLDER"]) / "out.db", timeout=30)
    time.sleep(0.5)  # the kit reads the output before there is a table
    database.execute("CREATE TABLE IF NOT EXISTS copies (id int, value text)")
    copy(True)

class TestOwnTable(TestExact):
    command = copy_into_own_table
    outputs = [
        Table("copies", url=URL),
        Table("view", query="SELECT id, value FROM copies WHERE id >= 0", url=URL),
    ]
    faults = {"clean": FAULTS["clean"]}

class TestWrongQuery(TestOwnTable):
    outputs = [Table("copies", query="SELECT no_such_column FROM copies", url=URL)]
    timeout = 3.0

def crash_soon():
    step, _, count = os.environ.pop("ONCEWARD_CRASH_AT", "").partition(":")
    if step in ("decide.after", "sink.commit.after"):  # the others are never passed
        import threading, signal
        wait = 0.5 if step == "decide.after" else 2.0  # the second time after the last row was fed
        threading.Timer(wait, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    copy(True)

class TestCrash(TestExact):
    command = crash_soon
    faults = {}
    uses_onceward = True
    quiet = 2.5

class TestBroken(TestExact):
    command = ["python", "-c", "import sys; sys.exit('no such table')"]
    faults = {"clean": FAULTS["clean"]}
"""


@pytest.mark.slow
def test_a_table_that_the_pipeline_makes_is_empty_until_then(tmp_path: Path) -> None:
    """With a query, too; any other error of a query is reported."""
    done = run_cases(tmp_path, "OwnTable or WrongQuery")
    for line in (
        "PASSED test_files.py::TestOwnTable::test_exactly_once[clean-1]",
        "nothing came out of TestWrongQuery within 3 s, before any fault, and the driver runs; table copies:",
        "no such column: no_such_column",
        "1 failed, 1 passed",
    ):
        assert line in done, f"{line}\n{done}"


@pytest.mark.slow
def test_a_crash_that_never_happened_fails_and_says_what_to_raise(tmp_path: Path) -> None:
    """It used to be skipped, so a test of the moment after the decision passed without having shown anything."""
    done = run_cases(tmp_path, "TestCrash")
    for line in (
        "PASSED test_files.py::TestCrash::test_exactly_once[crash-at-decide.after-1]",
        "PASSED test_files.py::TestCrash::test_exactly_once[crash-at-sink.commit.after-1]",
        "the driver did not crash, because it did not pass the step complete.before",
        "Raise feed_seconds (and row_count)",
        "2 failed, 2 passed",
    ):
        assert line in done, f"{line}\n{done}"


def test_the_steps_that_every_driver_passes_must_be_reached() -> None:
    passed = {fault.name for fault in planned_faults("full", {}, frozenset(), steps=True) if not _skips(fault)}
    assert passed >= {f"crash-at-{step}" for step in ALWAYS - {Step.ACKNOWLEDGED}}
    assert f"crash-at-{Step.SEND_AFTER}" not in passed


def _skips(fault: PlannedFault) -> bool:
    """Return whether a case in which the step was not passed is skipped."""
    scene: Any = SimpleNamespace(supervisor=SimpleNamespace(exit_codes=[]), until=0.0)
    with pytest.raises((NothingToHitError, NotReachedError)) as caught:
        fault.inject(scene)
    return caught.type is NothingToHitError


def run_cases(folder: Path, selection: str) -> str:
    (folder / "test_files.py").write_text(TESTS)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-rA", "-k", selection]
    return subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False).stdout


def test_cases_on_files_and_sqlite_say_what_is_wrong(tmp_path: Path) -> None:
    done = run_cases(tmp_path, "TestExact or TestLoose or TestLossy or TestSilent or TestSlow or TestBroken")
    for line in (
        "PASSED test_files.py::TestExact::test_exactly_once[kill-driver-1]",
        "test_files.py::TestExact: there is nothing",
        "test_files.py::TestExact: the driver has no JVM",
        "TestLoose is not exactly once",
        "repeat it: pytest 'test_files.py::TestLoose::test_exactly_once[kill-driver-1]' --faults smoke",
        "table copies: 301 rows expected, 300 found: 1 missing, 0 duplicated, 0 wrong",
        "TestBroken does not work without faults: the driver ended",
        "no such table",
        "nothing came out of TestSilent within 1 s, before any fault, and the driver runs",
        "nothing came out of TestSlow within 1 s, and the driver ended with exit code 7",
        "5 failed, 1 passed, 2 skipped",
    ):
        assert line in done, f"{line}\n{done}"


@pytest.mark.slow
def test_outputs_are_compared_with_those_of_a_run_without_faults(tmp_path: Path) -> None:
    done = run_cases(tmp_path, "Reference or Random")
    for line in (
        "PASSED test_files.py::TestLikeTheReference::test_exactly_once[kill-driver-1]",
        "TestUnlikeTheReference is not exactly once",
        "table copies: 10 rows expected",
        "0 missing, 1 duplicated, 0 wrong",
        "other rows went into TestRandom than in the run without faults: is row() random?",
        "2 failed, 1 passed",
    ):
        assert line in done, f"{line}\n{done}"


def test_a_transaction_that_blocks_readers_for_longer_than_stated_is_reported(tmp_path: Path) -> None:
    done = run_cases(tmp_path, "Blocked")
    assert re.search(r"readers were blocked for \d.\d s after the fault, not 0.5: t1 is prepared", done), done
    assert "1 failed" in done, done
