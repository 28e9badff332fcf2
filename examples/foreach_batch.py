"""A foreachBatch function of one's own, whose writes are one decision: orders in one table, sums per user in another.

    python examples/foreach_batch.py [SERVERS DSN CHECKPOINT]

The defaults are KAFKA_BOOTSTRAP_SERVERS, DATABASE_URL and checkpoints/accounts. The topic `orders` must exist:
make_orders.py fills it. The tables `ordered` and `owed` are created if they do not exist. The function is a method, as
in many a job: only its two writes differ from what it did with `write.jdbc`. The program ends when it has read all
there is; the last line that it prints says how many rows went where.
"""

import logging
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from onceward import ForeachBatch, PostgresSink


class Accounts:
    """A job with a function for each micro-batch."""

    def __init__(self, dsn: str) -> None:
        self.ordered = PostgresSink("ordered", dsn=dsn, table="public.ordered", create_table=True)
        self.owed = PostgresSink("owed", dsn=dsn, table="public.owed", create_table=True)
        self.batches = ForeachBatch(self.ordered, self.owed, pipeline="accounts")

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch into both tables."""
        with self.batches.epoch(batch, batch_id) as epoch:
            orders = batch.selectExpr(
                "cast(key AS string) AS user", "try_cast(cast(value AS string) AS bigint) AS cents"
            )
            epoch.write(orders, self.ordered)
            epoch.write(orders.groupBy("user").agg(sf.sum("cents").alias("cents")), self.owed)


def main(servers: str = "", dsn: str = "", checkpoint: str = "checkpoints/accounts") -> None:
    """Run the pipeline over everything that is in the topic now."""
    servers, dsn = servers or os.environ["KAFKA_BOOTSTRAP_SERVERS"], dsn or os.environ["DATABASE_URL"]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").appName("accounts").getOrCreate()
    orders = (
        spark.readStream.format("onceward-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    query = orders.writeStream.foreachBatch(Accounts(dsn).write).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("onceward").setLevel(logging.INFO)
    main(*sys.argv[1:4])
