"""Kafka → Spark → Kafka and PostgreSQL in containers, with driver, broker and database killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ..spark_kit import ids_in_table, ids_in_topic, make_table, once, prepared_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.testing.containers import KafkaContainer, PostgresContainer

pytestmark = [pytest.mark.containers, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 2_000
LIVES = 5
WAIT_SECONDS = 180.0


class Driver:
    """Lives of one Spark driver, each in a process group of its own."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self.command = [sys.executable, str(Path(__file__).with_name("driver.py")), *arguments]
        self.environment, self.log = environment, log
        self.life: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.life = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ended(self) -> bool:
        return self.life is None or self.life.poll() is not None

    def kill(self) -> None:
        if self.life is not None and not self.ended():
            os.killpg(self.life.pid, signal.SIGKILL)
            self.life.wait()

    def exit_code(self) -> int:
        assert self.life is not None
        return self.life.wait(WAIT_SECONDS)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@pytest.fixture
def driver(
    kafka_container: KafkaContainer,
    postgres_container: PostgresContainer,
    driver_environment: dict[str, str],
    tmp_path: Path,
) -> Iterator[Driver]:
    source, target = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("source", "target"))
    servers, dsn = kafka_container.bootstrap_servers, postgres_container.dsn
    make_topics(servers, source, target)
    make_table(dsn)
    produce(servers, source)
    made = Driver([servers, dsn, source, target, str(tmp_path / "checkpoint")], driver_environment, tmp_path / "log")
    yield made
    made.kill()
    with psycopg.connect(dsn) as connection:
        connection.execute("DROP TABLE words")


def make_topics(servers: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics([NewTopic(name, 3, 1) for name in names]).values():
        created.result(timeout=30)


def produce(servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(ROWS):
        producer.produce(topic, str(number).encode())
    assert producer.flush(60) == 0


def wait_for_rows(driver: Driver, dsn: str, rows: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    with psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            (seen,) = connection.execute("SELECT count(*) FROM words").fetchone() or (0,)
            if seen >= rows:
                return
            assert not driver.ended(), driver.last_words()
            assert time.monotonic() < deadline, driver.last_words()
            time.sleep(0.05)


def test_88_driver_broker_and_database_are_killed_and_each_record_takes_effect_once_in_both_targets(
    driver: Driver, kafka_container: KafkaContainer, postgres_container: PostgresContainer
) -> None:
    servers, dsn, _, target, _ = driver.command[2:]
    driver.start()
    wait_for_rows(driver, dsn, ROWS // 4)
    driver.kill()
    assert 0 < ids_in_table(dsn).total() < ROWS

    driver.start()
    wait_for_rows(driver, dsn, ROWS // 2)
    kafka_container.kill()
    postgres_container.kill()
    kafka_container.start_again()
    postgres_container.start_again()
    for _ in range(LIVES):
        if driver.exit_code() == 0:
            break
        driver.start()

    assert driver.exit_code() == 0, driver.last_words()
    assert ids_in_topic(servers, target) == once(ROWS)
    assert ids_in_table(dsn) == once(ROWS)
    assert prepared_in(dsn) == 0
