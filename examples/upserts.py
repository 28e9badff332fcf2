"""The newest state per key in PostgreSQL: JSON orders in, one row per user out, by upserts.

    python examples/upserts.py [SERVERS DSN CHECKPOINT]

The defaults are KAFKA_BOOTSTRAP_SERVERS, DATABASE_URL and checkpoints/balances. The topic `shop` must exist, with
messages such as {"user": "ann", "cents": 250}. The table `balances` is created if it does not exist. The program ends
when it has read all there is; the last line that it prints says how many rows it wrote.
"""

import logging
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from onceward import PostgresSink, exactly_once


def main(servers: str = "", dsn: str = "", checkpoint: str = "checkpoints/balances") -> None:
    """Run the pipeline over everything that is in the topic now."""
    servers, dsn = servers or os.environ["KAFKA_BOOTSTRAP_SERVERS"], dsn or os.environ["DATABASE_URL"]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("upserts")
    spark = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    orders = (
        spark.readStream.format("onceward-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "shop")
        .option("startingOffsets", "earliest")
        .load()
        .select(sf.from_json(sf.col("value").cast("string"), "user string, cents long").alias("order"))
        .select("order.*")
        .where("user IS NOT NULL AND cents IS NOT NULL")  # a message that is not such JSON gives nulls
    )
    balances = orders.groupBy("user").agg(sf.count("*").alias("orders"), sf.sum("cents").alias("cents"))
    table = PostgresSink("balances", dsn=dsn, table="public.balances", key=["user"], create_table=True)
    query = exactly_once(balances, table, checkpoint=checkpoint, pipeline="balances").outputMode("update")
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("onceward").setLevel(logging.INFO)
    main(*sys.argv[1:4])
