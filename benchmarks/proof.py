"""What hashing the rows costs: Kafka to Kafka, PostgreSQL and a write-ahead log through Spark, with and without it.

    python benchmarks/proof.py [--rows 1000000] [--repeats 9] [--targets Kafka PostgreSQL …]

Both ways in turn in one run; the ratios are the medians of the ratios run by run, of the epochs' seconds and of all
processes' CPU seconds.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import pyarrow as pa
from common import Bench, Run, bench, compare, machine, median, show, timed

from onceward import KafkaSink, PostgresSink
from onceward.connectors.spark import exactly_once
from onceward.core.contract.row_hash import row_hashes
from onceward.sinks.write_ahead import WriteAheadLogSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.sinks.write_ahead import Delivery

SIZE = 100
BATCH = 10_000


def into_kafka(lab: Bench, topic: str, rows: int, *, proof: bool) -> Run:
    """Copy a topic into a new one."""
    sink = KafkaSink("topic", bootstrap_servers=lab.servers, topic=lab.topic(), proof=proof)
    return timed(exactly_once(lab.source(topic, rows // 2), sink, **lab.fresh()))


def into_postgres(lab: Bench, topic: str, rows: int, *, proof: bool) -> Run:
    """Copy a topic into a new table."""
    sink = PostgresSink("table", dsn=lab.dsn, table=lab.table(), proof=proof)
    return timed(exactly_once(lab.source(topic, rows // 2), sink, **lab.fresh()))


class Nowhere(WriteAheadLogSink):
    """A target that takes everything at once: what a write-ahead log costs by itself."""

    remembers = True

    def send(self, rows: pa.RecordBatch, delivery: Delivery) -> None:
        """Deliver nothing."""


def into_log(lab: Bench, topic: str, rows: int, *, proof: bool) -> Run:
    """Copy a topic into a write-ahead log that sends to nowhere."""
    sink = Nowhere("log", lab.home / "segments", rows_per_send=BATCH, proof=proof)
    return timed(exactly_once(lab.source(topic, rows // 2), sink, **lab.fresh()))


TARGETS = {"Kafka": into_kafka, "PostgreSQL": into_postgres, "write-ahead log": into_log}


def hash_alone() -> float:
    """Measure the CPU nanoseconds of the hash of such a row; the best of several."""
    keys = [str(number) for number in range(BATCH)]
    batch = pa.record_batch({"key": keys, "value": [f"{key}:{'x' * SIZE}" for key in keys]})
    seconds = []
    for _ in range(50):
        began = time.thread_time()
        row_hashes(batch)
        seconds.append(time.thread_time() - began)
    return min(seconds) / BATCH * 1e9


def main() -> None:
    """Measure each target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    arguments = parser.parse_args()
    rows = arguments.rows
    lines = ["| target | seconds, with to without | CPU seconds, with to without |", "|---|---|---|"]
    with bench() as lab:
        topic = lab.filled_topic(rows, SIZE)
        for label in arguments.targets:
            into = TARGETS[label]
            variants: dict[str, Callable[[], Run]] = {
                "with": lambda into=into: into(lab, topic, rows, proof=True),  # type: ignore[misc]
                "without": lambda into=into: into(lab, topic, rows, proof=False),  # type: ignore[misc]
            }
            runs = compare(variants, arguments.repeats)
            pairs = list(zip(runs["with"], runs["without"], strict=True))
            ratios = [
                [one.seconds / other.seconds for one, other in pairs],
                [one.cpu / other.cpu for one, other in pairs],
            ]
            text = " | ".join(f"{median(each):.3f} ({min(each):.3f} to {max(each):.3f})" for each in ratios)
            lines.append(f"| {label} | {text} |")
            print(lines[-1], flush=True)
    facts = {"machine": machine(), "rows": f"{rows:,} of {SIZE} bytes", "repeats": arguments.repeats}
    show("Proofs", lines, {**facts, "the hash of a row alone": f"{hash_alone():.0f} ns"})


if __name__ == "__main__":
    main()
