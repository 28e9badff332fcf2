"""The containers for users' tests serve clients, and survive SIGKILL with data and address."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest
from confluent_kafka import Consumer, Producer
from sqlalchemy import make_url

if TYPE_CHECKING:
    from onceward.testing.containers import KafkaContainer, MariaDbContainer, PostgresContainer

pytestmark = pytest.mark.containers


def produce(bootstrap_servers: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def first_record(bootstrap_servers: str, topic: str) -> bytes | None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    try:
        record = consumer.poll(30)
        assert record is not None
        assert record.error() is None
        return record.value()
    finally:
        consumer.close()


def test_a_killed_broker_keeps_its_records_and_its_address(kafka_container: KafkaContainer) -> None:
    topic, address = f"kept-{uuid.uuid4().hex}", kafka_container.bootstrap_servers
    produce(address, topic, b"kept")
    kafka_container.kill()
    assert not kafka_container.answers()
    kafka_container.start_again()
    assert kafka_container.bootstrap_servers == address
    assert first_record(address, topic) == b"kept"


def test_a_killed_database_keeps_its_prepared_transactions(postgres_container: PostgresContainer) -> None:
    with psycopg.connect(postgres_container.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("BEGIN; INSERT INTO kept VALUES (1); PREPARE TRANSACTION 'kept'")
    postgres_container.kill()
    assert not postgres_container.answers()
    postgres_container.start_again()
    with psycopg.connect(postgres_container.dsn, autocommit=True) as connection:
        connection.execute("COMMIT PREPARED 'kept'")
        assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]


def test_a_killed_mariadb_keeps_its_prepared_transactions(mariadb_container: MariaDbContainer) -> None:
    url = make_url(mariadb_container.url)
    where: dict[str, Any] = {"host": url.host, "port": url.port, "user": url.username, "password": url.password}
    where["autocommit"] = True
    with pymysql.connect(**where, database=url.database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept (n int)")
        for command in ("XA START 'kept'", "INSERT INTO kept VALUES (1)", "XA END 'kept'", "XA PREPARE 'kept'"):
            cursor.execute(command)
    mariadb_container.kill()
    assert not mariadb_container.answers()
    mariadb_container.start_again()
    with pymysql.connect(**where, database=url.database) as connection, connection.cursor() as cursor:
        cursor.execute("XA COMMIT 'kept'")
        cursor.execute("SELECT n FROM kept")
        assert cursor.fetchall() == ((1,),)
        cursor.execute("DROP TABLE kept")


def test_a_paused_broker_answers_nothing_until_it_goes_on(kafka_container: KafkaContainer) -> None:
    kafka_container.pause()
    try:
        assert not kafka_container.answers()
    finally:
        kafka_container.resume()
    kafka_container.wait_ready()
