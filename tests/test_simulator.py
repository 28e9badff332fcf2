"""The protocol, simulated: no run breaks a law, the same seed gives the same run, and every mutant is caught."""

from __future__ import annotations

import os
import sys

import pytest

from .simulator import make, simulate
from .simulator.campaign import account, first_catch, run_many, run_seed
from .simulator.mutants import MUTANTS
from .simulator.plan import Kind
from .simulator.shrink import shrink

WITHIN = 3_000


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("runs", [1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_no_law_is_broken_in_thousands_of_runs(runs: int):
    tally = run_many(int(os.environ.get("ONCEWARD_SIMULATOR_SEED", "0")), runs, processes=min(2, os.cpu_count() or 1))
    assert not tally.failures, account(tally.failures[0][0])
    assert tally.runs == runs
    assert tally.stopped > runs / 1000  # real losses happened, and were loud


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulator_catches_each_mutant(name: str):
    before = code_under_test()
    assert first_catch(name, WITHIN) is not None, f"{MUTANTS[name].error} Not caught in {WITHIN} runs"
    assert code_under_test().items() >= before.items(), "the error stays in the code, in the runs that follow"


def code_under_test() -> dict[tuple[str, ...], int]:
    """Return the functions and classes of the modules that are loaded, and what the classes define."""
    code = {}
    for module in [name for name in sys.modules if name.startswith("onceward.")]:
        for name, value in vars(sys.modules[module]).items():
            code[module, name] = id(value)
            if isinstance(value, type) and value.__module__ == module:
                code |= {(module, name, attribute): id(inner) for attribute, inner in vars(value).items()}
    return code


def test_the_same_seed_gives_the_same_run():
    for seed in range(40):
        one, two = run_seed(seed, tracing=True), run_seed(seed, tracing=True)
        assert one.trace == two.trace
        assert one.ticks == two.ticks


def test_the_trace_changes_nothing():
    for seed in range(40):
        assert run_seed(seed, tracing=True).ticks == run_seed(seed).ticks


def test_every_kind_of_disturbance_happens():
    happened = {event.kind for seed in range(200) for event in make(seed).events}
    assert happened == set(Kind)


def test_both_styles_and_all_sinks_are_simulated():
    configs = [make(seed).config for seed in range(200)]
    assert {config.style for config in configs} == {"batch", "format"}
    assert {sink for config in configs for sink in config.sinks} == {"kafka", "prepared", "staged"}


def test_a_failure_is_shrunk_and_told_with_its_seed_and_trace():
    name = "an errored put taken for not written"
    caught = first_catch(name, WITHIN)
    assert caught is not None
    seed, message = caught
    with MUTANTS[name].installed() as parts:
        plan = MUTANTS[name].narrow(make(seed))
        small = shrink(plan, "4", lambda candidate: simulate(candidate, parts=parts))
        violation = simulate(small, parts=parts).violation
    assert violation is not None
    assert violation.law == "4"
    assert len(small.events) == 1
    assert small.events[0].kind is Kind.STORE_FAULT
    told = account(seed, name)
    assert told.startswith(f"seed {seed}: [4]")
    assert "*** store fault" in told
    assert f"--replay {seed}" in told
    assert message.startswith("[4]")
