"""A format's stream writer as Spark passes it around: pickled in one process, used in others, committed in a third."""

from __future__ import annotations

import io
import pickle
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from onceward import FileSink, KafkaSink
from onceward.connectors.spark.formats.formats import AnyFormat, format_of
from onceward.connectors.spark.formats.writers import StreamWriter
from onceward.connectors.spark.session import options
from onceward.connectors.spark.session.options import FormatOptions, check_complete_mode
from onceward.connectors.spark.session.query import newest_batch, read_text
from onceward.connectors.spark.write.spark_task import write_partition
from onceward.core.checkpoint.subtask import DirectlyWritten
from onceward.core.contract.connector import connectors
from onceward.core.contract.transaction import Observation, WriteContext
from onceward.core.errors import (
    CommitPendingError,
    ConfigurationError,
    DataLossError,
    EpochConflictError,
    FencedError,
    ProtocolError,
    SchemaError,
)
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import DirectoryStore, read
from onceward.core.log.run_writers import OVERTAKEN, RUN_VARIABLE
from onceward.sinks import DirectSink
from onceward.testing.faults import Faults
from onceward.testing.wrappers import FaultyDirectSink, FaultySink

from .core_fakes import policy
from .formats_kit import TIMEOUT, Query
from .sink_kit import TargetSink
from .spark_kit import Checkpoint, batches, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from onceward.core.checkpoint import CommitPolicy


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


SQL_FORMAT = format_of(connectors()["sql"])


def test_every_option_of_a_format_may_be_spelled_with_underscores(tmp_path: Path):
    """Its own as well as those of its sink; in two spellings at once it is refused."""
    given = {"url": f"sqlite:///{tmp_path}/db", "dbtable": "t", "lock_timeout": "5", "commit_timeout": "7", "name": "n"}
    sink: Any = SQL_FORMAT(given).own_sink()
    assert sink.target.lock_timeout == 5
    assert FormatOptions.parse(given).settings["commit_timeout"] == 7
    for again in ({"locktimeout": "5"}, {"table": "t"}):
        with pytest.raises(ConfigurationError, match="two spellings of one"):
            SQL_FORMAT({**given, **again}).own_sink()
    with pytest.raises(ConfigurationError, match="options commit_timeout and commitTimeout are two spellings of one"):
        FormatOptions.parse({**given, "commitTimeout": "7"})


class TestAnySink:
    def test_a_sink_is_named_by_its_class_or_by_its_connector(self, tmp_path: Path):
        options = {"name": "n", "path": str(tmp_path), "checkpointLocation": "c", "fileFormat": "csv"}
        for named in ("files", "onceward.connectors.files.sink:FileSink"):
            sink: Any = AnyFormat({**options, "sink": named}).own_sink()
            assert (type(sink), sink.name, sink.format, sink.folder) == (FileSink, "n", "csv", str(tmp_path))

    @pytest.mark.parametrize(
        ("named", "why"),
        [
            ("", "needs option sink: module:class, or one of files, http, kafka, postgres, redis, sql"),
            ("nowhere", "needs option sink"),
            ("no.such:Sink", "cannot import no.such:Sink"),
            ("onceward:FileSource", "onceward:FileSource is not a class of sinks"),
        ],
    )
    def test_what_is_not_a_sink_is_refused(self, named: str, why: str):
        with pytest.raises(ConfigurationError, match=why):
            AnyFormat({"sink": named}).own_sink()


class Shows(DirectSink[None]):
    def open(self, context: Any) -> None: ...

    def write(self, writer: None, batch: Any) -> None: ...


class Adds(Shows):
    """Its target would show each result again."""

    def validate_complete_mode(self) -> None:
        raise ConfigurationError("it adds rows")


class TestTheOutputModeComplete:
    def test_a_sink_that_says_nothing_takes_it(self):
        check_complete_mode(KafkaSink("out", bootstrap_servers="b:1", topic="t"))
        check_complete_mode(DirectlyWritten(Shows("shows")))

    @pytest.mark.parametrize("wrapped", [lambda sink: sink, lambda sink: FaultySink(sink, Faults())])
    def test_a_sink_that_would_add_each_result_again_is_refused(self, tmp_path: Path, wrapped: Any):
        with pytest.raises(ConfigurationError, match="would add every row again"):
            check_complete_mode(wrapped(FileSink("out", tmp_path)))

    @pytest.mark.parametrize("wrapped", [lambda sink: sink, lambda sink: FaultyDirectSink(sink, Faults())])
    def test_a_direct_sink_that_would_add_each_result_again_is_refused(self, wrapped: Any):
        for sink in (wrapped(Adds("adds")), DirectlyWritten(wrapped(Adds("adds")))):
            with pytest.raises(ConfigurationError, match="it adds rows"):
                check_complete_mode(sink)

    def test_a_format_refuses_it_before_it_makes_a_writer(self, tmp_path: Path):
        options = {"path": str(tmp_path), "checkpointLocation": str(tmp_path / "checkpoint")}
        columns = StructType([StructField("n", LongType())])
        with pytest.raises(ConfigurationError, match="would add every row again"):
            format_of(connectors()["files"])(options).streamWriter(columns, overwrite=True)


