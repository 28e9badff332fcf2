"""A program that uses onceward is checked by mypy and pyright, both strict; both find the mistakes of a list."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "consumer"
MISTAKES = {
    number for number, line in enumerate((HERE / "mistakes.py").read_text().splitlines(), 1) if "# mistake" in line
}
CHECKERS = {
    "mypy": ["mypy", "--config-file", str(HERE / "mypy.ini"), str(HERE / "program.py"), str(HERE / "mistakes.py")],
    "pyright": ["basedpyright", "--pythonpath", sys.executable, "-p", str(HERE / "pyrightconfig.json")],
}
REPORT = re.compile(r"(\w+)\.py:(\d+)(?::\d+)?(?: -)?:? error")


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_finds_each_mistake_and_nothing_else(checker: str) -> None:
    program, *arguments = CHECKERS[checker]
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent.parent)
    reports = {(file, int(line)) for file, line in REPORT.findall(done.stdout)}
    assert reports == {("mistakes", line) for line in MISTAKES}, done.stdout + done.stderr


def test_there_are_mistakes_of_each_kind() -> None:
    assert len(MISTAKES) > 40
