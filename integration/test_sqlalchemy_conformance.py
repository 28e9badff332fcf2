"""SqlAlchemySink on a real PostgreSQL server passes the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from onceward.connectors.database.sqlalchemy_sink import SqlAlchemySink
from onceward.testing.conformance import SinkConformance, SinkUnderTest

if TYPE_CHECKING:
    from onceward.testing.services import PostgresServer

pytestmark = pytest.mark.postgres


def against_the_check(numbers: list[int]) -> pa.RecordBatch:
    """Rows of the right types, which only the table itself can refuse."""
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "text": ["" for _ in numbers]})


MISFIT = pa.schema([("n", pa.int64()), ("text", pa.string()), ("more", pa.string())])


@pytest.mark.parametrize("how", ["prepared", pytest.param("staging", marks=pytest.mark.nightly)])
class TestSqlAlchemySinkOnPostgres(SinkConformance):
    @pytest.fixture
    def sink_under_test(self, dsn: str, postgres: PostgresServer, how: str) -> SinkUnderTest:
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE conformance (n bigint, text varchar(60) CHECK (text <> ''))")

        def read() -> list[int]:
            with psycopg.connect(dsn) as connection:
                return [n for (n,) in connection.execute("SELECT n FROM conformance").fetchall()]

        def restart() -> None:
            postgres.restart()
            postgres.wait_ready()

        return SinkUnderTest(
            make=lambda: SqlAlchemySink("conformance", url=dsn, table="conformance", commit=how),
            read=read,
            kill=True,
            restart=restart,
            refused=against_the_check,
            misfit=MISFIT,
        )
