"""A standalone cluster of Spark whose workers are containers, with one killed while a task runs there (scenario 39).

The driver runs on this machine. The workers find onceward and its packages, those of this environment, in a folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
import pyspark
import pytest
from testcontainers.core.container import DockerContainer

from ..kafka_kit import eventually
from ..spark_kit import Feed, ids_in_table, make_table, once, prepared_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.testing.containers import PostgresContainer

pytestmark = [pytest.mark.containers, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
IMAGE: Final = os.environ.get("ONCEWARD_TEST_SPARK_IMAGE", f"apache/spark:{pyspark.__version__}-python3")
DRIVER: Final = Path(__file__).parent.parent / "cluster_driver.py"
PROJECT: Final = Path(__file__).parents[2]
PACKAGES: Final = Path(pyspark.__file__).parents[1]
SEEN_FROM_WORKERS: Final = {PROJECT: "/opt/onceward", PACKAGES: "/opt/packages"}
PYTHON: Final = f"Python {sys.version_info.major}.{sys.version_info.minor}."


class Machine(DockerContainer):
    """A container that runs one of Spark's daemons, and sees `folder` where this machine does."""

    def __init__(self, folder: Path, daemon: str) -> None:
        super().__init__(IMAGE, user="root")
        self.with_volume_mapping(str(folder), str(folder), "rw")
        for host, inside in SEEN_FROM_WORKERS.items():
            self.with_volume_mapping(str(host), inside, "ro")
        self.with_env("PYTHONPATH", "/opt/onceward/src:/opt/packages")
        self.with_env("SPARK_DAEMON_MEMORY", "256m")
        self.with_command(
            ["sh", "-c", f"exec /opt/spark/bin/spark-class org.apache.spark.deploy.{daemon} --host $(hostname -i)"]
        )

    def network(self, what: str) -> str:
        container = self.get_wrapped_container()
        container.reload()
        (network,) = container.attrs["NetworkSettings"]["Networks"].values()
        return str(network[what])

    def wait_for(self, said: str) -> None:
        eventually(lambda: said in b"".join(self.get_logs()).decode(errors="replace"), said, seconds=60)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path, "master.Master --port 7077") as machine:
        python = machine.exec(["python3", "-V"]).output.decode()
        if not python.startswith(PYTHON):
            pytest.skip(f"{IMAGE} has {python.strip()}, and this is {PYTHON}*: onceward's packages do not run there")
        machine.wait_for("New state: ALIVE")
        yield machine


@pytest.fixture
def workers(tmp_path: Path, master: Machine) -> Iterator[list[Machine]]:
    daemon = f"worker.Worker --cores 1 --memory 512m {url_of(master)}"
    with Machine(tmp_path, daemon) as first, Machine(tmp_path, daemon) as second:
        for machine in (first, second):
            machine.wait_for("Successfully registered with master")
        yield [first, second]


def url_of(master: Machine) -> str:
    return f"spark://{master.network('IPAddress')}:7077"


@pytest.fixture
def dsn(master: Machine, postgres_container: PostgresContainer) -> str:
    """A new database with an empty table `words`, at an address that workers reach, too."""
    name = f"workers_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_container.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    address = re.sub(r"@.*:(\d+)/.*", rf"@{master.network('Gateway')}:\1/{name}", postgres_container.dsn)
    make_table(address)
    return address


@pytest.mark.parametrize("moment", ["prepared", pytest.param("writing", marks=pytest.mark.nightly)])
def test_39_a_killed_worker_machine_loses_and_duplicates_nothing(
    tmp_path: Path, workers: list[Machine], master: Machine, dsn: str, moment: str
) -> None:
    feed = Feed(tmp_path)
    feed.add()
    feed.add()
    environment = {**os.environ, "SPARK_LOCAL_IP": master.network("Gateway"), "PYSPARK_PYTHON": "python3"}
    command = [sys.executable, str(DRIVER), url_of(master), str(tmp_path), dsn, "words", moment]
    with (tmp_path / "driver.log").open("w+") as log:
        driver = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log)
        try:
            marker = tmp_path / "struck"
            eventually(lambda: marker.exists() or driver.poll() is not None, "a task to strike", seconds=90)
            assert driver.poll() is None, Path(log.name).read_text()[-3000:]
            held = prepared_in(dsn)
            kill(workers, marker.read_text())
            assert driver.wait(150) == 0, Path(log.name).read_text()[-3000:]
        finally:
            driver.kill()
            driver.wait()
    assert held >= (1 if moment == "prepared" else 0)
    assert "executors that left: 1" in Path(log.name).read_text()
    assert ids_in_table(dsn) == once(feed.rows)
    assert prepared_in(dsn) == 0


def kill(workers: list[Machine], name: str) -> None:
    (struck,) = [worker for worker in workers if worker.get_wrapped_container().short_id == name]
    struck.get_wrapped_container().kill()
