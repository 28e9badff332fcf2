"""What the tests of pipelines share: where this source is, and a pipeline on Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from onceward.testing.pipeline import KafkaTopic, PipelineTest, Table

from .class_archives import with_warm_workers

HERE = Path(__file__).parent
THIS_SOURCE = {"PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent / "src"), os.environ.get("PYTHONPATH")]))}


def run_pytest(folder: Path, *arguments: str) -> str:
    """What a user's pytest prints in this folder."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments]
    environment = {**os.environ, **SparkPipeline.environment}
    return subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    ).stdout


class SparkPipeline(PipelineTest):
    """Kafka → Spark → Kafka and PostgreSQL."""

    command = (sys.executable, HERE / "pipeline_driver.py")
    inputs = KafkaTopic("numbers", partitions=3)
    outputs = (KafkaTopic("words", partitions=3), Table("words", "id bigint, word text"))
    environment = with_warm_workers({**THIS_SOURCE, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"})
    row_count = 2_000
    feed_seconds = 10.0
    timeout = 180.0

    def row(self, number: int) -> dict[str, object]:
        return {"id": number}

    def expected(self, rows: list[dict[str, object]]) -> list[dict[str, object]]:
        return [{"id": row["id"], "word": f"w{row['id']}"} for row in rows]
