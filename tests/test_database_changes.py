"""An SQLite table that changes between any two steps of an epoch: rows are right, or refused with their cause."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.connectors.database.sink import SqlAlchemySink

from .database_changes import Case, Change, Column, Seen, cases, play

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from onceward.connectors.database.sink import DatabaseSink

PARTS = 4
_COPY = "INSERT INTO t SELECT * FROM old"


def _remade(table: str) -> tuple[str, ...]:
    return ("ALTER TABLE t RENAME TO old", table, _COPY, "DROP TABLE old", "CREATE UNIQUE INDEX one ON t (id)")


_PLAIN = _remade("CREATE TABLE t (id INTEGER, v INTEGER, x INTEGER)")


class SqliteServer:
    """A file."""

    ways: Sequence[str] = ("staging", "upsert")
    columns = (
        Column("INTEGER", pa.int64(), (1, 2, 2**53 + 1)),
        Column("TEXT", pa.string(), ("007", "1.50", "c ")),
        Column("DOUBLE", pa.float64(), (0.1, 2.5, 1e300)),
        Column("BLOB", pa.binary(), (b"a", b"\x00", b"")),
        Column("VARCHAR(2)", pa.string(), ("a", "b", "ab")),
    )
    retyped = "retype {}"
    driver_error = sqlite3.Error
    changes = (
        Change("no unique key", ("DROP INDEX one",), ("CREATE UNIQUE INDEX one ON t (id)",), "unique", ("upsert",)),
        Change(
            "a check", _remade("CREATE TABLE t (id INTEGER, v INTEGER, x INTEGER, CHECK (id < 100))"), _PLAIN, "CHECK"
        ),
        Change(
            "a column less",
            _remade("CREATE TABLE t (id, v INTEGER, y INTEGER)"),
            _remade("CREATE TABLE t (id INTEGER, v INTEGER, x INTEGER)"),
            "'x'",
        ),
        Change("a column more", ("ALTER TABLE t ADD y INTEGER",), ("ALTER TABLE t DROP y",), ""),
        Change("a needed column", ("ALTER TABLE t ADD y INTEGER NOT NULL DEFAULT 1",), ("ALTER TABLE t DROP y",), ""),
        Change(
            "no table",
            ("ALTER TABLE t RENAME TO gone", "CREATE TABLE t2 (id)"),
            ("ALTER TABLE gone RENAME TO t", "DROP TABLE t2"),
            "exist",
        ),
        Change(
            "a view",
            ("ALTER TABLE t RENAME TO gone", "CREATE VIEW t AS SELECT * FROM gone"),
            ("DROP VIEW t", "ALTER TABLE gone RENAME TO t"),
            "view",
        ),
        Change(
            "a trigger that refuses",
            ("CREATE TRIGGER r BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'closed'); END",),
            ("DROP TRIGGER r",),
            "closed",
            late=True,
        ),
        Change(
            "a trigger that rolls back",
            ("CREATE TRIGGER r BEFORE INSERT ON t BEGIN SELECT RAISE(ROLLBACK, 'closed'); END",),
            ("DROP TRIGGER r",),
            "closed",
            late=True,
        ),
        Change(
            "a foreign key",
            _remade("CREATE TABLE t (id INTEGER, v INTEGER REFERENCES nowhere (n), x INTEGER)"),
            _PLAIN,
            "nowhere|foreign key",
            late=True,
        ),
        Change("another table", ("CREATE TABLE other (id)",), ("DROP TABLE other",), ""),
    )

    def __init__(self, path: Path) -> None:
        self.path = path

    def make_table(self, declared: str) -> None:
        self.run("DROP TABLE IF EXISTS t")
        self.run(f"CREATE TABLE t (id INTEGER, v INTEGER, x {declared})")
        self.run("CREATE UNIQUE INDEX one ON t (id)")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, timeout=0.1)) as connection, connection:
            connection.execute("PRAGMA legacy_alter_table = ON")
            if statement.startswith("retype "):
                for step in _remade(f"CREATE TABLE t (id INTEGER, v INTEGER, x {statement.removeprefix('retype ')})"):
                    connection.execute(step)
                return []
            return connection.execute(statement).fetchall()

    def sink(self, way: str) -> DatabaseSink:
        key = ["id"] if way == "upsert" else None
        return SqlAlchemySink("t", url=f"sqlite:///{self.path}", table="t", lock_timeout=1, key=key)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_table_that_changes_takes_rows_unchanged_or_refuses_them_with_the_cause(tmp_path: Path, part: int) -> None:
    server, seen = SqliteServer(tmp_path / "shop.db"), Seen()
    played: list[Case] = []
    for case in cases(server, part, PARTS):
        play(server, case, seen)
        played.append(case)
    assert len(played) > 20
    assert seen.outcomes.keys() >= {"refused before the decision", "refused at the merge", "committed"}, seen
