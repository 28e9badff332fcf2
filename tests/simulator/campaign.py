"""Many runs, on several processes, and a readable account of the first failure."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .mutants import MUTANTS, Mutant
from .plan import Plan, make
from .run import simulate
from .shrink import shrink

if TYPE_CHECKING:
    from .run import Outcome

ROOT = Path(__file__).parents[2]
CATCHES = Path(__file__).with_name("catches.json")
"""Seeds that caught mutants for which many runs are needed; where they no longer do, all are tried."""
ENOUGH = 5
"""Failures after which a process stops."""


@dataclass
class Tally:
    """What a number of runs came to."""

    runs: int = 0
    ticks: int = 0
    stopped: int = 0
    seconds: float = 0.0
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Sum up."""
        self.runs += other.runs
        self.ticks += other.ticks
        self.stopped += other.stopped
        self.failures += other.failures


def run_seed(seed: int, mutant: str | None = None, *, tracing: bool = False) -> Outcome:
    """The run of one seed, on the real code or on a mutant."""
    return run_plan(_plan(seed, mutant), mutant, tracing=tracing)


def run_plan(plan: Plan, mutant: str | None = None, *, tracing: bool = False) -> Outcome:
    """The run of one plan, on the real code or on a mutant."""
    if mutant is None:
        return simulate(plan, tracing=tracing)
    with MUTANTS[mutant].installed() as parts:
        return simulate(plan, tracing=tracing, parts=parts)


def run_many(seed: int, runs: int, *, processes: int = 1) -> Tally:
    """Runs of the real code from `seed` on; a process stops after a few failures."""
    began = time.monotonic()
    if processes == 1:
        tally = _run_here(seed, runs)
    else:
        share = -(-runs // processes)
        parts = [(start, min(share, seed + runs - start)) for start in range(seed, seed + runs, share)]
        running = [_run_elsewhere(*part) for part in parts]
        tally = Tally()
        for process in running:
            told, _ = process.communicate()
            tally.add(msgspec.json.decode(told, type=Tally))
    tally.seconds = time.monotonic() - began
    return tally


def _run_here(seed: int, runs: int) -> Tally:
    tally = Tally()
    for number in range(seed, seed + runs):
        outcome = simulate(make(number))
        tally.runs += 1
        tally.ticks += outcome.ticks
        tally.stopped += outcome.stopped
        if outcome.violation is not None:
            tally.failures.append((number, str(outcome.violation)))
            if len(tally.failures) >= ENOUGH:
                break
    return tally


def _run_elsewhere(seed: int, runs: int) -> subprocess.Popen[bytes]:
    """The command line in a process of its own."""
    options = ["--json", "--processes", "1", "--seed", str(seed), "--runs", str(runs)]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.simulator", *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths})


def first_catch(name: str, within: int) -> tuple[int, str] | None:
    """Seed and message of the first run in which the simulator catches a mutant; None if it does not."""
    mutant: Mutant = MUTANTS[name]
    before = msgspec.json.decode(CATCHES.read_bytes(), type=dict[str, int])
    with mutant.installed() as parts:
        for seed in (*([before[name]] if name in before else []), *range(within)):
            violation = simulate(mutant.narrow(make(seed)), parts=parts).violation
            if violation is not None and violation.law in mutant.laws:
                return seed, str(violation)
    return None


def account(seed: int, mutant: str | None = None, *, full: bool = False) -> str:
    """Seed, configuration, disturbances and trace of a failing run, shrunk unless `full`."""
    plan = _plan(seed, mutant)
    violation = run_plan(plan, mutant).violation
    if violation is not None and not full:
        plan = shrink(plan, violation.law, lambda candidate: run_plan(candidate, mutant))
    outcome = run_plan(plan, mutant, tracing=True)
    lines = [f"seed {seed}: {outcome.violation or 'no violation'}", f"{plan.config}"]
    lines += [f"{event.tick:5d} {event.kind} {event.arg}" for event in plan.events]
    again = f"--mutant {mutant!r} " if mutant else ""
    lines += ["", *outcome.trace, "", f"again: python -m tests.simulator {again}--replay {seed}"]
    return "\n".join(lines)


def _plan(seed: int, mutant: str | None) -> Plan:
    return make(seed) if mutant is None else MUTANTS[mutant].narrow(make(seed))