class TestValidation:
    """By the process that opens an epoch, in each of them: no process knows when a run of the query ends."""

    COLUMNS = StructType([StructField("n", LongType())])

    def writer(self, folder: Path) -> StreamWriter:
        options = {"url": f"sqlite:///{folder}/db", "dbtable": "t", "pipeline": "p"}
        options |= {"checkpointLocation": str(folder / "checkpoint")}
        return SQL_FORMAT(options).streamWriter(self.COLUMNS, overwrite=False)

    def run(self, folder: Path, statement: str) -> None:
        with closing(sqlite3.connect(folder / "db")) as connection, connection:
            connection.execute(statement)

    def test_a_target_that_has_changed_since_the_last_run_is_refused(self, tmp_path: Path):
        Checkpoint(tmp_path / "checkpoint").plan(0)
        self.run(tmp_path, "CREATE TABLE t (n BIGINT)")
        pickle.dumps(self.writer(tmp_path))
        self.run(tmp_path, "ALTER TABLE t RENAME COLUMN n TO other")
        before = read(DirectoryStore(tmp_path / "checkpoint" / "onceward")).start
        with pytest.raises(SchemaError, match="n"):
            pickle.dumps(self.writer(tmp_path))
        # (Rule W) What refuses comes before START.
        assert read(DirectoryStore(tmp_path / "checkpoint" / "onceward")).start == before

    def test_the_process_that_commits_does_not_validate(self, tmp_path: Path):
        """It would fail an epoch that is prepared already, and then its abort, too."""
        Checkpoint(tmp_path / "checkpoint").plan(0)
        self.writer(tmp_path)
        with pytest.raises(SchemaError, match="table t"):
            pickle.dumps(self.writer(tmp_path))

    def test_what_is_decided_is_finished_before_the_target_is_validated(self, query: Query):
        class Refuses(TargetSink):
            def validate(self, schema: pa.Schema) -> None:
                raise SchemaError(f"no column {schema.names[0]}")

        query.checkpoint.plan(0)
        messages = query.write(query.begin(), 0, [1])

        def fail(step: Step) -> None:
            if step is Step.COMMIT_BEFORE:
                raise CommitPendingError("no answer")

        with hooked(fail), pytest.raises(CommitPendingError):
            query.commit(messages, 0)
        schema = pa.schema([("n", pa.int64())])
        writer = StreamWriter(Refuses(query.key), FormatOptions.parse(query.options), schema=schema)
        with pytest.raises(SchemaError, match="no column n"):
            pickle.dumps(writer)
        assert (query.shown(), query.view().completed) == ([1], 0)


def test_each_batch_is_written_once_and_told_when_it_is_completed(query: Query):
    for batch in range(3):
        query.run(batch)
    assert query.shown() == [0, 1, 10, 11, 20, 21]
    assert query.told == [0, 1, 2]
    assert query.view().completed == 2


@pytest.mark.parametrize("batch", [0, 1])
def test_a_decided_batch_is_read_and_not_written_again(query: Query, batch: int):
    """The driver died before Spark logged the batch; a stateful query needs it run all the same."""
    for done in range(batch + 1):
        query.run(done)
    written, begun, taken = query.target.written, query.begin(), []

    def rows() -> Iterator[Any]:
        for piece in batches([99]):
            taken.append(piece)
            yield piece

    writer: StreamWriter = pickle.loads(begun)
    with running(0, properties={"streaming.sql.batchId": str(batch)}):
        message = writer.write(rows())
    query.commit([message], batch)
    assert (query.target.written, len(taken)) == (written, 1)
    assert 99 not in query.shown()


@pytest.mark.parametrize("batch", [0, 3])
def test_any_other_batch_is_refused_before_it_is_written(query: Query, batch: int):
    for done in range(2):
        query.run(done)
    query.checkpoint.forget()
    written = query.target.written
    query.checkpoint.plan(batch)
    with pytest.raises(EpochConflictError, match="the newest decided epoch is 1"):
        query.begin()
    assert query.target.written == written


