"""What an earlier release stored is finished and restored by this one: docs/compatibility.md.

tests/samples/RELEASE/ holds what the release left behind when it died, and is never changed:

    pipeline/    a decision log, and three targets (files, a write-ahead log, SQLite) with one epoch that is completed
                 and one that is decided and not committed
    entries/     an entry of the decision log of each kind
    engine/      a decision log and a savepoint of the embedded engine, after the first 10 of 20 rows

    python -m tests.test_compatibility 0.1    # makes the samples of a release, once
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward import FileBackend, FileSink, SqlAlchemySink
from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.log import DirectoryStore, EpochInput
from onceward.core.log.entries import decode, encode
from onceward.core.names import parse_accepted_name, parse_pooled_name, parse_transaction_name
from onceward.core.steps import Step, hooked
from onceward.core.transaction import Acknowledgement

from .engine_kit import RunningSum, Slowly, Target, TargetSink, numbers, pipeline, reach, sums
from .sink_kit import Mailbox
from .test_core_entries import ENTRIES

if TYPE_CHECKING:
    from onceward.sinks import TwoPhaseCommitSink

SAMPLES = Path(__file__).parent / "samples"
RELEASES = sorted(SAMPLES.iterdir())
ROWS, DONE = numbers(20), 10


class Left:
    """A pipeline over the targets in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mailbox = Mailbox(folder / "mail", remembers=True)
        self.sinks: list[TwoPhaseCommitSink[Any]] = [
            FileSink("files", folder / "files", format="jsonl"),
            self.mailbox,
            SqlAlchemySink("table", url=f"sqlite:///{folder}/table.db", table="numbers", create_table=True),
        ]
        self.coordinator = Coordinator("left", DirectoryStore(folder / "log"), self.sinks)

    def write(self, epoch: int) -> None:
        about = EpochInput(query="sample", start=epoch or None, end=epoch + 1)
        self.coordinator.admit(epoch, about)
        batch = pa.RecordBatch.from_pydict({"n": [2 * epoch, 2 * epoch + 1]})
        committables = []
        for sink in self.sinks:
            sink.validate(batch.schema)
            subtask = SubtaskEpoch(sink, self.coordinator.context(sink.name, epoch, subtask=0))
            subtask.write(batch)
            committables += [subtask.pre_commit()]
        names = tuple(sink.name for sink in self.sinks)
        kept = tuple(c for c in committables if c is not None)
        ack = Acknowledgement(epoch=epoch, subtask=0, attempt=0, sinks=names, committables=kept)
        self.coordinator.commit(epoch, [ack], about)

    def visible(self) -> dict[str, list[int]]:
        files = "".join(path.read_text() for path in (self.folder / "files").glob("*.jsonl")).splitlines()
        with sqlite3.connect(self.folder / "table.db") as database:
            table = [n for (n,) in database.execute("SELECT n FROM numbers")]
        database.close()
        return {
            "files": sorted(json.loads(line)["n"] for line in files),
            "mail": self.mailbox.rows,
            "table": sorted(table),
        }


def summing(folder: Path, source: Slowly, target: Target) -> Any:
    """The pipeline of the engine's sample."""
    made = pipeline("sums", store=DirectoryStore(folder / "log"), backend=FileBackend(folder / "state"))
    totals = made.source(source, uid="rows").key_by("k").process(RunningSum(), uid="sums", parallelism=2)
    totals.sink(TargetSink(target))
    return made


@pytest.fixture(params=RELEASES, ids=lambda folder: folder.name)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copytree(request.param, tmp_path / "left")


def test_a_decision_of_an_earlier_release_is_finished_and_the_pipeline_goes_on(left: Path) -> None:
    folder = left / "pipeline"
    database = sqlite3.connect(folder / "table.db")
    database.executescript((folder / "table.sql").read_text())
    database.close()
    pipeline = Left(folder)
    pipeline.coordinator.open()
    assert pipeline.visible() == {"files": [0, 1, 2, 3], "mail": [2, 3], "table": [0, 1, 2, 3]}
    pipeline.write(2)
    assert pipeline.visible() == {"files": [*range(6)], "mail": [2, 3, 4, 5], "table": [*range(6)]}


def test_a_savepoint_of_an_earlier_release_is_restored(left: Path) -> None:
    folder, target = left / "engine", Target()
    source = Slowly(ROWS, batch_rows=1)
    source.let(len(ROWS))
    summing(folder, source, target).run(restore=str(folder / "save"))
    assert {row["n"]: row["sum"] for row in target.rows} == {n: s for n, s in sums(ROWS).items() if n >= DONE}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_each_entry_of_an_earlier_release_is_read(left: Path, entry: Any) -> None:
    assert decode((left / "entries" / type(entry).__name__).read_bytes(), entry.position) == entry


def test_names_of_the_first_release_are_recognized() -> None:
    transaction = "onceward:1:orders:table:5f0c1e9a:12:41:1:0:9e8d7c6b"
    assert str(parse_transaction_name(transaction)) == transaction
    for name in ("onceward:1:orders:events:5f0c1e9a:1b2c3d4e:0", "onceward:1:orders:events:5f0c1e9a:12:1b2c3d4e:1"):
        assert str(parse_pooled_name(name)) == name
    accepted = "onceward-accepts:1:orders:events:5f0c1e9a:0a0b0c0d"
    assert str(parse_accepted_name(accepted)) == accepted


class Died(BaseException):
    """The process ends here."""


def make(folder: Path) -> None:
    """Make the samples of this version."""
    (folder / "entries").mkdir(parents=True)
    for entry in ENTRIES:
        (folder / "entries" / type(entry).__name__).write_bytes(encode(entry))

    def die(step: Step) -> None:
        if step is Step.DECIDE_AFTER:
            raise Died

    left = Left(folder / "pipeline")
    left.coordinator.open()
    left.write(0)
    with suppress(Died), hooked(die):
        left.write(1)
    with sqlite3.connect(folder / "pipeline" / "table.db") as database:
        (folder / "pipeline" / "table.sql").write_text("\n".join(database.iterdump()) + "\n")
    (folder / "pipeline" / "table.db").unlink()

    source = Slowly(ROWS, batch_rows=1)
    job = summing(folder / "engine", source, Target()).start()
    reach(source, job, DONE)
    job.stop_with_savepoint(folder / "engine" / "save", timeout=30)
    shutil.rmtree(folder / "engine" / "state")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:  # whose path is in decisions
        make(Path(scratch) / "made")
        shutil.copytree(Path(scratch) / "made", SAMPLES / sys.argv[1])
