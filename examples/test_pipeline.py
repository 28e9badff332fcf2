"""A test of a whole pipeline: its driver is killed at its second commit and started again. Run it with pytest."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from onceward import PostgresSink, exactly_once
from onceward.testing.faults import Faults, die_after
from onceward.testing.services import PostgresServer, dev_services
from onceward.testing.wrappers import FaultySink


def job(folder: str, dsn: str, *faults: str) -> None:
    """Run the pipeline. Yours is a module of its own, which takes its sinks from outside."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    numbers = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
    sink = FaultySink(
        PostgresSink("table", dsn=dsn, table="numbers"), Faults(*(die_after(call, nth=2) for call in faults))
    )
    query = exactly_once(numbers, sink, checkpoint=f"{folder}/checkpoint", pipeline="numbers")
    query.trigger(availableNow=True).start().awaitTermination()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Start a PostgreSQL server of the tests' own; with Docker, see onceward.testing.containers."""
    with dev_services(tmp_path_factory.mktemp("services"), kafka=False) as services:
        assert services.postgres is not None
        yield services.postgres


def test_a_killed_driver_loses_and_duplicates_nothing(tmp_path: Path, postgres: PostgresServer) -> None:
    """Run four micro-batches, and kill the driver after the commit of the second, before that is recorded."""
    (tmp_path / "in").mkdir()
    for file in range(4):
        lines = "".join(f'{{"n": {n}}}\n' for n in range(file * 100, file * 100 + 100))
        (tmp_path / "in" / f"{file}.json").write_text(lines)
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute("CREATE TABLE numbers (n bigint)")
    command = [sys.executable, __file__, str(tmp_path), postgres.dsn]
    assert subprocess.run([*command, "commit_many"], check=False).returncode == -signal.SIGKILL
    subprocess.run(command, check=True)
    with psycopg.connect(postgres.dsn) as connection:
        found = connection.execute("SELECT n FROM numbers ORDER BY n").fetchall()
    assert found == [(n,) for n in range(400)]


if __name__ == "__main__":
    job(*sys.argv[1:])
