"""A driver of its own process on a cluster whose executors may lack what the driver has.

Run as `python executors_driver.py MASTER FOLDER DSN WAIT NAME=VALUE…`. WAIT is for how many seconds the start waits for
the probe: with 0, the tasks of the first epoch have to find out. The rest are variables of the executors.
"""

from __future__ import annotations

import sys
import time

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from onceward import PostgresSink, exactly_once
from onceward.connectors.spark.write import executors


def main(master: str, folder: str, dsn: str, wait: str, *variables: str) -> None:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.executor.memory", "512m").config("spark.task.maxFailures", "1")
    for variable in variables:
        name, _, value = variable.partition("=")
        builder = builder.config(f"spark.executorEnv.{name}", value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    executors.Executors.problem.__kwdefaults__["seconds"] = float(wait)
    stream = spark.readStream.schema("id long, word string").option("maxFilesPerTrigger", 1).json(f"{folder}/feed")
    began = time.monotonic()
    writer = exactly_once(
        stream,
        PostgresSink("table", dsn=dsn, table="words"),
        checkpoint=f"{folder}/checkpoint",
        store=f"file://{folder}/log?shared=true",
        pipeline="executors",
    )
    try:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    except StreamingQueryException as error:
        print(f"refused: {error}")
    else:
        print("written")
    print(f"after {time.monotonic() - began:.2f} s")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
