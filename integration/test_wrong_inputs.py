"""What a new user gets wrong, with the time until it is reported and the words: see also tests/test_wrong_inputs.py."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.functions import udf
from pyspark.sql.types import StringType

from onceward import PostgresSink, exactly_once
from onceward.core.errors import OncewardError

from .spark_kit import Feed, ids_in_table, make_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]
WORDS = pa.schema([("id", pa.int64()), ("word", pa.string())])
PASSWORD, DATABASE, ADDRESS = re.compile(r":[^:@/]+@"), re.compile(r"/\w+$"), re.compile(r"@[^/]+/")


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        ((PASSWORD, ":wrong@"), {}, 'password authentication failed for user "'),
        ((DATABASE, "/nowhere"), {}, 'database "nowhere" does not exist'),
        ((ADDRESS, "@127.0.0.1:1/"), {}, "port 1 failed: Connection refused"),
        (None, {"table": "wrods"}, "table wrods does not exist; create it, or set create_table=True"),
        (None, {"table": "numbers"}, "column 'word': string does not fit into integer"),
        (None, {"mode": "upsert", "key": ["id"]}, "it has no primary key or unique index over exactly ['id']"),
    ],
    ids=["password", "database", "server", "table", "type", "key"],
)
def test_a_wrong_target_is_told_in_one_line_before_anything_starts(
    dsn: str, change: tuple[re.Pattern[str], str] | None, arguments: dict[str, Any], words: str
) -> None:
    make_table(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE numbers (id bigint, word integer)")
    wrong = dsn if change is None else change[0].sub(change[1], dsn, count=1)
    began = time.monotonic()
    with pytest.raises(OncewardError) as caught:
        PostgresSink("table", dsn=wrong, **{"table": "words", **arguments}).validate(WORDS)
    assert time.monotonic() - began < 3
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not PASSWORD.search(str(caught.value).replace(":***@", ""))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda job: job.write(checkpoint=f"{job.feed.folder}/00000.json"), r"00000\.json is a file; give a folder"),
        (lambda job: job.write(checkpoint=f"{job.feed.folder}/00000.json/in/it"), "is a file; give a folder"),
        (lambda job: job.write(checkpoint="nofs://bucket/x"), 'cannot be written: No FileSystem for scheme "nofs"'),
        (lambda job: job.write(pipeline="a:b"), "pipeline name 'a:b' is not usable: give 1 to 64 characters"),
        (lambda job: job.write(sinks=[]), "takes one or more sinks, .*; given: none"),
        (lambda job: job.write(sinks=["paid"]), "takes one or more sinks, .*; given: str"),
        (lambda job: job.write(sinks=[PostgresSink]), r"given: the class PostgresSink \(give an instance\)"),
        (lambda job: job.write(rows=[1, 2]), "takes a streaming DataFrame, and then the sinks; given first: list"),
        (lambda job: job.write(sinks=[job.sink(), job.sink()]), r"needs a name of its own; got \['table', 'table'\]"),
        (lambda job: job.write(rows=job.rows.sparkSession.range(3)), "needs a streaming DataFrame"),
        (
            lambda job: job.write(rows=job.rows.withColumnRenamed("word", "wrod")).start(),
            "column 'wrod' .* is not in the table",
        ),
        (
            lambda job: job.write(rows=job.rows.selectExpr("cast(id AS double) AS id")).start(),
            "double does not fit into bigint",
        ),
        (lambda job: job.write(sinks=[job.sink(select=["nofunction(id)"])]), "UNRESOLVED_ROUTINE.*`nofunction`"),
        (lambda job: job.write(sinks=[job.sink(change_column="id")]), "change_column"),
        (lambda job: job.write(sinks=[job.sink(dsn="")]), "dsn is empty: give it a value"),
        (lambda job: job.write().awaitTermination(), "'DataStreamWriter' object has no attribute 'awaitTermination'"),
    ],
)
def test_a_wrong_argument_is_told_in_one_line_and_nothing_is_started(
    spark: SparkSession, tmp_path: Path, dsn: str, change: Callable[[WrongJob], object], words: str
) -> None:
    make_table(dsn)
    job = WrongJob(Feed(tmp_path), spark, dsn)
    began = time.monotonic()
    with pytest.raises((OncewardError, AnalysisException, AttributeError), match=words) as caught:
        change(job)
    assert time.monotonic() - began < 10
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "checkpoint").exists()


class WrongJob:
    """A job of which one thing is wrong."""

    def __init__(self, feed: Feed, spark: SparkSession, dsn: str) -> None:
        feed.add()
        self.feed, self.rows, self._dsn = feed, feed.stream(spark), dsn

    def sink(self, **arguments: Any) -> PostgresSink:
        return PostgresSink("table", **{"dsn": self._dsn, "table": "words", **arguments})

    def write(self, *, rows: Any = None, sinks: Sequence[Any] | None = None, **arguments: Any) -> Any:
        given = [self.sink()] if sinks is None else sinks
        named = {"checkpoint": str(self.feed.folder.parent / "checkpoint"), "pipeline": "words", **arguments}
        return exactly_once(self.rows if rows is None else rows, *given, **named)


@udf(returnType=StringType())
def poisoned(word):  # without annotations: pyspark would try to read them
    if word == "w3":
        raise ValueError(f"{word} is poison")
    return word


@pytest.mark.parametrize("as_format", [False, True], ids=["exactly_once", "format"])
@pytest.mark.parametrize("what", ["function", "key"])
def test_a_poison_record_ends_the_query_with_its_own_error_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path, dsn: str, as_format: bool, what: str
) -> None:
    make_table(dsn, key=True)
    feed = Feed(tmp_path)
    feed.add()
    rows = feed.stream(spark)
    if what == "function":
        rows, words = rows.withColumn("word", poisoned("word")), r"in poisoned\n[\s\S]*ValueError: w3 is poison"
    else:
        rows, words = rows.selectExpr("nullif(id, 3) AS id", "word"), "SchemaError: key column 'id' has nulls"
    if as_format:
        options = {"dsn": dsn, "dbtable": "words", "mode": "upsert", "key": "id"}
        writer = rows.writeStream.format("onceward-postgres").options(**options)
    else:
        writer = exactly_once(
            rows, PostgresSink("table", dsn=dsn, table="words", mode="upsert", key=["id"]), pipeline="words"
        )
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match=words):
        query.start().awaitTermination()
    assert not ids_in_table(dsn)
