"""A transformation of its own for each sink, in one decision: on real Spark, Kafka and PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf

from onceward import KafkaSink, Output, PostgresSink, exactly_once, explain
from onceward.core.errors import ConfigurationError, SchemaError
from onceward.core.kit.crash_points import Step
from onceward.core.log import open_store, read

from .kafka_kit import read_all
from .spark_kit import Feed, crash_at, finish, prepared_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from onceward.core.contract.transaction import Committable
    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]
DRIVER = Path(__file__).with_name("outputs_driver.py")


def totals(batch: DataFrame) -> DataFrame:
    return batch.groupBy("word").agg(sf.count("*").alias("rows"), sf.max("mark").alias("mark"))


def marked(batch: DataFrame) -> DataFrame:
    """Other values in each attempt."""
    return batch.select("id", "mark", sf.expr("uuid()").alias("own"))


class Job:
    """Feed → raw rows in Kafka, rows with a random value in one table, counts in another."""

    def __init__(self, spark: SparkSession, folder: Path, kafka: KafkaServer, topic: str, dsn: str) -> None:
        self.spark, self.folder, self.servers, self.topic, self.dsn = spark, folder, kafka.bootstrap_servers, topic, dsn
        self.feed, self.mark = Feed(folder), "uuid()"
        self.pipeline = f"outputs-{folder.parent.name}-{folder.name}"[-60:].lstrip("-_.")
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE marked (id bigint, mark text, own text)")
            connection.execute("CREATE TABLE totals (word text, rows bigint, mark text)")

    def outputs(self) -> list[Any]:
        raw = KafkaSink("raw", bootstrap_servers=self.servers, topic=self.topic, select=["to_json(struct(*)) AS value"])
        return [
            raw,
            Output(PostgresSink("marked", dsn=self.dsn, table="marked"), marked),
            Output(PostgresSink("totals", dsn=self.dsn, table="totals"), totals),
        ]

    def run(self, *outputs: Any, **options: Any) -> None:
        frame = self.feed.stream(self.spark).withColumn("mark", sf.expr(self.mark))
        options = {"checkpoint": str(self.folder / "checkpoint"), "pipeline": self.pipeline, **options}
        finish(exactly_once(frame, *(outputs or self.outputs()), **options).trigger(availableNow=True).start())

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(statement).fetchall()  # type: ignore[arg-type]

    def check(self) -> None:
        """Each row once everywhere, and all three targets show the values of one attempt."""
        raw = sorted((row["id"], row["mark"]) for row in map(json.loads, self._values()))
        assert [number for number, _ in raw] == list(range(self.feed.rows))
        assert self.rows("SELECT id, mark FROM marked ORDER BY id") == raw
        assert self.rows("SELECT coalesce(sum(rows), 0) FROM totals") == [(self.feed.rows,)]
        marks = {mark for _, mark in raw}
        assert {mark for (mark,) in self.rows("SELECT mark FROM totals")} <= marks
        assert prepared_in(self.dsn) == 0

    def _values(self) -> list[bytes]:
        return [message.value() for message in read_all(self.servers, self.topic)]

    def die_when_kafka_has_committed(self) -> tuple[Committable, ...]:
        """Run a first epoch until then; what its decision names. Kafka's share is committed first, alone."""
        self.feed.add()
        with crash_at(Step.COMMIT_AFTER), pytest.raises(StreamingQueryException):
            self.run()
        assert len(self._values()) == self.feed.rows
        store = open_store(f"{self.folder}/checkpoint/onceward", pipeline=self.pipeline)
        undone = read(store).undone
        assert undone is not None
        return undone.committables

    def roll_back(self, committables: Sequence[Committable]) -> None:
        """As an operator would, behind the pipeline's back."""
        assert committables
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for committable in committables:
                connection.execute(f"ROLLBACK PREPARED '{committable.transaction}'")

    def kept(self) -> int:
        """How many DataFrames are persisted in the session."""
        return int(self.spark.sparkContext._jsc.getPersistentRDDs().size())  # type: ignore[attr-defined]


@pytest.mark.parametrize("persist", ["DISK_ONLY", "MEMORY_AND_DISK"])
def test_each_sink_gets_its_own_transformation_of_one_computation(job: Job, persist: Any) -> None:
    before = job.kept()
    for _ in range(2):
        job.feed.add()
        job.run(persist=persist)
    job.check()
    assert len(job.rows("SELECT word FROM totals")) == 14
    assert job.kept() == before


