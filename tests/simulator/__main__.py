"""python -m tests.simulator --runs N --seed S [--replay SEED] [--mutant NAME], with PYTHONPATH=src."""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from .campaign import account, first_catch, run_many
from .mutants import MUTANTS


def main() -> int:
    """Run, and say what came out; exit code 1 if a law was broken (or a mutant was not caught)."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", type=int, metavar="SEED", help="one run, shrunk if it fails, with its trace")
    parser.add_argument("--full", action="store_true", help="do not shrink")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="replay on, or look for a catch of, this mutant")
    parser.add_argument("--json", action="store_true", help="tell the tally as JSON")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        sys.stdout.write(account(arguments.replay, arguments.mutant, full=arguments.full) + "\n")
        return 0
    if arguments.mutant is not None:
        caught = first_catch(arguments.mutant, arguments.runs)
        sys.stdout.write(f"{arguments.mutant}: {caught or 'NOT CAUGHT'}\n")
        return 0 if caught else 1
    return _campaign(arguments)


def _campaign(arguments: argparse.Namespace) -> int:
    tally = run_many(arguments.seed, arguments.runs, processes=arguments.processes)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(tally).decode())
        return 0
    rate = tally.runs / max(tally.seconds, 1e-9)
    sys.stdout.write(
        f"{tally.runs} runs from seed {arguments.seed} in {tally.seconds:.1f} s ({rate:.0f}/s), {tally.ticks} steps, "
        f"{tally.stopped} stopped loudly after a real loss, {len(tally.failures)} broke a law\n"
    )
    if not tally.failures:
        return 0
    for seed, what in tally.failures[:10]:
        sys.stdout.write(f"seed {seed}: {what}\n")
    sys.stdout.write("\n" + account(tally.failures[0][0], full=arguments.full) + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
