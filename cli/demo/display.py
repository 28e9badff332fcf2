"""What a person sees while the demo runs, and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .checker import Verdict
    from .supervisor import Story

_NOTES = 12


def live_view(story: Story) -> RenderableType:
    """The running display."""
    facts = Table.grid(padding=(0, 2))
    facts.add_row("phase", story.phase)
    facts.add_row("elapsed", f"{story.elapsed():.0f} s")
    facts.add_row("micro-batches", f"{story.batches}")
    facts.add_row("kills", ", ".join(victim for _, victim in story.kills) or "none yet")
    if story.samples:
        last = story.samples[-1]
        facts.add_row("visible, exactly once", f"Kafka {last.kafka:,}   PostgreSQL {last.postgres:,}")
        facts.add_row(
            "visible, at least once", f"Kafka {last.kafka_contrast:,}   PostgreSQL {last.postgres_contrast:,}"
        )
    done = story.samples[-1].kafka if story.samples else 0
    bar = ProgressBar(total=max(story.expected, 1), completed=min(done, story.expected), width=60)
    notes = Text("\n".join(story.notes[-_NOTES:]), style="dim")
    return Panel(Group(facts, bar, notes), title="onceward demo", width=100)


def summary(story: Story) -> RenderableType:
    """The table at the end."""
    table = Table(title=f"{story.orders:,} orders, {len(story.kills)} kills, {story.elapsed():.0f} s")
    for column in ("target", "expected", "seen", "missing", "duplicated", "wrong", ""):
        table.add_column(column, justify="left" if column in ("target", "") else "right")
    for verdict in story.verdicts:
        table.add_row(*_cells(verdict))
    return table


def _cells(verdict: Verdict) -> list[str]:
    mark = "[green]exact[/green]" if verdict.exact else "[red]not exact[/red]"
    numbers = (verdict.expected, verdict.seen, verdict.missing, verdict.duplicated, verdict.wrong)
    return [verdict.target, *[f"{number:,}" for number in numbers], mark]
