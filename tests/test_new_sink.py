"""`onceward new-sink`: what it writes works and passes its exam."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onceward.connectors.new_sink import write_skeleton
from onceward.core.errors import ConfigurationError

SOURCE = Path(__file__).parent.parent / "src"
MAIN = "from onceward.connectors.cli import main; main()"


def test_the_skeleton_passes_its_exam(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(tmp_path)])}
    made = subprocess.run(
        [sys.executable, "-c", MAIN, "new-sink", "billing_sink", "--folder", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"billing_sink.py", "test_billing_sink.py"}
    exam = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert exam.returncode == 0, exam.stdout[-3000:]


@pytest.mark.parametrize("name", ["Billing", "my-sink", "class", "_x", "1st", ""])
def test_a_name_that_is_no_modules_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="billing_sink"):
        write_skeleton(name, tmp_path)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    write_skeleton("mine", tmp_path)
    before = (tmp_path / "mine.py").read_text()
    with pytest.raises(ConfigurationError, match="there already; nothing was written"):
        write_skeleton("mine", tmp_path)
    assert (tmp_path / "mine.py").read_text() == before
