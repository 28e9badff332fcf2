"""What the Spark tests share: a stream that is fed file by file, targets, and crashes at durable steps."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from onceward.core.steps import Step, hooked

from .kafka_kit import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id long, word string"


class Feed:
    """A folder of JSON files that a streaming query reads, one file a micro-batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "feed"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rows = 0
        self.files = 0
        self._newest = 0.0

    def add(self, rows: int = 20) -> None:
        lines = [json.dumps({"id": number, "word": f"w{number % 7}"}) for number in range(self.rows, self.rows + rows)]
        partial = self.folder / f".{uuid.uuid4().hex}"
        partial.write_text("\n".join(lines))
        self._newest = max(time.time(), self._newest + 0.01)  # Spark reads files in the order of these milliseconds
        os.utime(partial, (self._newest, self._newest))
        partial.rename(self.folder / f"{self.files:05d}.json")
        self.rows += rows
        self.files += 1

    def stream(self, spark: SparkSession, partitions: int = 2) -> DataFrame:
        frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.folder))
        return frame.repartition(partitions)


class Crash(Exception):  # noqa: N818 - a crash is no error
    """The driver dies here. Not a BaseException: Spark would wait for ever for the answer of its callback."""


@contextmanager
def crash_at(step: Step, count: int = 1) -> Iterator[None]:
    """Die when the driver passes the step for the n-th time."""
    left = count

    def hook(reached: Step) -> None:
        nonlocal left
        if reached is step:
            left -= 1
            if left == 0:
                raise Crash(step)

    with hooked(hook):
        yield


def make_table(dsn: str, table: str = "words", *, key: bool = False) -> None:
    with psycopg.connect(dsn) as connection:
        primary = " PRIMARY KEY" if key else ""
        connection.execute(f"CREATE TABLE {table} (id bigint{primary}, word text)")


def ids_in_table(dsn: str, table: str = "words") -> Counter[int]:
    with psycopg.connect(dsn) as connection:
        return Counter(row[0] for row in connection.execute(f"SELECT id FROM {table}").fetchall())


def prepared_in(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
        ).fetchone()
        return int(row[0]) if row else 0


def ids_in_topic(bootstrap_servers: str, topic: str) -> Counter[int]:
    """What a read_committed consumer gets, from the beginning to the last stable offset."""
    return Counter(json.loads(message.value())["id"] for message in read_all(bootstrap_servers, topic))


def once(rows: int) -> Counter[int]:
    """Each id exactly once."""
    return Counter(range(rows))