BY_DAY = (Step.DECIDE_BEFORE, Step.DECIDE_AFTER, Step.COMMIT_AFTER)


@pytest.mark.parametrize("step", [*BY_DAY, pytest.param(Step.COMPLETE_BEFORE, marks=pytest.mark.nightly)])
def test_values_that_differ_in_each_attempt_tear_no_epoch_when_the_driver_dies(job: Job, step: Step) -> None:
    before = job.kept()
    job.feed.add()
    job.run()
    job.feed.add()
    with crash_at(step), pytest.raises(StreamingQueryException):
        job.run()
    assert job.kept() == before
    written = job.rows("SELECT id, own FROM marked ORDER BY id")
    job.feed.add()
    job.run()
    job.check()
    assert set(written) <= set(job.rows("SELECT id, own FROM marked"))


def test_a_static_table_that_changes_between_two_attempts_tears_no_epoch(job: Job) -> None:
    """The driver dies between the jobs and the decision, and in the restart the joined table is another."""

    def named(version: str) -> Any:
        names = job.spark.createDataFrame([(f"w{number}", version) for number in range(7)], "word string, mark string")
        return lambda batch: batch.drop("mark").join(names, "word").select("id", "mark", sf.lit("").alias("own"))

    def outputs(version: str) -> list[Any]:
        raw, _, counted = job.outputs()
        joined = Output(PostgresSink("marked", dsn=job.dsn, table="marked"), named(version))
        return [raw, joined, counted]

    job.feed.add()
    with crash_at(Step.DECIDE_BEFORE), pytest.raises(StreamingQueryException):
        job.run(*outputs("old"))
    job.run(*outputs("new"))
    assert job.rows("SELECT mark, count(*) FROM marked GROUP BY mark") == [("new", 20)]
    job.feed.add()
    with crash_at(Step.DECIDE_AFTER), pytest.raises(StreamingQueryException):
        job.run(*outputs("decided"))
    job.run(*outputs("later"))
    assert job.rows("SELECT mark, count(*) FROM marked GROUP BY mark ORDER BY 1") == [("decided", 20), ("new", 20)]
    assert job.rows("SELECT sum(rows) FROM totals") == [(40,)]


def test_a_job_whose_task_dies_after_others_have_prepared_leaves_nothing_visible(job: Job) -> None:
    """The first two jobs have prepared their transactions when the third one's Python worker is killed."""
    died = job.folder / "died"

    def killed(word: str) -> str:
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return word

    die = sf.udf(lambda word: killed(word), "string")  # noqa: PLW0108 - pyspark cannot read the hints
    die = die.asNondeterministic()
    raw, rows, _ = job.outputs()
    counted = PostgresSink("totals", dsn=job.dsn, table="totals")
    dying = Output(counted, lambda batch: totals(batch.withColumn("word", die("word"))))
    before = job.kept()
    job.feed.add()
    with pytest.raises(StreamingQueryException):
        job.run(raw, rows, dying)
    assert job.kept() == before
    assert job.rows("SELECT id FROM marked") == []
    assert prepared_in(job.dsn) == 0
    job.run(raw, rows, dying)
    job.check()


