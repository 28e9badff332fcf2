"""Run the scoreboard, and write docs/scoreboard.md: `make scoreboard ARGS="--only NAME"`.

    python -m benchmarks.scoreboard [--only NAME …] [--continue] [--kills 2] [--faults FAULT …]

Each run is recorded in results.jsonl at once, and the page is written from all that is recorded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import time
import traceback
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from onceward.core.operations.comparison import Mismatch
from onceward.testing.machine import lock_file
from onceward.testing.pipeline.case import Case
from onceward.testing.pipeline.endpoints import UnreadableError
from onceward.testing.pipeline.servers import Servers

from .contestants import CONTESTANTS, NOT_RUN, ROOT, Contestant
from .faults import KILL_SECONDS, WINDOW, Injected, armed, planned
from .files import Files
from .java import CACHE
from .table import About, Output, Run, draw, page, read_runs, write_runs
from .watch import Watch

if TYPE_CHECKING:
    from onceward.core.operations.comparison import Verdict
    from onceward.testing.pipeline.timed_faults import PlannedFault


RESULTS = Path(__file__).with_name("results.jsonl")
ABOUTS = [About(one.name, one.title, one.settings, one.documentation, one.note) for one in CONTESTANTS]


def outputs_of(spec: Contestant) -> tuple[object, ...]:
    return spec.outputs if isinstance(spec.outputs, tuple) else (spec.outputs,)


def found_in(spec: Contestant, case: Case, verdict: Verdict) -> tuple[Output, ...]:
    """Describe what the judge has counted, output by output."""
    torn: dict[str, set[str]] = {}
    for (_, here), keys in verdict.torn().items():
        torn.setdefault(here, set()).update(keys)
    outputs: list[Output] = []
    for output, comparison in zip(outputs_of(spec), verdict.comparisons, strict=True):
        counts = [comparison.count(kind) for kind in (Mismatch.MISSING, Mismatch.DUPLICATED, Mismatch.WRONG)]
        files = len(output.torn(case.addresses)) if isinstance(output, Files) else 0
        outputs.append(
            Output(comparison.output, comparison.expected, *counts, len(torn.get(comparison.output, ())) + files)
        )
    return tuple(outputs)


def is_late(verdict: Verdict) -> bool:
    """Return whether rows are missing at the ends of the input's partitions alone: the pipeline may only be slow."""
    newest: dict[str, int] = {}
    missing: list[tuple[str, int]] = []
    for comparison in verdict.comparisons:
        gone = {str(finding.row["id"]) for finding in comparison.findings if finding.kind is Mismatch.MISSING}
        for key, positions in verdict.sources.items():
            places = [(partition, int(offset)) for partition, _, offset in (p.rpartition("@") for p in positions)]
            if key in gone:
                missing += places
            else:
                for partition, offset in places:
                    newest[partition] = max(offset, newest.get(partition, -1))
    return bool(missing) and all(offset > newest.get(partition, -1) for partition, offset in missing)


def run_one(contestant: type[Contestant], fault: PlannedFault, servers: Servers, folder: Path) -> Run | None:
    """Run once; return None if the fault found nothing to hit."""
    spec, injected, watches = contestant(), Injected(), list[Watch]()
    spec.feed_seconds = KILL_SECONDS if fault.name == WINDOW else spec.feed_seconds
    began = time.monotonic()
    with ExitStack() as stack:
        case = Case(spec, armed(fault, injected, watches), servers, folder, stack)
        started = time.monotonic()
        for watch in spec.watch(case.addresses):
            watches.append(watch)
            stack.callback(watch.stop)
        try:
            problem = case.run()
        except UnreadableError as error:
            problem = str(error)
        if case.verdict is None:
            raise RuntimeError(f"{contestant.name}, {fault.id}: {problem}\n{case.report()}")
        outputs = found_in(spec, case, case.verdict)
        if problem:
            print(case.report(), flush=True)
        unusable = case.nothing_hit or ("" if injected.count or fault.name == "clean" else problem)
        if unusable or is_late(case.verdict):
            print(f"{contestant.name:18} {fault.id:22} not counted: {unusable or 'it has not caught up'}", flush=True)
            return None
    firsts = [watch.first for watch in watches if watch.first is not None]
    blocked = [watch.blocked for watch in watches if watch.blocked is not None]
    back = [watch.went_back for watch in watches if watch.went_back is not None]
    return Run(
        contestant=contestant.name,
        fault=fault.name,
        seed=fault.seed,
        faults=injected.count,
        outputs=outputs,
        problem=problem,
        left_open=len(case.verdict.left_open),
        blocked=round(max(blocked), 2) if blocked else None,
        went_back=sum(back) if back else None,
        start=round(min(firsts) - started, 2) if firsts else None,
        recoveries=tuple(round(seconds, 2) for seconds in injected.recoveries),
        seconds=round(time.monotonic() - began, 1),
        date=datetime.now(UTC).date().isoformat(),
        versions=contestant.versions(),
        load=round(os.getloadavg()[0], 1),
        machine=f"{psutil.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB",
    )


