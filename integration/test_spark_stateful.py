"""Every kind of stateful query, with two crashes in the middle: no result is lost, doubled, or of another state.

Spark writes the state of a batch while it computes it. So a batch that is computed again must begin with the state
before it, and one that was decided before a crash must be computed all the same, though nothing is written. The
expected rows are computed in plain Python from all that came in.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.dataset
import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from onceward import FileSink, SqlAlchemySink, exactly_once
from onceward.core.kit.crash_points import Step

from .spark_kit import crash_at, finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    Rows = set[tuple[Any, ...]]

pytestmark = pytest.mark.spark
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
NOON = datetime(2026, 11, 29, 12)  # noqa: DTZ001 - in the zone of the session, which is UTC
GAP = timedelta(minutes=5)
LAST = {998, 999, "end"}
"""Values of rows that come last, long after all others, so that every window and every wait ends."""


class Event(NamedTuple):
    """A row that comes in."""

    id: int
    word: str
    minute: int

    @property
    def at(self) -> datetime:
        return NOON + timedelta(minutes=self.minute)


EVENTS = [
    [Event(0, "a", 0), Event(1, "a", 3), Event(2, "b", 1), Event(3, "b", 9), Event(0, "a", 0)],
    [Event(4, "a", 10), Event(5, "c", 11), Event(6, "b", 12), Event(1, "a", 3), Event(7, "a", 12)],
    [Event(8, "a", 15), Event(9, "c", 16), Event(10, "b", 25), Event(4, "a", 10)],
    [Event(998, "end", 1_000), Event(999, "end", 1_000)],
]
ALL = [event for batch in EVENTS for event in batch]
REAL = [event for event in ALL if event.word not in LAST]


class Case(NamedTuple):
    """A query, its output mode, what it should have written, and the method of DataFrames or groups that it needs."""

    query: Callable[[DataFrame, DataFrame], DataFrame]
    mode: str
    expected: Rows
    needs: str = ""
    rocksdb: bool = False


def late_by(frame: DataFrame, minutes: int) -> DataFrame:
    return frame.withWatermark("at", f"{minutes} minutes")


# The queries


def session_windows(events: DataFrame, _: DataFrame) -> DataFrame:
    counted = late_by(events, 20).groupBy(sf.session_window("at", "5 minutes"), "word").count()
    return counted.selectExpr("word", "count AS number", "CAST(session_window.start AS string) AS since")


def sessions() -> Rows:
    found: Rows = set()
    for word in {event.word for event in REAL}:
        times = sorted(event.at for event in REAL if event.word == word)
        start, number = 0, 0
        for number, at in enumerate(times, start=1):
            if number == len(times) or times[number] - at > GAP:
                found.add((word, number - start, str(times[start])))
                start = number
    return found


def unique_within_watermark(events: DataFrame, _: DataFrame) -> DataFrame:
    return late_by(events, 60).dropDuplicatesWithinWatermark(["id"]).select("id", "word")


def joined_with_two_watermarks(events: DataFrame, others: DataFrame) -> DataFrame:
    """Each even id with the id after it, if that came within four minutes; else alone."""
    left = late_by(events.where("id % 2 = 0"), 20).dropDuplicates(["id", "at"]).alias("l")
    right = late_by(others.where("id % 2 = 1"), 30).dropDuplicates(["id", "at"])
    right = right.selectExpr("id AS other", "at AS other_at")
    near = "other = l.id + 1 AND other_at BETWEEN l.at - INTERVAL 4 MINUTES AND l.at + INTERVAL 4 MINUTES"
    return left.join(right, sf.expr(near), "leftOuter").selectExpr("l.id AS id", "coalesce(other, -1) AS other")


def pairs() -> Rows:
    times = {event.id: event.at for event in REAL}
    near = timedelta(minutes=4)
    return {
        (one, one + 1 if one + 1 in times and abs(times[one + 1] - at) <= near else -1)
        for one, at in times.items()
        if one % 2 == 0
    }


def inner_join(events: DataFrame, others: DataFrame) -> DataFrame:
    left = late_by(events, 20).dropDuplicates(["id", "at"])
    right = late_by(others, 40).dropDuplicates(["id", "at"])
    right = right.selectExpr("id AS other", "word AS other_word", "at AS then")
    near = sf.expr("word = other_word AND then BETWEEN at AND at + INTERVAL 3 MINUTES AND other > id")
    return left.join(right, near).selectExpr("id", "other")


def close_pairs() -> Rows:
    near = timedelta(minutes=3)
    return {
        (one.id, other.id)
        for one in REAL
        for other in REAL
        if one.word == other.word and other.id > one.id and one.at <= other.at <= one.at + near
    }


def windows_of_windows(events: DataFrame, _: DataFrame) -> DataFrame:
    """Two aggregates, one after the other."""
    inner = late_by(events, 20).groupBy(sf.window("at", "5 minutes"), "word").count()
    outer = inner.groupBy(sf.window(sf.window_time("window"), "20 minutes")).agg(sf.sum("count").alias("number"))
    return outer.selectExpr("CAST(window.start AS string) AS since", "number")


def totals_of_windows() -> Rows:
    counted = Counter(str(NOON + timedelta(minutes=event.minute // 20 * 20)) for event in REAL)
    return {(since, number) for since, number in counted.items()}


def counted(events: DataFrame, _: DataFrame) -> DataFrame:
    return events.groupBy("word").count().selectExpr("word", "count AS number")


def counted_in_pandas(events: DataFrame, _: DataFrame) -> DataFrame:
    def count(key: tuple[str], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        number = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
        state.update((number,))
        yield pd.DataFrame({"word": [key[0]], "number": [number]})

    return events.groupBy("word").applyInPandasWithState(
        count, "word string, number long", "number long", "Update", "NoTimeout"
    )


def counting(of_pandas: bool) -> Any:
    """A processor that is pickled with its code, for the executors cannot import this module."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.number = handle.getValueState("number", "number long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002
            import pandas as pd
            from pyspark.sql import Row

            before = self.number.get()
            new = sum(len(frame) for frame in rows) if of_pandas else sum(1 for _ in rows)
            number = (before[0] if before is not None else 0) + new
            self.number.update((number,))
            yield pd.DataFrame({"word": [key[0]], "number": [number]}) if of_pandas else Row(word=key[0], number=number)

        def close(self) -> None:
            pass

    return Count()


