"""docs/scoreboard.md and its picture, from what was measured and nothing else."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TEMPLATE = Path(__file__).with_name("page.md")
RECOVERY_SECONDS = 90.0
"""For which a recovery is waited for."""
DRIVER_KILLS = ("kill-when-visible", "kill-driver")


@dataclass(frozen=True)
class Output:
    """What was found in one output at the end of a run.

    Attributes:
        title: Its name.
        expected: Rows that must be in it.
        missing: Rows that are not.
        duplicated: Rows that are in it too often.
        wrong: Rows with another content.
        torn: Rows that are in another output and missing here, and files that cannot be read.
    """

    title: str
    expected: int
    missing: int = 0
    duplicated: int = 0
    wrong: int = 0
    torn: int = 0

    @property
    def exact(self) -> bool:
        """Whether it holds what it must."""
        return not (self.missing or self.duplicated or self.wrong or self.torn)


@dataclass(frozen=True)
class Run:
    """One run of a contestant.

    Attributes:
        contestant: Its name.
        fault: The fault's name.
        seed: The fault's.
        faults: How often something was killed, paused or started.
        outputs: What was found.
        problem: What the kit says; "" if all is well.
        left_open: Number of transactions that were open or prepared at the end.
        blocked: Longest time that a reader was held up, in seconds.
        went_back: How often readers saw a value replaced by an older one.
        start: Seconds from the driver's first start until readers saw something.
        recoveries: Seconds from each fault until readers saw something new.
        seconds: Of the whole run.
        date: When it was run.
        versions: What was run.
        machine: Where.
        load: The machine's load average of the minute before the run's end.
    """

    contestant: str
    fault: str
    seed: int
    faults: int
    outputs: tuple[Output, ...]
    problem: str = ""
    left_open: int = 0
    blocked: float | None = None
    went_back: int | None = None
    start: float | None = None
    recoveries: tuple[float, ...] = ()
    seconds: float = 0.0
    date: str = ""
    versions: str = ""
    machine: str = ""
    load: float | None = None


@dataclass(frozen=True)
class About:
    """What the page says of a contestant.

    Attributes:
        name: For the command line.
        title: For the table.
        settings: What was set, and why.
        documentation: Titles and addresses of the pages that it comes from.
        note: What explains a result.
    """

    name: str
    title: str
    settings: str
    documentation: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def read_runs(path: Path) -> list[Run]:
    """Read the runs that were recorded."""
    lines = path.read_text().splitlines() if path.exists() else []
    runs = [json.loads(line) for line in lines]
    return [
        Run(**{**run, "outputs": tuple(Output(**o) for o in run["outputs"]), "recoveries": tuple(run["recoveries"])})
        for run in runs
    ]


def write_runs(path: Path, runs: Iterable[Run]) -> None:
    """Replace what is recorded."""
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(asdict(run), ensure_ascii=False) + "\n" for run in runs))
    partial.replace(path)


@dataclass(frozen=True)
class Line:
    """One line of the table: a contestant's output over all its runs."""

    about: About
    output: str
    runs: tuple[Run, ...]

    def total(self, what: str) -> int:
        """Sum of a number over the runs."""
        return sum(getattr(found, what) for found in self.found)

    @property
    def found(self) -> list[Output]:
        """What was found in this output, run by run."""
        return [output for run in self.runs for output in run.outputs if output.title == self.output]

    @property
    def not_exact(self) -> int:
        """Number of runs after which it was not as it must be."""
        return sum(not found.exact for found in self.found)

    def cells(self) -> list[str]:
        """Return the line as text."""
        blocked = [run.blocked for run in self.runs if run.blocked is not None]
        back = [run.went_back for run in self.runs if run.went_back is not None]
        killed = [run for run in self.runs if run.fault in DRIVER_KILLS]
        recoveries = [seconds for run in killed for seconds in run.recoveries]
        slow = sum(run.faults for run in killed) - len(recoveries)
        starts = [run.start for run in self.runs if run.start is not None]
        middle = f"{median(recoveries):.1f} ({max(recoveries):.1f})" if recoveries else ""
        torn = self.total("torn")
        can_tear = torn or len(self.runs[0].outputs) > 1 or "files" in self.output
        return [
            self.about.title,
            self.output,
            str(len(self.runs)),
            str(sum(run.faults for run in self.runs)),
            *(f"{self.total(what):,}" for what in ("missing", "duplicated", "wrong")),
            f"{torn:,}" if can_tear else "",
            f"{sum(back):,}" if back else "",
            str(self.not_exact),
            f"{max(blocked):.1f}" if blocked else "",
            f"{median(starts):.1f}" if starts else "",
            ", ".join(filter(None, [middle, f"{slow} over {RECOVERY_SECONDS:.0f}" if slow else ""])),
        ]


NOT_YET = 'not run yet (`make scoreboard ARGS="--only {}"`)'

HEAD = (
    "pipeline",
    "output",
    "runs",
    "faults",
    "missing",
    "duplicated",
    "wrong",
    "torn",
    "went back",
    "runs not exact",
    "readers blocked, s",
    "start, s",
    "recovery, s",
)


