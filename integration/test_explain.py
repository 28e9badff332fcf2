"""What `onceward explain` says of real queries, and that it is true: what differs in a replay is what is reported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceward import FileSink, PostgresSink, SequenceSource, exactly_once, explain, read_stream
from onceward.connectors.spark.session.query_plan import Cause, unstable, unstable_for
from onceward.core.contract.findings import Finding, Health
from onceward.core.contract.policy import CommitPolicy
from onceward.core.contract.sink import Guarantee
from onceward.core.kit.crash_points import Step
from onceward.core.log import DirectoryStore, LogWriter

from .spark_kit import Crash, Feed, crash_at, make_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from onceward.cli.explain import Explanation
    from onceward.testing.services import KafkaServer

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "explain.md").read_text()
pytestmark = pytest.mark.spark

MEASURED = re.findall(r"^\| `([^|]+)` \| (same|differs|refused) \| (same|differs) \|$", PAGE, re.MULTILINE)
"""The page's table: expression, its value in a replay if it is in the query, and if it is in a sink's `select`."""
REPORTED = {Cause.RANDOM, Cause.CLOCK, Cause.DECLARED}


def attempts(frame: DataFrame, folder: Path, select: list[str] | None = None) -> list[list[Any]]:
    """One batch, which fails after it was computed, and what the next start computes of it."""
    found: list[list[Any]] = []

    def each(batch: DataFrame, _: int) -> None:
        rows = (batch if select is None else batch.selectExpr("id", *select)).orderBy("id").collect()
        found.append([tuple(row) for row in rows])
        if len(found) == 1:
            raise Crash

    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(folder)).trigger(availableNow=True)
    with pytest.raises(Exception, match="Crash"):
        writer.start().awaitTermination(60)
    writer.start().awaitTermination(60)
    return found


def differing(before: list[Any], after: list[Any], names: list[str]) -> set[str]:
    columns = zip(names, list(zip(*before, strict=True))[1:], list(zip(*after, strict=True))[1:], strict=True)
    return {name for name, first, second in columns if first != second}


def test_what_differs_in_a_replay_is_what_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.timeType.enabled", "true")
    feed = Feed(tmp_path)
    feed.add()
    rows = spark.readStream.schema("id long, word string").json(str(feed.folder))
    expected = {"query": set[str](), "sink": set[str]()}
    for text, in_query, in_sink in MEASURED:
        expected["query"] |= {text} if in_query == "differs" else set()
        expected["sink"] |= {text} if in_sink == "differs" else set()
        sink = FileSink("files", tmp_path / "out", select=[f"{text} AS x"])
        if text != "rand(7)":  # its seed cannot be told from one that Spark has chosen
            assert any(one.cause in REPORTED for one in unstable_for(rows, sink)) == (in_sink == "differs"), text
        if in_query != "refused":
            found = unstable(rows.selectExpr(f"{text} AS x"))
            assert any(one.cause in REPORTED for one in found) == (in_query == "differs"), text
    accepted = [text for text, in_query, _ in MEASURED if in_query != "refused"]
    first, second = attempts(rows.selectExpr("id", *accepted), tmp_path / "query")
    assert differing(first, second, accepted) == expected["query"]
    every = [text for text, _, _ in MEASURED]
    first, second = attempts(rows, tmp_path / "sink", every)
    assert differing(first, second, every) == expected["sink"]


def test_state_that_is_made_of_random_values_goes_on_from_others_than_were_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Why such a query is not called exactly-once, although each of its rows is written once."""
    feed = Feed(tmp_path)
    feed.add()
    values = feed.stream(spark).selectExpr("'all' AS k", "CASE WHEN id < 20 THEN rand() ELSE 0.0 END AS v")
    totals = values.groupBy("k").sum("v").selectExpr("k", "`sum(v)` AS total")
    sink = FileSink("files", tmp_path / "out", format="jsonl")

    def run() -> None:
        writer = exactly_once(totals, sink, checkpoint=str(tmp_path / "checkpoint"), pipeline="totals")
        writer.outputMode("update").trigger(availableNow=True).start().awaitTermination(60)

    with crash_at(Step.COMPLETE_AFTER), pytest.raises(Exception, match="Crash"):
        run()
    feed.add()
    run()
    lines = [line for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == 2
    assert json.loads(lines[0])["total"] != json.loads(lines[1])["total"]  # the second batch added nothing but zeros
    told = explain(exactly_once(totals, sink, checkpoint=str(tmp_path / "checkpoint"), pipeline="totals"), look=False)
    assert told.guarantee is Guarantee.AT_LEAST_ONCE
    assert "State depends on it" in one(told, "non-deterministic").found


def one(told: Explanation, check: str) -> Finding:
    [found] = [finding for finding in told.findings if finding.check == check]
    return found


@pytest.mark.parametrize(
    ("format_name", "options", "health"),
    [
        ("rate", {}, Health.OK),
        ("socket", {"host": "127.0.0.1", "port": "1"}, Health.WARNING),
    ],
)
def test_sources_are_told_apart(
    spark: SparkSession, tmp_path: Path, format_name: str, options: dict[str, str], health: Health
) -> None:
    rows = spark.readStream.format(format_name).options(**options).load()
    told = explain(
        exactly_once(rows, FileSink("files", tmp_path / "out"), checkpoint=str(tmp_path / "c"), pipeline="p"),
        look=False,
    )
    assert one(told, "source").health is health
    assert (told.guarantee is Guarantee.AT_MOST_ONCE) == (format_name == "socket")


def test_sources_of_one_kind_are_told_apart_by_what_they_read(spark: SparkSession, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("orders", "payments")]
    for folder in folders:
        folder.mkdir()
    first, second = (spark.readStream.schema("n long").json(str(folder)) for folder in folders)
    rates = [spark.readStream.format("rate").load().selectExpr("value AS n") for _ in range(2)]
    union = first.union(second).union(rates[0]).union(rates[1])
    writer = exactly_once(union, FileSink("files", tmp_path / "out"), checkpoint=str(tmp_path / "c"), pipeline="p")
    found = [finding.where for finding in explain(writer).findings if finding.check == "source"]
    assert len(set(found)) == 4, found
    assert [str(folder) in where for folder, where in zip(folders, found, strict=False)] == [True, True]
    alone = exactly_once(first, FileSink("files", tmp_path / "out"), checkpoint=str(tmp_path / "c"), pipeline="p")
    assert [one.where for one in explain(alone).findings if one.check == "source"] == ["json"]


def test_operations_that_may_keep_other_rows_in_a_replay_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    rows = feed.stream(spark)
    every = {
        "sample()": (rows.sample(0.5), Cause.RANDOM),
        "limit()": (rows.limit(3), Cause.ORDER),
        "dropDuplicates()": (rows.dropDuplicates(["id"]), Cause.ORDER),
    }
    for name, (frame, cause) in every.items():
        assert [(one.expression, one.cause, one.kept) for one in unstable(frame)] == [(name, cause, False)]
    for stable in (rows.distinct(), rows.groupBy("id").count().orderBy("id").limit(3)):
        assert unstable(stable) == []


@pytest.mark.parametrize("setting", ["ignoreMissingFiles", "ignoreCorruptFiles"])
def test_files_that_are_left_out_are_reported(spark: SparkSession, tmp_path: Path, setting: str) -> None:
    feed = Feed(tmp_path)
    feed.add()

    def told(value: str | None) -> Explanation:
        reader = (
            spark.readStream.schema("id long")
            if value is None
            else spark.readStream.schema("id long").option(setting, value)
        )
        sink = FileSink("files", tmp_path / "out")
        rows = reader.json(str(feed.folder))
        return explain(exactly_once(rows, sink, checkpoint=str(tmp_path / "c"), pipeline="p"), look=False)

    assert told("true").guarantee is Guarantee.AT_MOST_ONCE
    spark.conf.set(f"spark.sql.files.{setting}", "true")
    try:
        assert f"spark.sql.files.{setting}" in one(told(None), "source").found
        assert told("false").guarantee is Guarantee.EXACTLY_ONCE
    finally:
        spark.conf.unset(f"spark.sql.files.{setting}")


def test_what_spark_or_onceward_will_refuse_is_told_before(spark: SparkSession, tmp_path: Path) -> None:
    rows = read_stream(spark, SequenceSource([{"id": 1}]))
    writer = rows.writeStream.format("onceward-files").option("path", str(tmp_path / "out")).outputMode("update")
    told = explain(writer.option("asyncProgressTrackingEnabled", "true").option("checkpointLocation", str(tmp_path)))
    assert one(told, "output mode").health is Health.FAILED
    assert one(told, "progress").health is Health.FAILED
    assert one(told, "source").where == "SequenceSource"
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_a_path_as_hadoop_writes_it(spark: SparkSession, tmp_path: Path) -> None:
    LogWriter(DirectoryStore(tmp_path / "a%20b" / "onceward"), "orders", CommitPolicy()).start()
    rows = read_stream(spark, SequenceSource([{"id": 1}]))
    sink = FileSink("files", tmp_path / "out")
    told = explain(exactly_once(rows, sink, checkpoint=f"file:{tmp_path}/a%20b", pipeline="orders"))
    assert "pipeline orders" in one(told, "decision log").found


@pytest.mark.postgres
def test_nothing_is_made(spark: SparkSession, tmp_path: Path, dsn: str) -> None:
    rows = read_stream(spark, SequenceSource([{"id": 1}]))
    sink = PostgresSink("table", dsn=dsn, table="made", create_table=True)
    told = explain(exactly_once(rows, sink, checkpoint=str(tmp_path / "c"), pipeline="p"))
    assert told.guarantee is Guarantee.EXACTLY_ONCE
    assert one(told, "ownership").health is Health.OK
    assert one(told, "durability").health is Health.OK
    assert not list(tmp_path.iterdir())
    make_table(dsn, "made")  # or it is there


@pytest.mark.pages
@pytest.mark.kafka
@pytest.mark.postgres
def test_the_pages_example_says_what_the_page_shows(
    kafka: KafkaServer, dsn: str, driver_environment: dict[str, str], tmp_path: Path, topic: Callable[..., str]
) -> None:
    topic()  # the broker may have none
    variables = {"KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "DATABASE_URL": dsn}
    environment = {**os.environ, **driver_environment, **variables}
    run = [sys.executable, "-c", "from onceward.cli.main import main; main()"]
    subprocess.run([sys.executable, ROOT / "examples" / "make_orders.py"], env=environment, check=True, timeout=120)
    done = subprocess.run(
        [*run, "explain", str(ROOT / "examples" / "quickstart.py")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.search(r"^```\n\$ onceward explain examples/quickstart\.py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert normal(done.stdout) == normal(shown[1])
    assert not (tmp_path / "checkpoints").exists()


def normal(text: str) -> str:
    """Without what differs from machine to machine, and from what other tests have left in the broker."""
    text = re.sub(r"postgresql\+psycopg://\S+", "DATABASE", text)
    text = re.sub(r"brokers: \d+, topics: \d+", "brokers", text)
    text = re.sub(r"\(\d+ ok, \d+ warning\)", "", text)
    text = re.sub(r"\w+ +(open transactions|prepared transactions)\b.*", r"\1", text)
    text = re.sub(r"room for about \d+ locks, \d+ are held", "room for locks", text)
    text = re.sub(r"version:? .*", "version", text)
    return re.sub(r"/\S*checkpoints/paid", "checkpoints/paid", text)
