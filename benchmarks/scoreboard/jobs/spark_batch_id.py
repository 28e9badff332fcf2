"""foreachBatch that deduplicates by the batch's id: rows and id in one transaction, written by the driver."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psycopg
from spark_common import orders, run, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DSN = os.environ["DATABASE_URL"]
CLAIM = "INSERT INTO batches (id) VALUES (%s) ON CONFLICT DO NOTHING"


def write(batch: DataFrame, batch_id: int) -> None:
    rows = [(row.id, row.amount) for row in batch.collect()]
    with psycopg.connect(DSN) as connection, connection.cursor() as cursor:
        if cursor.execute(CLAIM, [batch_id]).rowcount:
            cursor.executemany("INSERT INTO out (id, amount) VALUES (%s, %s)", rows)


with psycopg.connect(DSN, autocommit=True) as database:
    database.execute("CREATE TABLE IF NOT EXISTS batches (id bigint PRIMARY KEY)")
run(orders(session()).writeStream.foreachBatch(write))