def lines(runs: Sequence[Run], abouts: Sequence[About]) -> list[Line]:
    """Return the lines of the table for the contestants that were measured."""
    of: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        of[run.contestant].append(run)
    return [
        Line(about, output.title, tuple(of[about.name]))
        for about in abouts
        if about.name in of
        for output in of[about.name][0].outputs
    ]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 99) -> str:
    """Format a table."""
    rule = ["---:" if number >= numbers_from else "---" for number in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def page(runs: Sequence[Run], abouts: Sequence[About], not_run: Mapping[str, str]) -> str:
    """Return the whole page."""
    rows = lines(runs, abouts)
    measured = {line.about.name for line in rows}
    missing = {
        about.title: not_run.get(about.name, NOT_YET.format(about.name))
        for about in abouts
        if about.name not in measured
    }
    missing |= {name: why for name, why in not_run.items() if name not in {about.name for about in abouts}}
    settings = [
        [
            about.title,
            f"`{about.name}`",
            ", ".join(sorted({run.versions for run in runs if run.contestant == about.name})),
            f"{about.settings} {', '.join(f'[{title}]({url})' for title, url in about.documentation.items())}",
        ]
        for about in abouts
        if about.name in measured
    ]
    notes = [f"- **{about.title}**: {about.note}" for about in abouts if about.name in measured and about.note]
    by_fault = [[about.title, *_by_fault(runs, about)] for about in abouts if about.name in measured]
    dates = sorted({run.date for run in runs})
    return TEMPLATE.read_text().format(
        dates=" to ".join(sorted({dates[0], dates[-1]})) if dates else "",
        machine=", ".join(sorted({run.machine for run in runs})),
        load=_span([run.load for run in runs if run.load is not None]),
        runs=len(runs),
        faults=sum(run.faults for run in runs),
        table=markdown(HEAD, [line.cells() for line in rows], numbers_from=2),
        by_fault=markdown(["pipeline", *_fault_names(runs)], by_fault, numbers_from=1),
        notes="\n".join(notes),
        settings=markdown(["pipeline", "NAME", "versions", "settings, and where they come from"], settings),
        not_run="\n".join(f"- **{title}**: {why}" for title, why in missing.items()) or "Everything was run.",
    )


def _span(loads: Sequence[float]) -> str:
    return f"from {min(loads):.0f} to {max(loads):.0f}" if loads else "not recorded"


def _fault_names(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.fault for run in runs))


def _by_fault(runs: Sequence[Run], about: About) -> list[str]:
    cells: list[str] = []
    for fault in _fault_names(runs):
        own = [run for run in runs if run.contestant == about.name and run.fault == fault]
        bad = sum(not all(output.exact for output in run.outputs) for run in own)
        cells.append(f"{bad} of {len(own)}" if own else "")
    return cells


def draw(runs: Sequence[Run], abouts: Sequence[About], path: Path) -> None:
    """Draw the picture: what is not as it must be, and how long recovery takes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - of the extra `demo`
    from matplotlib.figure import Figure  # noqa: PLC0415

    found = lines(runs, abouts)
    names = [line.about.title + (f"\n{line.output}" if len(line.runs[0].outputs) > 1 else "") for line in found]
    figure = Figure(figsize=(12, 1.5 + 0.45 * len(found)), layout="constrained")
    FigureCanvasAgg(figure)
    rows, seconds = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    left = [0] * len(found)
    for what, color in (("missing", "#762a83"), ("duplicated", "#d6604d"), ("wrong", "#4393c3"), ("torn", "#fdb863")):
        values = [line.total(what) for line in found]
        rows.barh(names, values, left=left, color=color, label=what)
        left = [before + value for before, value in zip(left, values, strict=True)]
    for number, (line, total) in enumerate(zip(found, left, strict=True)):
        count = f"{len(line.runs)} run{'s' if len(line.runs) > 1 else ''}"
        text = f" {total:,} in {line.not_exact} of {count}" if total else f" exact in {count}"
        rows.text(total, number, text, va="center", fontsize=8)
    rows.set_xlabel("rows (or files) that are not as they must be, sum over the runs")
    rows.set_xlim(0, 1.3 * max(left, default=1) or 1)
    rows.tick_params(axis="y", labelsize=8)
    rows.legend(fontsize=8, loc="lower right")
    rows.invert_yaxis()
    for number, line in enumerate(found):
        recoveries = [value for run in line.runs if run.fault in DRIVER_KILLS for value in run.recoveries]
        starts = [run.start for run in line.runs if run.start is not None]
        seconds.plot(starts, [number] * len(starts), ".", color="#aaaaaa", label=None if number else "first start")
        label = None if number else "after a kill of the driver"
        seconds.plot(recoveries, [number] * len(recoveries), "|", color="#333333", ms=9, label=label)
    seconds.set_xlabel("seconds until readers see something new")
    seconds.set_xlim(left=0)
    seconds.legend(fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
