"""What the Spark tests share: a stream that is fed file by file, targets, and crashes at durable steps."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from onceward import KafkaSink, PostgresSink
from onceward.connectors.spark import exactly_once
from onceward.core.kit.crash_points import Step, hooked

from .kafka_kit import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from onceward.testing.services import KafkaServer

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


def finish(query: StreamingQuery) -> None:
    """Wait for the end of a query, and raise its error."""
    try:
        query.awaitTermination()
    finally:
        query.stop()


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


JSON = ["to_json(struct(*)) AS value"]


class Job:
    """A pipeline of the tests: feed → Kafka and PostgreSQL."""

    def __init__(self, spark: SparkSession, folder: Path, kafka: KafkaServer, topic: str, dsn: str) -> None:
        self.spark, self.folder, self.dsn, self.topic = spark, folder, dsn, topic
        self.servers = kafka.bootstrap_servers
        self.feed = Feed(folder)
        self.checkpoint = folder / "checkpoint"
        self.pipeline = f"words-{folder.name}"[:60]
        make_table(dsn)

    def sinks(self) -> list[Any]:
        return [
            KafkaSink("topic", bootstrap_servers=self.servers, topic=self.topic, select=JSON),
            PostgresSink("table", dsn=self.dsn, table="words"),
        ]

    def start(self, frame: DataFrame | None = None, **options: Any) -> StreamingQuery:
        frame = self.feed.stream(self.spark) if frame is None else frame
        options = {"checkpoint": str(self.checkpoint), "pipeline": self.pipeline, **options}
        return exactly_once(frame, *self.sinks(), **options).trigger(availableNow=True).start()

    def run(self, frame: DataFrame | None = None, **options: Any) -> None:
        finish(self.start(frame, **options))

    def seen_once(self) -> bool:
        return (
            ids_in_topic(self.servers, self.topic) == once(self.feed.rows)
            and ids_in_table(self.dsn) == once(self.feed.rows)
            and prepared_in(self.dsn) == 0
        )
