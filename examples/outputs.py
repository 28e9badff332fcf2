"""A transformation of its own for each table: all orders in one, sums per user and micro-batch in the other.

    python examples/outputs.py [SERVERS DSN CHECKPOINT]

The defaults are KAFKA_BOOTSTRAP_SERVERS, DATABASE_URL and checkpoints/spent. The topic `orders` must exist:
make_orders.py fills it. The tables `bought` and `spent` are created if they do not exist. One decision covers both, so
the sums are always those of the orders in the other table, whatever is killed. The program ends when it has read all
there is; the last line that it prints says how many rows went where.
"""

import logging
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from onceward import Output, PostgresSink, exactly_once


def spent(batch: DataFrame) -> DataFrame:
    """Sum up the orders of one micro-batch."""
    return batch.groupBy("user").agg(sf.count("*").alias("orders"), sf.sum("cents").alias("cents"))


def main(servers: str = "", dsn: str = "", checkpoint: str = "checkpoints/spent") -> None:
    """Run the pipeline over everything that is in the topic now."""
    servers, dsn = servers or os.environ["KAFKA_BOOTSTRAP_SERVERS"], dsn or os.environ["DATABASE_URL"]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").appName("outputs").getOrCreate()
    orders = (
        spark.readStream.format("onceward-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("cast(key AS string) AS user", "try_cast(cast(value AS string) AS bigint) AS cents")
    )
    query = exactly_once(
        orders,
        PostgresSink("bought", dsn=dsn, table="public.bought", create_table=True),
        Output(PostgresSink("spent", dsn=dsn, table="public.spent", create_table=True), spent),
        checkpoint=checkpoint,
        pipeline="spent",
    )
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("onceward").setLevel(logging.INFO)
    main(*sys.argv[1:4])
