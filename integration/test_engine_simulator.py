"""Graphs and seeds of the embedded engine's simulator; tests/test_engine_simulator.py has the mutants."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("runs", ["50", pytest.param("2500", marks=pytest.mark.nightly)])
@pytest.mark.timeout(1200)
def test_every_record_takes_effect_exactly_once_in_any_graph(runs: str):
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine_simulator", "--runs", runs, "--first", "1000"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
