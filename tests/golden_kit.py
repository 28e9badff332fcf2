"""Systems as drivers leave them, for golden outputs of the command line: names and times are the same in each run.

What a run cannot fix (the folder, random parts of names, versions of packages) is replaced in `normalized` alone.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import re
import shutil
import sys
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward import FileSink, SqlAlchemySink
from onceward.connectors.files.sink import AREA
from onceward.connectors.spark.savepoints.manifest import BEGUN, MANIFEST, RESTORED, Manifest
from onceward.core.checkpoint import CommitPolicy, Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement, Committable
from onceward.core.engine.state.handles import FileRef
from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import DirectoryStore, EpochInput, LogWriter
from onceward.sinks.folder_claims import IDENTITY

from .sink_kit import Crash

if TYPE_CHECKING:
    from onceward.sinks import TwoPhaseCommitSink

SAMPLE = Path(__file__).parent / "samples" / "0.1" / "engine"
SUBTASKS = 2
_UNIQUE = re.compile(r"(onceward([:~])1(?:\2[\w-]+){7}\2)[0-9a-f]{8}\b")
"""Name of a transaction, whose last part is random."""
_DIGEST = re.compile(r"(?<=RANDOM-\d)\+[0-9a-f]{12}")
_AGO = re.compile(r"(?<=waited for |ritten for )[\d.:]+ (s|min|h|days)|(?<=completed )[\d.:]+ (s|min|h|days)(?= ago)")
"""How long ago something was, which `onceward status` says."""
JOBS = """
from onceward import FileSink, SqlAlchemySink

def sinks_of(name):
    return [
        FileSink("files", f"{folder}/{{name}}-files", format="jsonl"),
        SqlAlchemySink("table", url=f"sqlite:///{folder}/{{name}}.db", table="numbers", create_table=True),
    ]

ORDERS, DOUBT, LOST, FOREIGN = map(sinks_of, ["orders", "doubt", "lost", "foreign"])
FILES = ORDERS[:1]
AWAY = [*FILES, SqlAlchemySink("table", url="sqlite:///{folder}/away/orders.db", table="numbers")]
"""
PROGRAM = """
from jobs import sinks_of
from onceward import Pipeline, SequenceSource, open_store

def into(name, store):
    pipeline = Pipeline(name, store=open_store(f"{folder}/{{store}}/onceward"))
    rows = pipeline.source(SequenceSource([{{"n": 1}}]), uid="in")
    for sink in sinks_of(name):
        rows.sink(sink)
    return pipeline

def orders():
    return into("orders", "orders")

def outdated():
    return into("orders", "copy")

def forgotten():
    pipeline = Pipeline("memory")
    pipeline.source(SequenceSource([{{"n": 1}}]), uid="in").sink(sinks_of("orders")[0])
    return pipeline

def clashing():
    return [into("orders", "orders"), into("orders", "orders")]
"""


def fixed_policy(name: str) -> CommitPolicy:
    """Identities and times that depend on nothing but a name."""
    tokens, seconds = itertools.count(), itertools.count()
    return CommitPolicy(
        token=lambda: hashlib.sha256(f"{name} {next(tokens)}".encode()).hexdigest()[:16],
        now=lambda: f"2026-01-01T00:00:{next(seconds):02}.000+00:00",
    )


class Driver:
    """A pipeline into files and a table of SQLite, in two subtasks, which may die after it has decided an epoch."""

    def __init__(self, folder: Path, name: str, log: str = "", run: str = "") -> None:
        self.store = DirectoryStore(folder / (log or name) / "onceward")
        private = folder / f"{name}-files" / AREA
        private.mkdir(parents=True, exist_ok=True)
        (private / IDENTITY).write_text(f"{name.encode().hex():0<16}"[:16])
        self.sinks: list[TwoPhaseCommitSink[Any]] = [
            FileSink("files", folder / f"{name}-files", format="jsonl"),
            SqlAlchemySink("table", url=f"sqlite:///{folder}/{name}.db", table="numbers", create_table=True),
        ]
        self.coordinator = Coordinator(name, self.store, self.sinks, fixed_policy(f"{log or name}{run}"))
        self.coordinator.open()

    def prepare(self, epoch: int) -> list[Committable]:
        """Write an epoch's rows and prepare them."""
        return [self._prepared(sink, epoch, subtask) for subtask in range(SUBTASKS) for sink in self.sinks]

    def _prepared(self, sink: TwoPhaseCommitSink[Any], epoch: int, subtask: int) -> Committable:
        batch = pa.RecordBatch.from_pydict({"n": [10 * epoch + subtask, 10 * epoch + subtask + 2]})
        sink.validate(batch.schema)
        attempt = SubtaskEpoch(sink, self.coordinator.context(sink.name, epoch, subtask=subtask))
        attempt.write(batch)
        committable = attempt.pre_commit()
        assert committable is not None
        return committable

    def finish(self, epoch: int, *, dies: bool = False) -> list[Committable]:
        """Write, decide and commit an epoch, or die before its commit."""
        return self.decide(epoch, self.prepare(epoch), dies=dies)

    def decide(self, epoch: int, committables: list[Committable], *, dies: bool = False) -> list[Committable]:
        """Decide and commit what was prepared for an epoch, or die before its commit."""

        def die(at: Step) -> None:
            if dies and at is Step.COMMIT_BEFORE:
                raise Crash

        about = EpochInput(query="q", start={"in": epoch}, end={"in": epoch + 1})
        self.coordinator.admit(epoch, about)
        names = tuple(sink.name for sink in self.sinks)
        parts = [tuple(c for c in committables if c.subtask == subtask) for subtask in range(SUBTASKS)]
        acknowledgements = [
            Acknowledgement(epoch=epoch, subtask=subtask, attempt=0, sinks=names, committables=part)
            for subtask, part in enumerate(parts)
        ]
        with hooked(die), pytest.raises(Crash) if dies else nullcontext():
            self.coordinator.commit(epoch, acknowledgements, about)
        return committables


