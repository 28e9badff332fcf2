"""`.ci/run`, with a `make` that only writes down its targets, and fails at one of them for so many times."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from .scenarios import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MAKE = """#!/bin/sh
echo "$*${SELECT:+ SELECT=$SELECT}${ONCEWARD_TESTS_UNTIL:+ timed}" >> made
case " $FAILING " in
  *" $1 "*) mkdir -p .pytest_cache/v/cache; echo "$LAST_FAILED" > .pytest_cache/v/cache/lastfailed; exit 1 ;;
esac
"""
REST = "SELECT=and not nightly and by_ci"
TIMED = f"long ARGS=-rs {REST} timed"
OLDER = "spark35 SPARK35=integration/test_spark_older.py"
OF_AN_EARLIER_RUN = '{"integration/test_ui.py::test_x": true}'


TOOLS = ("promtool", "chromium", "mariadbd")
USED = [
    "bash",
    "sh",
    "env",
    "dirname",
    "basename",
    "rm",
    "timeout",
    "mktemp",
    "tee",
    "cp",
    "grep",
    "sed",
    "sort",
    "uniq",
    "cut",
    "tail",
    "sleep",
    "true",
    "cat",
]
"""What `.ci/run` itself calls."""


NOTHING_AGAIN = "== no test was tried again"
TWO_FAILED = """{
  "tests/test_ui.py::test_x": true,
  "tests/test_ui.py::test_y[\\"a b\\": true]": true
}"""


def prepare(folder: Path, programs: dict[str, str]) -> None:
    scripts = {".ci/run": (ROOT / ".ci" / "run").read_text(), "bin/make": MAKE, "scripts/with-docker.sh": "#!/bin/sh"}
    for name, text in (scripts | programs).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o700)


def run(folder: Path, failing: str) -> tuple[int, list[str]]:
    prepare(folder, {f"bin/{tool}": "#!/bin/sh" for tool in TOOLS})  # nothing is installed
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "FAILING": failing}
    with (folder / "told").open("w") as told:
        done = subprocess.run([folder / ".ci" / "run"], env=environment, stdout=told, check=False, timeout=60)
    return done.returncode, (folder / "made").read_text().splitlines()


def test_ci_runs_docs_tests_pages_an_older_pyspark_and_then_what_there_is_time_for(tmp_path: Path) -> None:
    assert run(tmp_path, "") == (0, ["docs", "test", "pages", OLDER, TIMED])


def test_what_fails_once_is_repeated_and_nothing_is_left_out(tmp_path: Path) -> None:
    """What failed some day is not taken for what has failed now."""
    left = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    left.parent.mkdir(parents=True)
    left.write_text(OF_AN_EARLIER_RUN)
    assert run(tmp_path, "test") == (0, ["docs", "test", "check", "long ARGS=--last-failed", "pages", OLDER, TIMED])
    assert not left.exists()


def test_when_the_run_would_soon_be_killed_the_rest_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDS", "4000")  # where bash begins to count
    assert run(tmp_path, "") == (0, ["docs", "test", "pages", OLDER])


def test_what_fails_of_the_rest_is_repeated_whatever_the_time(tmp_path: Path) -> None:
    status, made = run(tmp_path, "long")
    assert status != 0
    after = [
        line for line in made[made.index(TIMED) :] if not line.startswith("check")
    ]  # nothing writes .cache/checked
    assert after == [TIMED, *[f"long ARGS=--last-failed {REST}"] * 2]


@pytest.mark.parametrize(
    ("failing", "last"),
    [
        ("docs", "docs"),
        ("test check", "check"),
        ("test long", "long"),
        ("pages", "pages ARGS"),
        ("spark35", f"{OLDER} ARGS"),
    ],
)
def test_what_fails_twice_has_failed(tmp_path: Path, failing: str, last: str) -> None:
    status, made = run(tmp_path, failing)
    assert status != 0
    assert made[-1].startswith(last)


def told_at_the_end(folder: Path) -> list[str]:
    lines = [" ".join(line.split()) for line in (folder / "told").read_text().splitlines()]
    return lines[lines.index("== how often what was tried again:") :]


@pytest.mark.parametrize(("failing", "times"), [("test", 1), ("pages", 1), ("test long", 2)])
def test_what_is_tried_again_is_told_at_the_end_by_name_whether_it_then_passes_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, times: int
) -> None:
    monkeypatch.setenv("LAST_FAILED", TWO_FAILED)
    run(tmp_path, failing)
    ids = ["tests/test_ui.py::test_x", r"tests/test_ui.py::test_y[\"a b\": true]"]
    assert told_at_the_end(tmp_path)[1:] == [f"{times} {each}" for each in ids]


def test_a_step_that_is_tried_again_without_a_failed_test_is_told_and_so_is_a_run_that_tries_nothing_again(
    tmp_path: Path,
) -> None:
    run(tmp_path, "spark35")
    assert told_at_the_end(tmp_path)[1:] == ["1 make spark35 (no test is recorded as failed)"]
    run(tmp_path, "")
    assert (tmp_path / "told").read_text().splitlines()[-1] == NOTHING_AGAIN


APT = """#!/bin/sh
case "$*" in *"install"*prometheus*) cp bin/make bin/promtool ;; esac
"""


def test_what_cannot_be_installed_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    prepare(tmp_path, {"bin/apt-get": APT})
    for program in USED:
        (tmp_path / "bin" / program).symlink_to(str(shutil.which(program)))
    environment = {"PATH": str(tmp_path / "bin"), "FAILING": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [tmp_path / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bin" / "promtool").exists()
    said = [line for line in done.stdout.splitlines() if line.startswith("==")]
    assert said == [
        "== chromium cannot be installed: the tests of the page in a browser are skipped",
        "== mariadbd cannot be installed: the tests of MariaDB outside of containers are skipped",
        NOTHING_AGAIN,
    ]
