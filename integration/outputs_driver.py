"""A driver whose outputs compute other values in each attempt, and whose task loses its Python worker once.

python outputs_driver.py FOLDER DSN writing|prepared
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from onceward import Output, PostgresSink, exactly_once

if TYPE_CHECKING:
    from onceward.connectors.database.writing import Writing
    from onceward.core.contract.transaction import Committable


def main(folder: Path, dsn: str, when: str) -> None:
    """Write one epoch into two tables; the second table's job is struck when it has written or prepared rows."""
    struck = folder / "struck"

    def kill_once() -> None:
        if not struck.exists():
            struck.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def strike(number):  # type: ignore[no-untyped-def]
        if number == 19 and when == "writing":
            kill_once()
        return number

    class StruckSink(PostgresSink):
        def pre_commit(self, transaction: Writing) -> Committable:
            committable = super().pre_commit(transaction)
            if when == "prepared":
                kill_once()
            return committable

    spark = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
    kill = sf.udf(strike, "long").asNondeterministic()
    stream = spark.readStream.schema("id long, word string").json(str(folder / "feed")).repartition(2)
    outputs = [
        Output(
            PostgresSink("marked", dsn=dsn, table="marked"), lambda batch: batch.withColumn("own", sf.expr("uuid()"))
        ),
        Output(
            StruckSink("struck", dsn=dsn, table="struck"),
            lambda batch: batch.select(kill("id").alias("id"), "mark", sf.expr("uuid()").alias("own")),
        ),
    ]
    marked = stream.select("id", sf.expr("uuid()").alias("mark"))
    query = exactly_once(marked, *outputs, checkpoint=folder / "checkpoint", pipeline=f"struck-{os.getpid()}")
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
