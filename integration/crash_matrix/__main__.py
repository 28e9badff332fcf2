"""python -m integration.crash_matrix [--kills N] [--seed S] [--workers N] [--case NAME]: exit code 1 if not exact."""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import tempfile
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from onceward.testing.services import dev_services

from ..mariadb_kit import PROGRAM
from .bench import Bench, Outcome, environment
from .cells import Case, campaign, series
from .drivers import Style
from .page import DOCUMENT, document
from .targets import COMBINATIONS, ON_MARIADB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Results:
    """Outcomes in a file, a line each, as they come: an interrupted campaign goes on where it was, days later too.

    Several campaigns of one seed may fill it at the same time, for different styles.

    Args:
        file: JSON lines; made if it is missing.
        seed: Of the campaign.
        kills: When to stop.
    """

    def __init__(self, file: Path, seed: int, kills: int) -> None:
        self._file, self._seed, self._wanted = file, seed, kills
        self._lock = threading.Lock()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        self.stopped = threading.Event()

    @property
    def outcomes(self) -> list[Outcome]:
        return [msgspec.json.decode(line, type=Outcome) for line in self._file.read_bytes().splitlines()]

    @property
    def enough(self) -> bool:
        return self.stopped.is_set() or sum(outcome.struck for outcome in self.outcomes) >= self._wanted

    def left(self, group: Sequence[Case]) -> list[Case]:
        """Cases that are not done."""
        done = {outcome.case for outcome in self.outcomes}
        return [case for case in group if case.name not in done]

    def add(self, outcome: Outcome) -> None:
        with self._lock, self._file.open("ab") as file:
            file.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.write(f"{told(outcome)}\n")
        sys.stdout.flush()

    def write_page(self) -> None:
        """Write the page of all campaigns in the folder."""
        files = sorted(self._file.parent.glob("*.jsonl"))
        outcomes = [outcome for file in files for outcome in Results(file, self._seed, 0).outcomes]
        if outcomes:
            DOCUMENT.write_text(document(outcomes, ", ".join(file.stem for file in files)))


def told(outcome: Outcome) -> str:
    """An outcome in one line."""
    strikes = ", ".join(f"{s.death}@{s.step}:{s.nth}" for s in outcome.strikes)
    what = f"{outcome.case}: {outcome.combination}, {strikes} ({outcome.struck} struck), {outcome.seconds:g} s"
    if outcome.exact:
        return what
    counts = f"{outcome.missing} missing, {outcome.duplicated} duplicated, {outcome.wrong} wrong"
    return f"{what}: NOT EXACT: {counts} {outcome.problem} {outcome.left}"


def work(home: Path, evidence: Path, groups: Iterator[list[Case]], results: Results) -> None:
    """Take one group after another until there are enough kills."""
    try:
        with dev_services(home / "services") as services, Bench(home, services, services.dsn, evidence) as bench:
            while not results.enough:
                for outcome in bench.run(results.left(next(groups))):
                    if results.stopped.is_set() and not outcome.exact:
                        return  # whoever interrupts may have ended a driver too
                    results.add(outcome)
                    if results.enough:
                        break
    except BaseException:
        results.stopped.set()
        traceback.print_exc()
        raise


def main() -> int:
    """Run a campaign, or one case of it."""
    parser = argparse.ArgumentParser(prog="python -m integration.crash_matrix", description=__doc__)
    parser.add_argument("--kills", type=int, default=2000, help="how many, those of an interrupted run included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="each with services and Spark sessions of its own")
    parser.add_argument("--style", choices=list(Style), action="append", help="only this one; can be repeated")
    parser.add_argument("--sinks", choices=list(COMBINATIONS), action="append", help="only these; can be repeated")
    parser.add_argument("--results", type=Path, help="default: .cache/crash-matrix/SEED.jsonl")
    parser.add_argument("--case", action="append", help="only this one again, without results; can be repeated")
    parser.add_argument("--page", action="store_true", help="only write the page of the results")
    arguments = parser.parse_args()
    styles = [Style(name) for name in arguments.style or Style]
    folder = Path(".cache", "crash-matrix")
    file: Path = arguments.results or folder / f"{arguments.seed}.jsonl"
    evidence = folder / f"{arguments.seed}.evidence"
    results = Results(file, arguments.seed, arguments.kills)
    if arguments.page:
        results.write_page()
        return 0
    environment()
    if arguments.case:
        return _again(arguments.seed, set(arguments.case), evidence, _possible(arguments.sinks))
    groups = iter(
        list(itertools.islice(campaign(arguments.seed, styles, _possible(arguments.sinks)), 10 + arguments.kills))
    )
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        with _home() as scratch, ThreadPoolExecutor() as pool:
            homes = [Path(scratch, str(number)) for number in range(arguments.workers)]
            tasks = [pool.submit(work, home, evidence, groups, results) for home in homes]
            try:
                for task in tasks:
                    task.result()
            finally:
                results.stopped.set()
    finally:
        results.write_page()
    return 0 if all(outcome.exact for outcome in results.outcomes) else 1


def _possible(sinks: Sequence[str] | None) -> list[str]:
    """Return the chosen combinations, by default those whose servers are installed."""
    return list(sinks or (name for name, kinds in COMBINATIONS.items() if PROGRAM or not ON_MARIADB & set(kinds)))


def _again(seed: int, names: set[str], evidence: Path, sinks: Sequence[str]) -> int:
    wanted: list[Case] = []
    for style in Style:
        numbers = [int(name.rpartition("-")[2]) for name in names if name.startswith(f"{style}-")]
        if numbers:
            cases = itertools.islice(itertools.chain.from_iterable(series(seed, style, sinks)), max(numbers) + 1)
            wanted += [case for case in cases if case.name in names]
    bad = 0
    with (
        _home() as folder,
        dev_services(Path(folder, "services")) as services,
        Bench(Path(folder), services, services.dsn, evidence) as bench,
    ):
        for outcome in itertools.chain.from_iterable(bench.run([case]) for case in wanted):
            sys.stdout.write(f"{outcome.log}\n{told(outcome)}\n")
            bad += not outcome.exact
    return 1 if bad else 0


@contextmanager
def _home() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="onceward-matrix-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user than root
        yield folder


def _interrupted(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