def test_14_what_an_output_lost_of_a_visible_epoch_is_written_again_by_its_job_alone(job: Job) -> None:
    """The driver dies when Kafka shows the epoch, and somebody rolls back what one of the tables has prepared."""
    job.mark = "word"
    decided = job.die_when_kafka_has_committed()
    assert {c.sink for c in decided} == {"raw", "marked", "totals"}
    job.roll_back([c for c in decided if c.sink == "totals"])
    called: list[str] = []

    def noted(name: str, function: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
        return lambda batch: called.append(name) or function(batch)  # type: ignore[func-returns-value]

    raw, rows, counted = job.outputs()
    job.run(raw, Output(rows.sink, noted("marked", marked)), Output(counted.sink, noted("totals", totals)))
    assert called == ["marked", "totals", "totals"]  # for their columns; then to write
    job.check()
    job.feed.add()
    job.run()
    job.check()


def test_what_an_output_cannot_compute_again_is_refused_and_never_written_with_other_values(job: Job) -> None:
    job.mark = "word"
    decided = job.die_when_kafka_has_committed()
    job.roll_back([c for c in decided if c.sink == "marked"])
    with pytest.raises(StreamingQueryException, match="sink marked lost cannot be written again"):
        job.run()
    assert job.rows("SELECT id FROM marked") == []
    assert prepared_in(job.dsn) == len([c for c in decided if c.sink == "totals"])  # decided, so they stay
    job.run(on_lost="skip")
    assert (job.rows("SELECT id FROM marked"), job.rows("SELECT sum(rows) FROM totals")) == ([], [(20,)])
    assert prepared_in(job.dsn) == 0


@pytest.mark.parametrize("when", ["writing", "prepared"])
def test_a_task_that_is_tried_again_with_other_values_is_written_once(
    tmp_path: Path, dsn: str, driver_environment: dict[str, str], when: str
) -> None:
    """A Python worker is killed in the second job; Spark runs the task again, and its values are new ones."""
    feed = Feed(tmp_path)
    feed.add(200)
    with psycopg.connect(dsn) as connection:
        for table in ("marked", "struck"):
            connection.execute(f"CREATE TABLE {table} (id bigint, mark text, own text)")
    command = [sys.executable, str(DRIVER), str(tmp_path), dsn, when]
    done = subprocess.run(command, env=driver_environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "struck").exists()
    with psycopg.connect(dsn) as connection:
        tables = [connection.execute(f"SELECT id, mark FROM {t} ORDER BY id").fetchall() for t in ("marked", "struck")]
    assert [number for number, _ in tables[0]] == list(range(200))
    assert tables[0] == tables[1]
    assert prepared_in(dsn) == 0


def test_what_cannot_be_written_is_refused_by_name_before_anything_is_written(job: Job) -> None:
    table = PostgresSink("marked", dsn=job.dsn, table="marked")
    frame = job.feed.stream(job.spark).withColumn("mark", sf.expr("uuid()"))
    refused: list[tuple[type[Exception], str, list[Any]]] = [
        (ConfigurationError, "returned list.*sink marked", [Output(table, lambda batch: batch.collect())]),  # type: ignore[arg-type, return-value]
        (ConfigurationError, "streaming DataFrame.*sink marked", [Output(table, lambda _: frame)]),
        (SchemaError, "missing.*sink marked", [Output(table, lambda batch: batch.select("missing"))]),
        (
            SchemaError,
            "public.marked.*nothing_like_it",
            [Output(table, lambda batch: batch.selectExpr("id AS nothing_like_it"))],
        ),
        (ConfigurationError, "name of its own", [table, Output(table, marked)]),
        (
            ConfigurationError,
            "name of its own",
            [Output(table, marked), Output(PostgresSink("marked", dsn=job.dsn, table="totals"), totals)],
        ),
    ]
    for error, text, outputs in refused:
        with pytest.raises(error, match=f"(?s){text}"):
            exactly_once(frame, *outputs, checkpoint=str(job.folder / "checkpoint"), pipeline="outputs").start()


def test_other_columns_than_when_the_query_was_described_are_refused_before_the_epoch(job: Job) -> None:
    called: list[int] = []

    def changing(batch: DataFrame) -> DataFrame:
        called.append(1)
        return marked(batch) if len(called) == 1 else marked(batch).withColumn("own", sf.lit(1))

    raw, _, counted = job.outputs()
    job.feed.add()
    with pytest.raises(StreamingQueryException, match="own is int"):
        job.run(raw, Output(PostgresSink("marked", dsn=job.dsn, table="marked"), changing), counted)
    assert job._values() == []


def test_explain_names_what_differs_in_a_transformation(job: Job) -> None:
    frame = job.feed.stream(job.spark)
    rows = Output(
        PostgresSink("marked", dsn=job.dsn, table="marked"),
        lambda batch: batch.select("id", sf.lit("").alias("mark"), sf.expr("uuid()").alias("own")),
    )
    text = str(explain(exactly_once(frame, rows, checkpoint=str(job.folder / "checkpoint"), pipeline="outputs")))
    assert "uuid(): another value in each attempt" in text
    assert "sink marked" in text
