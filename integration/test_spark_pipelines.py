"""Declarative pipelines (docs/exactly-once.md): `create_sink` with a onceward format, run by Spark's command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .spark_kit import Feed, ids_in_table, make_table, once, prepared_in

pytestmark = [pytest.mark.pages, pytest.mark.spark, pytest.mark.postgres]

SPECIFICATION = """\
name: words
storage: file://{folder}/storage
libraries:
  - glob:
      include: definitions/**
"""
DEFINITION = """\
from pyspark import pipelines as dp

dp.create_sink("table", "onceward-postgres", {{"dsn": "{dsn}", "dbtable": "words", "pipeline": "declared"}})


@dp.append_flow(target="table", name="words_flow")
def words_flow():
    reader = spark.readStream.schema("id long, word string").option("maxFilesPerTrigger", "1")
    return reader.json("{folder}/feed")
"""


def run(folder: Path, environment: dict[str, str]) -> None:
    command = [Path(sys.executable).with_name("spark-pipelines"), "run", "--spec", folder / "spark-pipeline.yml"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_a_declared_sink_is_exactly_once_over_runs_and_a_replayed_batch(
    tmp_path: Path, dsn: str, driver_environment: dict[str, str]
) -> None:
    make_table(dsn)
    feed = Feed(tmp_path)
    feed.add()
    feed.add()
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "words.py").write_text(DEFINITION.format(dsn=dsn, folder=tmp_path))
    (tmp_path / "spark-pipeline.yml").write_text(SPECIFICATION.format(folder=tmp_path))
    run(tmp_path, driver_environment)
    assert ids_in_table(dsn) == once(40)
    [newest] = (tmp_path / "storage").rglob("commits/1")
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    feed.add()
    run(tmp_path, driver_environment)
    assert ids_in_table(dsn) == once(60)
    assert prepared_in(dsn) == 0
