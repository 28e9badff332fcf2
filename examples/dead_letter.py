"""Dead letters: orders that cannot be used go to a topic of their own, in the same epoch as the good ones.

    python examples/dead_letter.py [SERVERS DSN CHECKPOINT]

The defaults are KAFKA_BOOTSTRAP_SERVERS, DATABASE_URL and checkpoints/paid-or-rejected. The topic `orders` must exist:
make_orders.py fills it. One pass over it feeds two sinks. The table `accepted` gets each order of more than 0 cents.
The topic `rejected` gets the others as they came, with a header that says why. Both are created if they do not exist,
and both are committed by one decision, so each order is in exactly one of them, once, whatever is killed. The program
ends when it has read all there is; the last line that it prints says how many rows went where.
"""

import logging
import os
import sys

from pyspark.sql import SparkSession

from onceward import KafkaSink, PostgresSink, exactly_once

WHY = "array(struct('reason' AS key, cast('not a positive number' AS binary) AS value)) AS headers"


def main(servers: str = "", dsn: str = "", checkpoint: str = "checkpoints/paid-or-rejected") -> None:
    """Run the pipeline over everything that is in the topic now."""
    servers, dsn = servers or os.environ["KAFKA_BOOTSTRAP_SERVERS"], dsn or os.environ["DATABASE_URL"]
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
                "accepted",
                dsn=dsn,
                table="public.accepted",
                create_table=True,
                where="cents > 0",
                select=["cast(key AS string) AS user", "cents"],
            ),
            KafkaSink(
                "rejected",
                bootstrap_servers=servers,
                topic="rejected",
                create_topic=True,
                where="NOT coalesce(cents > 0, false)",
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
    logging.basicConfig(format="%(message)s")
    logging.getLogger("onceward").setLevel(logging.INFO)
    main(*sys.argv[1:4])
