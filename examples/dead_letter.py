"""A dead-letter topic: rows that cannot be read go to a topic of their own, in the same epoch as the good ones.

    python examples/dead_letter.py SERVERS DSN CHECKPOINT

One pass over `orders` feeds both: the table `paid("user" text, cents bigint)` gets what is a number, the topic
`rejected` gets the rest as it came, with a header that says why. Both are committed by one decision, so each order is
in exactly one of them, once, whatever is killed. It ends when it has read all there is.
"""

import os
import sys

from pyspark.sql import SparkSession

from onceward import KafkaSink, PostgresSink
from onceward.connectors.spark import exactly_once

WHY = "array(struct('reason' AS key, cast('value is not a number' AS binary) AS value)) AS headers"


def main(servers: str, dsn: str, checkpoint: str) -> None:
    """Run the pipeline over everything that is in the topic now."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").appName("dead letters").getOrCreate()
    orders = (
        spark.readStream.format("onceward-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "value", "try_cast(cast(value AS string) AS bigint) AS cents")
    )
    query = (
        exactly_once(
            orders,
            PostgresSink(
                "paid",
                dsn=dsn,
                table="public.paid",
                where="cents IS NOT NULL",
                select=["cast(key AS string) AS user", "cents"],
            ),
            KafkaSink(
                "rejected",
                bootstrap_servers=servers,
                topic="rejected",
                where="cents IS NULL",
                select=["key", "value", WHY],
            ),
            checkpoint=checkpoint,
            pipeline="paid-or-rejected",
        )
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:4])
