"""Which of the long tests `make test` runs; and that such a run ends, also if a worker of it dies."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from integration import scheduling
from integration.scheduling import NIGHTLY, UNTIL, is_left_to_ci

from .scenarios import ROOT, SCENARIOS, collect

if TYPE_CHECKING:
    from pathlib import Path

    from .scenarios import Case

TESTS = """
import os, pathlib, pytest, time

@pytest.mark.parametrize("number", range({others}))
def test_one(number):
    time.sleep(0.2)

def test_last():
    time.sleep(3)  # the others are done, and their worker has ended, when this one dies
    dead = pathlib.Path("dead")
    if not dead.exists():
        dead.touch()
        os.abort()
"""


TIMED = """
import os, pathlib, pytest, time

@pytest.fixture(scope="module")
def server():
    pathlib.Path("started").touch()

@pytest.mark.parametrize("number", range(4))
def test_one(server, number):
    os.environ["ONCEWARD_TESTS_UNTIL"] = str(time.time() - 1)
"""


@pytest.mark.parametrize(("until", "passed"), [("inf", 1), ("0", 0)])
def test_no_test_begins_when_no_time_is_left(tmp_path: Path, until: str, passed: int) -> None:
    (tmp_path / "test_it.py").write_text(TIMED)
    (tmp_path / "conftest.py").write_text("from integration.scheduling import pytest_runtest_setup")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", UNTIL: until},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert f"SKIPPED [{4 - passed}] " in done.stdout
    assert ": no time was left for it" in done.stdout
    assert (tmp_path / "started").exists() == (passed > 0)


@pytest.mark.parametrize("folder", ["tests", "integration"])
def test_the_tests_of_both_folders_ask_whether_time_is_left(folder: str) -> None:
    """A command that removes unused imports removes hooks, too."""
    conftest = importlib.import_module(f"{folder}.conftest")
    assert conftest.pytest_runtest_setup is scheduling.pytest_runtest_setup


@pytest.mark.parametrize("others", [2, 5, 6])
def test_a_worker_that_replaces_one_that_died_runs_the_last_test_there_is(tmp_path: Path, others: int) -> None:
    """It would wait for another test for ever (seen: a run of half an hour with a broker's client that aborted)."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(TESTS.format(others=others))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "integration.scheduling", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(
        [*command, "--dist", "loadscope", "--no-loadscope-reorder", "--numprocesses", "2"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "crashed while running 'tests/test_it.py::test_last'" in done.stdout
    assert f"1 failed, {others + 1} passed" in done.stdout, done.stdout + done.stderr


def test_each_scenario_has_a_test_that_make_test_runs() -> None:
    """A parametrized test counts if one of its cases may run: what is left out is listed with its parameters."""
    tests = collect()

    def runs(case: Case) -> bool:
        name = f"{case.file}::{case.name}"
        return case.in_the_suite or not (is_left_to_ci(name) or name in NIGHTLY)

    assert [scenario for scenario in SCENARIOS if not any(map(runs, tests.of(scenario)))] == []
