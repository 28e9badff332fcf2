"""Spark's own Kafka source, on the JVM, works with the sinks too: only the format of the source is another one.

    python examples/jvm_source.py [SERVERS DSN CHECKPOINT JARS]

The defaults are KAFKA_BOOTSTRAP_SERVERS, DATABASE_URL and checkpoints/paid-jvm. The topic `orders` must exist:
make_orders.py fills it. The table `paid_jvm` is created if it does not exist. JARS is a comma-separated list with
spark-sql-kafka-0-10 and the jars that it needs; without it, Spark downloads them from Maven Central. The program ends
when it has read all there is; the last line that it prints says how many rows it wrote.
"""

import logging
import os
import sys

import pyspark
from pyspark.sql import SparkSession

from onceward import PostgresSink, exactly_once


def main(servers: str = "", dsn: str = "", checkpoint: str = "checkpoints/paid-jvm", jars: str = "") -> None:
    """Run the pipeline over everything that is in the topic now."""
    servers, dsn = servers or os.environ["KAFKA_BOOTSTRAP_SERVERS"], dsn or os.environ["DATABASE_URL"]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    scala = "2.12" if pyspark.__version__.startswith("3.") else "2.13"
    package = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"
    setting = ("spark.jars", jars) if jars else ("spark.jars.packages", package)
    spark = SparkSession.builder.master("local[2]").appName("jvm-source").config(*setting).getOrCreate()
    orders = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("cast(key AS string) AS user", "cast(cast(value AS string) AS bigint) AS cents")
    )
    sink = PostgresSink("table", dsn=dsn, table="public.paid_jvm", create_table=True)
    query = exactly_once(orders, sink, checkpoint=checkpoint, pipeline="paid-jvm").trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("onceward").setLevel(logging.INFO)
    main(*sys.argv[1:5])
