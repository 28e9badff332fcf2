"""The independent checker: a read_committed consumer and SQL against the known input.

It shares no code with the sinks: what it reads is what any consumer and any SQL client would read.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import confluent_kafka
import psycopg
from psycopg import sql

from onceward.testing.pipeline.endpoints import KafkaTopic, Table
from onceward.testing.pipeline.judge import Comparison, compare

from .scenario import EXACTLY_ONCE, PARTITIONS, TARGETS, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from onceward.testing.pipeline.endpoints import Record

    from .scenario import DemoSettings, Total

_EVERY_SECONDS = 1.0


COLUMNS: Final = ("order_id", "user", "cents", "total")


def judge(target: Target, found: Iterable[Record], totals: Mapping[str, Total]) -> Comparison:
    """Compare what is in a target with what must be in it; the contrast has no running totals."""
    columns = COLUMNS if target.name == EXACTLY_ONCE else COLUMNS[:-1]
    must = ({column: getattr(total, column) for column in columns} for total in totals.values())
    return compare(target.title, must, found, "order_id")


def _consumer(bootstrap_servers: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "onceward-demo-sampler",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def check(settings: DemoSettings, totals: Mapping[str, Total]) -> list[Comparison]:
    """Judge all four targets: the two exactly-once ones first."""
    endpoints = [KafkaTopic(target.name) if target.system == "Kafka" else Table(target.name) for target in TARGETS]
    found = (endpoint.read(settings.addresses) for endpoint in endpoints)
    return [judge(target, records, totals) for target, records in zip(TARGETS, found, strict=True)]


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
    consumer = _consumer(settings.bootstrap_servers)
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
