"""Any resettable source as a stream of Spark: restarted, limited, over a crash, and loud about what is gone."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sqlite3
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException

from onceward import FileSink, FileSource
from onceward.connectors.spark import exactly_once, read_stream
from onceward.connectors.spark.read import any_source
from onceward.core.errors import ConfigurationError, OncewardWarning
from onceward.core.kit.crash_points import Step
from onceward.sinks import IdempotentSink
from onceward.sources import ResettableSource, SequenceSource

from .spark_kit import Crash, crash_at, once

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SCHEMA = pa.schema({"id": pa.int64(), "word": pa.string()})


class Job:
    """A source to files, by exactly_once."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        (folder / "in").mkdir()

    def put(self, first: int, rows: int = 20) -> None:
        lines = [json.dumps({"id": number, "word": f"w{number}"}) for number in range(first, first + rows)]
        (self.folder / "in" / f".{first:05d}").write_text("\n".join(lines))
        (self.folder / "in" / f".{first:05d}").rename(self.folder / "in" / f"{first:05d}.jsonl")

    def run(self, source: ResettableSource, max_rows: int | None = None) -> int:
        """Number of micro-batches so far."""
        frame = read_stream(self.spark, source, max_rows=max_rows)
        sink = FileSink("out", self.folder / "out", format="jsonl")
        checkpoint = self.folder / "checkpoint"
        writer = exactly_once(frame, sink, checkpoint=str(checkpoint), pipeline="any")
        writer.trigger(availableNow=True).start().awaitTermination()
        return sum(path.name.isdigit() for path in (checkpoint / "commits").iterdir())

    def files(self) -> FileSource:
        return FileSource(self.folder / "in", format="jsonl", schema=SCHEMA)

    def seen(self) -> Counter[int]:
        lines = [line for path in (self.folder / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
        return Counter(json.loads(line)["id"] for line in lines)


@pytest.fixture
def file_job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def test_files_are_read_in_limited_batches_across_restarts_and_a_crash(file_job: Job) -> None:
    for first in (0, 20, 40):
        file_job.put(first)
    with crash_at(Step.DECIDE_AFTER, 2), pytest.raises((Crash, StreamingQueryException)):
        file_job.run(file_job.files(), max_rows=20)
    assert file_job.run(file_job.files(), max_rows=20) == 3
    assert file_job.seen() == once(60)
    file_job.put(60)
    file_job.run(file_job.files())
    file_job.run(file_job.files())
    assert file_job.seen() == once(80)


def test_a_sequence_ends_by_itself(file_job: Job) -> None:
    rows = pa.table({"id": list(range(100)), "word": ["x"] * 100}, schema=SCHEMA)
    for _ in range(2):
        file_job.run(SequenceSource(rows, units=3, batch_rows=7))
    assert file_job.seen() == once(100)


def test_a_file_that_changed_is_an_error(file_job: Job) -> None:
    file_job.put(0)
    file_job.run(file_job.files())
    (file_job.folder / "in" / "00000.jsonl").write_text('{"id": 1, "word": "other"}\n')
    with pytest.raises(StreamingQueryException, match="has changed since it was read"):
        file_job.run(file_job.files())
    assert file_job.seen() == once(20)


def test_times_in_csv_are_read_without_a_schema(file_job: Job) -> None:
    (file_job.folder / "in" / "a.csv").write_text("id,at\n1,2026-01-02 03:04:05\n")
    file_job.run(FileSource(file_job.folder / "in", format="csv"))
    [line] = [path.read_text() for path in (file_job.folder / "out").glob("*.jsonl")]
    assert line == '{"id":1,"at":"2026-01-02T03:04:05"}\n'


class Trap:
    """Unpickling it runs code."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod, (self.path,)


@pytest.mark.parametrize("name", ["onceward-source", "its own"])
def test_an_option_never_becomes_an_object(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Whoever may set options must not be able to run code."""
    read_stream(spark, SequenceSource([{"id": 1}]))
    forged = base64.b64encode(pickle.dumps(Trap(tmp_path / "sprung"))).decode()
    if name == "its own":
        name = any_source.register_format(spark, SequenceSource([{"id": 1}]))
    for reader in (spark.read, spark.readStream):
        with pytest.raises((PySparkException, Py4JJavaError)):
            reader.format(name).option("source", forged).load()
    assert not (tmp_path / "sprung").exists()


class Secretive(SequenceSource):
    """A source with a password."""

    def __init__(self) -> None:
        super().__init__([{"id": 1, "word": "w"}])
        self.password = "sesame-open"


def test_a_plan_shows_nothing_of_a_source(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    frame = read_stream(spark, Secretive())
    frame.explain(extended=True)
    plan = frame._jdf.queryExecution()
    shown = capsys.readouterr().out + plan.toString() + plan.analyzed().treeString() + plan.logical().prettyJson()
    assert "onceward-source" in shown
    for form in (b"sesame-open", base64.b64encode(b"sesame-open"), base64.b64encode(pickle.dumps(Secretive()))):
        assert form.decode()[2:12] not in shown


def test_a_source_may_be_large(file_job: Job) -> None:
    """Spark carries functions above a megabyte otherwise than smaller ones."""
    rows = pa.table({"id": range(50_000), "word": [f"{n:060d}" for n in range(50_000)]}, schema=SCHEMA)
    file_job.run(SequenceSource(rows, units=2))
    assert file_job.seen() == once(50_000)


def test_what_is_no_source_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="takes a ResettableSource, not str"):
        read_stream(spark, "orders")  # type: ignore[arg-type]
    source = SequenceSource([{"id": 1}])
    source.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match="SequenceSource cannot be pickled"):
        read_stream(spark, source)
    with pytest.raises(ConfigurationError, match="is not a folder"):
        read_stream(spark, FileSource(tmp_path / "nowhere", schema=SCHEMA))


class Latest(IdempotentSink[sqlite3.Connection]):
    """The newest word of each id, in a file that all workers reach."""

    def __init__(self, path: Path) -> None:
        super().__init__("latest")
        self.path = str(path)

    def open(self, context: Any) -> sqlite3.Connection:  # noqa: ARG002 - signature
        return sqlite3.connect(self.path, timeout=30, isolation_level=None)

    def write(self, writer: sqlite3.Connection, batch: pa.RecordBatch) -> None:
        rows = [(row["id"], row["word"]) for row in batch.to_pylist()]
        writer.execute("BEGIN IMMEDIATE")
        writer.executemany("INSERT INTO words VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET word = excluded.word", rows)
        writer.execute("COMMIT")

    def close(self, writer: sqlite3.Connection) -> None:
        writer.close()


def test_an_idempotent_sink_is_driven_too_and_says_what_it_promises(file_job: Job, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "words.db") as database:
        database.execute("CREATE TABLE words (id integer PRIMARY KEY, word text)")
    file_job.put(0)
    file_job.put(20)

    def run() -> None:
        frame = read_stream(file_job.spark, file_job.files(), max_rows=20)
        files = FileSink("out", tmp_path / "out", format="jsonl")
        checkpoint = str(tmp_path / "checkpoint")
        writer = exactly_once(frame, files, Latest(tmp_path / "words.db"), checkpoint=checkpoint, pipeline="both")
        writer.trigger(availableNow=True).start().awaitTermination()

    with crash_at(Step.ACKNOWLEDGED, 2), pytest.raises((Crash, StreamingQueryException)):
        run()
    with pytest.warns(OncewardWarning, match="sink latest guarantees only effectively-once"):
        run()
    assert file_job.seen() == once(40)
    with sqlite3.connect(tmp_path / "words.db") as database:
        assert list(database.execute("SELECT * FROM words ORDER BY id")) == [(n, f"w{n}") for n in range(40)]
