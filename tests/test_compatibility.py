"""What an earlier release stored is finished and restored by this one: docs/compatibility.md.

tests/samples/RELEASE/ holds what the release left behind when it died, and is never changed:

    pipeline/    a decision log, and three targets (files, a write-ahead log, SQLite) with one epoch that is completed
                 and one that is decided and not committed
    entries/     an entry of the decision log of each kind
    engine/      a decision log and a savepoint of the embedded engine, after the first 10 of 20 rows
    rocksdb.tar.xz     a run of the embedded engine with state in RocksDB, which died between decision and commit
    committables.jsonl     of Kafka, PostgreSQL (prepared, staging) and files
    ledger.sql   the tables in PostgreSQL

    python -m tests.test_compatibility 0.1    # makes the samples of a release, once, but for the last two
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from onceward import (
    FileBackend,
    FileSink,
    ProcessFunction,
    RocksDBBackend,
    SequenceSource,
    SqlAlchemySink,
    ValueState,
)
from onceward.connectors.database.own_tables import _tables_in
from onceward.connectors.kafka.transaction_state import Prepared
from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.names import parse_accepted_name, parse_pooled_name, parse_transaction_name
from onceward.core.contract.transaction import Acknowledgement, Committable
from onceward.core.engine.state.handles import decode_metadata
from onceward.core.engine.state.row_store import decode_cells
from onceward.core.errors import ConfigurationError, LogDamagedError, NewerFormatError
from onceward.core.kit.crash_points import CRASH_VARIABLE, Step, hooked
from onceward.core.log import DirectoryStore, EpochInput, read
from onceward.core.log.entries import decode_entry, encode

from .engine_kit import RunningSum, Slowly, numbers, pipeline, reach, sums
from .entries_kit import ENTRIES
from .sink_kit import Mailbox, Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.sinks import TwoPhaseCommitSink

SAMPLES = Path(__file__).parent / "samples"
RELEASES = sorted(SAMPLES.iterdir())
ROWS, DONE = numbers(20), 10
MANY = numbers(4_000, keys=40)


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


def summing(folder: Path, source: Slowly, target: Target, function: ProcessFunction | None = None) -> Any:
    """The pipeline of the engine's sample."""
    made = pipeline("sums", store=DirectoryStore(folder / "log"), backend=FileBackend(folder / "state"))
    totals = made.source(source, uid="rows").key_by("k").process(function or RunningSum(), uid="sums", parallelism=2)
    totals.sink(TargetSink(target))
    return made


def slowly(record: dict[str, Any]) -> dict[str, Any]:
    """So that there are some checkpoints."""
    time.sleep(0.0002)
    return record


def run_on_rocksdb(folder: Path, restore: str | None = None) -> None:
    """The pipeline of the sample with RocksDB: running sums into files, totals into a table."""
    made = pipeline("rocks", store=DirectoryStore(folder / "log"), backend=RocksDBBackend(folder / "state"))
    rows = made.source(SequenceSource(MANY, units=2, batch_rows=20), uid="numbers").map(slowly, uid="slowly")
    keyed = rows.key_by("k")
    keyed.process(RunningSum(), uid="sum", parallelism=2).sink(FileSink("files", folder / "files", format="jsonl"))
    table = SqlAlchemySink("table", url=f"sqlite:///{folder}/table.db", table="totals", key="k", create_table=True)
    keyed.aggregate({"total": ("v", "sum"), "rows": ("*", "count")}, uid="totals").sink(table)
    made.run(restore=restore)


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


class Renamed(ProcessFunction):
    """Declares its state under another name than RunningSum."""

    subtotal = ValueState(default=0)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        self.subtotal.set(self.subtotal.get() + record["v"])
        yield {"n": record["n"], "k": record["k"], "sum": self.subtotal.get()}


def test_no_state_of_an_earlier_release_is_dropped_in_silence(left: Path) -> None:
    """Checkpoints of the first one hold the names of states without their layouts."""
    folder, source = left / "engine", Slowly(ROWS, batch_rows=1)
    source.let(len(ROWS))
    with pytest.raises(ConfigurationError, match="states total: it would be lost"):
        summing(folder, source, Target(), Renamed()).run(restore=str(folder / "save"))


def test_a_checkpoint_names_its_states_to_earlier_releases_too(tmp_path: Path) -> None:
    source = Slowly(ROWS, batch_rows=1)
    source.let(len(ROWS))
    summing(tmp_path, source, Target()).run()
    [*_, newest] = sorted((tmp_path / "state").glob("**/metadata"))
    record = decode_metadata(newest.read_bytes(), "").operators["sums"]
    assert (record.states, record.kinds) == (["total"], {"total": "value"})


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_each_entry_of_an_earlier_release_is_read(left: Path, entry: Any) -> None:
    assert decode_entry((left / "entries" / type(entry).__name__).read_bytes(), entry.position) == entry


