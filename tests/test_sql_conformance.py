"""SqlAlchemySink on SQLite passes the conformance suite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.connectors.database.sink import SqlAlchemySink
from onceward.testing.conformance import SinkConformance, SinkUnderTest

if TYPE_CHECKING:
    from pathlib import Path


def against_the_check(numbers: list[int]) -> pa.RecordBatch:
    """Rows of the right types, which only the table itself can refuse."""
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "text": ["" for _ in numbers]})


@pytest.mark.parametrize("journal", ["delete", pytest.param("wal", marks=pytest.mark.nightly)])
class TestSqlAlchemySinkOnSqlite(SinkConformance):
    @pytest.fixture
    def sink_under_test(self, tmp_path: Path, journal: str) -> SinkUnderTest:
        path = tmp_path / "conformance.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode={journal}")
            connection.execute("CREATE TABLE conformance (n bigint, text text NOT NULL CHECK (text <> ''))")

        def read_rows() -> list[dict[str, Any]]:
            with closing(sqlite3.connect(path)) as connection:
                return [{"n": n, "text": text} for n, text in connection.execute("SELECT n, text FROM conformance")]

        def run(statement: str, *values: str) -> None:
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute(statement, values)

        return SinkUnderTest(
            make=lambda: SqlAlchemySink("conformance", url=f"sqlite:///{path}", table="conformance"),
            read=lambda: [row["n"] for row in read_rows()],
            read_rows=read_rows,
            kill=True,
            refused=against_the_check,
            misfit=pa.schema([("n", pa.int64()), ("text", pa.string()), ("more", pa.string())]),
            take_away=lambda: run("DELETE FROM conformance"),
            delete_prepared=lambda one: run("DELETE FROM onceward_staged_rows WHERE name = ?", one.transaction),
        )
