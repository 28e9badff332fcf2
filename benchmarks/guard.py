"""A guard against slow changes: a few ratios, each against a peer in the same run, beside those of earlier runs.

    python benchmarks/guard.py [--history benchmarks/history.jsonl] [--tolerance 1.25]

An epoch's milliseconds against Spark's Kafka sink and against the empty writer, CPU seconds per million rows against
Spark's Kafka sink and its JDBC writer: smaller is better. Each run adds a line to the history. The exit code is 1 if a
ratio is more than `tolerance` times the median of the earlier runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import throughput
from common import Run, bench, compare, machine, median, show
from latency import FLOOR, SPARKS, p50, variants

if TYPE_CHECKING:
    from collections.abc import Mapping

HISTORY = Path(__file__).parent / "history.jsonl"
PARTITIONS, EPOCHS, ROWS = 4, 20, 100
MANY = 400_000


def cpu(run: Run) -> float:
    """Measure the CPU seconds per row."""
    return run.cpu / run.rows


def measure(repeats: int, many: int) -> dict[str, float]:
    """Measure each figure of the guard."""
    figures: dict[str, float] = {}
    with bench() as lab:
        rows = ROWS * PARTITIONS
        small = compare(variants(lab, lab.filled_topic(EPOCHS * rows, 100), PARTITIONS, rows), repeats)
        for name in ("onceward, Kafka", "onceward, PostgreSQL", "onceward, both"):
            for peer in (SPARKS, FLOOR):
                ratios = [p50(run) / p50(other) for run, other in zip(small[name], small[peer], strict=True)]
                figures[f"epoch: {name} / {peer}"] = median(ratios)
        topic = lab.filled_topic(many, throughput.SIZE)
        for make in (throughput.kafka_variants, throughput.postgres_variants):
            big = compare(make(lab, topic, many), repeats)
            [peer] = [name for name in big if name.startswith("Spark")]
            ratios = [cpu(run) / cpu(other) for run, other in zip(big["onceward"], big[peer], strict=True)]
            figures[f"CPU: onceward / {peer}"] = median(ratios)
    return figures


def worse(figures: Mapping[str, float], earlier: list[Mapping[str, float]], tolerance: float) -> list[str]:
    """Return the figures that are worse than the median of earlier runs by more than the tolerance."""
    regressions = []
    for name, figure in figures.items():
        known = [one[name] for one in earlier if name in one]
        if known and figure > median(known) * tolerance:
            regressions.append(f"{name}: {figure:.2f}, {median(known):.2f} before")
    return regressions


def main() -> int:
    """Measure, compare, remember."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=Path, default=HISTORY)
    parser.add_argument("--tolerance", type=float, default=1.25)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=MANY, help="rows of the large epochs")
    arguments = parser.parse_args()
    lines = arguments.history.read_text().splitlines() if arguments.history.exists() else []
    here = machine()
    earlier = [line["figures"] for line in map(json.loads, lines) if line["machine"] == here]
    figures = {name: round(figure, 3) for name, figure in measure(arguments.repeats, arguments.rows).items()}
    show(
        "Against peers in the same run",
        ["| figure | now | median before |", "|---|---|---|"]
        + [
            f"| {name} | {figure:.2f} | {median([one[name] for one in earlier if name in one] or [figure]):.2f} |"
            for name, figure in figures.items()
        ],
        {"machine": here, "earlier runs": len(earlier)},
    )
    with arguments.history.open("a") as history:
        entry = {"at": f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}", "machine": here, "figures": figures}
        history.write(json.dumps(entry) + "\n")
    regressions = worse(figures, earlier, arguments.tolerance)
    for line in regressions:
        print(f"worse: {line}", file=sys.stderr)
    return 1 if regressions else 0


if __name__ == "__main__":
    sys.exit(main())
