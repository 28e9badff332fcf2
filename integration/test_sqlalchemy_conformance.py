"""SqlAlchemySink on a real PostgreSQL server sits the exam that every sink gets (onceward.testing.conformance)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from onceward.connectors.database.sql.sink import SqlAlchemySink
from onceward.testing.conformance import SinkConformance, Subject

if TYPE_CHECKING:
    from onceward.testing.services import PostgresServer

pytestmark = pytest.mark.postgres


def against_the_check(numbers: list[int]) -> pa.RecordBatch:
    """Rows of the right types, which only the table itself can refuse."""
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "text": ["" for _ in numbers]})


MISFIT = pa.schema([("n", pa.int64()), ("text", pa.string()), ("more", pa.string())])


@pytest.mark.parametrize("how", ["prepared", "staging"])
class TestSqlAlchemySinkOnPostgres(SinkConformance):
    @pytest.fixture
    def subject(self, dsn: str, postgres: PostgresServer, how: str) -> Subject:
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE exam (n bigint, text varchar(60) CHECK (text <> ''))")

        def read() -> list[int]:
            with psycopg.connect(dsn) as connection:
                return [n for (n,) in connection.execute("SELECT n FROM exam").fetchall()]

        def restart() -> None:
            postgres.restart()
            postgres.wait_ready()

        return Subject(
            make=lambda: SqlAlchemySink("exam", url=dsn, table="exam", commit=how),
            read=read,
            kill=True,
            restart=restart,
            refused=against_the_check,
            misfit=MISFIT,
        )
