"""A sink and a connector from a wheel of somebody else get all that onceward's own have: formats, commands, suites."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from onceward.core.checkpoint.recovery import TransactionStatus

from .spark_kit import Feed, once

PACKAGE: Final = Path(__file__).with_name("shelf_package")
EXAMPLES: Final = Path(__file__).parent.parent / "examples"
COMMAND: Final = "from onceward.cli.main import main; main()"
DRIVER: Final = """
import sys
from pyspark.sql import SparkSession
import onceward

folder, form, registers, *options = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.local.dir", f"{folder}/scratch").getOrCreate()
if registers == "register":
    onceward.register(spark)
frame = spark.readStream.schema("id long, word string").option("maxFilesPerTrigger", 1).json(f"{folder}/feed")
writer = frame.repartition(2).writeStream.format(form).options(**dict(option.split("=", 1) for option in options))
writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()
"""
PREPARE: Final = """
import sys
from pathlib import Path
import pyarrow as pa
from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.log import DirectoryStore
from shelf import ShelfSink

sink = ShelfSink("lines", sys.argv[1], "words")
coordinator = Coordinator("words", DirectoryStore(Path(sys.argv[2])), [sink])
coordinator.open()
subtask = SubtaskEpoch(sink, coordinator.context("lines", 0, subtask=0))
subtask.write(pa.RecordBatch.from_pydict({"id": [0, 1], "word": ["a", "b"]}))
subtask.pre_commit()
"""
METRICS: Final = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def environment(driver_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a process in which the package is installed; this one's own does not have it."""
    folder = tmp_path_factory.mktemp("package")
    source = shutil.copytree(PACKAGE, folder / "source")
    offline = ("--no-deps", "--no-index", "--disable-pip-version-check", "--quiet")
    pip("wheel", *offline, "--no-build-isolation", "--wheel-dir", str(folder / "wheels"), str(source))
    [wheel] = (folder / "wheels").glob("*.whl")
    pip("install", *offline, "--target", str(folder / "installed"), str(wheel))
    path = os.pathsep.join([driver_environment["PYTHONPATH"], str(folder / "installed")])
    return {**driver_environment, "PYTHONPATH": path}


