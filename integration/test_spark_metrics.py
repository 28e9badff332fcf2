"""Metrics and progress of real queries: of exactly_once in the driver, of the formats in Spark's own processes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import prometheus_client
import pytest

from onceward import FileSink, ProgressListener, exactly_once, metrics

from .kafka_kit import eventually
from .spark_kit import Feed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


def test_spark_reports_the_rows_that_exactly_once_has_committed(spark: SparkSession, tmp_path: Path) -> None:
    registry, listener, feed = prometheus_client.CollectorRegistry(), ProgressListener(), Feed(tmp_path)
    metrics.prometheus(registry)
    spark.streams.addListener(listener)
    try:
        feed.add(20)
        sinks = [FileSink("all", tmp_path / "all"), FileSink("few", tmp_path / "few", where="id < 5")]
        frame = feed.stream(spark)
        writer = exactly_once(frame, *sinks, checkpoint=str(tmp_path / "checkpoint"), pipeline="progress")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        eventually(lambda: listener.last_progress(query.id) is not None, "Spark reports")
    finally:
        spark.streams.removeListener(listener)
    progress: Any = listener.last_progress(query.id)
    assert progress["sink"]["numOutputRows"] == 25
    assert progress["sink"]["onceward"] == {"all": 20, "few": 5}
    labels = {"pipeline": "progress"}
    assert registry.get_sample_value("onceward_epochs_completed_total", labels) == 1
    assert registry.get_sample_value("onceward_spark_input_rows_total", labels) == 20
    assert registry.get_sample_value("onceward_rows_total", {**labels, "sink": "few"}) == 5
    assert registry.get_sample_value("onceward_write_duration_seconds_sum", {**labels, "sink": "all"}) != 0


FORMAT = """
import sys, urllib.request
from pyspark.sql import SparkSession
from onceward import metrics, register
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
frame = spark.readStream.schema("id long, word string").json(sys.argv[1] + "/feed")
query = (frame.writeStream.format("onceward-files").option("path", sys.argv[1] + "/out").option("pipeline", "format")
    .option("checkpointLocation", sys.argv[1] + "/checkpoint").trigger(availableNow=True).start())
query.awaitTermination()
url = f"http://127.0.0.1:{metrics.serve(0, '127.0.0.1')}/metrics"
print(urllib.request.urlopen(url).read().decode())
"""


def test_the_processes_of_a_format_write_metrics_that_the_driver_serves_and_emit_lineage(
    driver_environment: dict[str, str], tmp_path: Path
) -> None:
    Feed(tmp_path).add(20)
    folder = tmp_path / "metrics"
    folder.mkdir()
    asked = {
        "ONCEWARD_METRICS": "prometheus",
        "PROMETHEUS_MULTIPROC_DIR": str(folder),
        "ONCEWARD_LINEAGE": "openlineage",
        "OPENLINEAGE__TRANSPORT__TYPE": "file",
        "OPENLINEAGE__TRANSPORT__LOG_FILE_PATH": str(tmp_path / "lineage"),
        "OPENLINEAGE__TRANSPORT__APPEND": "true",
    }
    command = [sys.executable, "-c", FORMAT, str(tmp_path)]
    done = subprocess.run(command, env={**driver_environment, **asked}, capture_output=True, text=True, check=False)
    assert 'onceward_epochs_completed_total{pipeline="format"} 1.0' in done.stdout, done.stderr[-2000:]
    assert 'onceward_rows_total{pipeline="format",sink="files"} 20.0' in done.stdout
    [event] = map(json.loads, (tmp_path / "lineage").read_text().splitlines())
    assert (event["job"]["name"], event["inputs"][0]["name"]) == ("format", "format.source-0")
    [output] = event["outputs"]
    assert output["name"] == str(tmp_path / "out")
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 20
