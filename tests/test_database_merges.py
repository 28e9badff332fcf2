"""What a merge needs is known before the decision: layouts of staging tables, refusals by code, drivers' own errors."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pymysql
import pytest
from sqlalchemy import exc

from onceward.connectors.database.described_table import Column
from onceward.connectors.database.failures import translate, translated
from onceward.connectors.database.postgres.catalog import PgTable, PgType
from onceward.connectors.database.postgres.rehearsal import Filled
from onceward.connectors.database.postgres.staging import Layout, stage_name
from onceward.connectors.database.sink import PostgresSink, SqlAlchemySink
from onceward.connectors.database.target_checks import check_written
from onceward.core.contract.findings import Health
from onceward.core.contract.transaction import CommitStatus, WriteContext
from onceward.core.errors import ConfigurationError, RetryableSinkError, SqlError

if TYPE_CHECKING:
    from pathlib import Path

    from onceward.connectors.database.target import DatabaseTarget

SQLITE = SqlAlchemySink("s", url="sqlite:///any.db", table="t").target
POSTGRES = PostgresSink("s", dsn="host=h", table="t").target


# Staging tables


def layout(**changes: Any) -> Layout:
    column = Column("mood", PgType(7001, "mood", enum=True), "mood", collation_oid=100)
    parts: dict[str, Any] = {"column": column, "checks": (("c", "f(mood)", "d1"),), "generated": ()} | changes
    table = PgTable("public", "t", (parts["column"],), oid=1)
    return Layout(table, parts["checks"], parts["generated"])


REPLACED = {
    "a type": {"column": replace(layout().table.columns[0], type=PgType(7002, "mood", enum=True))},
    "a collation": {"column": replace(layout().table.columns[0], collation_oid=101)},
    "a function that a check calls": {"checks": (("c", "f(mood)", "d2"),)},
    "a generated column": {"generated": (("g", "int", "f(mood)", "d1"),)},
}


@pytest.mark.parametrize("what", REPLACED)
def test_what_is_replaced_under_its_name_makes_another_staging_table(what: str) -> None:
    before, after = (stage_name(POSTGRES, "s", one, 0) for one in (layout(), layout(**REPLACED[what])))
    assert before != after
    assert before == stage_name(POSTGRES, "s", layout(), 4)


@pytest.mark.parametrize(
    ("following", "step", "cycles", "rows", "lacks"),
    [
        (4, 1, False, 2, False),
        (4, 1, False, 3, True),
        (6, 1, True, 9, False),
        (2, -1, False, 2, False),
        (1, -1, False, 2, True),
    ],
)
def test_a_sequence_that_ends_too_early_is_told(
    following: int, step: int, cycles: bool, rows: int, lacks: bool
) -> None:
    filled = Filled("n", "nextval('q'::regclass)", "q", following, step, 1, 5, cycles, is_plain=True, is_allowed=True)
    assert filled.lacks(rows) is lacks
    assert not filled._replace(next=None).lacks(rows)  # the role may not look


# Refusals


def refused_by_mariadb(number: int, state: str) -> exc.DBAPIError:
    error = pymysql.err.OperationalError(number, "no")
    error.sqlstate = state  # pyright: ignore[reportAttributeAccessIssue] - newer than the stubs
    return exc.OperationalError("", None, error)


def refused_by_sqlite(code: int, said: str) -> exc.DBAPIError:
    error = sqlite3.OperationalError(said)
    error.sqlite_errorcode = code
    return exc.OperationalError("", None, error)


MARIADB = SqlAlchemySink("s", url="mariadb://u@h/d", table="t").target


@pytest.mark.parametrize(
    ("error", "of_rows"),
    [
        *((refused_by_mariadb(number, state), True) for number, state in
          ((1365, "22012"), (1690, "22003"), (1411, "HY000"), (1242, "21000"), (167, "22003"), (1644, "45000"),
           (30001, "45000"), (30001, "HY000"), (1205, "45000"), (1213, "45123"), (9999, "99001"),
           (1339, "20000"), (1321, "2F005"), (1329, "02000"))),
        *((refused_by_mariadb(number, state), False) for number, state in
          ((1142, "42000"), (1146, "42S02"), (1030, "HY000"), (1399, "XAE07"))),
        *((exc.DBAPIError("", None, kind("no")), True) for kind in
          (psycopg.errors.CaseNotFound, psycopg.errors.CardinalityViolation, psycopg.errors.lookup("2F005"))),
        *((exc.DBAPIError("", None, kind("no")), False) for kind in
          (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege)),
        *((refused_by_sqlite(code, said), True) for code, said in
          ((1, "malformed JSON"), (1, "integer overflow"), (1, "bad JSON path: 'x'"),
           (1, "user-defined function raised exception"),
           (19, "CHECK constraint failed: t"), (1811, "closed"))),
        *((refused_by_sqlite(1, said), False) for said in
          ("no such table: t", "table t has no column named x", 'near "x": syntax error',
           "ON CONFLICT clause does not match any PRIMARY KEY or UNIQUE constraint", 'foreign key mismatch - "t"',
           "table t already exists")),
    ],
)  # fmt: skip
def test_a_refusal_of_rows_is_told_from_one_of_the_statement(error: exc.DBAPIError, of_rows: bool) -> None:
    targets = {pymysql.Error: MARIADB, psycopg.Error: POSTGRES, sqlite3.Error: SQLITE}
    target = next(target for kind, target in targets.items() if isinstance(error.orig, kind))
    refused = translate(error, "cannot write", target)
    assert isinstance(refused, SqlError)
    assert refused.refuses_rows is of_rows


@pytest.mark.parametrize("number", [1205, 1213, 1317])
def test_the_servers_own_timeouts_may_pass(number: int) -> None:
    assert isinstance(translate(refused_by_mariadb(number, "HY000"), "cannot write", MARIADB), RetryableSinkError)
    assert isinstance(translate(refused_by_mariadb(number, ""), "cannot write", MARIADB), RetryableSinkError)


@pytest.mark.parametrize(
    ("error", "target"),
    [
        (pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query"), MARIADB),
        (psycopg.OperationalError("server closed the connection unexpectedly"), POSTGRES),
        (refused_by_sqlite(5, "database is locked").orig, SQLITE),
    ],
)
def test_an_error_that_a_driver_raises_past_sqlalchemy_is_translated(error: Exception, target: DatabaseTarget) -> None:
    with pytest.raises(RetryableSinkError, match="cannot look"), translated("cannot look", target):
        raise error


def test_an_error_of_python_is_not_taken_for_a_drivers() -> None:
    with pytest.raises(ZeroDivisionError), translated("cannot look", SQLITE):
        raise ZeroDivisionError


# SQLite


@pytest.mark.parametrize("module", ["rtree", "RTREE_I32 "])
def test_a_table_that_rounds_numbers_is_refused(tmp_path: Path, module: str) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE VIRTUAL TABLE t USING {module}(id, low, high)")
    sink = SqlAlchemySink("s", url=f"sqlite:///{path}", table="t")
    with pytest.raises(ConfigurationError, match="keeps numbers of 32 bits"):
        sink.validate(pa.schema([("id", pa.int64())]))


def test_rows_that_a_trigger_leaves_out_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER)")
        connection.execute("CREATE TRIGGER odd BEFORE INSERT ON t WHEN new.id % 2 BEGIN SELECT raise( ignore ); END")
    sink = SqlAlchemySink("s", url=f"sqlite:///{path}", table="t")
    batch = pa.record_batch({"id": [1, 2, 3]})
    sink.validate(batch.schema)
    assert "trigger odd of table t leaves rows out" in caplog.text
    writing = sink.begin(
        WriteContext(pipeline="p", sink="s", log="0123abcd", generation=1, epoch=1, subtask=0, attempt=0)
    )
    sink.write(writing, batch)
    assert sink.commit(sink.pre_commit(writing)).status is CommitStatus.COMMITTED
    assert "triggers of table t have left out 2 of 3 rows" in caplog.text


def test_the_doctor_says_by_which_key_rows_can_be_upserted(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    sink = SqlAlchemySink("s", url=f"sqlite:///{path}", table="t")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER, word TEXT)")
        assert check_written(sink).found.endswith("by inserts; not by upserts, because it has no unique key")
        connection.execute("CREATE UNIQUE INDEX one ON t (id)")
        assert check_written(sink).found.endswith("and by upserts with key ['id']")
        assert (
            check_written(SqlAlchemySink("s", url=f"sqlite:///{path}", table="t", key=["word"])).health is Health.FAILED
        )
