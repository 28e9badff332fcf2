"""Kafka → Spark → Kafka and PostgreSQL, one decision per micro-batch.

Run it with `python examples/quickstart.py SERVERS DSN CHECKPOINT`; kill it as you like and start it again. It ends when
it has read all there is. The topics `orders` and `paid` and the table `paid("user" text, cents bigint)` must be there.
"""

import os
import sys

from pyspark.sql import SparkSession

from onceward.connectors.spark import exactly_once
from onceward.sinks import KafkaSink, PostgresSink


def main(servers: str, dsn: str, checkpoint: str) -> None:
    """Run the pipeline over everything that is in the topic now."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").appName("quickstart").getOrCreate()
    orders = (
        spark.readStream.format("onceward-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("cast(key as string) AS user", "cast(cast(value as string) as bigint) AS cents")
        .where("cents > 0")
    )
    as_json = ["user AS key", "to_json(struct(*)) AS value"]
    query = (
        exactly_once(
            orders,
            KafkaSink("topic", bootstrap_servers=servers, topic="paid", select=as_json),
            PostgresSink("table", dsn=dsn, table="public.paid"),
            checkpoint=checkpoint,
            pipeline="paid",
        )
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:4])
