"""A driver that `restart.py` starts: a query from a topic into another one, until its first batch with rows has ended.

    python benchmarks/restart_job.py SOURCE SINK BOOTSTRAP TOPIC TARGET FOLDER JARS

It prints a line with the time when each of its steps has ended.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


if sys.argv[2] == "onceward":  # at the top, as in a user's program; Spark's own sink needs no onceward
    from onceward import KafkaSink, exactly_once


def mark(step: str) -> None:
    """Say that a step has ended."""
    print("mark", step, time.time(), flush=True)


def writer(frame: DataFrame, sink: str, servers: str, target: str, folder: str) -> Any:
    """Return what writes the frame's rows, as its user would write it."""
    if sink == "spark":
        spark = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", target)
        return spark.option("checkpointLocation", f"{folder}/checkpoint")
    kafka = KafkaSink("out", bootstrap_servers=servers, topic=target)
    return exactly_once(frame, kafka, checkpoint=f"{folder}/checkpoint", pipeline=f"restart-{target}")


def first_batch(query: StreamingQuery) -> dict[str, int]:
    """Wait until a batch with rows has ended, and return Spark's milliseconds of its steps."""
    while query.isActive:
        for progress in query.recentProgress:
            if progress.numInputRows:
                return progress.durationMs
        time.sleep(0.05)  # a program would wait: what asks Spark all the time takes its processors
    raise SystemExit(str(query.exception()))


def main() -> None:
    """Run one batch."""
    source, sink, servers, topic, target, folder, jars = sys.argv[1:]
    mark("imports")
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "2g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    mark("session")
    stream = spark.readStream.format(source).option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    frame = stream.option("startingOffsets", "earliest").load()
    mark("load")
    made = writer(
        frame.selectExpr("cast(key as string) AS key", "cast(value as string) AS value"), sink, servers, target, folder
    )
    mark("writer")
    query = made.start()
    mark("start")
    steps = first_batch(query)
    mark("batch")
    print("steps", *(f"{name}={took}" for name, took in steps.items()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
