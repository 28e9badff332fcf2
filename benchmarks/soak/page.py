"""docs/soak.md and its picture, from what a soak has written."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes

    from .__main__ import Report
    from .observer import Sample

DOCS = Path(__file__).parents[2] / "docs"
_HEAD = """# Soak

A Spark driver (Kafka to PySpark to Kafka and PostgreSQL, one epoch per second) runs for hours, with the faults of
[`onceward.testing.pipeline`](testing.md#a-pipeline-end-to-end) at random times. Rows are fed at a steady rate. A
`read_committed` consumer and SQL queries count every row. The run itself writes this page:

```bash
make soak ARGS="--hours 2 --rate 200 --every 45 --seed 2"
```

"""
_PICTURE = """
![Over time: rows per second, latency, open transactions, sizes and memory](soak.png)

*Each thin line is a fault. Latency is the time from the producer's call to the read_committed consumer. After a kill,
the new driver needs some ten seconds until its Spark session has started, and rows that are fed meanwhile wait for it.*
"""


def write(report: Report, samples: Sequence[Sample], docs: Path = DOCS) -> None:
    """Write both."""
    draw(report, samples, docs / "soak.png")
    (docs / "soak.md").write_text(document(report, samples))


def document(report: Report, samples: Sequence[Sample]) -> str:
    """Return the page."""
    verdict = "Nothing was missing, duplicated or left open." if report.exact else "**The run was not exact.**"
    lines = [
        _HEAD,
        f"**{report.rows:,} rows, {len(report.faults)} faults, {report.seconds / 3600:.1f} hours.** {verdict}\n\n",
        _table("", {name: f"{value}" for name, value in report.facts.items()}),
        "\n## What came out\n\n",
        _table(
            "target | missing | duplicated | left open",
            {
                target: f"{found.missing:,} | {found.duplicated:,} | {', '.join(found.left_open) or 'nothing'}"
                for target, found in report.found.items()
            },
        ),
        "\n## Faults\n\n",
        _table("fault | times", {name: f"{n}" for name, n in sorted(Counter(n for _, n in report.faults).items())}),
        f"\n{report.lives} lives of the driver.\n",
        "\n## Over time\n",
        _PICTURE,
        "\n",
        _table("quantity | first quarter | last quarter", _quarters(samples)),
    ]
    return "".join(lines)


def _table(heads: str, rows: Mapping[str, str]) -> str:
    columns = max((row.count("|") for row in rows.values()), default=0) + 2
    head = f"| {heads} |" if heads else "|" + " |" * columns
    return "\n".join([head, "|" + "---|" * columns, *(f"| {name} | {row} |" for name, row in rows.items())]) + "\n"


def _quarters(samples: Sequence[Sample]) -> dict[str, str]:
    """Return the medians of the first and of the last quarter."""
    quarter = max(1, len(samples) // 4)
    parts = (samples[:quarter], samples[-quarter:])
    rates = [_rates(part) for part in parts]
    cells = {"rows per second, in the topic": [f"{statistics.median(rate):,.0f}" if rate else "-" for rate in rates]}
    for what, (name, pick) in _LINES.items():
        values = [[value for one in part if (value := pick(one)) is not None] for part in parts]
        cells[f"{what}{name}"] = [f"{statistics.median(one):,.3g}" if one else "-" for one in values]
    return {name: " | ".join(pair) for name, pair in cells.items()}


def _rates(samples: Sequence[Sample]) -> list[float]:
    pairs = itertools.pairwise(samples)
    return [(after.topic_rows - before.topic_rows) / (after.at - before.at) for before, after in pairs]


_LINES: dict[str, tuple[str, Callable[[Sample], Any]]] = {
    "latency, median": (", s", lambda one: one.latency and one.latency[0]),
    "latency, 95 %": (", s", lambda one: one.latency and one.latency[1]),
    "latency, 99 %": (", s", lambda one: one.latency and one.latency[2]),
    "latency, maximum": (", s", lambda one: one.latency and one.latency[3]),
    "records that wait for their commit": ("", lambda one: one.waiting),
    "prepared transactions": ("", lambda one: one.prepared),
    "oldest prepared transaction": (", s", lambda one: one.oldest_prepared),
    "entries of the decision log": ("", lambda one: one.log_entries),
    "checkpoint with decision log": (", MiB", lambda one: one.checkpoint_bytes / 2**20),
    "onceward's tables": (", MiB", lambda one: None if one.ledger_bytes is None else one.ledger_bytes / 2**20),
    "memory of driver, JVM and workers": (", MiB", lambda one: one.driver_mib),
}
_PANELS = (
    ("latency, s", ("latency, median", "latency, 95 %", "latency, maximum")),
    ("records that wait for their commit", ("records that wait for their commit",)),
    ("prepared transactions, and seconds of the oldest", ("prepared transactions", "oldest prepared transaction")),
    ("entries of the decision log", ("entries of the decision log",)),
    ("sizes, MiB", ("checkpoint with decision log", "onceward's tables")),
    ("memory, MiB", ("memory of driver, JVM and workers",)),
)


def draw(report: Report, samples: Sequence[Sample], path: Path) -> None:
    """Write the picture as PNG."""
    figure = Figure(figsize=(11, 14), layout="constrained")
    FigureCanvasAgg(figure)
    first, *others = figure.subplots(1 + len(_PANELS), 1, sharex=True)
    hours = [one.at / 3600 for one in samples]
    first.plot(hours[1:], _rates(samples), lw=0.8)
    _finish(first, "rows per second that became visible in the topic", report)
    others[0].set_yscale("log")
    for axes, (title, names) in zip(others, _PANELS, strict=True):
        for name in names:
            values = [_LINES[name][1](one) for one in samples]
            axes.plot(hours, [float("nan") if value is None else value for value in values], lw=0.8, label=name)
        _finish(axes, title, report)
        if len(names) > 1:
            axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    others[-1].set_xlabel("hours")
    figure.savefig(path, dpi=90)


def _finish(axes: Axes, title: str, report: Report) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    for at, _ in report.faults:
        axes.axvline(at / 3600, color="#b22222", lw=0.2)
