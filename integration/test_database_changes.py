"""Tables of PostgreSQL and MariaDB that change between any two steps of an epoch: see tests/database_changes.py."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pymysql
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import make_url
from tests.database_changes import Change, Column, Seen, cases, play

from onceward.connectors.database.sink import PostgresSink, SqlAlchemySink
from onceward.connectors.database.target_checks import check_written

from .mariadb_kit import PROGRAM, running_mariadb
from .postgres_kit import fresh_database
from .sql_kit import MariaDatabase, maria_database

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onceward.connectors.database.sink import DatabaseSink
    from onceward.testing.services import PostgresServer

    from .postgres_kit import Database

PARTS = 4
"""On MariaDB, where a change of a table takes longest, half of all cases are played."""
STAGED = ("staging", "upsert")
PASSWORD = "short-lived"
pytestmark = pytest.mark.server(f"CREATE ROLE writer LOGIN PASSWORD '{PASSWORD}'", wal_level="logical")
_X = "'x'|\"x\""
TEXTS = ("7", "1.50", "c ")


def _refusing(name: str, create: str, drop: str) -> Change:
    return Change(name, (create,), (drop,), "closed", late=True)


def _right(right: str, ways: Sequence[str], role: str) -> Change:
    revoke, grant = f"REVOKE {right} ON t FROM {role}", f"GRANT {right} ON t TO {role}"
    return Change(f"no {right}", (revoke,), (grant,), f"{right} command denied|permission denied", tuple(ways))


# PostgreSQL


class Postgres:
    """A PostgreSQL database, into which a role with few rights writes."""

    ways = ("staging", "upsert", "prepared")
    retyped = "ALTER TABLE t ALTER x TYPE {0} USING x::text::{0}"
    driver_error = psycopg.Error
    columns = (
        Column("int", pa.int32(), (1, 2, 3)),
        Column("bigint", pa.int64(), (4, 5, 6)),
        Column("numeric(8,2)", pa.decimal128(8, 2), (Decimal("1.50"), Decimal("7.00"), Decimal("0.25"))),
        Column("text", pa.string(), TEXTS),
        Column("varchar(9)", pa.string(), TEXTS),
        Column("double precision", pa.float64(), (0.1, 2.5, 7.0)),
    )
    changes = (
        Change(
            "no primary key",
            ("ALTER TABLE t DROP CONSTRAINT t_pkey",),
            ("ALTER TABLE t ADD CONSTRAINT t_pkey PRIMARY KEY (id)",),
            "unique|ON CONFLICT",
            ("upsert",),
        ),
        Change(
            "a key that is checked late",
            ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD CONSTRAINT t_pkey PRIMARY KEY (id) DEFERRABLE",),
            ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD CONSTRAINT t_pkey PRIMARY KEY (id)",),
            "DEFERRABLE|ON CONFLICT",
            ("upsert",),
        ),
        Change(
            "published without identity",
            ("ALTER TABLE t REPLICA IDENTITY NOTHING", "CREATE PUBLICATION feed FOR TABLE t"),
            ("DROP PUBLICATION feed", "ALTER TABLE t REPLICA IDENTITY DEFAULT"),
            "replica identity",
            ("upsert",),
        ),
        Change("published", ("CREATE PUBLICATION feed FOR ALL TABLES",), ("DROP PUBLICATION feed",), ""),
        Change(
            "a check",
            ("ALTER TABLE t ADD CONSTRAINT few CHECK (v < 100) NOT VALID",),
            ("ALTER TABLE t DROP CONSTRAINT few",),
            "few",
        ),
        Change(
            "a check of a generated column",
            ("ALTER TABLE t ADD g int GENERATED ALWAYS AS (v + 1) STORED, ADD CONSTRAINT few CHECK (g < 100)",),
            ("ALTER TABLE t DROP g",),
            "few",
        ),
        Change("a generated column", ("ALTER TABLE t ADD g int GENERATED ALWAYS AS (100 / (v - 101)) STORED",),
               ("ALTER TABLE t DROP g",), "division by zero"),
        Change("a column less", ("ALTER TABLE t DROP x",), ("ALTER TABLE t ADD x int",), _X),
        Change("a column of another name", ("ALTER TABLE t RENAME x TO y",), ("ALTER TABLE t RENAME y TO x",), _X),
        Change("a needed column", ("ALTER TABLE t ADD y int NOT NULL",), ("ALTER TABLE t DROP y",), "'y'|\"y\""),
        Change("a column more", ("ALTER TABLE t ADD y int DEFAULT 3",), ("ALTER TABLE t DROP y",), ""),
        Change("a default without right", ("ALTER TABLE t ADD y serial",), ("ALTER TABLE t DROP y",), "t_y_seq"),
        Change("a default that fails", ("ALTER TABLE t ADD y int", "ALTER TABLE t ALTER y SET DEFAULT 1 / 0"),
               ("ALTER TABLE t DROP y",), "division by zero"),
        Change("another name", ("ALTER TABLE t RENAME TO gone",), ("ALTER TABLE gone RENAME TO t",), "exist"),
        Change("row-level security", ("ALTER TABLE t ENABLE ROW LEVEL SECURITY",),
               ("ALTER TABLE t DISABLE ROW LEVEL SECURITY",), "row-level security"),
        Change("a rule", ("CREATE RULE gone AS ON INSERT TO t DO INSTEAD NOTHING",), ("DROP RULE gone ON t",),
               "rule|ON CONFLICT", ("upsert",)),
        _refusing("a trigger that refuses",
                  "CREATE TRIGGER r BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION closed()", "DROP TRIGGER r ON t"),
        *(_right(right, ways, "writer") for right, ways in
          (("INSERT", ways), ("UPDATE", ("upsert",)), ("SELECT", ("upsert",)))),
    )  # fmt: skip

    def __init__(self, database: Database) -> None:
        self.database = database
        self.dsn = make_conninfo(database.dsn, user="writer", password=PASSWORD)
        self.run("CREATE SCHEMA onceward AUTHORIZATION writer")
        self.run("CREATE FUNCTION closed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'closed'; END $$")
        self.run("SET lock_timeout = '100ms'")

    def make_table(self, declared: str) -> None:
        self.run("DROP TABLE IF EXISTS t")
        self.run(f"CREATE TABLE t (id int PRIMARY KEY, v int, x {declared})")
        self.run("GRANT SELECT, INSERT, UPDATE ON t TO writer")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return self.database.run(statement)

    def sink(self, way: str) -> DatabaseSink:
        how: dict[str, Any] = {"key": ["id"]} if way == "upsert" else {"commit": way}
        return PostgresSink("t", dsn=self.dsn, table="public.t", lock_timeout=1, answer_within=20, **how)


@pytest.mark.postgres
@pytest.mark.parametrize("part", range(PARTS))
def test_a_table_of_postgresql_that_changes_takes_rows_unchanged_or_refuses_them_with_the_cause(
    server: PostgresServer, part: int
) -> None:
    seen = Seen()
    with fresh_database(server) as database:
        server_of = Postgres(database)
        for case in cases(server_of, part, PARTS):
            play(server_of, case, seen)
        database.run("DROP OWNED BY writer")
    assert seen.outcomes.keys() >= {"refused before the decision", "refused at the merge", "committed"}, seen


# MariaDB


class Maria:
    """A MariaDB database, into which a user with few rights writes."""

    ways = ("staging", "upsert", "prepared")
    retyped = "ALTER TABLE t MODIFY x {}"
    driver_error = pymysql.Error
    columns = (
        Column("int", pa.int32(), (1, 2, 3)),
        Column("bigint", pa.int64(), (4, 5, 6)),
        Column("double", pa.float64(), (0.1, 2.5, 7.0)),
        Column("double(10,2)", pa.decimal128(8, 2), ()),
        Column("year", pa.int32(), ()),
        Column("varchar(10) collate utf8mb4_nopad_bin", pa.string(), ("1", "2", "3")),
        Column("enum('3','2','1')", pa.string(), ("1", "2", "3")),
        Column("set('a','b','1')", pa.string(), ("a", "b", "1")),
        Column("decimal(8,2)", pa.decimal128(8, 2), (Decimal("1.50"), Decimal("7.00"), Decimal("0.25"))),
    )
    changes = (
        Change("no primary key", ("ALTER TABLE t DROP PRIMARY KEY",), ("ALTER TABLE t ADD PRIMARY KEY (id)",), "unique",
               ("upsert",)),
        Change("a plain index", ("ALTER TABLE t DROP PRIMARY KEY, ADD INDEX plain (id)",),
               ("ALTER TABLE t DROP INDEX plain, ADD PRIMARY KEY (id)",), "unique", ("upsert",)),
        Change("another unique key", ("ALTER TABLE t ADD UNIQUE KEY another (v)",), ("ALTER TABLE t DROP KEY another",),
               "other unique keys", ("upsert",)),
        Change("another unique key, for inserts", ("ALTER TABLE t ADD UNIQUE KEY another (v)",),
               ("ALTER TABLE t DROP KEY another",), "", ("staging", "prepared")),
        Change("MyISAM", ("ALTER TABLE t ENGINE=MyISAM",), ("ALTER TABLE t ENGINE=InnoDB",), "MyISAM"),
        Change("a trigger into MyISAM",
               ("CREATE TRIGGER r AFTER INSERT ON t FOR EACH ROW INSERT INTO audit VALUES (1)",), ("DROP TRIGGER r",),
               "triggers name audit"),
        _refusing("a trigger that refuses", "CREATE TRIGGER r BEFORE INSERT ON t FOR EACH ROW"
                  " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'closed'", "DROP TRIGGER r"),
        Change("a check", ("ALTER TABLE t ADD CONSTRAINT few CHECK (v < 100)",), ("ALTER TABLE t DROP CONSTRAINT few",),
               "few"),
        Change("a column less", ("ALTER TABLE t DROP x",), ("ALTER TABLE t ADD x int",), "'x'"),
        Change("a needed column", ("ALTER TABLE t ADD y int NOT NULL",), ("ALTER TABLE t DROP y",), "'y'"),
        Change("a column more", ("ALTER TABLE t ADD y int DEFAULT 3",), ("ALTER TABLE t DROP y",), ""),
        Change("a table of another name", ("RENAME TABLE t TO gone",), ("RENAME TABLE gone TO t",), "exist"),
        Change("a view", ("RENAME TABLE t TO gone", "CREATE VIEW t AS SELECT * FROM gone"),
               ("DROP VIEW t", "RENAME TABLE gone TO t"), "view|VIEW|underlying"),
        *(_right(right, ways, "writer@'127.0.0.1'") for right, ways in
          (("INSERT", ways), ("UPDATE", ("upsert",)), ("SELECT", STAGED))),
    )  # fmt: skip

    def __init__(self, database: MariaDatabase) -> None:
        self.database = database
        at = make_url(database.url).set(username="writer", password=PASSWORD)
        self.url = at.render_as_string(hide_password=False)
        for right in ("CREATE", "CREATE TEMPORARY TABLES", "DROP", "TRIGGER"):
            self.run(f"GRANT {right} ON {database.name}.* TO writer@'127.0.0.1'")
        self.run("CREATE TABLE audit (n int) ENGINE=MyISAM")
        self.run("SET lock_wait_timeout = 1, sql_mode = ''")
        for name in ("ledger", "pipelines", "logs", "staged", "staged_rows"):
            own = f"{database.name}.onceward_{name}"  # which the first start creates
            self.run(f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, INDEX ON {own} TO writer@'127.0.0.1'")

    def make_table(self, declared: str) -> None:
        self.run("DROP TABLE IF EXISTS t")
        self.run(f"CREATE TABLE t (id int PRIMARY KEY, v int, x {declared})")
        self.run("GRANT SELECT, INSERT, UPDATE ON t TO writer@'127.0.0.1'")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return self.database.run(statement)

    def sink(self, way: str) -> DatabaseSink:
        how: dict[str, Any] = {"key": ["id"]} if way == "upsert" else {"commit": way}
        return SqlAlchemySink("t", url=self.url, table="t", lock_timeout=1, answer_within=20, **how)


@pytest.fixture(scope="module")
def mariadb_url() -> Iterator[str]:
    with running_mariadb() as running:
        yield running.url


@pytest.mark.skipif(PROGRAM is None, reason="MariaDB's server is not installed")
@pytest.mark.parametrize("part", range(PARTS))
def test_a_table_of_mariadb_that_changes_takes_rows_unchanged_or_refuses_them_with_the_cause(
    mariadb_url: str, part: int
) -> None:
    seen = Seen()
    with maria_database(mariadb_url) as database:
        database.run(f"CREATE OR REPLACE USER writer@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
        server = Maria(database)
        for case in cases(server, part, 2 * PARTS):
            play(server, case, seen)
    assert seen.outcomes.keys() >= {"refused before the decision", "refused at the merge", "committed"}, seen


@pytest.mark.skipif(PROGRAM is None, reason="MariaDB's server is not installed")
@pytest.mark.parametrize(
    ("created", "cause"),
    [
        ("CREATE VIEW t AS SELECT * FROM plain", "t is a view: only a table can be written exactly once"),
        ("CREATE SEQUENCE t", "it is a sequence, whose only row an INSERT replaces"),
    ],
)
def test_what_is_no_table_of_mariadb_is_refused_by_its_kind(mariadb_url: str, created: str, cause: str) -> None:
    with maria_database(mariadb_url) as database:
        database.run("CREATE TABLE plain (id int PRIMARY KEY)")
        database.run(created)
        told = check_written(SqlAlchemySink("t", url=database.url, table="t"))
    assert told.health == "failed"
    assert cause in told.found
