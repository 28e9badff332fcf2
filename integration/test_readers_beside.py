"""Readers that read while epochs are committed: none fails, and none sees half of what becomes visible in one piece.

In a folder that is a file; in a database an epoch of staged rows, and a subtask's transaction of prepared ones.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.dataset
import pymysql
import pytest

from onceward import FileSink, PostgresSink, SqlAlchemySink
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import WriteContext

from .kafka_kit import eventually
from .mariadb_kit import PROGRAM, running_mariadb
from .postgres_kit import fresh_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from onceward.testing.services import PostgresServer

    from .mariadb_kit import MariaDb

EPOCHS, SUBTASKS, ROWS = 12, 2, 50
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def run(sink: Any, epoch: int) -> None:
    committables = []
    for subtask in range(SUBTASKS):
        context = WriteContext(
            pipeline="p", sink="words", log="0123abcd", generation=1, attempt=0, epoch=epoch, subtask=subtask
        )
        first = (epoch * SUBTASKS + subtask) * ROWS
        transaction = sink.begin(context)
        sink.write(transaction, pa.record_batch([range(first, first + ROWS), ["w"] * ROWS], schema=SCHEMA))
        committables.append(sink.pre_commit(transaction))
    if epoch == 0:
        sink.ledger().claim(Scope("p", "words", "0123abcd"))
    eventually(lambda: all(outcome.settled for outcome in sink.commit_many(committables)), "committed")
    sink.ledger().completed(Scope("p", "words", "0123abcd"), epoch)


def check_beside(sink: Any, read: Callable[[], list[int]], piece: int, epochs: int = EPOCHS) -> None:
    """Run epochs while two threads read; each must see whole pieces, each row once, and never less than before."""
    sink.validate(SCHEMA)
    run(sink, 0)
    ended, reads, wrong = threading.Event(), [0, 0], []

    def look(number: int) -> None:
        seen = 0
        while True:
            last = ended.is_set()
            try:
                ids = read()
                assert len(set(ids)) == len(ids), "a row twice"
                assert len(ids) >= seen, f"{len(ids)} rows after {seen}"
                for first in {row // piece for row in ids}:
                    part = sum(row // piece == first for row in ids)
                    assert part == piece, f"{part} of {piece} rows of a piece"
                seen = len(ids)
                reads[number] += 1
            except Exception as error:  # noqa: BLE001 - told below
                wrong.append(error)
            if last or wrong:
                return

    threads = [threading.Thread(target=look, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for epoch in range(1, epochs):
            run(sink, epoch)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert min(reads) > 1
    assert sorted(read()) == list(range(epochs * SUBTASKS * ROWS))


def by_pyarrow(folder: Path) -> list[int]:
    return pyarrow.dataset.dataset(folder, format="parquet").to_table(columns=["id"])["id"].to_pylist()


def by_duckdb(folder: Path) -> list[int]:
    with duckdb.connect() as connection:
        return [n for (n,) in connection.sql(f"SELECT id FROM '{folder}/**/*.parquet'").fetchall()]


@pytest.mark.parametrize("read", [by_pyarrow, by_duckdb])
def test_a_reader_of_a_folder_sees_whole_files(tmp_path: Path, read: Callable[[Path], list[int]]) -> None:
    sink = FileSink("words", tmp_path / "out", format="parquet")
    check_beside(sink, partial(read, tmp_path / "out"), ROWS)


def test_spark_sees_whole_files_of_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    sink = FileSink("words", tmp_path / "out", format="parquet")

    def read() -> list[int]:
        return [row.id for row in spark.read.parquet(str(tmp_path / "out")).select("id").collect()]

    check_beside(sink, read, ROWS)


def by_psycopg(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [n for (n,) in connection.execute("SELECT id FROM words").fetchall()]


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("settings", "piece"),
    [({"commit": "staging"}, ROWS * SUBTASKS), ({"key": ["id"]}, ROWS * SUBTASKS), ({"commit": "prepared"}, ROWS)],
    ids=["staging", "upsert", "prepared"],
)
def test_a_reader_of_postgresql_sees_whole_epochs_of_staged_rows(
    postgres: PostgresServer, settings: dict[str, Any], piece: int
) -> None:
    with fresh_database(postgres) as database:
        database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text)")
        sink = PostgresSink("words", dsn=database.dsn, table="words", **settings)
        check_beside(sink, partial(by_psycopg, database.dsn), piece)


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    with running_mariadb() as running:
        yield running


def by_pymysql(port: int) -> list[int]:
    with (
        pymysql.connect(host="127.0.0.1", port=port, user="root", database="matrix") as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT id FROM words")
        return [n for (n,) in cursor.fetchall()]


@pytest.mark.skipif(PROGRAM is None, reason="MariaDB's server is not installed")
@pytest.mark.parametrize(
    ("settings", "piece"),
    [({"commit": "staging"}, ROWS * SUBTASKS), ({"key": ["id"]}, ROWS * SUBTASKS), ({"commit": "prepared"}, ROWS)],
    ids=["staging", "upsert", "prepared"],
)
def test_a_reader_of_mariadb_sees_whole_epochs_of_staged_rows(
    mariadb: MariaDb, settings: dict[str, Any], piece: int
) -> None:
    with closing(pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root", database="matrix")) as connection:
        connection.cursor().execute("CREATE OR REPLACE TABLE words (id bigint PRIMARY KEY, word text) ENGINE=InnoDB")
    sink = SqlAlchemySink("words", url=mariadb.url, table="words", **settings)
    check_beside(sink, partial(by_pymysql, mariadb.port), piece)


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("settings", [{"commit": "staging"}, {"key": ["id"]}], ids=["staging", "upsert"])
def test_a_reader_of_sqlite_sees_whole_epochs(tmp_path: Path, settings: dict[str, Any], journal: str) -> None:
    """A reader that waits for a lock for as long as Python's module does by default: five seconds."""
    path = tmp_path / "words.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={journal}")
        connection.execute("CREATE TABLE words (id integer PRIMARY KEY, word text)")

    def read() -> list[int]:
        with closing(sqlite3.connect(path)) as connection:
            return [n for (n,) in connection.execute("SELECT id FROM words").fetchall()]

    check_beside(SqlAlchemySink("words", url=f"sqlite:///{path}", table="words", **settings), read, ROWS * SUBTASKS)
