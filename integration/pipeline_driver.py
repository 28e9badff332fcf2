"""A Spark driver for the kit's tests: Kafka to Kafka and PostgreSQL, exactly once, until it is killed."""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

from onceward import KafkaSink, PostgresSink
from onceward.connectors.spark import exactly_once, register


def main() -> None:
    servers, folder = os.environ["KAFKA_BOOTSTRAP_SERVERS"], os.environ["PIPELINE_FOLDER"]
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    words = (
        spark.readStream.format("onceward-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "numbers")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "200")
        .load()
        .selectExpr("CAST(get_json_object(CAST(value AS string), '$.id') AS long) AS id")
        .selectExpr("id", "concat('w', id) AS word")
    )
    exactly_once(
        words,
        KafkaSink(name="topic", bootstrap_servers=servers, topic="words", select=["to_json(struct(*)) AS value"]),
        PostgresSink(name="table", dsn=os.environ["DATABASE_URL"], table="words"),
        checkpoint=f"{folder}/checkpoint",
        pipeline=os.environ["PIPELINE_NAME"],
    ).start().awaitTermination()


if __name__ == "__main__":
    main()
