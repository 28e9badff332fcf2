"""Throughput: Kafka → Kafka and Kafka → PostgreSQL through Spark, against Spark's own writers and its noop sink.

    python benchmarks/throughput.py [--rows 1000000] [--repeats 3] [--flink]

The same data for all, and the same source (Spark's own) for all on Spark; runs in turn; the ratio is the median of the
ratios run by run. With --flink, Flink's exactly-once sinks, too (fetched by Maven, compiled by javac).
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from common import Bench, Run, bench, compare, machine, median, show, timed
from flink import copies
from scoreboard.contestants import FlinkKafka, FlinkXa

from onceward import KafkaSink, PostgresSink
from onceward.connectors.spark import exactly_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

SIZE = 100


def kafka_variants(lab: Bench, topic: str, rows: int) -> dict[str, Callable[[], Run]]:
    """Into a topic."""

    def ours() -> Run:
        sink = KafkaSink("topic", bootstrap_servers=lab.servers, topic=lab.topic())
        return timed(exactly_once(lab.source(topic, rows // 2), sink, checkpoint=lab.checkpoint()))

    def spark() -> Run:
        writer = lab.source(topic, rows // 2).writeStream.format("kafka").option("topic", lab.topic())
        writer = writer.option("kafka.bootstrap.servers", lab.servers)
        return timed(writer.option("checkpointLocation", lab.checkpoint()))

    return {"onceward": ours, "Spark's Kafka sink (at least once)": spark, "noop": lambda: noop(lab, topic, rows)}


def postgres_variants(lab: Bench, topic: str, rows: int) -> dict[str, Callable[[], Run]]:
    """Into a table."""
    url = f"jdbc:{lab.dsn.split('://')[0]}://{lab.dsn.split('@')[1]}?reWriteBatchedInserts=true"
    user, password = lab.dsn.split("://")[1].split("@")[0].split(":")
    properties = {"driver": "org.postgresql.Driver", "user": user, "password": password, "batchsize": "10000"}

    def ours() -> Run:
        sink = PostgresSink("table", dsn=lab.dsn, table=lab.table())
        return timed(exactly_once(lab.source(topic, rows // 2), sink, checkpoint=lab.checkpoint()))

    def spark() -> Run:
        table = lab.table()

        def write(batch: DataFrame, _: int) -> None:
            batch.write.mode("append").jdbc(url, table, properties=properties)

        writer = lab.source(topic, rows // 2).writeStream.foreachBatch(write)
        return timed(writer.option("checkpointLocation", lab.checkpoint()))

    return {"onceward": ours, "Spark's JDBC writer (at least once)": spark, "noop": lambda: noop(lab, topic, rows)}


def noop(lab: Bench, topic: str, rows: int) -> Run:
    """The ceiling of any sink: the source alone."""
    writer = lab.source(topic, rows // 2).writeStream.format("noop")
    return timed(writer.option("checkpointLocation", lab.checkpoint()))


def report(title: str, found: dict[str, list[Run]], rows: int, repeats: int) -> None:
    """A table, and the ratios run by run."""
    lines = ["| writer | rows/s (median) | CPU s per million rows | onceward's speed against it |", "|---|---|---|---|"]
    ours = found["onceward"]
    for name, runs in found.items():
        speed = median([run.rows / run.seconds for run in runs])
        cpu = median([run.cpu / run.rows * 1e6 for run in runs])
        ratios = [other.seconds / own.seconds for own, other in zip(ours, runs, strict=True)]
        lines.append(
            f"| {name} | {speed:,.0f} | {cpu:.1f} | {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
    show(title, lines, {"machine": machine(), "rows": f"{rows:,} of {SIZE} bytes", "repeats": repeats})


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--flink", action="store_true")
    arguments = parser.parse_args()
    with bench() as lab, ExitStack() as stack:
        topic = lab.filled_topic(arguments.rows, SIZE)
        into_topics = kafka_variants(lab, topic, arguments.rows)
        into_tables = postgres_variants(lab, topic, arguments.rows)
        if arguments.flink:
            to_topic = stack.enter_context(copies(lab, topic, arguments.rows, FlinkKafka))
            to_table = stack.enter_context(copies(lab, topic, arguments.rows, FlinkXa))
            into_topics["Flink's KafkaSink (exactly once)"] = lambda: to_topic(lab.topic())
            into_tables["Flink's JDBC XA sink (exactly once)"] = lambda: to_table(lab.table())
        for title, variants in (("Kafka → Kafka", into_topics), ("Kafka → PostgreSQL", into_tables)):
            report(title, compare(variants, arguments.repeats), arguments.rows, arguments.repeats)


if __name__ == "__main__":
    main()
