from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onceward.core.kit import crash_points as steps
from onceward.core.kit.crash_points import CRASH_VARIABLE, Step, crash_point, hooked, kill_at

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("step", list(Step))
def test_every_step_is_passed_somewhere(step: Step):
    """A step that no code reaches would make the crash tests believe that they covered it."""
    folders = [ROOT / "core", ROOT / "sinks"]
    source = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py") if path.stem != "steps")
    assert f"crash_point(Step.{step.name})" in source


def test_hooks_nest_and_are_taken_down():
    seen: list[str] = []
    crash_point(Step.START_BEFORE)
    with hooked(lambda step: seen.append(f"outer {step}")):
        fails_inside = pytest.raises(KeyError)
        with fails_inside, hooked(lambda step: seen.append(f"inner {step}")):
            crash_point(Step.START_BEFORE)
            raise KeyError
        crash_point(Step.START_AFTER)
    crash_point(Step.START_BEFORE)
    assert seen == ["inner start.before", "outer start.after"]


def test_a_kill_counts_its_step(monkeypatch: pytest.MonkeyPatch):
    kills: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: kills.append((pid, number)))
    hook = kill_at("decide.after:2")
    for step in (Step.DECIDE_AFTER, Step.DECIDE_BEFORE, Step.DECIDE_BEFORE):
        hook(step)
    assert kills == []
    hook(Step.DECIDE_AFTER)
    hook(Step.DECIDE_AFTER)
    assert kills == [(os.getpid(), signal.SIGKILL)]


def test_an_unknown_step_is_refused():
    with pytest.raises(ValueError, match="nowhere"):
        kill_at("nowhere")


def test_the_environment_variable_kills_a_real_process_at_the_step():
    code = "from onceward.core.kit.crash_points import *; print('a', flush=True); crash_point(Step.DECIDE_AFTER)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "", CRASH_VARIABLE: "decide.after"},
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "a\n")
    assert steps._hook is None or CRASH_VARIABLE in os.environ
