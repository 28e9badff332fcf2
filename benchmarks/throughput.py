"""Throughput: Kafka to Kafka and to PostgreSQL through Spark, against Spark's own writers and its noop sink.

    python benchmarks/throughput.py [--rows 1000000] [--repeats 3] [--into topics tables upserts] [--flink]

The same data for all, and the same source (Spark's own) for all on Spark; runs in turn; the ratio is the median of the
ratios run by run. With --flink, Flink's exactly-once sinks, too (fetched by Maven, compiled by javac).
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import psycopg
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
    """Return the ways to write into a topic."""

    def ours() -> Run:
        sink = KafkaSink("topic", bootstrap_servers=lab.servers, topic=lab.topic())
        return timed(exactly_once(lab.source(topic, rows // 2), sink, **lab.fresh()))

    def spark() -> Run:
        writer = lab.source(topic, rows // 2).writeStream.format("kafka").option("topic", lab.topic())
        writer = writer.option("kafka.bootstrap.servers", lab.servers)
        return timed(writer.option("checkpointLocation", lab.checkpoint()))

    return {"onceward": ours, "Spark's Kafka sink (at least once)": spark, "noop": lambda: noop(lab, topic, rows)}


def postgres_variants(lab: Bench, topic: str, rows: int) -> dict[str, Callable[[], Run]]:
    """Return the ways to write into a table."""

    def ours() -> Run:
        sink = PostgresSink("table", dsn=lab.dsn, table=lab.table())
        return timed(exactly_once(lab.source(topic, rows // 2), sink, **lab.fresh()))

    def spark() -> Run:
        table = lab.table()
        return batches(lab, topic, rows, lambda batch: write_jdbc(lab, batch, "append", table))

    return {"onceward": ours, "Spark's JDBC writer (at least once)": spark, "noop": lambda: noop(lab, topic, rows)}


def upsert_variants(lab: Bench, topic: str, rows: int) -> dict[str, Callable[[], Run]]:
    """Return the ways to write into a table with a primary key that has half of each epoch's keys already."""

    def table() -> str:
        name = lab.table()
        with psycopg.connect(lab.dsn) as connection:
            connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (key)")
            connection.execute(f"INSERT INTO {name} SELECT n::text, 'old' FROM generate_series(1, {rows}, 2) n")
        return name

    def ours() -> Run:
        sink = PostgresSink("table", dsn=lab.dsn, table=table(), key=["key"])
        return timed(exactly_once(lab.source(topic, rows // 2), sink, **lab.fresh()))

    def by_hand() -> Run:
        target, stage = table(), lab.table()

        def write(batch: DataFrame) -> None:
            write_jdbc(lab, batch, "overwrite", stage)
            with psycopg.connect(lab.dsn) as connection:
                connection.execute(
                    f"INSERT INTO {target} SELECT key, value FROM {stage} "
                    "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
                )

        return batches(lab, topic, rows, write)

    return {"onceward": ours, "JDBC into a stage and INSERT … ON CONFLICT by hand": by_hand}


def batches(lab: Bench, topic: str, rows: int, write: Callable[[DataFrame], None]) -> Run:
    """Measure a query that calls `write` with each batch."""
    writer = lab.source(topic, rows // 2).writeStream.foreachBatch(lambda batch, _: write(batch))
    return timed(writer.option("checkpointLocation", lab.checkpoint()))


def write_jdbc(lab: Bench, batch: DataFrame, mode: str, table: str) -> None:
    """Append to a table by Spark's JDBC writer, or empty it first."""
    url = f"jdbc:{lab.dsn.split('://')[0]}://{lab.dsn.split('@')[1]}?reWriteBatchedInserts=true"
    user, password = lab.dsn.split("://")[1].split("@")[0].split(":")
    properties = {"driver": "org.postgresql.Driver", "user": user, "password": password, "batchsize": "10000"}
    batch.write.mode(mode).option("truncate", True).jdbc(url, table, properties=properties)


def noop(lab: Bench, topic: str, rows: int) -> Run:
    """Measure the source alone, which is the ceiling of any sink."""
    writer = lab.source(topic, rows // 2).writeStream.format("noop")
    return timed(writer.option("checkpointLocation", lab.checkpoint()))


def flink(copy: Callable[[str], Run], target: Callable[[], str]) -> Run:
    """Measure a copy into a new target."""
    return copy(target())


def report(title: str, runs_by_way: dict[str, list[Run]], rows: int, repeats: int) -> None:
    """Format a table, and the ratios run by run."""
    columns = ("writer", "rows/s (median)", "CPU s per million rows", "of them without broker and database")
    columns += ("onceward's speed against it", "onceward's CPU without broker and database, against it")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    ours = runs_by_way["onceward"]
    for name, runs in runs_by_way.items():
        speed = median([run.rows / run.seconds for run in runs])
        cpu = median([run.cpu / run.rows * 1e6 for run in runs])
        clients = median([run.clients / run.rows * 1e6 for run in runs])
        pairs = list(zip(ours, runs, strict=True))
        ratios = [
            [other.seconds / own.seconds for own, other in pairs],
            [own.clients / other.clients for own, other in pairs],
        ]
        text = " | ".join(f"{median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in ratios)
        lines.append(f"| {name} | {speed:,.0f} | {cpu:.1f} | {clients:.1f} | {text} |")
    show(title, lines, {"machine": machine(), "rows": f"{rows:,} of {SIZE} bytes", "repeats": repeats})


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    ways = {"topics": kafka_variants, "tables": postgres_variants, "upserts": upsert_variants}
    parser.add_argument("--into", nargs="+", choices=ways, default=list(ways))
    parser.add_argument("--flink", action="store_true")
    arguments = parser.parse_args()
    with bench() as lab:
        topic = lab.filled_topic(arguments.rows, SIZE)
        flinks = {
            "topics": ("Flink's KafkaSink (exactly once)", FlinkKafka, lab.topic),
            "tables": ("Flink's JDBC XA sink (exactly once)", FlinkXa, lab.table),
        }
        for into in arguments.into:
            with ExitStack() as stack:
                variants = ways[into](lab, topic, arguments.rows)
                if arguments.flink and into in flinks:
                    label, contestant, target = flinks[into]
                    copy = stack.enter_context(copies(lab, topic, arguments.rows, contestant))
                    variants[label] = partial(flink, copy, target)
                report(f"Kafka to {into}", compare(variants, arguments.repeats), arguments.rows, arguments.repeats)


if __name__ == "__main__":
    main()
