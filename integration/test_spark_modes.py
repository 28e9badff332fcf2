"""Modes of Spark that overlap micro-batches are refused by name before anything is written, whatever Spark allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from onceward import PostgresSink, exactly_once

from .spark_kit import Feed, ids_in_table, make_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = [pytest.mark.spark, pytest.mark.postgres]
ASYNC = {"asyncProgressTrackingEnabled": "true", "_asyncProgressTrackingOverrideSinkSupportCheck": "true"}


@pytest.mark.parametrize("as_format", [False, True], ids=["exactly_once", "format"])
def test_asynchronous_progress_tracking_is_refused(
    spark: SparkSession, tmp_path: Path, dsn: str, as_format: bool
) -> None:
    make_table(dsn)
    feed = Feed(tmp_path)
    feed.add()
    rows = feed.stream(spark)
    writer: DataStreamWriter
    if as_format:
        writer = rows.writeStream.format("onceward-postgres").option("dsn", dsn).option("dbtable", "words")
    else:
        writer = exactly_once(rows, PostgresSink("table", dsn=dsn, table="words"), pipeline="words")
    query = writer.options(checkpointLocation=str(tmp_path / "checkpoint"), **ASYNC)
    with pytest.raises(StreamingQueryException, match="asynchronous progress tracking"):
        query.trigger(processingTime="1 second").start().awaitTermination(60)
    assert not ids_in_table(dsn)


def test_real_time_mode_is_refused(spark: SparkSession, tmp_path: Path, dsn: str) -> None:
    """By Spark itself, unless its list of allowed sinks is switched off."""
    make_table(dsn)
    spark.conf.set("spark.sql.streaming.realTimeMode.allowlistCheck", "false")
    try:
        rows = spark.readStream.format("rate").load().selectExpr("value AS id", "'w' AS word")
        query = exactly_once(
            rows, PostgresSink("table", dsn=dsn, table="words"), checkpoint=str(tmp_path / "c"), pipeline="words"
        )
        with pytest.raises(Exception, match=r"(?i)real-time mode|async progress tracking"):  # 4.2, 4.3
            query.outputMode("update").trigger(realTime="5 minutes").start().awaitTermination(60)
    finally:
        spark.conf.unset("spark.sql.streaming.realTimeMode.allowlistCheck")
    assert not ids_in_table(dsn)


def test_without_a_checkpoint_a_query_is_refused(spark: SparkSession, tmp_path: Path, dsn: str) -> None:
    """Spark makes a temporary one for foreachBatch, and the decision log would be deleted with it."""
    make_table(dsn)
    feed = Feed(tmp_path)
    feed.add()
    query = exactly_once(feed.stream(spark), PostgresSink("table", dsn=dsn, table="words"), pipeline="words").trigger(
        availableNow=True
    )
    with pytest.raises(StreamingQueryException, match="the query has no checkpoint"):
        query.start().awaitTermination(60)
    assert not ids_in_table(dsn)
