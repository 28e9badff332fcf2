"""A driver of its own process that writes a feed through a format.

Run as `python format_driver.py FEED CHECKPOINT FORMAT NAME=VALUE…`, with ONCEWARD_CRASH_AT for its Python processes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from onceward.connectors.spark import register

SCHEMA = "id long, word string"
JSON = ["cast(id as string) AS key", "to_json(struct(*)) AS value"]


def main(feed: str, checkpoint: str, form: str, *options: str) -> None:
    """Run until all that the feed has is written."""
    scratch = Path(tempfile.mkdtemp())
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.local.dir", str(scratch)).config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    register(spark)
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(feed).repartition(2)
    frame = frame.selectExpr(*JSON) if form == "onceward-kafka" else frame
    writer = frame.writeStream.format(form).options(**dict(option.split("=", 1) for option in options))
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
