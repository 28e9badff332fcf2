"""The picture of a run: what was visible when, what was killed when, what was duplicated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .chaos import Victim

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from .supervisor import Story

_COLOURS = {Victim.DRIVER: "#b22222", Victim.BROKER: "#6a3d9a", Victim.DATABASE: "#1f78b4"}


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
    axes.plot(at, [s.kafka for s in story.samples], color="#1b7837", label="Kafka, exactly once")
    axes.plot(at, [s.postgres for s in story.samples], color="#5aae61", ls="--", label="PostgreSQL, exactly once")
    axes.plot(at, [s.kafka_contrast for s in story.samples], color="#b35806", alpha=0.7, label="Kafka, at least once")
    axes.plot(
        at, [s.postgres_contrast for s in story.samples], color="#e08214", ls="--", alpha=0.7,
        label="PostgreSQL, at least once",
    )  # fmt: skip
    axes.axhline(story.expected, color="grey", lw=0.8, ls=":")
    named: set[Victim] = set()
    for when, victim in story.kills:
        label = None if victim in named else f"SIGKILL to the {victim}"
        axes.axvline(when, color=_COLOURS[victim], lw=1, label=label)
        named.add(victim)
    axes.set_xlabel("seconds")
    axes.set_ylabel("rows visible")
    axes.set_title(f"{story.orders:,} orders, {len(story.kills)} kills: what readers saw")
    axes.legend(fontsize=8, loc="upper left")


def _bars(axes: Axes, story: Story) -> None:
    names = [verdict.target for verdict in story.verdicts]
    axes.barh(names, [v.missing for v in story.verdicts], color="#762a83", label="missing")
    axes.barh(
        names, [v.duplicated for v in story.verdicts], left=[v.missing for v in story.verdicts], color="#d6604d",
        label="duplicated",
    )  # fmt: skip
    for row, verdict in enumerate(story.verdicts):
        text = f" missing {verdict.missing:,}, duplicated {verdict.duplicated:,}"
        axes.text(verdict.missing + verdict.duplicated, row, text, va="center", fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.3)
    axes.set_xlabel("rows")
    axes.legend(fontsize=8, loc="upper right")
