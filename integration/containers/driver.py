"""A Spark driver of the container tests: Kafka to Kafka and PostgreSQL, exactly once, until all input is through."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from onceward import KafkaSink, PostgresSink
from onceward.connectors.spark import exactly_once, register


def main(servers: str, dsn: str, source: str, target: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    register(spark)
    words = (
        spark.readStream.format("onceward-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "200")
        .load()
        .selectExpr("CAST(CAST(value AS string) AS long) AS id", "concat('w', CAST(value AS string)) AS word")
    )
    query = exactly_once(
        words,
        KafkaSink(name="topic", bootstrap_servers=servers, topic=target, select=["to_json(struct(*)) AS value"]),
        PostgresSink(name="table", dsn=dsn, table="words"),
        checkpoint=checkpoint,
        pipeline=target,
    ).start()
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
