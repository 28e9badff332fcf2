"""A real cluster (Spark's standalone master and a worker), where a decision log on a local disk is refused.

Its executors are not in the driver's process tree, and the kit for pipelines finds them all the same.

A Python data source's driver-side processes are not told the master; its tasks are, in a stream and in a batch.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pyarrow.dataset
import pytest

from onceward.testing.pipeline.driver import DriverProcess, DriverStart

from .spark_kit import Feed
from .standalone_kit import StandaloneCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DRIVER = """
import sys
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

master, folder = sys.argv[1:3]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false").config("spark.cores.max", "1")
builder = builder.config("spark.executor.memory", "512m").config("spark.task.maxFailures", "1")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def stream(store):
    frame = spark.readStream.schema("id long, word string").json(f"{folder}/feed").coalesce(1)
    writer = frame.writeStream.option("checkpointLocation", f"{folder}/checkpoint").option("store", store)
    writer = writer.format("onceward-files").option("path", f"{folder}/stream")
    writer.trigger(availableNow=True).start().awaitTermination()

def batch(store):
    writer = spark.range(20).coalesce(1).write.mode("append").option("pipeline", "days").option("runKey", "monday")
    writer.format("onceward-files").option("path", f"{folder}/batch").option("store", store).save()

for run in (stream, batch):
    try:
        run(f"{folder}/log")
    except PySparkException as error:
        print(run.__name__, "refused" if f"on a local disk, but the master is {master}" in str(error) else error)
    run(f"file://{folder}/shared-{run.__name__}?shared=true")
"""


@pytest.fixture(scope="module")
def cluster(
    driver_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), driver_environment).running() as running:
        yield running


def test_a_log_on_a_local_disk_is_refused_on_a_cluster_and_a_shared_one_is_not(
    cluster: StandaloneCluster, tmp_path: Path, driver_environment: dict[str, str]
) -> None:
    feed = Feed(tmp_path)
    feed.add()
    command = [sys.executable, "-c", DRIVER, cluster.url, str(tmp_path)]
    log, started_by = tmp_path / "driver.log", set[int]()
    driver = DriverProcess(DriverStart(command, driver_environment, tmp_path, log))
    try:
        while driver.exit_code is None:
            for jvm in set(driver.jvms()) - set(driver.family()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    started_by.add(jvm.ppid())
            time.sleep(0.2)
    finally:
        driver.kill()
    printed = log.read_text()
    assert driver.exit_code == 0, printed[-3000:]
    assert [line for line in printed.splitlines() if "refused" in line] == ["stream refused", "batch refused"]
    assert started_by == {worker.pid for worker in cluster.workers}
    for folder in ("stream", "batch"):
        found = pyarrow.dataset.dataset(tmp_path / folder).to_table()["id"].to_pylist()
        assert sorted(found) == list(range(feed.rows))
