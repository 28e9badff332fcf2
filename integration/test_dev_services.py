"""The local services are real, survive a crash with what they acknowledged, and come back where they were."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from tests.commands_kit import onceward

from .kafka_kit import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from onceward.testing.services import KafkaServer, PostgresServer


def produce(kafka: KafkaServer, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def first_record(kafka: KafkaServer, topic: str) -> bytes | None:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    try:
        record = consumer.poll(30)
        assert record is not None
        assert record.error() is None
        return record.value()
    finally:
        consumer.close()


@pytest.mark.kafka
def test_a_broker_crash_keeps_records_and_address(kafka: KafkaServer, topic: Callable[..., str]) -> None:
    name, address, before = topic(partitions=2), kafka.bootstrap_servers, kafka.pid
    produce(kafka, name, b"kept")
    kafka.kill()
    assert not kafka.running
    kafka.start()
    kafka.wait_ready()
    assert kafka.bootstrap_servers == address
    assert kafka.pid != before
    assert first_record(kafka, name) == b"kept"


@pytest.mark.postgres
def test_a_database_crash_keeps_prepared_transactions(postgres: PostgresServer, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("BEGIN; INSERT INTO kept VALUES (1); PREPARE TRANSACTION 'kept'")
    postgres.kill()
    postgres.start()
    postgres.wait_ready()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("COMMIT PREPARED 'kept'")
        assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]


@pytest.mark.postgres
def test_each_test_has_an_empty_database(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert connection.execute(tables).fetchone() == (0,)


@pytest.mark.kafka
@pytest.mark.postgres
def test_what_a_test_left_down_is_up_for_the_next(kafka: KafkaServer, postgres: PostgresServer) -> None:
    """Leaves the broker paused and the database dead, as a failed test would: the other tests of this file notice."""
    assert kafka.answers()
    assert postgres.answers()
    kafka.pause()
    postgres.kill()


@pytest.mark.spark
def test_spark_runs_this_python(spark: SparkSession) -> None:
    frame = spark.range(10).mapInPandas(lambda batches: batches, "id long")
    assert frame.count() == 10


@pytest.mark.slow
@pytest.mark.kafka
def test_several_brokers_are_started_shown_mended_and_stopped(tmp_path: Path) -> None:
    """The next `up`, without the number, starts the one that has died."""
    up = ("dev", "up", "--no-postgres", "--json")
    try:
        first = json.loads(onceward(*up, "--brokers", "3", "--topic", "orders:6", home=tmp_path).stdout)
        brokers = [first[f"kafka broker {number}"] for number in (1, 2, 3)]
        assert [broker["running"] for broker in brokers] == [True] * 3
        servers = ",".join(broker["bootstrap_servers"] for broker in brokers)
        assert first["bootstrap_servers"] == servers
        seen = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10).topics["orders"]
        assert [len(partition.replicas) for partition in seen.partitions.values()] == [3] * 6
        os.kill(brokers[1]["pid"], signal.SIGKILL)
        eventually(lambda: "broker 2: down" in onceward("dev", "status", home=tmp_path).stdout, "noticed")
        second = json.loads(onceward(*up, home=tmp_path).stdout)
        assert second["kafka broker 2"]["running"]
        assert second["bootstrap_servers"] == servers
    finally:
        down = onceward("dev", "down", "--no-postgres", "--delete", home=tmp_path).stdout
    assert down.splitlines() == [f"Kafka broker {number} stopped, deleted" for number in (1, 2, 3)]
    assert "Kafka: down" in onceward("dev", "status", home=tmp_path).stdout
