"""A driver whose task loses its Python worker once: after its rows and its dead letters are prepared, or in a trial.

python dead_letters_driver.py FOLDER DSN SERVERS TOPIC letters|trial
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from onceward import KafkaSink, PostgresSink, exactly_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from onceward.connectors.kafka.sink import KafkaTransaction
    from onceward.core.contract.transaction import AbortOutcome, Committable


COLUMNS = "id, word, 'glad' AS mood, cast(id AS int) AS cents, id % 100 AS other"
BAD = {
    3: ("word", "'longer'", "characters"),
    5: ("mood", "'bored'", "enum"),
    7: ("cents", "-1", "check constraint"),
    11: ("other", "4711", "foreign key"),
    13: ("id", "12", "duplicate key"),
}
"""Of some rows, a column and its value that the table refuses, and a word of the reason."""


def with_bad(frame: DataFrame) -> DataFrame:
    frame = frame.selectExpr(*COLUMNS.split(", "))
    for number, (column, value, _) in BAD.items():
        changed = sf.when(sf.col("cents") == number, sf.expr(value)) if column != "cents" else None
        if changed is not None:
            frame = frame.withColumn(column, changed.otherwise(sf.col(column)).cast(frame.schema[column].dataType))
    return frame.withColumn("cents", sf.when(sf.col("cents") == 7, sf.lit(-1)).otherwise(sf.col("cents")))


def main(folder: Path, dsn: str, servers: str, topic: str, when: str) -> None:
    """Write one epoch of which some rows are refused."""
    struck = folder / "struck"

    def kill_once() -> None:
        if not struck.exists():
            struck.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    class StruckSink(KafkaSink):
        def pre_commit(self, transaction: KafkaTransaction) -> Committable:
            committable = super().pre_commit(transaction)
            if when == "letters":
                kill_once()
            return committable

    class StruckTable(PostgresSink):
        def abort(self, committable: Committable) -> AbortOutcome:
            if when == "trial" and TaskContext.get() is not None:
                kill_once()
            return super().abort(committable)

    spark = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
    stream = with_bad(spark.readStream.schema("id long, word string").json(str(folder / "feed")).repartition(2))
    query = exactly_once(
        stream,
        StruckTable("paid", dsn=dsn, table="paid"),
        dead_letter=StruckSink("rejected", bootstrap_servers=servers, topic=topic),
        checkpoint=folder / "checkpoint",
        pipeline=f"struck-{os.getpid()}",
        writers=1,
    )
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
