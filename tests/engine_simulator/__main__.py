"""python -m tests.engine_simulator --runs N [--first SEED] [--seed SEED], with PYTHONPATH=src."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from .simulation import Simulation, ViolationError


def broken(seed: int) -> str:
    """What is wrong with a seed's run; empty if nothing is."""
    logging.disable(logging.CRITICAL)
    try:
        Simulation(seed).run()
    except ViolationError as violation:
        return str(violation)
    return ""


def main() -> int:
    """Run, and say what came out; exit code 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine_simulator", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="run only this one, and tell its story")
    given = parser.parse_args()
    if given.seed is not None:
        logging.disable(logging.CRITICAL)
        sys.stdout.write(Simulation(given.seed).run().story() + "\n")
        return 0
    with ProcessPoolExecutor(given.processes) as pool:
        found = [text for text in pool.map(broken, range(given.first, given.first + given.runs), chunksize=20) if text]
    sys.stdout.write("".join(f"{text}\n" for text in found))
    sys.stdout.write(f"{given.runs} runs, {len(found)} broke a promise\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
