"""Lost executors, failed tasks, speculation, replaced workers, and one query started twice: drivers of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onceward import PostgresSink
from onceward.core.kit.crash_points import CRASH_VARIABLE, Step
from onceward.core.log import Replace, audit_records, open_store, read

from .batch_driver import slow_table
from .cluster_driver import STRIKES
from .spark_kit import Feed, ids_in_table, make_table, once, prepared_in
from .standalone_kit import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]
UNEXPECTED = re.compile(r"onceward\.core\.errors\.(?!FencedError|EpochConflictError)\w+")
"""Spark itself may stumble over the shared checkpoint; an error of ours must say that one was overtaken."""
DRIVER = Path(__file__).with_name("cluster_driver.py")
BATCHES = Path(__file__).with_name("batch_driver.py")


def start(master: str, folder: Path, dsn: str, fault: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(DRIVER), master, str(folder), dsn, "words", fault]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("fault", "master"),
    [
        ("executor", "local-cluster[2,1,1024]"),
        ("task", "local[2,4]"),
        pytest.param("none", "local[2]", marks=pytest.mark.nightly),  # workers are replaced in the other runs, too
        pytest.param("slow", "local-cluster[2,1,1024]", marks=pytest.mark.nightly),
        pytest.param("idle", "local[2]", marks=pytest.mark.nightly),
        pytest.param("decommission", "local-cluster[2,1,1024]", marks=pytest.mark.nightly),
        pytest.param("scaled", "local-cluster[2,1,1024]", marks=pytest.mark.nightly),
    ],
)
def test_39_89_100_the_lost_attempt_is_aborted_and_the_retry_commits(
    tmp_path: Path, dsn: str, driver_environment: dict[str, str], fault: str, master: str
) -> None:
    make_table(dsn)
    feed = Feed(tmp_path)
    feed.add()
    feed.add()
    driver = start(master, tmp_path, dsn, fault, driver_environment)
    _, said = driver.communicate(timeout=240)
    assert driver.returncode == 0, said[-3000:]
    assert (tmp_path / "struck").exists() == (fault in STRIKES)
    left = re.search(r"executors that left: (\d+)", said)
    assert left is not None
    assert (int(left[1]) > 0) == (fault in ("executor", "decommission", "scaled"))
    assert ids_in_table(dsn) == once(feed.rows)
    assert prepared_in(dsn) == 0


def test_a_heal_whose_slow_task_spark_runs_twice_writes_each_row_once(
    tmp_path: Path, dsn: str, driver_environment: dict[str, str]
) -> None:
    """One attempt has prepared what was lost, and waits, while the other one prepares it again."""
    make_table(dsn)
    feed = Feed(tmp_path)
    feed.add()
    environment = {**driver_environment, CRASH_VARIABLE: Step.DECIDE_AFTER}
    said = start("local[2]", tmp_path, dsn, "torn", environment).communicate(timeout=240)[1]
    log: Any = open_store(dsn.replace("postgresql:", "postgresql+psycopg:"), pipeline="cluster")
    with closing(log):
        decision = read(log).undone
        assert decision is not None, said[-3000:]
        lost, kept = sorted(decision.committables, key=lambda c: c.subtask)
        sink = PostgresSink("table", dsn=dsn, table="words")
        assert sink.commit(kept).settled
        assert sink.abort(lost).done
        with StandaloneCluster(tmp_path, driver_environment, workers=2, apart=True).running() as cluster:
            driver = start(cluster.url, tmp_path, dsn, "speculated", driver_environment)
            said = driver.communicate(timeout=240)[1]
        assert driver.returncode == 0, said[-3000:]
        [replaced] = audit_records(log)
        assert isinstance(replaced, Replace)
        struck = (tmp_path / "struck").read_text()
        assert [f"epoch 0, attempt {1 - c.attempt}" for c in replaced.committables] == [struck]
    assert ids_in_table(dsn) == once(feed.rows)
    assert prepared_in(dsn) == 0


@pytest.mark.parametrize(
    "way",
    [pytest.param("none", id="exactly_once"), pytest.param("format", id="format", marks=pytest.mark.nightly)],
)
def test_36_one_query_started_twice_duplicates_and_loses_nothing(
    tmp_path: Path, dsn: str, driver_environment: dict[str, str], way: str
) -> None:
    """Both share the checkpoint. The one that is overtaken stops with an error, Spark's or ours.

    What it prepared after the other's sweep is aborted with the next epoch, so there is one more.
    """
    make_table(dsn)
    feed = Feed(tmp_path)
    for _ in range(4):
        feed.add()
    rivals = [start("local[1]", tmp_path, dsn, way, driver_environment) for _ in range(2)]
    errors = [rival.communicate(timeout=240)[1] for rival in rivals]
    assert [
        error[-3000:]
        for rival, error in zip(rivals, errors, strict=True)
        if rival.returncode != 0 and UNEXPECTED.search(error)
    ] == []
    feed.add()
    last = start("local[1]", tmp_path, dsn, way, driver_environment)
    said = last.communicate(timeout=240)[1]
    assert last.returncode == 0, said[-3000:]
    assert ids_in_table(dsn) == once(feed.rows)
    assert prepared_in(dsn) == 0


@pytest.mark.parametrize("pauses", ["1.2", pytest.param("0.2 1.2 3.0", marks=pytest.mark.nightly)])
def test_batch_writes_that_fail_on_a_cluster_leave_nothing_prepared(
    tmp_path: Path, dsn: str, driver_environment: dict[str, str], pauses: str
) -> None:
    make_table(dsn)
    slow_table(dsn)
    command = [sys.executable, BATCHES, "local-cluster[2,1,1024]", tmp_path, dsn, *pauses.split()]
    driver = subprocess.run(command, env=driver_environment, capture_output=True, text=True, timeout=240, check=False)
    assert driver.returncode == 0, driver.stderr[-3000:]
    assert "prepared after the failures: 0" in driver.stderr
    assert ids_in_table(dsn) == once(50)
    assert prepared_in(dsn) == 0
