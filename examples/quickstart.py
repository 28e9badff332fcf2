"""Kafka → Spark → Kafka and PostgreSQL, one decision per micro-batch. Kill it at any moment, and start it again."""

import logging
import os
import sys

from pyspark.sql import SparkSession

from onceward import KafkaSink, PostgresSink, exactly_once

logging.basicConfig(format="%(message)s")
logging.getLogger("onceward").setLevel(logging.INFO)  # a line for each start and each epoch
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors need the packages of this Python
servers, dsn = os.environ["KAFKA_BOOTSTRAP_SERVERS"], os.environ["DATABASE_URL"]

spark = SparkSession.builder.getOrCreate()
orders = (
    spark.readStream.format("onceward-kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("cast(key AS string) AS user", "cast(cast(value AS string) AS bigint) AS cents")
    .where("cents > 0")
)
paid = exactly_once(
    orders,
    KafkaSink("topic", bootstrap_servers=servers, topic="paid", select=["user AS key", "to_json(struct(*)) AS value"]),
    PostgresSink("table", dsn=dsn, table="public.paid"),
    checkpoint="checkpoints/paid",
    pipeline="paid",
)
# It ends when it has read all there is. To run until stopped: .trigger(processingTime="1 second")
paid.trigger(availableNow=True).start().awaitTermination()
