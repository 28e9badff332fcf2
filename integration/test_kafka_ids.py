"""How many transactional ids a query leaves on the brokers, which keep each for a week."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import uuid
from typing import TYPE_CHECKING

import psutil
import pytest

from onceward import KafkaSink
from onceward.connectors.kafka.admin import cluster_of
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.connectors.spark import exactly_once, register

from .spark_kit import Feed, ids_in_topic, once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]
BATCHES, PARTITIONS = 10, 2
KEY_AND_VALUE = ["cast(id as string) AS key", "to_json(struct(*)) AS value"]


class IdsJob:
    """A feed into a topic, by the format or by exactly_once."""

    def __init__(self, spark: SparkSession, folder: Path, servers: str, topic: str) -> None:
        self.spark, self.servers, self.topic = spark, servers, topic
        self.feed, self.checkpoint = Feed(folder), str(folder / "checkpoint")
        self.pipeline = f"ids-{uuid.uuid4().hex[:8]}"
        register(spark)

    def frame(self) -> DataFrame:
        return self.feed.stream(self.spark, PARTITIONS).selectExpr(*KEY_AND_VALUE)

    def by_format(self, **trigger: bool | str) -> StreamingQuery:
        options = {"topic": self.topic, "pipeline": self.pipeline, "checkpointLocation": self.checkpoint}
        writer = self.frame().writeStream.format("onceward-kafka").options(**options)
        writer = writer.option("kafka.bootstrap.servers", self.servers)
        return writer.trigger(**trigger).start()

    def by_exactly_once(self, **trigger: bool | str) -> StreamingQuery:
        sink = KafkaSink("kafka", bootstrap_servers=self.servers, topic=self.topic)
        writer = exactly_once(self.frame(), sink, checkpoint=self.checkpoint, pipeline=self.pipeline)
        return writer.trigger(**trigger).start()

    def ids(self) -> dict[str, int]:
        """Transactional ids of this pipeline that the broker knows, and how often each was initialised."""
        client = cluster_of(KafkaSettings(self.servers)).transactions
        names = client.list_transactions(prefix=f"onceward:1:{self.pipeline}:")
        described = client.describe(names)
        return {name: found.handle.producer_epoch + 1 for name, found in described.items() if found.handle is not None}

    def seen_once(self) -> bool:
        return ids_in_topic(self.servers, self.topic) == once(self.feed.rows)


@pytest.fixture
def ids_job(spark: SparkSession, tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str]) -> IdsJob:
    return IdsJob(spark, tmp_path, kafka.bootstrap_servers, topic(partitions=2))


@pytest.mark.parametrize("way", [pytest.param("by_format", marks=pytest.mark.nightly), "by_exactly_once"])
def test_ten_batches_of_two_partitions_leave_two_ids_for_each_worker(ids_job: IdsJob, way: str) -> None:
    for _ in range(BATCHES):
        ids_job.feed.add()
    kill_workers(ids_job.spark)
    getattr(ids_job, way)(availableNow=True).awaitTermination()
    assert ids_job.seen_once()
    ids = ids_job.ids()
    print(f"{way}: {len(ids)} ids, initialised {sorted(ids.values())} times")
    assert len(ids) <= 2 * len(workers(ids_job.spark))
    assert sum(ids.values()) <= BATCHES * PARTITIONS + 2 * len(ids)


def test_workers_that_are_replaced_after_each_batch_make_one_id_for_each_partition_and_batch(ids_job: IdsJob) -> None:
    batches = 3
    ids_job.feed.add()
    query = ids_job.by_format(processingTime="100 milliseconds")
    try:
        for batch in range(batches):
            wait_for_batch(query, batch)
            kill_workers(ids_job.spark)
            ids_job.feed.add()
        wait_for_batch(query, batches)
    finally:
        query.stop()
    assert ids_job.seen_once()
    ids = ids_job.ids()
    print(f"{batches + 1} batches, workers replaced: {len(ids)} ids")
    assert len(ids) <= (batches + 1) * PARTITIONS


def wait_for_batch(query: StreamingQuery, batch: int) -> None:
    give_up = time.monotonic() + 120
    while (progress := query.lastProgress) is None or progress.batchId < batch or query.status["isTriggerActive"]:
        error = query.exception()
        assert error is None, error
        assert time.monotonic() < give_up, json.dumps(query.status)
        time.sleep(0.05)


def workers(spark: SparkSession) -> list[psutil.Process]:
    """Python workers of this session: what the daemons have forked."""
    return [worker for daemon in _daemons(spark) for worker in daemon.children()]


def kill_workers(spark: SparkSession) -> None:
    killed = workers(spark)
    for worker in killed:
        os.kill(worker.pid, signal.SIGKILL)
    psutil.wait_procs(killed, timeout=10)


def _daemons(spark: SparkSession) -> Iterator[psutil.Process]:
    java = psutil.Process(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    for child in java.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie: what another test has killed
            if "pyspark.daemon" in child.cmdline():
                yield child
