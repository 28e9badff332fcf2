"""A series of kills over Spark Connect: the server, its processes of foreachBatch and its Python workers, at random."""

from __future__ import annotations

import json
import time
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from onceward import FileSink, PostgresSink, exactly_once

from .connect_kit import ConnectServer, remote_functions, wait_until
from .spark_kit import Feed, ids_in_table, make_table, once, prepared_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import psutil

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]
FILES_A_ROUND, ROWS_A_FILE = 3, 20
AT_ONCE = 2
"""Files of an epoch at most, so that a round has several."""


class Series:
    """A query of files into files and a table, whose processes are killed and replaced."""

    def __init__(self, server: ConnectServer, folder: Path, dsn: str, seed: int) -> None:
        self.server, self.folder, self.dsn, self.dice = server, folder, dsn, Random(seed)
        self.feed = Feed(folder)
        self.kills, self.failures = Counter[str](), list[str]()
        self.victims: dict[str, Callable[[], list[psutil.Process]]] = {
            "foreachBatch": server.workers,
            "worker": server.task_workers,
        }
        make_table(dsn)

    def start(self) -> None:
        """Start the query, in a new session: that of a server that was killed is of no use."""
        frame = self.server.session().readStream.schema("id long, word string").option("maxFilesPerTrigger", AT_ONCE)
        writer: Any = exactly_once(
            frame.json(str(self.feed.folder)).repartition(2),
            FileSink("files", self.folder / "out"),
            PostgresSink("table", dsn=self.dsn, table="words"),
            checkpoint=str(self.folder / "checkpoint"),
            pipeline="kills",
        )
        self.query = writer.start()

    def round(self) -> None:
        """Feed some files, kill something while they are written, and wait until all rows are there."""
        for _ in range(FILES_A_ROUND):
            self.feed.add(ROWS_A_FILE)
        time.sleep(self.dice.uniform(0.0, 3.0))
        self.kill(self.dice.choice(["server", *self.victims]))
        wait_until(self.finished, seconds=120)

    def kill(self, kind: str) -> None:
        if kind == "server":
            self.server.kill()  # its process of foreachBatch lives on, and may still decide
            self.kills[kind] += 1
            self.server.start()
            self.start()
            return
        until = time.monotonic() + 5
        while not (found := self.victims[kind]()) and time.monotonic() < until:
            time.sleep(0.01)  # workers come and go
        if found:
            self.dice.choice(sorted(found, key=lambda process: process.pid)).kill()
            self.kills[kind] += 1

    def finished(self) -> bool:
        """Return whether all rows are there; start the query again if it has failed."""
        if not self.query.isActive:
            self.failures.append(str(self.query.exception())[:300])
            self.start()
        found = self.found()
        assert all(max(ids.values(), default=1) == 1 for ids in found), "a row is there twice"
        return found == [once(self.feed.rows)] * 2

    def found(self) -> list[Counter[int]]:
        out = self.folder / "out"
        files = ds.dataset(out).to_table(columns=["id"])["id"].to_pylist() if list(out.glob("*.parquet")) else []
        return [Counter(files), ids_in_table(self.dsn)]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("rounds", "seed"), [(20, 1)])
def test_kills_at_random_moments_lose_and_double_nothing(
    connect_environment: dict[str, str], tmp_path: Path, dsn: str, rounds: int, seed: int
) -> None:
    server = ConnectServer(tmp_path / "server", connect_environment, {"spark.ui.enabled": "false"})
    server.start()
    try:
        with remote_functions():
            series = Series(server, tmp_path, dsn, seed)
            series.start()
            for _ in range(rounds):
                series.round()
            wait_until(lambda: prepared_in(dsn) == 0, seconds=90)  # a late one goes with the next sweep
            series.query.stop()
    finally:
        server.stop()
    report = {"kills": series.kills, "failures": len(series.failures), "rows": series.feed.rows}
    print(json.dumps(report))
    assert set(series.kills) == {"server", *series.victims}
    assert all("crashed" in failure or "died" in failure for failure in series.failures), series.failures
    assert series.found() == [once(series.feed.rows)] * 2
