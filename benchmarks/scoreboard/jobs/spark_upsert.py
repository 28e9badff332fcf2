"""foreachBatch with an upsert by key: the newest row of each key in the batch, one transaction for each partition."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psycopg
from spark_common import orders, run, session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row

DSN = os.environ["DATABASE_URL"]
UPSERT = """
INSERT INTO out (id, version) VALUES (%s, %s)
ON CONFLICT (id) DO UPDATE SET version = excluded.version
"""


def upsert(rows: Iterator[Row]) -> None:
    with psycopg.connect(DSN) as connection, connection.cursor() as cursor:
        cursor.executemany(UPSERT, [(row.id, row.version) for row in rows])


def write(batch: DataFrame, _: int) -> None:
    batch.groupBy("id").agg({"version": "max"}).withColumnRenamed("max(version)", "version").foreachPartition(upsert)


run(orders(session(), "id long, version long").writeStream.foreachBatch(write))
