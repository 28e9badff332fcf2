"""Connectors of onceward, on real services, pass the conformance suite for connectors."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from psycopg import sql

from onceward import FileSink, KafkaSink, PostgresSink, RedisSink, SqlAlchemySink
from onceward.connectors.database.connector import PostgresConnector, SqlConnector
from onceward.connectors.files.connector import FilesConnector
from onceward.connectors.kafka.connector import KafkaConnector
from onceward.connectors.redis.connector import RedisConnector
from onceward.testing.conformance import ConnectorConformance, ConnectorUnderTest, Refused

from .kafka_source_kit import Writer
from .redis_kit import Valkey, running_valkey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onceward.testing.services import KafkaServer

NOBODY = "127.0.0.1:1"


def texts(numbers: list[int]) -> pa.RecordBatch:
    """Make messages."""
    values = [str(n).encode() for n in numbers]
    return pa.RecordBatch.from_pydict({"key": pa.array(values, pa.binary()), "value": pa.array(values, pa.binary())})


@pytest.mark.kafka
class TestKafkaConnector(ConnectorConformance):
    @pytest.fixture
    def connector_under_test(self, kafka: KafkaServer, topic: Callable[..., str]) -> ConnectorUnderTest:
        servers, name = kafka.bootstrap_servers, topic(partitions=2)

        def sink(topic: str = name, **settings: Any) -> KafkaSink:
            return KafkaSink("connector", bootstrap_servers=servers, topic=topic, **settings)

        return ConnectorUnderTest(
            make=lambda: KafkaConnector(servers),
            sink=sink,
            place=name,
            rows=texts,
            alter=lambda: Writer(servers).send(name, [1], 0),
            refused={
                "no topic": Refused(lambda: sink("nowhere"), lambda: KafkaConnector(servers), "nowhere"),
                "a setting that librdkafka does not have": Refused(
                    lambda: sink(config={"no.such.setting": "1"}),
                    lambda: KafkaConnector(servers, {"no.such.setting": "1"}),
                ),
            },
            unreachable=lambda: KafkaConnector(NOBODY),
        )


@pytest.mark.postgres
@pytest.mark.parametrize("commit", ["prepared", "staging"])
class TestPostgresConnector(ConnectorConformance):
    @pytest.fixture
    def connector_under_test(self, dsn: str, commit: str) -> Iterator[ConnectorUnderTest]:
        role, password = f"poor_{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE rows (n bigint, text text)")
            connection.execute("CREATE VIEW seen AS SELECT * FROM rows")
            connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
            connection.execute(f"GRANT CREATE ON DATABASE {psycopg.conninfo.conninfo_to_dict(dsn)['dbname']} TO {role}")
        poor = psycopg.conninfo.make_conninfo(dsn, user=role, password=password)

        def sink(dsn: str = dsn, table: str = "rows", **settings: Any) -> PostgresSink:
            return PostgresSink("connector", table=table, dsn=dsn, **{"commit": commit, **settings})

        def alter() -> None:
            with psycopg.connect(dsn) as connection:
                connection.execute("UPDATE rows SET text = 'altered' WHERE n = (SELECT min(n) FROM rows)")

        yield ConnectorUnderTest(
            make=lambda: PostgresConnector(dsn),
            sink=sink,
            place="rows",
            alter=alter,
            refused={
                "no table": Refused(lambda: sink(table="nowhere"), lambda: PostgresConnector(dsn), "nowhere"),
                "a view": Refused(lambda: sink(table="seen"), lambda: PostgresConnector(dsn), "seen"),
                "no right to insert": Refused(lambda: sink(poor), lambda: PostgresConnector(poor), "rows"),
                "no such password": Refused(
                    lambda: sink(f"{poor} password=wrong"), lambda: PostgresConnector(f"{poor} password=wrong")
                ),
            },
            unreachable=lambda: PostgresConnector("host=127.0.0.1 port=1 user=nobody"),
            secret=str(psycopg.conninfo.conninfo_to_dict(dsn)["password"]),
        )
        with psycopg.connect(dsn) as connection:
            connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


class TestSqlConnector(ConnectorConformance):
    @pytest.fixture
    def connector_under_test(self, tmp_path: Path) -> ConnectorUnderTest:
        url = f"sqlite:///{tmp_path / 'rows.db'}"

        def change(*statements: str) -> None:
            engine = sa.create_engine(url)
            with engine.begin() as connection:
                for statement in statements:
                    connection.execute(sa.text(statement))
            engine.dispose()

        def sink(table: str = "rows", **settings: Any) -> SqlAlchemySink:
            return SqlAlchemySink("connector", table=table, url=url, **settings)

        change("CREATE TABLE rows (n bigint, text text)", "CREATE VIEW seen AS SELECT * FROM rows")
        return ConnectorUnderTest(
            make=lambda: SqlConnector(url),
            sink=sink,
            place="rows",
            alter=lambda: change("UPDATE rows SET text = 'altered' WHERE n = (SELECT min(n) FROM rows)"),
            refused={
                "no table": Refused(lambda: sink("nowhere"), lambda: SqlConnector(url), "nowhere"),
                "a view": Refused(lambda: sink("seen"), lambda: SqlConnector(url), "seen"),
            },
            unreachable=lambda: SqlConnector(f"sqlite:///{tmp_path / 'no' / 'rows.db'}"),
        )


class TestFilesConnector(ConnectorConformance):
    @pytest.fixture
    def connector_under_test(self, tmp_path: Path) -> ConnectorUnderTest:
        folder, file = tmp_path / "out", tmp_path / "file"
        folder.mkdir()
        file.touch()
        foreign = tmp_path / "delta"
        (foreign / "_delta_log").mkdir(parents=True)

        def alter() -> None:
            [path, *_] = folder.glob("*.jsonl")
            row = json.loads(path.read_text().splitlines()[0])
            path.write_text(json.dumps({**row, "text": "altered"}) + "\n")

        return ConnectorUnderTest(
            make=FilesConnector,
            sink=lambda: FileSink("connector", folder, format="jsonl"),
            place=str(folder),
            alter=alter,
            refused={
                "a file": Refused(lambda: FileSink("connector", file), FilesConnector, str(file)),
                "a table of Delta Lake": Refused(lambda: FileSink("connector", foreign), FilesConnector, str(foreign)),
            },
        )


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Valkey]:
    """A server that keeps nothing on disk."""
    with running_valkey(appendonly="no") as server:
        yield server


class TestRedisConnector(ConnectorConformance):
    @pytest.fixture
    def connector_under_test(self, valkey: Valkey, forgetful: Valkey, tmp_path: Path) -> ConnectorUnderTest:
        key = f"rows-{uuid.uuid4().hex[:8]}"

        def sink(url: str = valkey.url) -> RedisSink:
            return RedisSink("connector", url=url, key=key, folder=tmp_path / "wal")

        return ConnectorUnderTest(
            make=lambda: RedisConnector(valkey.url),
            sink=sink,
            place=key,
            alter=lambda: valkey.client().xadd(key, {"n": "0", "text": "foreign"}) and None,
            refused={
                "no append-only file": Refused(lambda: sink(forgetful.url), lambda: RedisConnector(forgetful.url), key),
            },
            unreachable=lambda: RedisConnector(f"redis://{NOBODY}/0"),
        )
