"""How many rows each target shows as time goes by: for the picture, not for the verdict."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import confluent_kafka
import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from .settings import DemoSettings

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