def record(run: Run) -> None:
    """Keep a run, in the place of an older one of the same fault and seed."""
    with lock_file(CACHE / "results.lock"):
        key = (run.contestant, run.fault, run.seed)
        others = [one for one in read_runs(RESULTS) if (one.contestant, one.fault, one.seed) != key]
        write_runs(RESULTS, [*others, run])


def write_page(*, picture: bool = True) -> None:
    """Write the page, and the picture, from all runs that are recorded."""
    order = {about.name: number for number, about in enumerate(ABOUTS)}
    runs = sorted((run for run in read_runs(RESULTS) if run.contestant in order), key=lambda run: order[run.contestant])
    text = page(runs, ABOUTS, NOT_RUN)
    (ROOT / "docs" / "scoreboard.md").write_text(text)
    if picture:
        draw(runs, ABOUTS, ROOT / "docs" / "scoreboard.png")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoreboard", description=__doc__)
    names = [one.name for one in CONTESTANTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--continue", action="store_true", dest="resume", help="leave out the runs that are recorded")
    parser.add_argument("--kills", type=int, default=2, help="series of kills for each pipeline (default 2)")
    parser.add_argument("--faults", nargs="+", metavar="FAULT", help="these faults only")
    parser.add_argument("--page", action="store_true", help="run nothing, and write the page from what is recorded")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)  # so that no process is left behind
    with tempfile.TemporaryDirectory(prefix="scoreboard-") as scratch:
        servers = Servers(Path(scratch) / "servers")
        try:
            for contestant in () if arguments.page else CONTESTANTS:
                if contestant.name in arguments.only:
                    run_all(contestant, servers, Path(scratch), arguments)
                    write_page()
        finally:
            servers.stop()
    write_page()


def run_all(contestant: type[Contestant], servers: Servers, scratch: Path, arguments: argparse.Namespace) -> None:
    """Run all cases of a contestant."""
    contestant.get_ready()
    print(f"== {contestant.title}: {contestant.versions()}\n{contestant.settings}", flush=True)
    needs = frozenset(endpoint.needs for endpoint in (contestant.inputs, *outputs_of(contestant())))
    recorded = {(run.contestant, run.fault, run.seed) for run in read_runs(RESULTS)} if arguments.resume else set()
    for fault in planned(needs, arguments.kills):
        is_chosen = not arguments.faults or fault.name in arguments.faults
        if not is_chosen or (contestant.name, fault.name, fault.seed) in recorded:
            continue
        folder = scratch / f"{contestant.name}-{fault.id}"
        folder.mkdir()
        try:
            run = run_one(contestant, fault, servers, folder)
        except Exception:  # noqa: BLE001 - the other runs of a night go on
            traceback.print_exc()
            run = None
        if run:
            record(run)
            write_page(picture=False)
            summary = "; ".join(
                f"{o.title}: {o.missing} missing, {o.duplicated} duplicated, {o.wrong} wrong, {o.torn} torn"
                for o in run.outputs
            )
            print(f"{run.contestant:18} {fault.id:22} {run.faults} faults, {run.seconds:5.1f} s  {summary}", flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