def transformed_in_pandas(events: DataFrame, _: DataFrame) -> DataFrame:
    grouped: Any = events.groupBy("word")
    return grouped.transformWithStateInPandas(counting(True), "word string, number long", "Update", "None")


def transformed(events: DataFrame, _: DataFrame) -> DataFrame:
    grouped: Any = events.groupBy("word")
    return grouped.transformWithState(counting(False), "word string, number long", "Update", "None")


NUMBERS = set(Counter(event.word for event in ALL).items())
CASES = {
    "session windows": Case(session_windows, "append", sessions()),
    "duplicates within a watermark": Case(
        unique_within_watermark, "append", {(event.id, event.word) for event in ALL}, "dropDuplicatesWithinWatermark"
    ),
    "outer join, two watermarks": Case(joined_with_two_watermarks, "append", pairs()),
    "inner join, two watermarks": Case(inner_join, "append", close_pairs()),
    "windows of windows": Case(windows_of_windows, "append", totals_of_windows()),
    "update": Case(counted, "update", NUMBERS),
    "complete": Case(counted, "complete", NUMBERS),
    "applyInPandasWithState": Case(counted_in_pandas, "update", NUMBERS),
    "transformWithStateInPandas": Case(transformed_in_pandas, "update", NUMBERS, "transformWithStateInPandas", True),
    "transformWithState": Case(transformed, "update", NUMBERS, "transformWithState", True),
}


class Job:
    """A stateful query that reads the events, a file for each batch, and writes files or a table in SQLite."""

    def __init__(self, spark: SparkSession, folder: Path, case: Case) -> None:
        self.spark, self.folder, self.case = spark, folder, case
        (folder / "feed").mkdir()
        self.fed = 0
        with sqlite3.connect(folder / "table.db") as connection:
            connection.execute("CREATE TABLE numbers (word TEXT PRIMARY KEY, number BIGINT)")

    def feed(self, batches: int) -> None:
        for events in EVENTS[self.fed : self.fed + batches]:
            lines = [json.dumps({"id": one.id, "word": one.word, "at": one.at.isoformat()}) for one in events]
            partial = self.folder / f".{self.fed}"
            partial.write_text("\n".join(lines))
            os.utime(partial, (time.time() + self.fed, time.time() + self.fed))  # the order in which Spark reads
            partial.rename(self.folder / "feed" / f"{self.fed}.json")
            self.fed += 1

    def events(self) -> DataFrame:
        reader = self.spark.readStream.schema("id long, word string, at timestamp").option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder / "feed"))

    def run(self) -> None:
        sink: Any = FileSink("files", self.folder / "out")
        if self.case.mode != "append":
            url = f"sqlite:///{self.folder / 'table.db'}"
            sink = SqlAlchemySink("table", url=url, table="numbers", mode="upsert", key=["word"])
        frame = self.case.query(self.events(), self.events())
        writer = exactly_once(frame, sink, checkpoint=str(self.folder / "checkpoint"), pipeline="stateful")
        finish(writer.outputMode(self.case.mode).trigger(availableNow=True).start())

    def written(self) -> Sequence[tuple[Any, ...]]:
        if self.case.mode == "append":
            table = pyarrow.dataset.dataset(self.folder / "out", format="parquet").to_table()
            return [tuple(row.values()) for row in table.to_pylist()]
        with sqlite3.connect(self.folder / "table.db") as connection:
            return connection.execute("SELECT word, number FROM numbers").fetchall()


@pytest.fixture
def stateful_job(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    case: Case = CASES[request.param]
    if case.needs and not hasattr(DataFrame, case.needs) and not hasattr(_grouped(), case.needs):
        pytest.skip(f"this pyspark has no {case.needs}")
    if request.param == "applyInPandasWithState" and pyspark.__version__.startswith("3."):
        pytest.skip(
            "pyspark 3.5 passes a float to RecordBatch.slice as soon as there are two keys, whatever the sink is"
        )
    if case.rocksdb:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    yield Job(spark, tmp_path, case)
    spark.conf.unset("spark.sql.streaming.stateStore.providerClass")


def _grouped() -> type:
    from pyspark.sql import GroupedData

    return GroupedData


@pytest.mark.parametrize("stateful_job", CASES, indirect=True)
def test_a_stateful_query_that_dies_in_the_middle_gives_each_result_once(stateful_job: Job) -> None:
    """First before a decision, so that the batch is computed again; then after the commit, so that it is replayed."""
    stateful_job.feed(1)
    stateful_job.run()
    stateful_job.feed(2)
    for step in (Step.DECIDE_BEFORE, Step.COMPLETE_AFTER):
        with crash_at(step), pytest.raises(StreamingQueryException):
            stateful_job.run()
    stateful_job.feed(1)
    stateful_job.run()
    written = stateful_job.written()
    assert len(written) == len(set(written))
    assert {row for row in written if not LAST & {*row}} == {
        row for row in stateful_job.case.expected if not LAST & {*row}
    }
