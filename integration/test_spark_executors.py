"""Executors that cannot run onceward, or cannot reach a target, are named before anything is written."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import pytest

import onceward
from onceward.core.log import open_store, read

from .spark_kit import Feed, ids_in_table, make_table, once, prepared_in

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]
DRIVER = Path(__file__).with_name("executors_driver.py")
SOON = "60"
LATE = "0"
"""The start does not wait for the probe, so the tasks of the first epoch find out."""


class Cluster:
    """Two executors in processes of their own, whose Python may differ from the driver's."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder, self.dsn = folder, dsn
        self.feed = Feed(folder)
        self.feed.add()
        make_table(dsn)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
        self.environment = {
            **inherited,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }

    def run(self, *variables: str, wait: str = "60", dsn: str | None = None) -> str:
        command = [sys.executable, str(DRIVER), "local-cluster[2,1,1024]", str(self.folder), dsn or self.dsn, wait]
        done = subprocess.run(
            [*command, *variables], env=self.environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    @property
    def rows(self) -> Counter[int]:
        return ids_in_table(self.dsn)

    @property
    def started(self) -> bool:
        """Whether the decision log has a START."""
        return read(open_store(f"file://{self.folder}/log?shared=true", pipeline="executors")).start >= 0


class Run(NamedTuple):
    """A run on executors that differ: their variables, what the error says, and the address of the target."""

    variables: list[str]
    words: str
    dsn: str | None = None


@pytest.fixture
def cluster(tmp_path: Path, dsn: str) -> Cluster:
    return Cluster(tmp_path, dsn)


def another_version(cluster: Cluster) -> Run:
    (cluster.folder / "older" / "onceward").mkdir(parents=True)
    (cluster.folder / "older" / "onceward" / "__init__.py").write_text('__version__ = "0.0.9"\n')
    words = f"onceward is {onceward.__version__} on the driver and 0.0.9 there: install the same"
    return Run([f"PYTHONPATH={cluster.folder / 'older'}"], words)


def without_onceward(cluster: Cluster) -> Run:
    """Their interpreter has the other packages: `-S` reads no .pth file, so it does not find this checkout."""
    python = cluster.folder / "python"
    paths = ":".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    python.write_text(f'#!/bin/sh\nPYTHONPATH={paths}:$PYTHONPATH exec {sys.executable} -S "$@"\n')
    python.chmod(0o700)
    cluster.environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable}
    return Run([], "there cannot import onceward")


def without_python(cluster: Cluster) -> Run:
    cluster.environment |= {"PYSPARK_PYTHON": "/nowhere/python", "PYSPARK_DRIVER_PYTHON": sys.executable}
    return Run([], 'Cannot run program "/nowhere/python"')


def without_a_way_to_the_target(cluster: Cluster) -> Run:
    at = urlsplit(cluster.dsn)
    cluster.environment |= {"PGHOST": str(at.hostname), "PGPORT": str(at.port)}
    dsn = f"postgresql://{at.username}:{at.password}@/{at.path.lstrip('/')}"
    return Run(["PGPORT=1"], "executors cannot reach the target, which answers the driver", dsn)


@pytest.mark.parametrize(
    ("fault", "wait"),
    [
        (another_version, SOON),
        pytest.param(another_version, LATE, marks=pytest.mark.nightly),
        pytest.param(without_onceward, SOON, marks=pytest.mark.nightly),
        pytest.param(without_onceward, LATE, marks=pytest.mark.nightly),
        pytest.param(without_python, SOON, marks=pytest.mark.nightly),
        pytest.param(without_a_way_to_the_target, SOON, marks=pytest.mark.nightly),
    ],
)
def test_executors_that_cannot_write_are_named_before_start(
    cluster: Cluster, fault: Callable[[Cluster], Run], wait: str
) -> None:
    mended = dict(cluster.environment)
    planned = fault(cluster)
    told = cluster.run(*planned.variables, wait=wait, dsn=planned.dsn)
    assert planned.words in told
    assert "Nothing was written" in told
    assert (cluster.started, cluster.rows) == (wait == LATE, {})
    cluster.environment = mended
    assert "written" in cluster.run(wait=wait)
    assert cluster.rows == once(cluster.feed.rows)
    assert prepared_in(cluster.dsn) == 0
