"""Latency of an epoch with small batches: what onceward adds to the same path with an empty writer.

    python benchmarks/latency.py [--batches 60] [--rows 400]

The floor is Spark's own cost: foreachBatch with mapInArrow and collect for `exactly_once`.
"""

from __future__ import annotations

import argparse
import statistics
from typing import TYPE_CHECKING

import pyarrow as pa
from common import Bench, Run, bench, machine, show, timed

from onceward.connectors.spark import exactly_once
from onceward.sinks import KafkaSink, PostgresSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

WARM_UP = 10


def drain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """An empty writer."""
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"n": [rows]})


def floor(batch: DataFrame, _: int) -> None:
    """The path of exactly_once without a sink."""
    batch.mapInArrow(drain, "n long").collect()


def measure(lab: Bench, topic: str, rows: int) -> dict[str, Run]:
    """Each way once over the topic; a batch is a sample."""

    def source() -> DataFrame:
        return lab.source(topic, rows)

    def checkpointed(writer: object) -> Run:
        return timed(writer.option("checkpointLocation", lab.checkpoint()))  # type: ignore[attr-defined]

    def kafka() -> KafkaSink:
        return KafkaSink("topic", bootstrap_servers=lab.servers, topic=lab.topic())

    def postgres() -> PostgresSink:
        return PostgresSink("table", dsn=lab.dsn, table=lab.table())

    def ours(*sinks: object) -> Run:
        return timed(exactly_once(source(), *sinks, checkpoint=lab.checkpoint()))  # type: ignore[arg-type]

    return {
        "noop (JVM)": checkpointed(source().writeStream.format("noop")),
        "empty writer (the floor)": checkpointed(source().writeStream.foreachBatch(floor)),
        "onceward, Kafka": ours(kafka()),
        "onceward, PostgreSQL": ours(postgres()),
        "onceward, both": ours(kafka(), postgres()),
        "empty writer (the floor), again": checkpointed(source().writeStream.foreachBatch(floor)),
    }


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rows", type=int, default=400)
    arguments = parser.parse_args()
    with bench() as lab:
        topic = lab.filled_topic(arguments.batches * arguments.rows, 100)
        found = measure(lab, topic, arguments.rows)
    lines = ["| way | p50 ms | p90 ms | over the floor (p50) |", "|---|---|---|---|"]
    base = statistics.median(found["empty writer (the floor)"].batches[WARM_UP:])
    for name, run in found.items():
        samples = sorted(run.batches[WARM_UP:])
        p50, p90 = statistics.median(samples), samples[int(len(samples) * 0.9)]
        lines.append(f"| {name} | {p50:.0f} | {p90:.0f} | {p50 - base:+.0f} |")
    facts = {
        "machine": machine(),
        "partitions": 4,
        "rows a batch": arguments.rows,
        "batches": arguments.batches - WARM_UP,
    }
    show("Latency of an epoch", lines, facts)


if __name__ == "__main__":
    main()
