"""The independent checker: a read_committed consumer and SQL against the known input.

It shares no code with the sinks: what it reads is what any consumer and any SQL client would read.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import confluent_kafka
import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .scenario import DemoSettings, Total

_IDLE_SECONDS = 1.0


@dataclass(frozen=True)
class Verdict:
    """What was found in one target.

    Attributes:
        target: Which one.
        expected: Rows that a correct run leaves.
        seen: Rows found.
        missing: Expected rows that are not there.
        duplicated: Rows beyond the first of their order.
        wrong: Rows whose content is not what it must be, or that nobody expected.
    """

    target: str
    expected: int
    seen: int
    missing: int
    duplicated: int
    wrong: int

    @property
    def exact(self) -> bool:
        """Whether the target shows each record's effect exactly once."""
        return not (self.missing or self.duplicated or self.wrong)


def judge(target: str, rows: Iterable[Mapping[str, Any]], totals: Mapping[str, Total]) -> Verdict:
    """Compare what is in a target with what must be in it; only the columns that the rows have are compared."""
    counts: Counter[str] = Counter()
    wrong = 0
    for row in rows:
        counts[row["order_id"]] += 1
        must = totals.get(row["order_id"])
        if must is None or any(value != getattr(must, column) for column, value in row.items()):
            wrong += 1
    return Verdict(
        target=target,
        expected=len(totals),
        seen=counts.total(),
        missing=len(totals.keys() - counts.keys()),
        duplicated=sum(count - 1 for count in counts.values()),
        wrong=wrong,
    )


def committed_messages(bootstrap_servers: str, topic: str) -> Iterable[dict[str, Any]]:
    """Every committed message of a topic, as a consumer with isolation level read_committed gets it."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "onceward-demo-checker",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
        unread = set(partitions)
        while unread:
            for message in consumer.consume(5000, _IDLE_SECONDS):
                error = message.error()
                if error is None:
                    yield json.loads(message.value() or b"null")
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                    unread.discard(message.partition())
                else:
                    raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()


def table_rows(dsn: str, table: str) -> Iterable[dict[str, Any]]:
    """Every row of a table, as a session of its own sees it."""
    with psycopg.connect(dsn) as connection, connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        cursor.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
        yield from cursor


def check(settings: DemoSettings, totals: Mapping[str, Total]) -> list[Verdict]:
    """Judge all four targets: the two exactly-once ones first."""
    kafka, dsn = settings.bootstrap_servers, settings.dsn
    return [
        judge("Kafka, exactly once", committed_messages(kafka, settings.sink_topic), totals),
        judge("PostgreSQL, exactly once", table_rows(dsn, settings.sink_table), totals),
        judge("Kafka, at least once", committed_messages(kafka, settings.contrast_topic), totals),
        judge("PostgreSQL, at least once", table_rows(dsn, settings.contrast_table), totals),
    ]


_EVERY_SECONDS = 1.0


@dataclass(frozen=True)
class Sample:
    """Rows visible in each target, `at` seconds after the beginning."""

    at: float
    kafka: int
    postgres: int
    kafka_contrast: int
    postgres_contrast: int


class Sampler:
    """Counts in the background while its block runs; a target that is down keeps its last count."""

    def __init__(self, settings: DemoSettings, samples: list[Sample], began: float) -> None:
        self._settings = settings
        self._samples = samples
        self._began = began
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._messages = {settings.sink_topic: 0, settings.contrast_topic: 0}
        self._rows = {settings.sink_table: 0, settings.contrast_table: 0}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        settings = self._settings
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "group.id": "onceward-demo-sampler",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.assign(
            [
                confluent_kafka.TopicPartition(topic, number, 0)
                for topic in self._messages
                for number in range(settings.partitions)
            ]
        )
        while not self._stopped.is_set():
            self._consume(consumer, time.monotonic() + _EVERY_SECONDS)
            self._count_rows()
            self._samples.append(
                Sample(
                    time.monotonic() - self._began,
                    self._messages[settings.sink_topic],
                    self._rows[settings.sink_table],
                    self._messages[settings.contrast_topic],
                    self._rows[settings.contrast_table],
                )
            )
        consumer.close()

    def _consume(self, consumer: confluent_kafka.Consumer, until: float) -> None:
        while (left := until - time.monotonic()) > 0 and not self._stopped.is_set():
            for message in consumer.consume(2000, min(left, 0.5)):
                topic = message.topic()
                if message.error() is None and topic is not None:
                    self._messages[topic] += 1

    def _count_rows(self) -> None:
        try:
            with psycopg.connect(self._settings.dsn, connect_timeout=1) as connection:
                for table in self._rows:
                    count = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table)))
                    row = count.fetchone()
                    self._rows[table] = int(row[0]) if row else 0
        except psycopg.Error:
            return