class Job:
    """A query that copies a feed to a shelf, and the commands about it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.file, self.feed = str(folder / "shelves.db"), Feed(folder)
        self.run_python("-c", f"from shelf.database import create; create({self.file!r}, 'words', 'other')")
        self.options = [f"file={self.file}", "shelf=words", "name=lines", "pipeline=words"]

    def run_python(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, form: str = "onceward-shelf", *, registers: bool = True, fails: bool = False, **more: str) -> None:
        """Run the query over all that was fed."""
        words = [str(self.folder), form, "register" if registers else "discover", *self.options]
        done = self.run_python("-c", DRIVER, *words, **more)
        assert bool(done.returncode) is fails, done.stderr[-3000:]

    def crash(self, step: str) -> None:
        """Run the query, and kill its process of Python that comes to a durable step."""
        self.run(fails=True, ONCEWARD_CRASH_AT=step)
        assert self.ids() == once(0)

    def change(self, statement: str) -> None:
        """Change the file behind the sink's back."""
        with closing(sqlite3.connect(self.file)) as connection:
            connection.execute(statement)
            connection.commit()

    def onceward(self, *arguments: str, code: int = 0) -> str:
        done = self.run_python("-c", COMMAND, *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def transactions(self, *more: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.onceward("txn", "list", *self.at, *more, "--json"))
        return found

    @property
    def at(self) -> tuple[str, ...]:
        return "--at", f"shelf={self.file}"

    @property
    def store(self) -> tuple[str, ...]:
        return "--store", str(self.checkpoint)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def ids(self) -> Counter[int]:
        with closing(sqlite3.connect(self.file)) as connection:
            return Counter(json.loads(item)["id"] for (item,) in connection.execute("SELECT item FROM items"))

    def forget_the_newest_batch(self) -> None:
        """Leave Spark's checkpoint as it is if the driver dies right after the commit."""
        commits = self.checkpoint / "commits"
        newest = max((file for file in commits.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))
        newest.unlink()
        (commits / f".{newest.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def shelf_job(tmp_path: Path, environment: dict[str, str]) -> Job:
    return Job(tmp_path, environment)


def test_spark_finds_its_format_and_a_restart_writes_nothing_twice_and_verify_proves_it(shelf_job: Job) -> None:
    (shelf_job.folder / "metrics").mkdir()
    shelf_job.feed.add()
    shelf_job.feed.add()
    shelf_job.run(
        registers=False,
        ONCEWARD_METRICS="prometheus",
        PROMETHEUS_MULTIPROC_DIR=str(shelf_job.folder / "metrics"),
        ONCEWARD_LINEAGE="openlineage",
        OPENLINEAGE__TRANSPORT__TYPE="file",
        OPENLINEAGE__TRANSPORT__LOG_FILE_PATH=str(shelf_job.folder / "lineage"),
        OPENLINEAGE__TRANSPORT__APPEND="true",
    )
    check_metrics_and_lineage(shelf_job)
    shelf_job.forget_the_newest_batch()
    shelf_job.feed.add()
    shelf_job.run()
    assert shelf_job.ids() == once(shelf_job.feed.rows)
    assert shelf_job.transactions() == []
    arguments = ("verify", str(shelf_job.checkpoint), *shelf_job.at, "--target", "shelf:words", "--json")
    [audit] = json.loads(shelf_job.onceward(*arguments))
    assert audit["proven"]
    assert [line["epoch"] for line in audit["epochs"]] == [0, 1, 2]
    shelf_job.change("UPDATE items SET item = json_set(item, '$.word', 'altered') WHERE rowid = 1")
    [audit] = json.loads(shelf_job.onceward(*arguments, code=1))
    assert [line["epoch"] for line in audit["epochs"] if line["verdict"] == "differs"] == [0]


def check_metrics_and_lineage(job: Job) -> None:
    shown = job.run_python("-c", METRICS, PROMETHEUS_MULTIPROC_DIR=str(job.folder / "metrics"))
    assert f'onceward_rows_total{{pipeline="words",sink="lines"}} {job.feed.rows:.1f}' in shown.stdout, shown.stderr
    outputs = [json.loads(line)["outputs"] for line in (job.folder / "lineage").read_text().splitlines()]
    assert [(one["namespace"], one["name"]) for [one] in outputs] == [(f"shelf://{job.file}", "words")] * 2
    assert sum(one["outputFacets"]["outputStatistics"]["rowCount"] for [one] in outputs) == job.feed.rows


def test_txn_commits_what_is_decided_and_doctor_asks_the_connector(shelf_job: Job) -> None:
    shelf_job.feed.add()
    shelf_job.crash("decide.after")
    assert {(one["pipeline"], one["sink"], one["status"]) for one in shelf_job.transactions()} == {
        ("words", "lines", TransactionStatus.UNKNOWN)
    }
    found = shelf_job.transactions(*shelf_job.store)
    assert {one["status"] for one in found} == {TransactionStatus.DECIDED}
    assert sum(one["rows"] for one in found) == shelf_job.feed.rows
    [shown] = json.loads(
        shelf_job.onceward("txn", "inspect", *shelf_job.at, *shelf_job.store, found[0]["transaction"], "--json")
    )
    assert (shown["state"], shown["target"]) == ("prepared", f"shelves in {shelf_job.file}")
    shelf_job.onceward("txn", "commit", *shelf_job.at, *shelf_job.store)
    assert shelf_job.ids() == once(0)
    shelf_job.onceward("txn", "commit", *shelf_job.at, *shelf_job.store, "--yes")
    assert shelf_job.ids() == once(shelf_job.feed.rows)
    places = ("--place", "shelf:words", "--place", "shelf:nowhere")
    findings = json.loads(shelf_job.onceward("doctor", *shelf_job.at, *places, *shelf_job.store, "--json", code=1))
    shelves = {one["where"]: one["health"] for one in findings if one["check"] == "shelf"}
    assert shelves == {"words": "ok", "nowhere": "failed"}
    owners = [one["found"] for one in findings if one["check"] == "ownership"]
    assert owners == ["no other decision log has this name"]


def test_txn_aborts_what_nobody_decided(shelf_job: Job) -> None:
    done = shelf_job.run_python("-c", PREPARE, shelf_job.file, str(shelf_job.checkpoint))
    assert not done.returncode, done.stderr
    assert [one["status"] for one in shelf_job.transactions(*shelf_job.store)] == [TransactionStatus.IN_DOUBT]
    shelf_job.onceward("txn", "abort", *shelf_job.at, *shelf_job.store, "--yes")
    assert shelf_job.transactions() == []
    assert shelf_job.ids() == once(0)


def test_explain_asks_its_connector(shelf_job: Job) -> None:
    shelf_job.change("UPDATE shelves SET locked = 1")
    shelf_job.feed.add()
    (shelf_job.folder / "program.py").write_text(DRIVER)
    words = ("program.py", str(shelf_job.folder), "onceward-shelf", "register", *shelf_job.options)
    [explained] = json.loads(shelf_job.onceward("explain", "--json", *words, code=1))
    found = {one["check"]: one["found"] for one in explained["findings"]}
    assert (found["sink"], found["shelf"]) == ("exactly-once (ShelfSink)", "it is locked")


def test_a_sink_without_a_connector_is_written_through_by_the_name_of_its_class(shelf_job: Job) -> None:
    path = os.pathsep.join([shelf_job.environment["PYTHONPATH"], str(EXAMPLES)])
    shelf_job.options = [
        "sink=custom_sink:JsonLinesSink",
        f"folder={shelf_job.folder / 'out'}",
        "name=lines",
        "pipeline=words",
    ]
    shelf_job.feed.add()
    shelf_job.run("onceward", registers=False, PYTHONPATH=path)
    lines = [line for file in (shelf_job.folder / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert Counter(json.loads(line)["id"] for line in lines) == once(shelf_job.feed.rows)


def test_the_suites_of_the_package_pass(shelf_job: Job) -> None:
    """Its sink, its connector, and a pipeline that writes to it, each with the suite that onceward ships."""
    shutil.copy(PACKAGE / "suites.py", shelf_job.folder / "test_suites.py")
    done = shelf_job.run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "test_suites.py")
    assert done.returncode == 0, done.stdout[-5000:]
