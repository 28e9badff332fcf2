"""Spark's own JVM Kafka source works with the sinks too: only the source's format differs from the quickstart.

Run it with `python examples/jvm_source.py SERVERS DSN CHECKPOINT JARS`, where JARS is a comma-separated list with
spark-sql-kafka-0-10 and what it needs.
"""

import os
import sys

from pyspark.sql import SparkSession

from onceward import PostgresSink
from onceward.connectors.spark import exactly_once


def main(servers: str, dsn: str, checkpoint: str, jars: str) -> None:
    """Run the pipeline over everything that is in the topic now."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").appName("jvm-source").config("spark.jars", jars).getOrCreate()
    orders = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("cast(key as string) AS user", "cast(cast(value as string) as bigint) AS cents")
    )
    sink = PostgresSink("table", dsn=dsn, table="public.paid")
    query = exactly_once(orders, sink, checkpoint=checkpoint, pipeline="paid-jvm").trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:5])
