"""Spark's types on their way into PostgreSQL and files, by both drivers, in a session that is not in UTC."""

from __future__ import annotations

import datetime as dt
import math
import sys
from decimal import Decimal
from typing import TYPE_CHECKING

import psycopg
import pyarrow.parquet
import pytest

from onceward import FileSink, PostgresSink
from onceward.connectors.spark import exactly_once
from onceward.connectors.spark.write.handler import EpochHandler

from .spark_kit import Feed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

COLUMNS = {
    "id": ("bigint", "id"),
    "small": ("smallint", "cast(id AS smallint)"),
    "ratio": ("double precision", "cast(0.25 AS double)"),
    "amount": ("numeric(12,2)", "cast(1234567890.12 AS decimal(12, 2))"),
    "word": ("text", "word"),
    "raw": ("bytea", "X'00FF10'"),
    "yes": ("boolean", "true"),
    "day": ("date", "date'2026-03-29'"),
    "at": ("timestamptz", "timestamp'2026-03-29 03:30:00.123456 Europe/Berlin'"),
    "long_ago": ("timestamptz", "timestamp'1899-12-31 23:59:59.5 UTC'"),
    "local_at": ("timestamp", "timestamp_ntz'2026-03-29 02:30:00'"),
    "span": ("interval", "interval '1 02:03:04.5' day to second"),
    "tags": ("text[]", "array('a', null, 'c')"),
    "numbers": ("integer[]", "array(1, 2)"),
    "nothing": ("timestamptz", "cast(null AS timestamp)"),
}
EXPECTED = (
    1,
    1,
    0.25,
    Decimal("1234567890.12"),
    "w1",
    b"\x00\xff\x10",
    True,
    dt.date(2026, 3, 29),
    dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=dt.UTC),
    dt.datetime(1899, 12, 31, 23, 59, 59, 500000, tzinfo=dt.UTC),
    dt.datetime(2026, 3, 29, 2, 30),  # noqa: DTZ001 - without a zone
    dt.timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=500),
    ["a", None, "c"],
    [1, 2],
    None,
)
MAYBE = "if(id = 0, null, struct('x' AS never_null, parse_json('1') AS variant)) AS maybe"


@pytest.fixture(autouse=True)
def _elsewhere(spark: SparkSession) -> Iterator[None]:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture(params=[None, math.inf], ids=["tasks", "driver"])
def _by_both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[EpochHandler.__module__], "driver_limit", lambda *_, **__: request.param)


@pytest.fixture
def typed(spark: SparkSession, tmp_path: Path) -> DataFrame:
    feed = Feed(tmp_path)
    feed.add(2)
    return feed.stream(spark).selectExpr(*[f"{expression} AS {name}" for name, (_, expression) in COLUMNS.items()])


@pytest.fixture
def table(dsn: str) -> str:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    with psycopg.connect(dsn) as connection:
        connection.execute(f"CREATE TABLE typed ({columns})")
    return dsn


def in_table(dsn: str) -> tuple[object, ...]:
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        rows = connection.execute("SELECT * FROM typed ORDER BY id").fetchall()
    assert len(rows) == 2
    return tuple(rows[1])


@pytest.mark.parametrize("how", ["prepared", "staging"])
@pytest.mark.usefixtures("_by_both")
def test_by_exactly_once(typed: DataFrame, tmp_path: Path, table: str, how: str) -> None:
    sinks = [
        PostgresSink("typed", dsn=table, table="typed", commit=how),
        FileSink("files", tmp_path / "out", select=["id", "at", "local_at", "amount", MAYBE]),
    ]
    writer = exactly_once(typed, *sinks, checkpoint=str(tmp_path / "checkpoint"), pipeline="typed")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert in_table(table) == EXPECTED
    rows = [
        row for path in (tmp_path / "out").glob("*.parquet") for row in pyarrow.parquet.read_table(path).to_pylist()
    ]
    [before, row] = sorted(rows, key=lambda row: row["id"])
    assert (before["maybe"], row["maybe"]["never_null"]) == (None, "x")
    assert row["at"].astimezone(dt.UTC) == EXPECTED[8]
    assert row["local_at"] == EXPECTED[10]


def test_the_driver_writes_columns_that_are_never_null_into_a_sink_that_takes_some_rows(
    typed: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are not for the sink are null structs, which pyspark cannot collect with fields that never are."""
    monkeypatch.setattr(sys.modules[EpochHandler.__module__], "driver_limit", lambda *_, **__: math.inf)
    monkeypatch.setattr(EpochHandler, "_write_by_tasks", None)
    sink = FileSink("late", tmp_path / "late", select=["id", "'late' AS reason"], where="id = 1")
    writer = exactly_once(typed, sink, checkpoint=str(tmp_path / "checkpoint"), pipeline="typed")
    writer.trigger(availableNow=True).start().awaitTermination()
    [late] = (tmp_path / "late").glob("*.parquet")
    assert pyarrow.parquet.read_table(late).to_pylist() == [{"id": 1, "reason": "late"}]


def test_by_a_format(typed: DataFrame, tmp_path: Path, table: str) -> None:
    writer = typed.writeStream.format("onceward-postgres").option("dsn", table).option("dbtable", "typed")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert in_table(table) == EXPECTED


def test_by_a_format_in_batch(spark: SparkSession, table: str) -> None:
    rows = spark.range(2).selectExpr("id", "concat('w', id) AS word")
    typed = rows.selectExpr(*[f"{expression} AS {name}" for name, (_, expression) in COLUMNS.items()])
    typed.write.format("onceward-postgres").option("dsn", table).option("dbtable", "typed").mode("append").save()
    assert in_table(table) == EXPECTED
