"""KafkaSink, the sinks of PostgreSQL and KafkaSource, on real services, pass the conformance suite."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from psycopg import sql

from onceward import KafkaSink, PostgresSink, SqlAlchemySink
from onceward.testing.conformance import SinkConformance, SinkUnderTest, SourceConformance, SourceUnderTest
from onceward.testing.proxy import Proxy

from .kafka_kit import read_all
from .kafka_source_kit import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.core.contract.transaction import Committable
    from onceward.testing.services import KafkaServer, PostgresServer


def messages(numbers: list[int]) -> pa.RecordBatch:
    """Rows as KafkaSink takes them."""
    values = [str(n).encode() for n in numbers]
    return pa.RecordBatch.from_pydict({"key": pa.array(values, pa.binary()), "value": pa.array(values, pa.binary())})


@pytest.mark.kafka
class TestKafkaSink(SinkConformance):
    @pytest.fixture
    def sink_under_test(self, kafka: KafkaServer, topic: Callable[..., str]) -> SinkUnderTest:
        servers, name = kafka.bootstrap_servers, topic(partitions=2, max_message_bytes="100000")

        def restart() -> None:
            kafka.kill()
            kafka.start()
            kafka.wait_ready()

        def take_away() -> None:
            writer = Writer(servers)
            for partition in range(2):
                writer.delete_before(name, partition, writer.end_of(name, partition))

        def delete_prepared(committable: Committable) -> None:
            """Do what another program does that uses the transactional id."""
            Producer(
                {"bootstrap.servers": servers, "transactional.id": committable.transaction, "log_level": 0}
            ).init_transactions(30)

        return SinkUnderTest(
            make=lambda: KafkaSink("conformance", bootstrap_servers=servers, topic=name),
            read=lambda: [int(message.value()) for message in read_all(servers, name)],
            rows=messages,
            kill=True,
            restart=restart,
            hasty=lambda: KafkaSink("conformance", bootstrap_servers=servers, topic=name, transaction_timeout=3),
            refused=lambda numbers: pa.RecordBatch.from_pydict({"value": [bytes(200_000) for _ in numbers]}),
            misfit=pa.schema({"value": pa.list_(pa.int64())}),
            remembers=False,
            take_away=take_away,
            delete_prepared=delete_prepared,
        )


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("sink", "how"),
    [
        ("PostgresSink", "prepared"),
        ("PostgresSink", "staging"),
        pytest.param("PostgresSink", "upsert", marks=pytest.mark.nightly),  # staging again, merged by key
        pytest.param("SqlAlchemySink", "prepared", marks=pytest.mark.nightly),  # the same code by another door
        pytest.param("SqlAlchemySink", "staging", marks=pytest.mark.nightly),
    ],
)
class TestPostgresSink(SinkConformance):
    @pytest.fixture
    def sink_under_test(self, postgres: PostgresServer, dsn: str, sink: str, how: str) -> Iterator[SinkUnderTest]:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        proxy = Proxy(str(parts["host"]), int(str(parts["port"])))
        through = psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", port=proxy.port)
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE conformance (n bigint, text text CHECK (text <> 'refused'))")
            if how == "upsert":
                connection.execute("ALTER TABLE conformance ADD UNIQUE (n)")

        def read() -> list[int]:
            with psycopg.connect(dsn) as connection:
                return [n for (n,) in connection.execute("SELECT n FROM conformance").fetchall()]

        def restart() -> None:
            postgres.kill()
            postgres.start()
            postgres.wait_ready()

        def take_away() -> None:
            with psycopg.connect(dsn) as connection:
                connection.execute("DELETE FROM conformance")

        def delete_prepared(committable: Committable) -> None:
            name = sql.Literal(committable.transaction)
            with psycopg.connect(dsn, autocommit=True) as connection:
                if how == "prepared":
                    connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(name))
                    return
                found = connection.execute(
                    "SELECT stage FROM onceward.staged WHERE name = %s", [committable.transaction]
                ).fetchone()
                assert found is not None
                connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier("onceward", found[0])))

        def make() -> PostgresSink | SqlAlchemySink:
            settings: dict[str, Any] = {"table": "conformance"}
            settings |= {"key": ["n"]} if how == "upsert" else {"commit": how}
            if sink == "PostgresSink":
                return PostgresSink("conformance", dsn=through, **settings)
            return SqlAlchemySink("conformance", url=dsn, **settings)

        yield SinkUnderTest(
            make=make,
            read=read,
            proxy=proxy if sink == "PostgresSink" else None,
            keyed=how == "upsert",
            kill=True,
            restart=restart,
            refused=lambda numbers: pa.RecordBatch.from_pydict({"n": numbers, "text": ["refused" for _ in numbers]}),
            misfit=pa.schema({"n": pa.int64(), "no_such_column": pa.string()}),
            secret=str(psycopg.conninfo.conninfo_to_dict(dsn)["password"]),
            take_away=take_away,
            delete_prepared=delete_prepared,
        )
        proxy.close()


@pytest.mark.kafka
class TestKafkaSource(SourceConformance):
    @pytest.fixture
    def source_under_test(self, kafka: KafkaServer, topic: Callable[..., str]) -> SourceUnderTest:
        writer, name, group = Writer(kafka.bootstrap_servers), topic(partitions=3), f"conformance-{uuid.uuid4().hex}"

        def append(numbers: list[int]) -> None:
            for partition in range(3):
                writer.send(name, numbers[partition::3], partition)

        def lose() -> None:
            for partition in range(3):
                writer.delete_before(name, partition, writer.end_of(name, partition))

        def grow(numbers: list[int]) -> None:
            writer.add_partitions(name, 4)
            writer.send(name, numbers, 3)

        def published() -> int:
            consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
            try:
                offsets = consumer.committed([TopicPartition(name, partition) for partition in range(3)], timeout=20)
            finally:
                consumer.close()
            return sum(max(0, offset.offset) for offset in offsets)

        return SourceUnderTest(
            make=lambda: writer.source(name, ending="latest", group=group),
            append=append,
            numbers=lambda batch: [int(value) for value in batch.column("value").to_pylist()],
            many=45_000,
            published=published,
            lose=lose,
            grow=grow,
        )
