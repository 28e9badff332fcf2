"""Kafka → Spark → Kafka and PostgreSQL, until somebody stops it. With the argument `crash` it kills itself."""

import logging
import os
import sys

from pyspark.sql import SparkSession

from onceward import KafkaSink, PostgresSink, exactly_once
from onceward.testing.faults import Faults, die
from onceward.testing.wrappers import FaultySink

logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
logging.getLogger("onceward").setLevel(logging.INFO)  # a line for each start and each epoch

servers, dsn = os.environ["KAFKA_BOOTSTRAP_SERVERS"], os.environ["DATABASE_URL"]
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors need the packages of this Python

spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
payments = (
    spark.readStream.format("onceward-kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", "payments")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("cast(key AS string) AS user", "cast(cast(value AS string) AS bigint) AS cents")
    .where("cents > 0")
)
message = ["user AS key", "to_json(struct(*)) AS value"]
topic = KafkaSink("topic", bootstrap_servers=servers, topic="receipts", select=message)
table = PostgresSink("table", dsn=dsn, table="public.receipts")
if "crash" in sys.argv:  # SIGKILL at the worst moment: the epoch is decided, and the table's rows are not committed
    table = FaultySink(table, Faults(die("commit_many")))

query = exactly_once(payments, topic, table, checkpoint="checkpoints/receipts", pipeline="receipts")
query.trigger(processingTime="1 second").start().awaitTermination()
