"""SqlAlchemySink on SQLite sits the exam that every sink gets (onceward.testing.conformance)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from onceward.sinks.sqlalchemy import SqlAlchemySink
from onceward.testing.conformance import SinkConformance, Subject

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("journal", ["delete", "wal"])
class TestSqlAlchemySinkOnSqlite(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path, journal: str) -> Subject:
        path = tmp_path / "exam.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode={journal}")
            connection.execute("CREATE TABLE exam (n bigint, text text)")

        def read() -> list[int]:
            with closing(sqlite3.connect(path)) as connection:
                return [n for (n,) in connection.execute("SELECT n FROM exam")]

        return Subject(make=lambda: SqlAlchemySink("exam", url=f"sqlite:///{path}", table="exam"), read=read)
