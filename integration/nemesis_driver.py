"""A Spark driver that copies a Kafka topic into another one, exactly once, until it is killed.

Run as `python nemesis_driver.py SERVERS SOURCE TARGET FOLDER`.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from onceward import KafkaSink
from onceward.connectors.spark import exactly_once, register


def main(servers: str, source: str, target: str, folder: str) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    numbers = (
        spark.readStream.format("onceward-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
    )
    sink = KafkaSink("copy", bootstrap_servers=servers, topic=target)
    query = exactly_once(numbers, sink, checkpoint=f"{folder}/checkpoint", pipeline="nemesis")
    query.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