def test_an_empty_log_takes_the_first_batch_only_unless_it_is_told(query: Query):
    query.checkpoint.plan(3)
    with pytest.raises(EpochConflictError, match="not at its first epoch"):
        query.begin()
    assert len(query.write(query.begin(adopt="true"), 3, [99])) == 1


def test_executors_write_the_epoch_that_was_opened_and_no_other(query: Query):
    query.checkpoint.plan(0)
    with pytest.raises(EpochConflictError, match="but epoch 0 was opened"):
        query.write(query.begin(), 1, [99])
    assert query.target.written == 0


def test_messages_of_two_starts_are_refused(query: Query):
    query.checkpoint.plan(0)
    messages = [message for _ in range(2) for message in query.write(query.begin(), 0, [1])]
    with pytest.raises(ProtocolError, match="different writers"):
        query.commit(messages, 0)
    assert query.view().decided == -1


def test_a_batch_of_which_nobody_tells_is_not_decided(query: Query):
    query.checkpoint.plan(0)
    query.begin()
    with pytest.raises(ProtocolError, match="no partition returned"):
        query.commit([], 0)


def test_a_batch_of_which_one_partition_does_not_tell_is_not_decided(query: Query):
    query.checkpoint.plan(0)
    writer: StreamWriter = pickle.loads(query.begin())
    with running(0, properties={"streaming.sql.batchId": "0"}):
        message = writer.write(iter(batches([1])))
    with pytest.raises(ProtocolError, match="1 of 2 partitions answered"):
        query.commit([message, None], 0)
    assert query.view().decided == -1


class CachingFiles(fsspec.get_filesystem_class("memory")):  # type: ignore[misc] - fsspec has no types
    """Keeps listings, as s3fs does: what a kept one does not name is not there."""

    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    kept: ClassVar[dict[str, list[str]]] = {}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        return self.kept.setdefault(path, super().ls(path, detail=detail))

    def invalidate_cache(self, path: str | None = None) -> None:
        self.kept.pop(path or "", None)

    def cat_file(self, path: str, *args: Any, **how: Any) -> Any:
        if path not in self.kept.get(path.rpartition("/")[0], [path]):
            raise FileNotFoundError(path)
        return super().cat_file(path, *args, **how)


def test_a_checkpoint_on_an_object_store_is_read_by_whichever_process(monkeypatch: pytest.MonkeyPatch):
    """Spark's Python processes live on, and each may be the first for one batch and the second for another."""
    files = CachingFiles(skip_instance_cache=True)
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url, **_: (files, url.removeprefix("objects:/")))
    monkeypatch.setattr(
        fsspec, "open", lambda url, *_, **__: io.StringIO(files.cat(url.removeprefix("objects:/")).decode())
    )
    for batch in range(12):
        files.pipe(f"/c/offsets/{batch}", b"text")
        assert newest_batch("objects://c") == batch
        files.pipe(f"/c/offsets/{batch + 1}", b"text")
        assert read_text(f"objects://c/offsets/{batch + 1}") == "text"
        files.rm(f"/c/offsets/{batch + 1}")
    with pytest.raises(ConfigurationError, match="holds no offsets"):
        newest_batch("objects://d")


def test_a_query_without_a_name_is_asked_for_its_id_once_for_each_use(query: Query, monkeypatch: pytest.MonkeyPatch):
    """It is in a file, which may be an object: the log's name and the epoch's input take one look each."""
    del query.options["pipeline"]
    query.checkpoint.plan(0)
    looks: list[str] = []
    monkeypatch.setattr(options, "read_text", lambda url: looks.append(url) or read_text(url))
    query.begin()
    moved = f"{query.checkpoint.root}/onceward/.moved"  # for a log in a store of its own
    assert [url for url in looks if url != moved] == [f"{query.checkpoint.root}/metadata"] * 2
    assert looks.count(moved) == 1


