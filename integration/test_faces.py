"""What each way to write from Spark does with a replay, an empty micro-batch and a stop: cells of faces.py."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from onceward import FileSink, ForeachBatch, Output, exactly_once
from onceward.connectors.spark.read.data_sources import AVAILABLE
from onceward.core.log import DirectoryStore, read

from .spark_kit import Feed, once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark]


class Job:
    """Feed → a folder of JSON lines, and one for the rows that it refuses."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.feed = spark, folder, Feed(folder)
        self.checkpoint = folder / "checkpoint"
        self.how: dict[str, Any] = {"pipeline": "faces", "checkpoint": str(self.checkpoint)}

    def sink(self, name: str = "rows") -> FileSink:
        return FileSink(name, self.folder / name, format="jsonl")

    def run(self, face: Face, frame: DataFrame | None = None) -> None:
        writer = face(self, self.feed.stream(self.spark) if frame is None else frame)
        writer.trigger(availableNow=True).start().awaitTermination()

    def rows(self) -> Counter[int]:
        """Return the ids of all rows that were written, or were refused."""
        files = [*(self.folder / "rows").glob("*.jsonl"), *(self.folder / "rejected").glob("*.jsonl")]
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return Counter(json.loads(line["row"])["id"] if "row" in line else line["id"] for line in lines)


Face = Any
"""A way to write: a function of a Job and a DataFrame that returns a DataStreamWriter."""


def output(case: Job, frame: DataFrame) -> Any:
    return exactly_once(frame, Output(case.sink(), lambda batch: batch.select("word", "id")), **case.how)


def dead_letters(case: Job, frame: DataFrame) -> Any:
    priced = frame.withColumn("price", sf.expr("if(id % 7 = 3, double('NaN'), 1.5D)"))
    return exactly_once(priced, case.sink(), dead_letter=case.sink("rejected"), **case.how)


def foreach_batch(case: Job, frame: DataFrame) -> Any:
    writer = frame.writeStream.foreachBatch(ForeachBatch(case.sink(), pipeline="faces"))
    return writer.option("checkpointLocation", str(case.checkpoint))


def format_(case: Job, frame: DataFrame) -> Any:
    options = {
        "path": str(case.folder / "rows"),
        "fileFormat": "jsonl",
        "checkpointLocation": str(case.checkpoint),
    }
    return frame.writeStream.format("onceward-files").options(**options)


FACES = [
    output,
    dead_letters,
    foreach_batch,
    pytest.param(format_, marks=pytest.mark.skipif(not AVAILABLE, reason="pyspark 3.5 has no data sources in Python")),
]


@pytest.fixture
def case(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


@pytest.mark.parametrize("face", FACES)
def test_a_micro_batch_that_spark_replays_is_written_once(case: Job, face: Face) -> None:
    case.feed.add()
    case.feed.add()
    case.run(face)
    for file in (case.checkpoint / "commits").glob("*1*"):  # also its check sum
        file.unlink()
    case.feed.add()
    case.run(face)
    assert case.rows() == once(case.feed.rows)


@pytest.mark.parametrize("face", FACES)
def test_a_micro_batch_without_rows_is_an_epoch_like_any_other(case: Job, face: Face) -> None:
    case.feed.add()
    case.feed.add()
    case.run(face, case.feed.stream(case.spark).where("id >= 20"))
    assert case.rows() == Counter(range(20, 40))
    assert read(DirectoryStore(case.checkpoint / "onceward")).completed == 1


@pytest.mark.parametrize("face", FACES)
def test_a_query_that_is_stopped_in_an_epoch_writes_it_at_its_next_start(case: Job, face: Face) -> None:
    began, gate = case.folder / "began", case.folder / "gate"

    def wait(word: str) -> str:
        began.touch()
        while gate.exists():
            time.sleep(0.05)
        return word

    case.feed.add()
    gate.touch()
    waits = sf.udf(lambda word: wait(word), "string")  # noqa: PLW0108 - Spark refuses some type hints
    frame = case.feed.stream(case.spark).withColumn("word", waits("word"))
    query = face(case, frame).start()
    try:
        until(began.exists)
    finally:
        query.stop()
        gate.unlink()
    assert case.rows() == Counter()
    case.run(face)
    assert case.rows() == once(case.feed.rows)


@pytest.mark.skipif(not AVAILABLE, reason="pyspark 3.5 has no data sources in Python")
def test_a_batch_write_without_rows_ends_and_its_run_key_counts(case: Job) -> None:
    for rows in (0, 20):
        frame = case.spark.range(rows).selectExpr("id", "'w' AS word")
        options = {"path": str(case.folder / "rows"), "fileFormat": "jsonl", "pipeline": "days", "runKey": "monday"}
        frame.write.format("onceward-files").options(**options, store=str(case.folder / "log")).mode("append").save()
    assert case.rows() == Counter(), "the second write is the first one again"


def until(done: Callable[[], bool], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)
