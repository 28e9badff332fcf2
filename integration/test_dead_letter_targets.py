"""Rows that MariaDB, SQLite, Redis, files and HTTP refuse go to the dead-letter sink in the same epoch, on real Spark.

Each target refuses some rows for each reason that it has (type, size, encoding, constraint), and gets all others, once:
in an epoch whose driver dies when it is decided, and in the one after it. The dead letters go into files or SQLite.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.dataset as ds
import pymysql
import pytest
from pyspark.errors import StreamingQueryException
from tests.http_kit import Inbox

from onceward import FileSink, HttpSink, RedisSink, SqlAlchemySink, exactly_once
from onceward.core.kit.crash_points import Step

from .mariadb_kit import PROGRAM, running_mariadb
from .redis_kit import running_valkey
from .spark_kit import Feed, crash_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]
NOT_UTF8 = "cast(unhex('FF61') AS string)"


class Bad(NamedTuple):
    """A value that a target refuses: its column, an expression of SQL for it, and a word of the reason."""

    column: str
    value: str
    word: str


class Target(NamedTuple):
    """A target of the tests.

    Attributes:
        sink: Writes into it.
        columns: Expressions of the good values, by name; `number` is the row's.
        bad: Values that it refuses, one of a row.
        numbers: Reads the numbers of the rows that are there.
    """

    sink: Any
    columns: dict[str, str]
    bad: list[Bad]
    numbers: Callable[[], list[int]]


def sqlite(folder: Path, _: ExitStack) -> Target:
    file = folder / "target.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("""
            CREATE TABLE known (id INTEGER PRIMARY KEY);
            INSERT INTO known WITH RECURSIVE up(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM up WHERE n < 99)
              SELECT n FROM up;
            CREATE TABLE paid (number INTEGER PRIMARY KEY, word TEXT NOT NULL CHECK (length(word) < 9), price DOUBLE,
                               cents INTEGER CHECK (cents >= 0), other INTEGER UNIQUE, day DATE,
                               known INTEGER REFERENCES known (id));
            INSERT INTO paid VALUES (-1, 'before', 0, 0, -7, '2026-01-01', 1);
            CREATE TRIGGER closed BEFORE INSERT ON paid WHEN new.word = 'closed'
              BEGIN SELECT raise(ABORT, 'the account is closed'); END;
        """)

    def numbers() -> list[int]:
        with closing(sqlite3.connect(file)) as connection:
            return [row[0] for row in connection.execute("SELECT number FROM paid WHERE number >= 0")]

    columns = {
        "number": "number",
        "word": "word",
        "price": "cast(number AS double)",
        "cents": "number",
        "other": "number",
        "day": "date'2026-01-02'",
        "known": "number",
    }
    bad = [
        Bad("word", "NULL", "null"),
        Bad("word", "repeat('x', 20)", "CHECK constraint"),
        Bad("word", NOT_UTF8, "UTF"),
        Bad("word", "'closed'", "account is closed"),
        Bad("price", "double('NaN')", "not a number"),
        Bad("cents", "-1", "CHECK constraint"),
        Bad("other", "-7", "UNIQUE constraint"),
        Bad("known", "4711", "FOREIGN KEY constraint"),
        Bad("day", "date'+12026-01-02'", "day"),
    ]
    return Target(SqlAlchemySink("paid", url=f"sqlite:///{file}", table="paid"), columns, bad, numbers)


def mariadb(_: Path, stack: ExitStack, commit: str = "auto") -> Target:
    server = stack.enter_context(running_mariadb())

    def run(*statements: str) -> list[Any]:
        with closing(pymysql.connect(port=server.port, user="root", database="matrix", autocommit=True)) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    run(
        "CREATE TABLE known (id BIGINT PRIMARY KEY)",
        "INSERT INTO known SELECT seq FROM seq_0_to_99",
        "CREATE TABLE paid (number BIGINT PRIMARY KEY, word VARCHAR(8) CHARACTER SET utf8mb4 NOT NULL,"
        " latin VARCHAR(8) CHARACTER SET latin1, mood ENUM('glad', 'sad'), cents BIGINT UNSIGNED, price DOUBLE,"
        " day DATE, some JSON, other BIGINT UNIQUE, checked BIGINT CHECK (checked < 1000)"
        + (", known BIGINT REFERENCES known (id))" if commit == "auto" else ", known BIGINT)"),
        "INSERT INTO paid (number, word, other) VALUES (-1, 'before', -7)",
        "CREATE TRIGGER closed BEFORE INSERT ON paid FOR EACH ROW"
        " IF new.word = 'closed' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the account is closed'; END IF",
    )
    columns = {
        "number": "number",
        "word": "word",
        "latin": "word",
        "mood": "'glad'",
        "cents": "number",
        "price": "cast(number AS double)",
        "day": "date'2026-01-02'",
        "some": """'{"a": 1}'""",
        "other": "number",
        "checked": "number",
        "known": "number",
    }
    bad = [
        Bad("word", "NULL", "null"),
        Bad("word", "'longer than it'", "characters"),
        Bad("word", NOT_UTF8, "UTF"),
        Bad("word", "'closed'", "account is closed"),
        Bad("latin", "'日本'", "Incorrect string value"),
        Bad("mood", "'bored'", "bored"),
        Bad("cents", "-1", "cents"),
        Bad("price", "double('NaN')", "not a number"),
        Bad("day", "date'+12026-01-02'", "day"),
        Bad("some", "'{'", "CONSTRAINT"),
        Bad("other", "-7", "Duplicate entry"),
        Bad("checked", "1000", "CONSTRAINT"),
        *([Bad("known", "4711", "foreign key constraint")] if commit == "auto" else []),
    ]
    sink = SqlAlchemySink("paid", url=server.url, table="paid", commit=commit)
    return Target(sink, columns, bad, lambda: [row[0] for row in run("SELECT number FROM paid WHERE number >= 0")])


def files(folder: Path, _: ExitStack, format_: str = "jsonl") -> Target:
    place = folder / "target"

    def numbers() -> list[int]:
        visible = [path for path in place.rglob(f"*.{format_}") if "_onceward" not in path.parts]
        if not visible:
            return []
        table = ds.dataset(visible, format="json" if format_ == "jsonl" else format_).to_table(columns=["number"])
        return [int(number) for number in table["number"].to_pylist() if number is not None]

    columns = {"number": "cast(number AS string)", "word": "word", "price": "cast(number AS double)"}
    options: dict[str, Any] = {}
    if format_ == "jsonl":
        bad = [
            Bad("price", "double('NaN')", "price"),
            Bad("price", "double('-Infinity')", "price"),
            Bad("word", NOT_UTF8, "word"),
        ]
    elif format_ == "csv":
        del columns["word"], columns["price"]
        bad = [Bad("number", "NULL", "null")]
    else:
        options = {"partition_by": ["word"]}
        bad = [Bad("word", NOT_UTF8, "UTF"), Bad("word", "repeat('x', 300)", "too long")]
    return Target(FileSink("paid", place, format=format_, **options), columns, bad, numbers)


def http(folder: Path, stack: ExitStack) -> Target:
    inbox = Inbox()
    stack.enter_context(inbox.up())
    columns = {"number": "number", "word": "word", "price": "cast(number AS double)", "day": "date'2026-01-02'"}
    bad = [
        Bad("price", "double('NaN')", "price"),
        Bad("word", NOT_UTF8, "word"),
        Bad("day", "date'+12026-01-02'", "day"),
    ]
    sink = HttpSink("paid", folder / "segments", url=inbox.url, server_honors_keys=True)
    return Target(sink, columns, bad, lambda: [row["number"] for taken in inbox.taken for row in taken.rows])


def redis(folder: Path, stack: ExitStack, form: str = "stream") -> Target:
    server = stack.enter_context(running_valkey(**{"proto-max-bulk-len": "1mb"}))
    columns = {"number": "number", "word": "word", "day": "date'2026-01-02'", "price": "cast(number AS double)"}
    bad = [
        Bad("word", "NULL", "word"),
        Bad("word", NOT_UTF8, "word"),
        Bad("word", "'onceward:1:x'", "reserved"),
        Bad("day", "date'+12026-01-02'", "day"),
    ]
    if form == "list":
        bad.append(Bad("price", "double('NaN')", "price"))
    else:
        columns["text"] = "word"
        bad.append(Bad("text", "repeat('x', 2000000)", "proto-max-bulk-len"))

    def numbers() -> list[int]:
        client = server.client()
        if form == "list":
            return [json.loads(row)["number"] for key in client.keys("w*") for row in client.lrange(key, 0, -1)]
        return [int(fields["number"]) for key in client.keys("w*") for _, fields in client.xrange(key)]

    sink = RedisSink("paid", folder / "segments", url=server.url, key="{word}", form=form)
    return Target(sink, columns, bad, numbers)


needs_mariadb = pytest.mark.skipif(PROGRAM is None, reason="mariadbd is not installed (mariadb-server-core)")


@pytest.fixture(
    params=[
        pytest.param(("sqlite", sqlite, {}), id="sqlite"),
        pytest.param(("files", files, {}), id="files-jsonl"),
        pytest.param(("files", files, {"format_": "csv"}), id="files-csv"),
        pytest.param(("files", files, {"format_": "parquet"}), id="files-parquet"),
        pytest.param(("http", http, {}), id="http"),
        pytest.param(("redis", redis, {}), id="redis-stream"),
        pytest.param(("redis", redis, {"form": "list"}), id="redis-list"),
        pytest.param(("mariadb", mariadb, {}), id="mariadb-staging", marks=needs_mariadb),
        pytest.param(("mariadb", mariadb, {"commit": "prepared"}), id="mariadb-prepared", marks=needs_mariadb),
    ]
)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    _, make, options = request.param
    with ExitStack() as stack:
        yield make(tmp_path, stack, **options)


def letters(folder: Path) -> list[dict[str, Any]]:
    found = [path for path in folder.rglob("*.jsonl") if "_onceward" not in path.parts]
    return ds.dataset(found, format="json").to_table().to_pylist() if found else []


def test_what_a_target_refuses_goes_to_the_dead_letters_in_the_same_epoch(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    feed = Feed(tmp_path)
    first_bad = 5
    by_column: dict[str, list[tuple[int, str]]] = {}
    for number, bad in enumerate(target.bad, first_bad):
        by_column.setdefault(bad.column, []).append((number, bad.value))
    select = []
    for column, good in target.columns.items():
        cases = "".join(f" WHEN {number} THEN {value}" for number, value in by_column.get(column, []))
        select.append(f"CASE number{cases} ELSE {good} END AS {column}" if cases else f"{good} AS {column}")

    def run() -> None:
        frame = feed.stream(spark).selectExpr("id AS number", "word").selectExpr(*select)
        writer = exactly_once(
            frame,
            target.sink,
            dead_letter=FileSink("rejected", tmp_path / "rejected", format="jsonl"),
            checkpoint=tmp_path / "checkpoint",
            pipeline=f"dead-{tmp_path.name}"[:60],
            writers=1,
        )
        writer.trigger(availableNow=True).start().awaitTermination()

    feed.add(40)
    with crash_at(Step.DECIDE_AFTER), pytest.raises(StreamingQueryException, match="Crash"):
        run()
    run()
    feed.add(40)
    run()
    last = first_bad + len(target.bad)
    assert sorted(target.numbers()) == [*range(first_bad), *range(last, 80)]
    found = letters(tmp_path / "rejected")
    assert len(found) == len(target.bad)
    for bad in target.bad:
        assert [one for one in found if bad.word in one["reason"]], (bad, [one["reason"] for one in found])
    assert {(one["sink"], one["epoch"]) for one in found} == {("paid", 0)}
