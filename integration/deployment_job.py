"""The job that the tests of deployment send to a cluster: Kafka to Kafka and PostgreSQL, until it is killed.

It is sent as `job.py`, alone: on the cluster there are no tests, and perhaps no onceward but what is sent along.
"""

from __future__ import annotations

import os
from importlib import import_module

from pyspark.sql import SparkSession

from onceward import KafkaSink, exactly_once


def main() -> None:
    servers, dsn = os.environ["KAFKA_BOOTSTRAP_SERVERS"], os.environ["DATABASE_URL"]
    pipeline, folder = os.environ["PIPELINE_NAME"], os.environ["PIPELINE_FOLDER"]
    checkpoint = f"{os.environ.get('JOB_ROOT', folder)}/{pipeline}"
    module, _, name = os.environ.get("JOB_SINK", "onceward:PostgresSink").partition(":")
    table = getattr(import_module(module), name)("table", dsn=dsn, table="words")
    spark = SparkSession.builder.getOrCreate()
    words = (
        spark.readStream.format(os.environ.get("JOB_SOURCE", "kafka"))
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", "numbers")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "100")
        .load()
        .selectExpr("CAST(get_json_object(CAST(value AS string), '$.id') AS long) AS id")
        .selectExpr("id", "concat('w', id) AS word")
        .repartition(2)
    )
    exactly_once(
        words,
        KafkaSink(name="topic", bootstrap_servers=servers, topic="words", select=["to_json(struct(*)) AS value"]),
        table,
        checkpoint=checkpoint,
        store=os.environ.get("JOB_STORE", dsn.replace("postgresql:", "postgresql+psycopg:")) or None,
        pipeline=pipeline,
        writers=2,  # a number: tasks write, also the rows that the driver could write alone
    ).start().awaitTermination()


if __name__ == "__main__":
    main()
