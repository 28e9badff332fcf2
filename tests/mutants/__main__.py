"""python -m tests.mutants [--only NAME] [--area AREA] [--workers N]: exit code 1 if a mutant survives."""

from __future__ import annotations

import argparse
import queue
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from .catalog import AREAS, ROOT, Mutant, MutantError, load
from .table import DOCUMENT, document
from .tree import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence


class Verdict(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    caught_by: str | None
    elsewhere: bool = False
    """Not by a test that it names."""
    problem: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        words = self.problem or ("SURVIVED" if self.caught_by is None else self.caught_by)
        found = " (name this test in the list)" if self.elsewhere else ""
        return f"{self.mutant.area:9} {self.mutant.name:60} {self.seconds:5.1f} s  {words}{found}"


def main() -> int:
    """Run the mutants, say what caught each, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="those whose name holds this; can be repeated")
    parser.add_argument("--area", choices=list(AREAS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--named", action="store_true", help="only the tests that each mutant names")
    arguments = parser.parse_args()
    everything = load()
    chosen = [m for m in everything if arguments.area in (None, m.area) and _is_meant(m, arguments.only)]
    if not chosen:
        parser.error("no such mutant")
    began = time.monotonic()
    verdicts = _judge_all(chosen, arguments.workers, named=arguments.named)
    caught = {v.mutant.name: v.caught_by for v in verdicts if v.caught_by is not None}
    bad = [v for v in verdicts if v.caught_by is None]
    sys.stdout.write(f"{len(caught)} of {len(chosen)} caught in {time.monotonic() - began:.0f} s\n")
    for verdict in bad:
        sys.stdout.write(f"{verdict}\n")
    if not bad and len(chosen) == len(everything):
        (ROOT / DOCUMENT).write_text(document(everything, caught))
    return 1 if bad else 0


def _is_meant(mutant: Mutant, only: Sequence[str] | None) -> bool:
    return only is None or any(part in mutant.name for part in only)


def _judge_all(chosen: Sequence[Mutant], workers: int, *, named: bool) -> list[Verdict]:
    """Each worker has a tree of its own. Without any mutant the named tests must pass."""
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    with ExitStack() as stack, ThreadPoolExecutor(workers) as pool:
        made = [stack.enter_context(Tree()) for _ in range(workers)]
        list(pool.map(_check_unchanged, made, (tests[n::workers] for n in range(workers))))
        free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for tree in made:
            free.put(tree)

        def judge(mutant: Mutant) -> Verdict:
            tree = free.get()
            verdict = _judge(tree, mutant, named=named)
            free.put(tree)
            sys.stdout.write(f"{verdict}\n")
            sys.stdout.flush()
            return verdict

        return list(pool.map(judge, chosen))


def _check_unchanged(tree: Tree, tests: Sequence[str]) -> None:
    failed = tree.test(tests).failed if tests else None
    if failed is not None:
        raise MutantError(f"{failed} fails without any mutant")


def _judge(tree: Tree, mutant: Mutant, *, named: bool) -> Verdict:
    began = time.monotonic()
    try:
        with tree.mutated(mutant):
            caught_by, elsewhere = tree.test(mutant.tests).failed, False
            if caught_by is None and not named:
                caught_by, elsewhere = tree.test_all().failed, True
    except MutantError as error:
        return Verdict(mutant, None, problem=str(error), seconds=time.monotonic() - began)
    return Verdict(mutant, caught_by, elsewhere and caught_by is not None, seconds=time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