class Scene:
    """A folder in which pipelines have died in each way that matters to an operator.

    Attributes:
        folder: Where all of it is, and in which commands run.
        named: Transactions whose names commands are given.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.named: dict[str, str] = {}
        (folder / "jobs.py").write_text(JOBS.format(folder=folder))
        (folder / "programs.py").write_text(PROGRAM.format(folder=folder))
        self._java()
        self._orders()
        self._doubt()
        self._lost()
        self._foreign()
        shutil.copytree(SAMPLE, folder / "engine")
        self._savepoints()

    def _java(self) -> None:
        """What the machine has installed is not compared."""
        java = self.folder / "jdk" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
        java.chmod(0o755)

    def _orders(self) -> None:
        """Two epochs are completed and one is decided; `copy` is the log as it was in between."""
        driver = Driver(self.folder, "orders")
        driver.finish(0)
        driver.finish(1, dies=True)
        shutil.copytree(self.folder / "orders", self.folder / "copy")
        self.named["decided"] = Driver(self.folder, "orders", run="again").finish(2, dies=True)[0].transaction

    def _doubt(self) -> None:
        """One epoch is completed, and rows of the next one are prepared."""
        driver = Driver(self.folder, "doubt")
        driver.finish(0)
        self.named["in-doubt"] = driver.prepare(1)[0].transaction

    def _lost(self) -> None:
        """Of the decided epoch one file and one part of a table are gone; somebody has given up the file."""
        driver = Driver(self.folder, "lost")
        driver.finish(0)
        file, part, *_ = driver.finish(1, dies=True)
        for sink, committable in zip(driver.sinks, (file, part), strict=True):
            assert sink.abort(committable).done
        writer = LogWriter(driver.store, "lost", fixed_policy("an operator"))
        writer.start("txn commit")
        writer.resolve(1, file.transaction, action="skip", who="ops@host", why="the disk was replaced")

    def _foreign(self) -> None:
        """What was prepared under another log than the one that is there."""
        self.named["foreign"] = Driver(self.folder, "foreign", "gone").prepare(0)[0].transaction
        shutil.rmtree(self.folder / "gone")
        LogWriter(DirectoryStore(self.folder / "foreign"), "foreign", fixed_policy("foreign")).start()

    def _savepoints(self) -> None:
        """Savepoints of a query that was restored, of one that moves, of an engine; a part of one; a damaged one."""
        place = self.folder / "savepoints"
        file = FileRef("metadata", "checkpoint/metadata", 120, "0" * 64)
        for name, retired in (("first", False), ("moving", True)):
            storage = CheckpointStorage(place / name)
            storage.write(BEGUN, [b"orders"])
            manifest = Manifest(
                pipeline="orders",
                query="q",
                log="0123abcd",
                generation=4,
                epoch=7,
                sinks=("files",),
                made="2026-01-01T00:00:00+00:00",
                checkpoint="/checkpoints/orders",
                retired=retired,
                files=(file,),
                entries=(),
            )
            storage.write(MANIFEST, [manifest.encode()])
        CheckpointStorage(place / "first").write(RESTORED, [b"/checkpoints/again"])
        CheckpointStorage(place / "interrupted").write(BEGUN, [b"orders"])
        damaged = CheckpointStorage(place / "damaged")
        damaged.write(BEGUN, [b"orders"])
        damaged.write(MANIFEST, [b"not a manifest"])
        shutil.copytree(SAMPLE / "save", place / "engine")

    def contents(self) -> dict[str, bytes]:
        """Every file, to see that nothing is changed. SQLite's files of readers come and go."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and path.suffix in ("", ".db", ".jsonl")]
        return {str(path): path.read_bytes() for path in files}


def normalized(text: str, folder: Path) -> str:
    """Return an output without what differs from run to run, or from machine to machine."""
    fixed = {str(folder): "FOLDER", sys.executable: "PYTHON"}
    fixed |= {metadata.version(name): f"VERSION of {name}" for name in ("pyspark", "pandas")}
    text = re.sub(r"/tmp/\w+/made", "SAMPLE", text)
    for there, instead in fixed.items():
        text = text.replace(there, instead)
    text = _AGO.sub("TIME", text)
    numbers: dict[str, int] = {}
    text = _UNIQUE.sub(lambda name: f"{name[1]}RANDOM-{numbers.setdefault(name[0], len(numbers) + 1)}", text)
    return _DIGEST.sub("+DIGEST", text)


def compare(file: Path, printed: str, request: pytest.FixtureRequest) -> None:
    """Compare a text with a golden file; write the file anew with `--update-golden`."""
    if request.config.getoption("--update-golden"):
        file.write_text(printed)
        return
    golden = file.read_text()
    difference = difflib.unified_diff(golden.splitlines(), printed.splitlines(), str(file), "now", lineterm="")
    assert printed == golden, "\n".join(difference)
