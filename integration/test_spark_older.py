"""What works on every pyspark from 3.5 on, with Spark's own Kafka source. `make spark35` runs it on 3.5."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import pyspark
import pytest

from onceward import FileSink, KafkaSource, SequenceSource, exactly_once, explain, read_stream, register
from onceward.connectors.spark.read.data_sources import AVAILABLE
from onceward.connectors.spark.session.query_plan import handlers
from onceward.core.contract.findings import Health
from onceward.core.contract.sink import Guarantee
from onceward.core.errors import ConfigurationError
from onceward.testing.pipeline import FAULTS, Folder, KafkaTopic, PipelineTest, Table

from .pipeline_kit import HERE, SparkPipeline
from .spark_kit import Feed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]
only_before_4 = pytest.mark.skipif(AVAILABLE, reason="pyspark 4.0 and newer have data sources in Python")


@pytest.mark.slow
class TestSparksOwnKafkaSource(PipelineTest):
    """Kafka → Spark → Kafka, PostgreSQL and files; the driver or its JVM is killed in the middle, and restarted."""

    command = (sys.executable, HERE / "spark_kafka_driver.py")
    services = "local"
    inputs = KafkaTopic("numbers", partitions=3)
    outputs = (
        KafkaTopic("words", partitions=3),
        Table("words", "id bigint, word text"),
        Folder("files", format="parquet"),
    )
    faults = {name: FAULTS[name] for name in ("kill-driver", "kill-jvm")}
    uses_onceward = False
    row_count = 1_000
    feed_seconds = 10.0
    timeout = 180.0
    environment = SparkPipeline.environment
    row = SparkPipeline.row
    expected = SparkPipeline.expected


@only_before_4
@pytest.mark.parametrize("name", ["read_stream", "register"])
def test_what_needs_data_sources_in_python_is_refused_with_the_version(spark: SparkSession, name: str) -> None:
    calls = {
        "read_stream": lambda: read_stream(spark, SequenceSource([{"id": 1}])),
        "register": lambda: register(spark),
    }
    expected = f"{name} needs pyspark 4.0 or newer.*, and pyspark {pyspark.__version__} is installed"
    with pytest.raises(ConfigurationError, match=expected):
        calls[name]()


@only_before_4
def test_a_kafka_source_in_spark_is_refused_before_a_broker_is_asked(spark: SparkSession) -> None:
    source = KafkaSource(bootstrap_servers="127.0.0.1:1", topics=["orders"])
    with pytest.raises(ConfigurationError, match=r"pyspark 3\.5\.\d+ is installed"):
        read_stream(spark, source)


@only_before_4
def test_explain_refuses_what_3_5_cannot_write(spark: SparkSession, tmp_path: Path) -> None:
    writer = Feed(tmp_path).stream(spark).writeStream.format("onceward-files").option("path", str(tmp_path / "out"))
    with pytest.raises(ConfigurationError, match="format onceward-files needs pyspark"):
        explain(writer)


def test_explain_reads_the_plan_and_the_settings(spark: SparkSession, tmp_path: Path) -> None:
    frame = Feed(tmp_path).stream(spark).selectExpr("id", "rand() AS chance").dropDuplicates(["id"])
    told = explain(
        exactly_once(frame, FileSink("files", tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), pipeline="p")
    )
    findings = {(finding.check, finding.health) for finding in told.findings}
    assert {("source", Health.OK), ("output mode", Health.OK), ("non-deterministic", Health.WARNING)} <= findings
    assert told.guarantee is Guarantee.AT_LEAST_ONCE
    assert not (tmp_path / "checkpoint").exists()
    exactly_once(frame, FileSink("files", tmp_path / "out"), checkpoint=str(tmp_path / "c"), pipeline="p")


def test_the_driver_gathers_rows_as_arrow_and_leaves_those_that_are_too_large_to_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    writer = exactly_once(
        Feed(tmp_path).stream(spark), FileSink("files", tmp_path / "out"), checkpoint=str(tmp_path / "c"), pipeline="p"
    )
    gathered = handlers[writer]._gathered
    rows = spark.range(3).selectExpr("id", "repeat('x', 100) AS word")
    for limit in (math.inf, 1_000.0):
        table = gathered(rows, limit)
        assert table.to_pylist() == [{"id": number, "word": "x" * 100} for number in range(3)]
    nothing = gathered(rows.where("id > 5"), math.inf)
    assert (nothing.num_rows, nothing.column_names) == (0, ["id", "word"])
    assert gathered(rows, 10.0) is None
