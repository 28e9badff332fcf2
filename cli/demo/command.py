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
from onceward.testing.machine import emptied
from onceward.testing.pipeline.endpoints import Addresses
from onceward.testing.services import dev_services
from onceward.testing.services.jars import PEER_JARS, ensure_jars

from .run import MADE, TARGETS, Story, expected, generate, plan, run

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from rich.console import RenderableType

_NOTES: Final = 12
_LINES: Final = dict(
    zip(TARGETS, [("#1b7837", "-"), ("#5aae61", "--"), ("#b35806", "-"), ("#e08214", "--")], strict=True)
)
_COLORS: Final = {"driver": "#b22222", "broker": "#6a3d9a", "database": "#1f78b4"}


def demo(*, orders: int, users: int, kills: int, seed: int, home: Path, picture: Path) -> int:
    """Run the demo; 0 if nothing is missing and nothing duplicated in the exactly-once targets, else 1.

    Raises:
        ConfigurationError: The folder `home` holds something that no demo made.
    """
    console = Console()
    emptied(home, "onceward demo", MADE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that whoever ends the demo leaves no process behind
    console.print("setting up: jars, a Kafka broker, a PostgreSQL server …")
    ensure_jars(PEER_JARS)
    with dev_services(home / "services") as services:
        addresses = Addresses(home, services.bootstrap_servers, services.dsn)
        story = Story(addresses, list(generate(seed, orders, users)), expected(seed, orders, users))
        if console.is_terminal:
            with Live(get_renderable=lambda: live_view(story), console=console, refresh_per_second=4):
                run(story, services, plan(seed, kills))
        else:  # a log, which would show nothing before the end
            story.tell = console.print
            run(story, services, plan(seed, kills))
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
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    timeline, bars = figure.subplots(2, 1, height_ratios=[3, 1])
    _timeline(timeline, story)
    _bars(bars, story)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _timeline(axes: Axes, story: Story) -> None:
    at = [sample.at for sample in story.samples]
    for target, (color, line) in _LINES.items():
        alpha = 1.0 if "exactly once" in target else 0.7
        rows = [sample.rows[target] for sample in story.samples]
        axes.plot(at, rows, color=color, ls=line, alpha=alpha, label=", ".join(target))
    axes.axhline(len(story.totals), color="grey", lw=0.8, ls=":")
    first = {victim: when for when, victim in reversed(story.kills)}
    for when, victim in story.kills:
        label = f"SIGKILL to the {victim}" if first[victim] == when else None
        axes.axvline(when, color=_COLORS[victim], lw=1, label=label)
    axes.set_xlabel("seconds")
    axes.set_ylabel("rows visible")
    axes.set_title(f"{len(story.orders):,} orders, {len(story.kills)} kills: what readers saw")
    _legend_beside(axes)


def _bars(axes: Axes, story: Story) -> None:
    names = [verdict.output for verdict in story.verdicts]
    missing, duplicated = ([v.count(kind) for v in story.verdicts] for kind in (Mismatch.MISSING, Mismatch.DUPLICATED))
    axes.barh(names, missing, color="#762a83", label="missing")
    axes.barh(names, duplicated, left=missing, color="#d6604d", label="duplicated")
    for row, (lost, doubled) in enumerate(zip(missing, duplicated, strict=True)):
        axes.text(lost + doubled, row, f" missing {lost:,}, duplicated {doubled:,}", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max(1, *map(sum, zip(missing, duplicated, strict=True))))  # room for the figures
    axes.set_xlabel("rows")
    _legend_beside(axes)


def _legend_beside(axes: Axes) -> None:
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
