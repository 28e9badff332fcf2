"""`onceward demo`: runs it, and shows it as it goes on, as a table and as a picture."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from onceward.core.operations.comparison import Mismatch
from onceward.testing.machine import make_empty_folder
from onceward.testing.pipeline.endpoints import Addresses
from onceward.testing.services import dev_services
from onceward.testing.services.jars import PEER_JARS, ensure_jars

from .scenario import MADE, TARGETS, Story, expected, generate, plan, run_story

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from rich.console import RenderableType

    from onceward.core.operations.comparison import Comparison

_NOTES: Final = 12
_LINES: Final = dict(
    zip(TARGETS, [("#0b7a4b", "-"), ("#5aae61", "--"), ("#b35806", "-"), ("#e08214", "--")], strict=True)
)
_COLORS: Final = {"driver": "#c62828", "broker": "#6a3d9a", "database": "#1f78b4"}
_INK, _TOO_MANY = "#1f2933", "#c62828"


def run_demo(*, orders: int, users: int, kills: int, seed: int, home: Path, picture: Path) -> int:
    """Run the demo; 0 if nothing is missing and nothing duplicated in the exactly-once targets, else 1.

    Raises:
        ConfigurationError: The folder `home` holds something that no demo made.
    """
    console = Console()
    make_empty_folder(home, "onceward demo", MADE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that whoever ends the demo leaves no process behind
    console.print("setting up: jars, a Kafka broker, a PostgreSQL server …")
    ensure_jars(PEER_JARS)
    with dev_services(home / "services") as services:
        addresses = Addresses(home, services.bootstrap_servers, services.dsn)
        story = Story(addresses, list(generate(seed, orders, users)), expected(seed, orders, users))
        if console.is_terminal:
            with Live(get_renderable=lambda: live_view(story), console=console, refresh_per_second=4):
                run_story(story, services, plan(seed, kills))
        else:  # a log, which would show nothing before the end
            story.tell = console.print
            run_story(story, services, plan(seed, kills))
        draw(story, picture)
    console.print(summary(story))
    console.print(f"picture: {picture}   logs: {home}")
    return 0 if all(verdict.exact for verdict in story.verdicts[:2]) else 1


def live_view(story: Story) -> RenderableType:
    """Return the running display."""
    facts = Table.grid(padding=(0, 2))
    facts.add_row("phase", story.phase)
    facts.add_row("elapsed", f"{story.elapsed():.0f} s")
    facts.add_row("micro-batches", f"{story.batches}")
    facts.add_row("kills", ", ".join(victim for _, victim in story.kills) or "none yet")
    for guarantee in ("exactly once", "at least once"):
        counts = [f"{target[0]} {rows:,}" for target, rows in story.rows.items() if guarantee in target]
        facts.add_row(f"visible, {guarantee}", "   ".join(counts))
    most = max(len(story.totals), 1)
    facts.add_row("", ProgressBar(total=most, completed=min(story.done, most), width=60))
    notes = Text("\n".join(story.notes[-_NOTES:]), style="dim")
    return Panel(Group(facts, notes), title="onceward demo", width=100)


def summary(story: Story) -> RenderableType:
    """Return the table at the end."""
    table = Table(title=f"{len(story.orders):,} orders, {len(story.kills)} kills, {story.elapsed():.0f} s")
    for column in ("target", "expected", "seen", "missing", "duplicated", "wrong", ""):
        table.add_column(column, justify="left" if column in ("target", "") else "right")
    for verdict in story.verdicts:
        numbers = (verdict.expected, verdict.found, *(verdict.count(kind) for kind in Mismatch))
        mark = "[green]exact[/green]" if verdict.exact else "[red]not exact[/red]"
        table.add_row(verdict.output, *[f"{number:,}" for number in numbers], mark)
    return table


def draw(story: Story, path: Path) -> None:
    """Write the picture of a run as PNG or SVG, by the path's suffix."""
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    correct = len(story.totals)
    most = max(correct, *(verdict.found for verdict in story.verdicts))
    axes.axhspan(correct, 1.2 * most, color=_TOO_MANY, alpha=0.08, lw=0)
    axes.axhline(correct, color=_INK, lw=1, ls=":")
    axes.text(0, correct, f" correct: {correct:,} rows; readers must never see more", va="bottom", color=_INK)
    _lines(axes, story)
    _kills(axes, story, 1.15 * most)
    axes.set_ylim(0, 1.17 * most)
    axes.set_xlim(0, 1.02 * story.samples[-1].at)
    axes.set_xlabel("seconds")
    axes.set_ylabel("rows that a reader sees")
    axes.yaxis.set_major_formatter(lambda rows, _: f"{rows:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    kills = f"{len(story.kills)} kills of driver, broker and database"
    axes.set_title(f"What readers see during {kills}", loc="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _lines(axes: Axes, story: Story) -> None:
    """Draw a line for each target, with its name and verdict at its end."""
    at = [sample.at for sample in story.samples]
    texts: list[tuple[int, str, str]] = []
    for (target, (color, line)), verdict in zip(_LINES.items(), story.verdicts, strict=True):
        rows = [sample.rows[target] for sample in story.samples]
        axes.plot(at, rows, color=color, ls=line, lw=2)
        system, guarantee = target
        writer = "onceward" if guarantee == "exactly once" else "foreachBatch"
        texts.append((rows[-1], f"{writer} → {system}\n{_judged(verdict)}", color))
    gap = 0.1 * max(end for end, _, _ in texts)
    height = -gap
    for rows_at_end, text, color in sorted(texts):
        height = max(rows_at_end - gap / 2, height + gap)
        end = (at[-1], height)
        axes.annotate(text, end, (14, 0), textcoords="offset points", color=color, va="center", annotation_clip=False)


def _judged(verdict: Comparison) -> str:
    counts = {kind: verdict.count(kind) for kind in Mismatch if verdict.count(kind)}
    return ", ".join(f"{count:,} {kind.value}" for kind, count in counts.items()) or "nothing missing, nothing twice"


def _kills(axes: Axes, story: Story, height: float) -> None:
    """Mark each kill on one line above the plot, and faintly through it."""
    last, lines = -story.samples[-1].at, 0
    for when, victim in story.kills:
        close = when - last < 0.08 * story.samples[-1].at  # its name would lie on that of the kill before
        last, lines = when, (lines + 1) % 3 if close else 0
        axes.axvline(when, color=_INK, lw=0.6, alpha=0.25)
        mark = "✕" + "\n" * (lines + 1) + victim
        axes.text(when, height, mark, ha="center", va="top", color=_COLORS[victim], fontsize=9)