class Clock:
    """Seconds for every policy; what is asked for is gone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.asked = 100.0, 0
        monkeypatch.setattr(FormatOptions, "policy", self.policy)
        monkeypatch.setattr(TargetSink, "inspect_many", self.inspect)

    def policy(self) -> CommitPolicy:
        return policy(monotonic=lambda: self.now)

    def inspect(self, committables: Sequence[object]) -> list[Observation]:
        self.asked += len(committables)
        return [Observation.EXPIRED for _ in committables]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(("seconds", "asked"), [(TIMEOUT / 4, 0), (TIMEOUT / 4 + 1, 1)])
def test_f_the_age_of_an_epoch_travels_to_the_process_that_decides(
    query: Query, clock: Clock, seconds: float, asked: int
):
    query.checkpoint.plan(0)
    messages = query.write(query.begin(), 0, [1])
    clock.now += seconds
    if asked:
        with pytest.raises(DataLossError, match="ended before they were decided"):
            query.commit(messages, 0)
        assert query.view().decided == -1
    else:
        query.commit(messages, 0)
    assert clock.asked == asked


def test_f_what_recovery_took_counts_too(query: Query, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    """No transaction of the epoch is older than the START that it was written under, so the clock begins before it."""
    query.checkpoint.plan(0)
    listed = TargetSink.lingering

    def slow(sink: TargetSink, scope: Any) -> Any:
        clock.now += TIMEOUT / 2
        return listed(sink, scope)

    with monkeypatch.context() as patch:
        patch.setattr(TargetSink, "lingering", slow)
        begun = query.begin()
    messages = query.write(begun, 0, [1])
    with pytest.raises(DataLossError):
        query.commit(messages, 0)


def test_after_each_epoch_lost_attempts_are_swept(query: Query):
    """Nobody tells a format which of them prepared something."""
    query.checkpoint.plan(0)
    begun = query.begin()
    query.write(begun, 0, [1])
    messages = query.write(begun, 0, [1])
    query.commit(messages, 0)
    assert query.target.prepared == {}
    assert len(query.target.aborted) == 1
    assert query.shown() == [1]


def test_an_abort_bars_the_decision_and_ends_what_was_prepared(query: Query):
    query.checkpoint.plan(0)
    messages = query.write(query.begin(), 0, [1], [2])
    query.abort([*messages, None])
    assert query.target.prepared == {}
    with pytest.raises(FencedError):
        query.commit(messages, 0)
    assert query.view().decided == -1


def test_an_abort_that_comes_after_the_decision_touches_nothing(query: Query):
    """Spark calls abort with the same messages when commit has raised. Scenario 94."""
    query.checkpoint.plan(0)
    messages = query.write(query.begin(), 0, [1], [2])

    def fail(step: Step) -> None:
        if step is Step.COMMIT_BEFORE:
            raise CommitPendingError("no answer")

    with hooked(fail), pytest.raises(CommitPendingError):
        query.commit(messages, 0)
    query.abort(messages)
    assert query.target.aborted == []
    query.begin()
    assert query.shown() == [1, 2]


def test_an_abort_of_an_older_start_touches_nothing(query: Query):
    query.checkpoint.plan(0)
    messages = query.write(query.begin(), 0, [1])
    committable, rows = next(iter(query.target.prepared.values()))
    query.target.prepared.clear()
    query.begin()
    query.target.prepared[committable.transaction] = (committable, rows)
    query.target.aborted.clear()
    query.abort(messages)
    assert query.target.aborted == []


def context(sink: str, attempt: int = 0) -> WriteContext:
    return WriteContext(pipeline="p", sink=sink, log="0a0b0c0d", generation=0, epoch=0, subtask=0, attempt=attempt)


def test_a_partition_that_fails_rolls_back_in_every_sink_what_is_not_prepared(tmp_path: Path):
    class Refusing(TargetSink):
        def pre_commit(self, transaction: Any) -> Any:  # noqa: ARG002
            raise OSError("refused")

    sinks = [
        TargetSink(f"{tmp_path}/a", "a"),
        Refusing(f"{tmp_path}/b", "b"),
        TargetSink(f"{tmp_path}/c", "c"),
    ]
    with pytest.raises(OSError, match="refused"):
        write_partition(sinks, [context(s.name) for s in sinks], batches([1]))
    assert [len(sink.target.prepared) for sink in sinks] == [1, 0, 0]
    assert [len(sink.target.aborted) for sink in sinks] == [0, 1, 1]


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_retried_partition_says_so(query: Query, attempt: int):
    query.checkpoint.plan(0)
    [message] = query.write(query.begin(), 0, [1], attempt=attempt)
    assert message.acknowledgement.retried is bool(attempt)
    assert message.acknowledgement.attempt == attempt


def test_a_driver_that_onceward_run_starts_again_does_not_drive_out_a_newer_run(
    query: Query, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv(RUN_VARIABLE, str(folder))
    query.run(0)
    query.run(1)
    monkeypatch.delenv(RUN_VARIABLE)
    query.run(2)  # another run
    monkeypatch.setenv(RUN_VARIABLE, str(folder))
    query.checkpoint.plan(3)
    with pytest.raises(FencedError, match="is of another run, which has started since"):
        query.begin()
    assert (folder / OVERTAKEN).read_text().startswith("pipeline ")
    assert query.view().decided == 2
