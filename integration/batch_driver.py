"""A driver of its own process, for tests of batch writes on clusters, whose writes fail while some tasks are slow.

Run as `python batch_driver.py MASTER FOLDER DSN SECONDS…`. It writes into the table `words` once for each number of
seconds: one task fails, and the database keeps the other one waiting for so long. The last write succeeds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from pyspark import TaskContext
from pyspark.sql import SparkSession

from onceward.connectors.spark import register

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

LONGER_THAN_SPARK_WAITS = 3.0
"""Seconds. Spark kills the worker of a task that does not end within two."""


def slow_beside_a_failure(spark: SparkSession, folder: Path) -> DataFrame:
    """Return two partitions, of which one fails as soon as the other's writer has all its rows."""
    started = folder / "started"

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            while not started.exists():
                time.sleep(0.002)
            raise ValueError("a bad row")
        yield from batches
        started.touch()

    ids = spark.range(0, 40_000, 1, 2)
    return ids.mapInArrow(rows, "id long").selectExpr("id", "cast(id as string) AS word")


def slow_table(dsn: str) -> None:
    """Let the database wait before it takes the last row of `slow_beside_a_failure`."""
    with psycopg.connect(dsn) as connection:
        body = "BEGIN IF NEW.id = 39999 THEN PERFORM pg_sleep((SELECT s FROM pause)); END IF; RETURN NEW; END"
        connection.execute(f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $${body}$$".encode())
        connection.execute("CREATE TRIGGER slow BEFORE INSERT ON words FOR EACH ROW EXECUTE FUNCTION slow()")
        connection.execute("CREATE TABLE pause AS SELECT 0.0::float8 AS s")


def fail_beside_slow_tasks(spark: SparkSession, folder: Path, dsn: str, pauses: list[float]) -> None:
    """Write once for each pause, in seconds: every write must fail."""
    for seconds in pauses:
        with psycopg.connect(dsn) as connection:
            connection.execute("UPDATE pause SET s = %s", [seconds])
        (folder / str(seconds)).mkdir()
        try:
            write(slow_beside_a_failure(spark, folder / str(seconds)), dsn)
        except Exception as error:
            if "a bad row" not in str(error):
                raise
        else:
            raise AssertionError("the write succeeded")


def write(frame: DataFrame, dsn: str) -> None:
    """Append rows to the table by the format."""
    frame.write.format("onceward-postgres").option("dsn", dsn).option("dbtable", "words").mode("append").save()


def main(master: str, folder: str, dsn: str, *pauses: str) -> None:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    spark = builder.config("spark.executor.memory", "512m").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    fail_beside_slow_tasks(spark, Path(folder), dsn, [float(pause) for pause in pauses])
    time.sleep(2)
    print("prepared after the failures:", _prepared(dsn), file=sys.stderr)
    write(spark.range(50).selectExpr("id", "cast(id as string) AS word"), dsn)
    spark.stop()


def _prepared(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
        return int(row.fetchone()[0])  # type: ignore[index]


if __name__ == "__main__":
    main(*sys.argv[1:])
