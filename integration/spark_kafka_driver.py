"""A driver with Spark's own Kafka source: into Kafka, PostgreSQL and files, exactly once, until it is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from onceward import FileSink, KafkaSink, PostgresSink, exactly_once
from onceward.testing.services.jars import PEER_JARS, ensure_jars

OLDER = {"3.5": "spark-kafka-3.5.7.lock", "4.0": "spark-kafka-4.0.4.lock", "4.1": "spark-kafka-4.1.3.lock"}
LOCK = OLDER.get(pyspark.__version__.rpartition(".")[0])
JARS = PEER_JARS if LOCK is None else Path(__file__).with_name(LOCK)


def main() -> None:
    servers, folder = os.environ["KAFKA_BOOTSTRAP_SERVERS"], os.environ["PIPELINE_FOLDER"]
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.jars", ",".join(map(str, ensure_jars(JARS).glob("*.jar")))).getOrCreate()
    words = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
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
        FileSink("files", f"{folder}/files"),
        checkpoint=f"{folder}/checkpoint",
        pipeline=os.environ["PIPELINE_NAME"],
    ).start().awaitTermination()


if __name__ == "__main__":
    main()
