"""Lost executors, failed tasks and replaced workers, on Spark's own small cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .spark_kit import Feed, ids_in_table, make_table, once, prepared_in

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]
DRIVER = Path(__file__).with_name("cluster_driver.py")


@pytest.mark.parametrize(
    ("fault", "master"), [("executor", "local-cluster[2,1,1024]"), ("task", "local[2,4]"), ("none", "local[2]")]
)
def test_39_89_100_the_lost_attempt_is_aborted_and_the_retry_commits(
    tmp_path: Path, dsn: str, driver_environment: dict[str, str], fault: str, master: str
) -> None:
    make_table(dsn)
    feed = Feed(tmp_path)
    feed.add()
    feed.add()
    done = subprocess.run(
        [sys.executable, str(DRIVER), master, str(tmp_path), dsn, "words", fault],
        env=driver_environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "struck").exists() == (fault != "none")
    assert ids_in_table(dsn) == once(feed.rows)
    assert prepared_in(dsn) == 0
