"""Each benchmark still runs: in its smallest setting, in which its figures mean nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
HISTORY = "--history={folder}/history.jsonl"
FEW = ("--rows=2000", "--repeats=1")
COMMANDS = {
    "commit.py": ("--epochs=6",),
    "curves.py": ("--repeats=1", "--quick"),
    "engine.py throughput": FEW,
    "engine.py sums": (*FEW, "--keys=100"),
    "engine.py snapshots": ("--megabytes=1",),
    "engine_peer.py": FEW,
    "growth.py": ("--epochs=20",),
    "guard.py": (*FEW, HISTORY),
    "kafka_sink.py": FEW,
    "latency.py": ("--batches=7", "--partitions=2", "--rows=10", "--repeats=1"),
    "latency.py --order": ("--batches=7", "--partitions=2", "--rows=10", "--repeats=1"),
    "proof.py": FEW,
    "restart.py": ("--rows=40", "--repeats=1", "--unpacked"),
    "source.py": FEW,
    "source_memory.py": ("--megabytes=2", "--sizes", "10", "1000000"),
    "throughput.py": FEW,
}
BY_DAY = "growth.py --fakes"
PROGRAMS_OF_OTHERS = {"engine_job.py", "engine_job_batches.py", "engine_job_quix.py", "restart_job.py"}
"""What engine_peer.py and restart.py start."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", [BY_DAY, *(pytest.param(name, marks=pytest.mark.nightly) for name in COMMANDS)])
def test_a_benchmark_runs_in_its_smallest_setting(tmp_path: Path, driver_environment: dict[str, str], command: str):
    script, *given = command.split()
    more = [text.format(folder=tmp_path) for text in COMMANDS.get(command, ("--epochs=20",))]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *given, *more],
        env=driver_environment,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "failed" not in done.stdout


def test_no_benchmark_is_left_out():
    programs = {path.name for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text()}
    assert programs == {command.split()[0] for command in COMMANDS} | PROGRAMS_OF_OTHERS
