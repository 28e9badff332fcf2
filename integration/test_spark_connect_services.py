"""Spark Connect with real Kafka and PostgreSQL, by the test kit for pipelines: its server is killed and replaced."""

from __future__ import annotations

import sys
from typing import ClassVar

import pytest

from onceward.testing.pipeline import FAULTS, Folder, KafkaTopic, PipelineTest, Table

from .pipeline_kit import HERE, SparkPipeline

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.slow]


class TestConnect(PipelineTest):
    """Kafka → Spark Connect → Kafka, PostgreSQL and files. `kill-jvm` kills the server, and leaves its processes."""

    command: ClassVar = (sys.executable, HERE / "connect_driver.py")
    services = "local"
    inputs = KafkaTopic("numbers", partitions=3)
    outputs = (
        KafkaTopic("words", partitions=3),
        Table("words", "id bigint, word text"),
        Folder("files", format="parquet"),
    )
    faults: ClassVar = {"kill-jvm": FAULTS["kill-jvm"]}
    uses_onceward = False
    row_count = 1_000
    feed_seconds = 10.0
    timeout = 240.0
    environment = SparkPipeline.environment
    row = SparkPipeline.row
    expected = SparkPipeline.expected
