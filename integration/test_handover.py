"""One driver takes a Spark query over from another one between two epochs, whoever is killed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.dataset as ds
import pytest

from onceward.core.kit.crash_points import CRASH_VARIABLE
from onceward.core.log import DirectoryStore, read
from onceward.core.run.handover import SILENT_SECONDS

from .spark_kit import Feed, once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.spark]
DRIVER: Final = Path(__file__).with_name("handover_driver.py")


class Deployment:
    """Drivers of one pipeline, and a feed that goes on while they change."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.feed = folder, Feed(folder)
        self.drivers: list[subprocess.Popen[bytes]] = []
        self._end = threading.Event()
        self._feeding: threading.Thread | None = None

    def start(self, name: str, *, take_over: float | None = None, crash_at: str = "") -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, CRASH_VARIABLE: crash_at}
        if not crash_at:
            del environment[CRASH_VARIABLE]
        command = [sys.executable, DRIVER, name, str(self.folder), "" if take_over is None else str(take_over)]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.drivers.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        return self.drivers[-1]

    def feed_on(self, pause: float = 1.0) -> None:
        """Add a file again and again, until `finish`."""

        def add() -> None:
            while not self._end.wait(pause):
                self.feed.add()

        self._feeding = threading.Thread(target=add, daemon=True)
        self._feeding.start()

    def epochs(self, name: str) -> list[tuple[int, float]]:
        file = self.folder / f"{name}.epochs"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(epoch), float(at)) for epoch, at in (line.split() for line in lines)]

    def ids(self) -> Counter[int]:
        out = self.folder / "out"
        return Counter(ds.dataset(out).to_table(columns=["id"])["id"].to_pylist()) if out.exists() else Counter()

    def finish(self) -> None:
        """End the feed; each row is there once."""
        self._end.set()
        if self._feeding is not None:
            self._feeding.join()
        until(lambda: self.ids() == once(self.feed.rows))


def until(done: Callable[[], Any], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    try:
        yield made
    finally:
        made._end.set()
        for driver in made.drivers:
            driver.kill()
            driver.wait()


@pytest.mark.parametrize("rows", ["come", "come later"])
def test_a_new_driver_goes_on_where_the_old_one_ends_between_two_epochs(deployment: Deployment, rows: str) -> None:
    deployment.feed.add()
    old = deployment.start("old")
    until(lambda: deployment.epochs("old"))
    if rows == "come":
        deployment.feed_on()
    deployment.start("new", take_over=60.0)
    assert old.wait(120) == 0, "awaitTermination has returned, and nothing was raised"
    until((deployment.folder / "new.started").exists)
    deployment.feed.add()
    until(lambda: deployment.epochs("new"))
    deployment.finish()
    numbers = [epoch for name in ("old", "new") for epoch, _ in deployment.epochs(name)]
    newest = deployment.epochs("old")[-1][0]
    # The new one tells its program of the newest epoch again, as after any start.
    assert numbers == [*range(newest + 1), *range(newest, max(numbers) + 1)] or numbers == [*range(max(numbers) + 1)]
    assert "failed" not in (deployment.folder / "old.log").read_text()


@pytest.mark.parametrize("log", ["has epochs", "is empty"])
def test_a_driver_that_has_run_no_epoch_since_its_start_hands_over(deployment: Deployment, log: str) -> None:
    (deployment.feed.folder).mkdir(exist_ok=True)
    if log == "has epochs":
        deployment.feed.add()
        before = deployment.start("before")
        until(lambda: deployment.epochs("before"))
        time.sleep(1)  # Spark logs the batch
        before.kill()
        before.wait()
    old = deployment.start("old")
    until((deployment.folder / "old.started").exists)
    deployment.start("new", take_over=60.0)
    assert old.wait(120) == 0
    until((deployment.folder / "new.started").exists)
    deployment.feed.add()
    until(lambda: deployment.feed.files - 1 in dict(deployment.epochs("new")))
    deployment.finish()
    assert deployment.epochs("old") == []


def test_a_driver_is_waited_for_in_its_first_epoch(deployment: Deployment) -> None:
    deployment.feed.add()
    slow = deployment.folder / "old.slow"
    slow.touch()
    old = deployment.start("old")
    log = deployment.folder / "checkpoint/onceward"
    until(lambda: log.exists() and read(DirectoryStore(log)).start >= 0)
    new = deployment.start("new", take_over=600.0)
    until(lambda: list(log.glob("I*")))
    time.sleep(SILENT_SECONDS + 2)
    assert not (deployment.folder / "new.started").exists()
    slow.unlink()
    assert old.wait(120) == 0
    assert [epoch for epoch, _ in deployment.epochs("old")] == [0]
    deployment.feed.add()
    deployment.finish()
    assert new.poll() is None


def test_a_program_that_handed_its_query_over_can_take_it_back(deployment: Deployment) -> None:
    """The same DataStreamWriter is started again: a deployment is rolled back, and the old program still runs."""
    deployment.feed.add()
    old = deployment.start("old", take_over=60.0)
    until(lambda: deployment.epochs("old"))
    stays = deployment.folder / "old.stays"
    stays.touch()
    new = deployment.start("new", take_over=60.0)
    deployment.feed_on()
    until(lambda: deployment.epochs("new"))
    epochs = len(deployment.epochs("old"))
    stays.unlink()
    assert new.wait(120) == 0
    until(lambda: len(deployment.epochs("old")) > epochs + 2, 60)
    assert old.poll() is None
    deployment.finish()


@pytest.mark.parametrize("step", ["log.put.before", "log.put.after:3"])
def test_a_new_driver_that_dies_while_it_takes_over_leaves_a_pipeline_that_goes_on(
    deployment: Deployment, step: str
) -> None:
    """Before its START the old one goes on; after it, the next driver does."""
    deployment.feed.add()
    old = deployment.start("old")
    until(lambda: deployment.epochs("old"))
    deployment.feed_on()
    new = deployment.start("new", take_over=60.0, crash_at=step)
    assert new.wait(120) == -9
    if step == "log.put.before":
        epochs = len(deployment.epochs("old"))
        until(lambda: len(deployment.epochs("old")) > epochs + 2, SILENT_SECONDS + 60)
        assert old.poll() is None
    else:
        assert old.wait(60) == 0
    deployment.start("third", take_over=60.0)
    until(lambda: deployment.epochs("third"))
    assert old.wait(60) == 0
    deployment.finish()


@pytest.mark.parametrize("said", ["working", "paused"])
def test_an_old_driver_that_dies_while_it_hands_over_is_replaced(deployment: Deployment, said: str) -> None:
    deployment.feed.add()
    old = deployment.start("old")
    until(lambda: deployment.epochs("old"))
    deployment.feed_on()
    log = deployment.folder / "checkpoint/onceward"

    def answered() -> bool:
        answers = [file.read_text() for file in log.glob("I*")]
        return any(said in answer for answer in answers)

    deployment.start("new", take_over=10.0)
    until(answered)
    old.kill()
    until(lambda: deployment.epochs("new"))
    deployment.finish()
