"""A driver whose outputs compute other values in each attempt, and whose task loses its Python worker once.

python outputs_driver.py FOLDER DSN
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from onceward import Output, PostgresSink, exactly_once


def main(folder: Path, dsn: str) -> None:
    """Write one epoch into two tables; the second table's job is struck when it has written rows."""
    struck = folder / "struck"

    def strike(number):  # type: ignore[no-untyped-def]
        if number == 19 and not struck.exists():
            struck.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    spark = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
    kill = sf.udf(strike, "long").asNondeterministic()
    stream = spark.readStream.schema("id long, word string").json(str(folder / "feed")).repartition(2)
    outputs = [
        Output(
            PostgresSink("marked", dsn=dsn, table="marked"), lambda batch: batch.withColumn("own", sf.expr("uuid()"))
        ),
        Output(
            PostgresSink("struck", dsn=dsn, table="struck"),
            lambda batch: batch.select(kill("id").alias("id"), "mark", sf.expr("uuid()").alias("own")),
        ),
    ]
    marked = stream.select("id", sf.expr("uuid()").alias("mark"))
    query = exactly_once(marked, *outputs, checkpoint=folder / "checkpoint", pipeline=f"struck-{os.getpid()}")
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
