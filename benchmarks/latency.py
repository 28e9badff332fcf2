"""Latency of an epoch with small batches, against Spark's own Kafka sink and against an empty writer.

    python benchmarks/latency.py [--partitions 4 16 64] [--rows 100] [--batches 30] [--repeats 5] [--order]

The floor is Spark's own cost of a Python writer: foreachBatch with mapInArrow and collect, by as many tasks as
`writers="auto"` chooses. With `--order`, only the two sinks together are measured, once as they are (PostgreSQL is
committed after Kafka, so that an epoch of which Kafka's part has expired can still be taken back), and once committed
at the same time.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
from common import Bench, Run, bench, compare, machine, median, show, timed

from onceward import KafkaSink, PostgresSink
from onceward.connectors.spark import exactly_once
from onceward.connectors.spark.write.parallelism import ROWS_PER_TASK
from onceward.core.checkpoint import sink_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from onceward.sinks import TwoPhaseCommitSink

WARM_UP = 5
AT_ONCE = "both at the same time"
FLOOR = "empty writer (the floor)"
SPARKS = "Spark's Kafka sink (at least once)"


def drain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read all rows, and write none."""
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"n": [rows]})


def variants(lab: Bench, topic: str, partitions: int, rows: int) -> dict[str, Callable[[], Run]]:
    """Return the ways to write the topic, by name; each gives one sample a batch."""

    def source() -> DataFrame:
        return lab.source(topic, rows)

    def checkpointed(writer: DataStreamWriter) -> Run:
        return timed(writer.option("checkpointLocation", lab.checkpoint()))

    def floor(batch: DataFrame, _: int) -> None:
        tasks = max(1, min(lab.spark.sparkContext.defaultParallelism, -(-rows // ROWS_PER_TASK)))
        batch.coalesce(tasks).mapInArrow(drain, "n long").collect()

    def kafka() -> KafkaSink:
        return KafkaSink("topic", bootstrap_servers=lab.servers, topic=lab.topic(partitions))

    def postgres() -> PostgresSink:
        return PostgresSink("table", dsn=lab.dsn, table=lab.table())

    def ours(*sinks: TwoPhaseCommitSink[Any]) -> Run:
        return timed(exactly_once(source(), *sinks, **lab.fresh()))

    def sparks() -> Run:
        writer = source().writeStream.format("kafka").option("kafka.bootstrap.servers", lab.servers)
        return checkpointed(writer.option("topic", lab.topic(partitions)))

    return {
        SPARKS: sparks,
        FLOOR: lambda: checkpointed(source().writeStream.foreachBatch(floor)),
        "onceward, Kafka": lambda: ours(kafka()),
        "onceward, PostgreSQL": lambda: ours(postgres()),
        "onceward, both": lambda: ours(kafka(), postgres()),
    }


def orders(lab: Bench, topic: str, partitions: int, rows: int) -> dict[str, Callable[[], Run]]:
    """Return both sinks together, one committed after the other, and both at the same time."""
    both = variants(lab, topic, partitions, rows)["onceward, both"]

    def at_once() -> Run:
        with patch.object(sink_share, "_expires", lambda _sink: False):
            return both()

    return {AT_ONCE: at_once, "one after the other": both}


def order_table(runs_by_way: dict[str, list[Run]]) -> list[str]:
    """Return the result of `orders` as Markdown."""
    lines = ["| commits | p50 ms | times both at the same time (median of the repeats) |", "|---|---|---|"]
    for name, runs in runs_by_way.items():
        times = [p50(run) / p50(peer) for run, peer in zip(runs, runs_by_way[AT_ONCE], strict=True)]
        spread = f"{median(times):.3f} ({min(times):.3f} to {max(times):.3f})"
        lines.append(f"| {name} | {median([p50(run) for run in runs]):.0f} | {spread} |")
    return lines


def p50(run: Run) -> float:
    """Return the median milliseconds of a run's batches, without the first ones."""
    return median([float(batch) for batch in run.batches[WARM_UP:]])


def table(runs_by_way: dict[str, list[Run]]) -> list[str]:
    """Return the result as Markdown."""
    lines = [
        "| way | p50 ms | p90 ms | over the floor, ms (p50, median of the repeats) | times Spark's sink | CPU s |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in runs_by_way.items():
        samples = sorted(batch for run in runs for batch in run.batches[WARM_UP:])
        over = [p50(run) - p50(least) for run, least in zip(runs, runs_by_way[FLOOR], strict=True)]
        times = [p50(run) / p50(peer) for run, peer in zip(runs, runs_by_way[SPARKS], strict=True)]
        cpu = median([run.cpu / len(run.batches) for run in runs])
        lines.append(
            f"| {name} | {median([p50(run) for run in runs]):.0f} | {samples[int(len(samples) * 0.9)]} "
            f"| {median(over):+.0f} ({min(over):+.0f} to {max(over):+.0f}) | {median(times):.2f} | {cpu:.2f} |"
        )
    return lines


def main() -> None:
    """Run all in turn, so that a machine that gets slower or faster does so for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--partitions", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--rows", type=int, default=100, help="of an epoch, for each partition")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--order", action="store_true", help="compare the orders of commits alone")
    arguments = parser.parse_args()
    with bench() as lab:
        for partitions in arguments.partitions:
            rows = arguments.rows * partitions
            topic = lab.filled_topic(arguments.batches * rows, 100, partitions)
            ways = orders if arguments.order else variants
            runs = compare(ways(lab, topic, partitions, rows), arguments.repeats)
            facts = {
                "machine": machine(),
                "partitions": partitions,
                "rows an epoch": rows,
                "epochs": arguments.batches - WARM_UP,
                "repeats": arguments.repeats,
            }
            show("Latency of an epoch", order_table(runs) if arguments.order else table(runs), facts)


if __name__ == "__main__":
    main()
