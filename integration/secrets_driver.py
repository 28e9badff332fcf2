"""A query that writes words into PostgreSQL, by exactly_once or by the format, and shows its plan.

secrets_driver.py HOW DSN FOLDER
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from onceward import PostgresSink, exactly_once


def main() -> None:
    how, dsn, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    logging.basicConfig(level=logging.DEBUG)
    logging.getLogger("py4j").setLevel(logging.INFO)  # its DEBUG shows every call, with its arguments
    (folder / "events").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    words = stream.selectExpr("value AS id", "CAST(value AS STRING) AS word")
    checkpoint = str(folder / "checkpoint")
    if how == "exactly_once":
        sink = PostgresSink("words", dsn=dsn, table="words")
        query = exactly_once(words, sink, checkpoint=checkpoint, pipeline="secrets").start()
    else:
        options = {"dsn": dsn, "dbtable": "words", "pipeline": "secrets", "checkpointLocation": checkpoint}
        query = words.writeStream.format("onceward-postgres").options(**options).start()
    while query.lastProgress is None or query.lastProgress["batchId"] < 2:
        query.awaitTermination(0.2)
    query.explain(extended=True)
    sys.stdout.write(f"{query.lastProgress}\n{query.status}\n")
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