def test_names_of_the_first_release_are_recognized() -> None:
    transaction = "onceward:1:orders:table:5f0c1e9a:12:41:1:0:9e8d7c6b"
    assert str(parse_transaction_name(transaction)) == transaction
    for name in ("onceward:1:orders:events:5f0c1e9a:1b2c3d4e:0", "onceward:1:orders:events:5f0c1e9a:12:1b2c3d4e:1"):
        assert str(parse_pooled_name(name)) == name
    accepted = "onceward-accepts:1:orders:events:5f0c1e9a:0a0b0c0d"
    assert str(parse_accepted_name(accepted)) == accepted


def test_a_run_with_state_in_rocksdb_that_died_after_a_decision_is_continued_exactly(left: Path) -> None:
    with tarfile.open(left / "rocksdb.tar.xz") as archive:
        archive.extractall(left / "run", filter="data")
    assert read(DirectoryStore(left / "run" / "log")).undone is not None
    newest = max((left / "run" / "state").glob("*/*/chk-*"))
    run_on_rocksdb(left / "run", restore=str(newest))  # it lies elsewhere now
    files = "".join(path.read_text() for path in (left / "run" / "files").glob("*.jsonl")).splitlines()
    rows = [json.loads(line) for line in files]
    assert sorted(row["n"] for row in rows) == [row["n"] for row in MANY]
    assert {row["n"]: row["sum"] for row in rows} == sums(MANY)
    totals: dict[str, int] = {}
    for row in MANY:
        totals[row["k"]] = totals.get(row["k"], 0) + row["v"]
    database = sqlite3.connect(left / "run" / "table.db")
    assert dict(database.execute("SELECT k, total FROM totals").fetchall()) == totals
    database.close()


def test_committables_of_an_earlier_release_are_read(left: Path) -> None:
    found = [Committable.from_json(line) for line in (left / "committables.jsonl").read_text().splitlines()]
    assert {committable.kind for committable in found} == {"kafka", "sql-prepared", "sql-staged", "files"}
    [kafka] = [Prepared.of(committable) for committable in found if committable.kind == "kafka"]
    assert kafka is not None
    assert kafka.partitions
    [newer] = [msgspec.structs.replace(committable, version=9) for committable in found if committable.kind == "kafka"]
    with pytest.raises(LogDamagedError, match="version 9"):
        Prepared.of(newer)


def test_the_tables_in_a_database_are_those_of_an_earlier_release(left: Path) -> None:
    assert tables_in_postgresql() == (left / "ledger.sql").read_text()


def tables_in_postgresql() -> str:
    tables = _tables_in("onceward", "").metadata.sorted_tables
    made = (CreateTable(table).compile(dialect=postgresql.dialect()) for table in tables)  # type: ignore[no-untyped-call]
    return "".join(re.sub(r"[ \t]+\n", "\n", f"{sql}".strip()) + ";\n\n" for sql in made)


def newer(name: str) -> bytes:
    """As format 2 will be sealed."""
    start, body = f"{name}/2".encode(), b'{"anything": 1}'
    checksum = hashlib.sha256(start + b"\n" + body).hexdigest()
    return start + f" {checksum}\n".encode() + body + b"\n"


@pytest.mark.parametrize(
    ("reading", "what"),
    [
        (lambda: decode_entry(newer("onceward-log"), 3), "entry 3 of the decision log"),
        (lambda: decode_metadata(newer("onceward-checkpoint"), "chk-1/metadata"), "chk-1/metadata"),
        (lambda: list(decode_cells(b"onceward-rows/3\n", "sum.rows")), "sum.rows"),
    ],
    ids=["decision log", "checkpoint", "state"],
)
def test_a_newer_format_is_refused_by_name_and_not_as_damage(reading: Callable[[], object], what: str) -> None:
    with pytest.raises(NewerFormatError, match=rf"{what} .*has format \d, .*reads format \d.*: upgrade onceward"):
        reading()


@pytest.mark.parametrize("data", [b"", b"onceward-log/1", b"onceward-log/ x\n", b"onceward-log/2 y\n{}\n", b"\xff\n"])
def test_what_has_no_format_is_damaged(data: bytes) -> None:
    with pytest.raises(LogDamagedError, match="entry 3 of the decision log is damaged"):
        decode_entry(data, 3)


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

    crash = {**os.environ, CRASH_VARIABLE: f"{Step.COMMIT_BEFORE}:6"}
    command = "import sys, pathlib, tests.test_compatibility as t; t.run_on_rocksdb(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", command, folder / "run"], env=crash, check=False)
    with tarfile.open(folder / "rocksdb.tar.xz", "w:xz") as archive:
        archive.add(folder / "run", ".")
    shutil.rmtree(folder / "run")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:  # whose path is in decisions
        make(Path(scratch) / "made")
        shutil.copytree(Path(scratch) / "made", SAMPLES / sys.argv[1])
