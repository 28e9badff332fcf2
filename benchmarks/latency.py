"""Latency of an epoch with small batches: what onceward adds to the same path with an empty writer.

    python benchmarks/latency.py [--batches 30] [--rows 400] [--repeats 5]

The floor is Spark's own cost: foreachBatch with mapInArrow and collect for `exactly_once`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from common import PARTITIONS, Bench, Run, bench, compare, machine, median, show, timed

from onceward import KafkaSink, PostgresSink
from onceward.connectors.spark import exactly_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from onceward.sinks.base import TwoPhaseCommitSink

WARM_UP = 5
FLOOR = "empty writer (the floor)"


def drain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """An empty writer."""
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"n": [rows]})


def floor(batch: DataFrame, _: int) -> None:
    """The path of exactly_once without a sink."""
    batch.mapInArrow(drain, "n long").collect()


def variants(lab: Bench, topic: str, rows: int) -> dict[str, Callable[[], Run]]:
    """Each way over the topic; a batch is a sample."""

    def source() -> DataFrame:
        return lab.source(topic, rows)

    def checkpointed(writer: DataStreamWriter) -> Run:
        return timed(writer.option("checkpointLocation", lab.checkpoint()))

    def kafka() -> KafkaSink:
        return KafkaSink("topic", bootstrap_servers=lab.servers, topic=lab.topic())

    def postgres() -> PostgresSink:
        return PostgresSink("table", dsn=lab.dsn, table=lab.table())

    def ours(*sinks: TwoPhaseCommitSink[Any]) -> Run:
        return timed(exactly_once(source(), *sinks, checkpoint=lab.checkpoint()))

    return {
        FLOOR: lambda: checkpointed(source().writeStream.foreachBatch(floor)),
        "onceward, Kafka": lambda: ours(kafka()),
        "onceward, PostgreSQL": lambda: ours(postgres()),
        "onceward, both": lambda: ours(kafka(), postgres()),
        "noop (JVM)": lambda: checkpointed(source().writeStream.format("noop")),
    }


def p50(run: Run) -> float:
    """Median milliseconds of a run's batches, the first ones left out."""
    return median([float(batch) for batch in run.batches[WARM_UP:]])


def main() -> None:
    """Run all in turn, so that a machine that gets slower or faster does so for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with bench() as lab:
        topic = lab.filled_topic(arguments.batches * arguments.rows, 100)
        found = compare(variants(lab, topic, arguments.rows), arguments.repeats)
    lines = ["| way | p50 ms | p90 ms | over the floor, ms (p50, median of the repeats) |", "|---|---|---|---|"]
    base = [p50(run) for run in found[FLOOR]]
    for name, runs in found.items():
        samples = sorted(batch for run in runs for batch in run.batches[WARM_UP:])
        over = [p50(run) - least for run, least in zip(runs, base, strict=True)]
        lines.append(
            f"| {name} | {median([p50(run) for run in runs]):.0f} | {samples[int(len(samples) * 0.9)]} "
            f"| {median(over):+.0f} ({min(over):+.0f} to {max(over):+.0f}) |"
        )
    facts = {
        "machine": machine(),
        "partitions": PARTITIONS,
        "rows a batch": arguments.rows,
        "batches": arguments.batches - WARM_UP,
        "repeats": arguments.repeats,
    }
    show("Latency of an epoch", lines, facts)


if __name__ == "__main__":
    main()
