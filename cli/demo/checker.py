"""The independent checker: a read_committed consumer and SQL against the known input.

It shares no code with the sinks: what it reads is what any consumer and any SQL client would read.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import confluent_kafka
import psycopg
from psycopg import sql

from .scenario import PARTITIONS, TARGETS, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .scenario import DemoSettings, Total

_EVERY_SECONDS = 1.0


class Verdict(NamedTuple):
    """What was found in one target, in rows."""

    target: str
    expected: int
    seen: int
    missing: int
    duplicated: int
    """Beyond the first of their order."""
    wrong: int
    """With another content than they must have, or expected by nobody."""

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
    consumer = _consumer(bootstrap_servers, "checker")
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
        unread = set(partitions)
        while unread:
            for message in consumer.consume(5000, _EVERY_SECONDS):
                error = message.error()
                if error is None:
                    yield json.loads(message.value() or b"null")
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                    unread.discard(message.partition())
                else:
                    raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()


def _consumer(bootstrap_servers: str, name: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"onceward-demo-{name}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )


def table_rows(dsn: str, table: str) -> Iterable[dict[str, Any]]:
    """Every row of a table, as a session of its own sees it."""
    with psycopg.connect(dsn) as connection, connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        cursor.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
        yield from cursor


def check(settings: DemoSettings, totals: Mapping[str, Total]) -> list[Verdict]:
    """Judge all four targets: the two exactly-once ones first."""
    return [judge(target.title, _rows(settings, target), totals) for target in TARGETS]


def _rows(settings: DemoSettings, target: Target) -> Iterable[dict[str, Any]]:
    if target.system == "Kafka":
        return committed_messages(settings.bootstrap_servers, target.name)
    return table_rows(settings.dsn, target.name)


class Sample(NamedTuple):
    """Rows visible in each target, `at` seconds after the beginning."""

    at: float
    rows: Mapping[Target, int]


@contextmanager
def sampling(settings: DemoSettings, samples: list[Sample], began: float) -> Iterator[None]:
    """Count in the background while the block runs; a target that is down keeps its last count."""
    stopped = threading.Event()
    thread = threading.Thread(target=_sample, args=(settings, samples, began, stopped), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _sample(settings: DemoSettings, samples: list[Sample], began: float, stopped: threading.Event) -> None:
    rows = dict.fromkeys(TARGETS, 0)
    topics, tables = ([target for target in TARGETS if target.system == system] for system in ("Kafka", "PostgreSQL"))
    consumer = _consumer(settings.bootstrap_servers, "sampler")
    consumer.assign([confluent_kafka.TopicPartition(topic.name, n, 0) for topic in topics for n in range(PARTITIONS)])
    while not stopped.is_set():
        until = time.monotonic() + _EVERY_SECONDS
        while (left := until - time.monotonic()) > 0 and not stopped.is_set():
            for message in consumer.consume(2000, min(left, 0.5)):
                if message.error() is None:
                    rows[Target("Kafka", message.topic() or "")] += 1
        with suppress(psycopg.Error), psycopg.connect(settings.dsn, connect_timeout=1) as connection:
            for table in tables:
                query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table.name))
                [(rows[table],)] = connection.execute(query).fetchall()
        samples.append(Sample(time.monotonic() - began, dict(rows)))
    consumer.close()
