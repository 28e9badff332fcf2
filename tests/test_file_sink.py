"""FileSink: no reader ever sees a part of a file, and each row shows once."""

from __future__ import annotations

import json
import math
import resource
import shutil
import threading
from collections import Counter
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import pytest

from onceward import FileSink
from onceward.connectors.files import file_formats
from onceward.core import CheckpointConfig, RestartStrategy
from onceward.core.checkpoint import CommitPolicy, Coordinator, OnLost
from onceward.core.contract.names import Scope, file_name
from onceward.core.contract.transaction import (
    AbortStatus,
    Acknowledgement,
    CommitStatus,
    Committable,
)
from onceward.core.errors import ConfigurationError, DataLossError, SchemaError, SinkError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import EpochInput, MemoryStore
from onceward.sources import SequenceSource

from .engine_kit import pipeline
from .sink_kit import LOG, Crash, context, prepared

if TYPE_CHECKING:
    from onceward.types import FileFormat

FORMATS: list[FileFormat] = ["parquet", "csv", "jsonl", "arrow"]
SCOPE = Scope("p", "files", LOG)
GOOD = (CommitStatus.COMMITTED, CommitStatus.ALREADY_COMMITTED)


def shown(folder: Path, format_: FileFormat) -> list[dict[str, Any]]:
    """What a reader of the folder sees, which ignores names with "_" in front."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.rglob(f"*.{format_}")):
        if any(part.startswith("_") for part in path.relative_to(folder).parts):
            continue
        if format_ == "jsonl":
            rows += [json.loads(line) for line in path.read_text().splitlines()]
        elif format_ == "csv":
            rows += pyarrow.csv.read_csv(path).to_pylist()
        elif format_ == "arrow":
            rows += pa.ipc.open_file(path.read_bytes()).read_all().to_pylist()
        else:
            rows += pyarrow.parquet.ParquetFile(path).read().to_pylist()
    return rows


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"n": n, "k": f"k{n % 3}"} for n in range(count)]


@pytest.mark.parametrize("format_", FORMATS)
def test_files_become_visible_whole_after_the_commit_and_not_before(tmp_path: Path, format_: FileFormat):
    sink = FileSink("files", tmp_path, format=format_)
    committable = prepared(sink, numbers(5), numbers(3))
    assert shown(tmp_path, format_) == []
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert shown(tmp_path, format_) == numbers(5) + numbers(3)
    assert sink.commit(committable).status is CommitStatus.ALREADY_COMMITTED
    assert shown(tmp_path, format_) == numbers(5) + numbers(3)


def test_nothing_pending_is_visible_to_a_reader_that_knows_extensions_or_hidden_names(tmp_path: Path):
    """DuckDB and globs know the extension alone; Spark looks at the last part of a path if a glob names the rest."""
    for format_ in FORMATS:
        sink = FileSink(format_, tmp_path, format=format_, partition_by=["k"])
        prepared(sink, numbers(5))
        sink.ledger().claim(Scope("p", format_, LOG))
        sink.commit(prepared(sink, numbers(1), epoch=2))
    names = [path.name for path in (tmp_path / "_onceward").rglob("*") if path.is_file()]
    assert len(names) > 3 * len(FORMATS)
    assert [name for name in names if not name.startswith(".") or name.endswith(tuple(FORMATS))] == []


def test_file_names_hold_no_colon(tmp_path: Path):
    """Spark and HDFS take what precedes it for a scheme, and Windows refuses it."""
    sink = FileSink("files", tmp_path)
    committable = prepared(sink, numbers(2))
    sink.ledger().claim(SCOPE)
    assert [path.name for path in tmp_path.rglob("*") if ":" in path.name] == []
    sink.commit(committable)
    [file] = tmp_path.glob("*.parquet")
    assert file.name == f"{file_name(committable.transaction)}-0.parquet"


VALUES = [
    "a",
    "b/c",
    None,
    "",
    "ä€😀 = 1",
    "100%",
    "%41",
    "a:b",
    "?*",
    "{[^]}\\",
    "q\"'",
    "tab\tnl\n",
    "#+~ ",
    ".",
    "\x7f",
]


def test_partitions_are_folders_that_datasets_read(tmp_path: Path):
    sink = FileSink("files", tmp_path, partition_by=["k", "d"])
    rows = [{"n": n, "k": k, "d": date(2026, 11, 21)} for n, k in enumerate(VALUES)]
    sink.commit(prepared(sink, rows))
    assert (tmp_path / "k=a" / "d=2026-11-21").is_dir()
    found = pyarrow.dataset.dataset(tmp_path, partitioning="hive").to_table().to_pylist()
    assert {row["n"]: row["k"] for row in found} == {n: k or None for n, k in enumerate(VALUES)}


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        # as Spark 4.2 writes them
        ("a/b", "v=a%2Fb"),
        ("ä€😀", "v=ä€😀"),
        ("%41", "v=%2541"),
        ("{[^]}\\", "v=%7B%5B%5E%5D}%5C"),
        ("tab\tnl\n", "v=tab%09nl%0A"),
        ("q\"'#*:=?", "v=q%22%27%23%2A%3A%3D%3F"),
        (" +~.", "v= +~."),
        ("", "v=__HIVE_DEFAULT_PARTITION__"),
        (None, "v=__HIVE_DEFAULT_PARTITION__"),
        (True, "v=true"),
        (1.5, "v=1.5"),
        (float("nan"), "v=NaN"),
        (float("inf"), "v=Infinity"),
        (float("-inf"), "v=-Infinity"),
        (-0.0, "v=-0.0"),
        (0.1, "v=0.1"),
        (0.001, "v=0.001"),
        (0.0009, "v=9.0E-4"),
        (100.0, "v=100.0"),
        (9999999.0, "v=9999999.0"),
        (1e7, "v=1.0E7"),
        (123456789.125, "v=1.23456789125E8"),
        (5e-324, "v=4.9E-324"),
        (pa.scalar(0.1, pa.float32()), "v=0.1"),
        (pa.scalar(math.nan, pa.float32()), "v=NaN"),
        (pa.scalar(1e-45, pa.float32()), "v=1.4E-45"),
        (time(10, 20, 30, 250_000), "v=10%3A20%3A30.25"),
        (pa.scalar(4 * 10**6, pa.date32()), "v=+12921-08-18"),
        (pa.scalar(-800_000, pa.date32()), "v=-0221-09-04"),
        (datetime(2026, 1, 2, 3, 0, 0, 500_000), "v=2026-01-02 03%3A00%3A00.5"),  # noqa: DTZ001 - TIMESTAMP_NTZ
        (pa.scalar(-1, pa.timestamp("s")), "v=1969-12-31 23%3A59%3A59"),
        (Decimal("1.50"), "v=1.50"),
        (Decimal("1E+2"), "v=100"),
        (date(2026, 1, 2), "v=2026-01-02"),
        # Spark leaves the offset out, and then reads another instant in another session's zone
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "v=2026-01-02 03%3A00%3A00+00%3A00"),
        (pa.scalar(1, pa.timestamp("ms", "America/New_York")), "v=1969-12-31 19%3A00%3A00.001-05%3A00"),
    ],
)
def test_a_partitions_folder_is_named_as_spark_names_it(tmp_path: Path, value: Any, folder: str):
    sink = FileSink("files", tmp_path, partition_by=["v"])
    batch = pa.RecordBatch.from_pylist([{"n": 1, "v": value}])
    transaction = sink.begin(context("files"))
    sink.write(transaction, batch)
    sink.commit(sink.pre_commit(transaction))
    assert [path.name for path in tmp_path.iterdir() if path.name != "_onceward"] == [folder]


def test_a_file_that_is_large_enough_is_followed_by_another(tmp_path: Path):
    sink = FileSink("files", tmp_path, format="jsonl", roll_bytes=50)
    committable = prepared(sink, *[numbers(3) for _ in range(4)])
    assert len(committable.handle["files"]) == 4
    sink.commit(committable)
    assert len(shown(tmp_path, "jsonl")) == 12


@pytest.mark.parametrize("format_", ["parquet", "arrow", "csv"])
def test_rows_of_another_schema_go_into_another_file(tmp_path: Path, format_: FileFormat):
    sink = FileSink("files", tmp_path, format=format_)
    sink.commit(prepared(sink, [{"a": 1}], [{"a": 2, "b": "x"}]))
    assert sorted(shown(tmp_path, format_), key=lambda row: row["a"]) == [{"a": 1}, {"a": 2, "b": "x"}]


def test_json_lines_hold_dates_decimals_and_bytes_as_text(tmp_path: Path):
    sink = FileSink("files", tmp_path, format="jsonl")
    at = datetime(2026, 11, 21, 12, tzinfo=UTC)
    sink.commit(prepared(sink, [{"at": at, "d": Decimal("1.50"), "b": b"\x00\xff", "l": [1, None]}]))
    assert shown(tmp_path, "jsonl") == [{"at": "2026-11-21T12:00:00+00:00", "d": "1.50", "b": "AP8=", "l": [1, None]}]


def test_decimals_in_json_have_all_their_digits(tmp_path: Path):
    sink = FileSink("files", tmp_path, format="jsonl")
    small = pa.array([Decimal("1E-18"), Decimal("0E-18")], pa.decimal128(38, 18))
    sink.commit(prepared(sink, pa.record_batch({"d": small})))
    assert [row["d"] for row in shown(tmp_path, "jsonl")] == ["0.000000000000000001", "0.000000000000000000"]


def in_nanoseconds(*values: int) -> pa.RecordBatch:
    """Times of day, as Spark sends them, by themselves and inside of others."""
    nested = pa.struct({"at": pa.time64("ns"), "all": pa.list_(pa.time64("ns"))})
    numbers = pa.struct({"at": pa.int64(), "all": pa.list_(pa.int64())})
    rows = pa.array([{"at": value, "all": [value]} for value in values], numbers)
    return pa.record_batch({"at": pa.array(values, pa.time64("ns")), "in": rows.cast(nested)})


@pytest.mark.parametrize("format_", ["parquet", "csv", "jsonl"])
def test_times_of_day_in_nanoseconds_are_written_in_microseconds(tmp_path: Path, format_: FileFormat):
    """Spark sends all of them so, and cannot read them so in Parquet."""
    sink, second = FileSink("files", tmp_path, format=format_), 10**9
    batch = in_nanoseconds(37_230 * second, second // 4)
    if format_ == "csv":
        batch = batch.select(["at"])
    sink.validate(batch.schema)
    sink.commit(prepared(sink, batch))
    found, times = shown(tmp_path, format_), list[Any]([time(10, 20, 30), time(0, 0, 0, 250_000)])
    if format_ != "parquet":
        digits = "auto" if format_ == "jsonl" else "microseconds"
        times = [value.isoformat(digits) for value in times]
    assert [row["at"] for row in found] == times
    if format_ == "parquet":
        [file] = tmp_path.glob("*.parquet")
        assert {str(kind) for kind in pyarrow.parquet.read_schema(file).types} == {
            "time64[us]",
            "struct<at: time64[us], all: list<element: time64[us]>>",
        }
    if format_ != "csv":
        assert [row["in"] for row in found] == [{"at": value, "all": [value]} for value in times]
    transaction = sink.begin(context("files", 2))
    with pytest.raises(SchemaError, match=r"column 'at'.*fraction of a microsecond.*\[sink files\]"):
        sink.write(transaction, in_nanoseconds(1).select(["at"]))
    sink.discard(transaction)


def test_json_holds_no_variant(tmp_path: Path):
    """Its parts mean something to Spark alone."""
    parts = [pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})]
    for kind in (pa.struct(parts), pa.list_(pa.struct(parts))):
        with pytest.raises(SchemaError, match=r"column 'v' .*variant.*to_json"):
            FileSink("files", tmp_path, format="jsonl").validate(pa.schema([("v", kind)]))


def crash_at_rename(count: int, sink: FileSink, committable: Committable) -> None:
    """Commit, and die before the n-th rename."""
    left, rename = [count], Path.rename

    def dies(path: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] == 0:
            raise Crash
        return rename(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", dies)
        with pytest.raises(Crash):
            sink.commit(committable)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("loaded", [False, True], ids=["left alone", "taken by a loader"])
def test_a_commit_that_was_cut_off_is_finished(tmp_path: Path, count: int, loaded: bool):
    """A loader may take finished files away at once: what it has is not lost."""
    folder, taken = tmp_path / "out", tmp_path / "taken"
    sink = FileSink("files", folder, format="jsonl", partition_by=["k"])
    committable = prepared(sink, numbers(9))
    crash_at_rename(count, sink, committable)
    if loaded:
        for path in folder.glob("k=*"):
            taken.mkdir(exist_ok=True)
            path.rename(taken / path.name)
    assert sink.abort(committable).status is (AbortStatus.ABORTED if count == 1 else AbortStatus.COMMITTED)
    if count > 1:
        assert FileSink("files", folder, format="jsonl").commit(committable).status in GOOD
        assert Counter(row["n"] for row in shown(folder, "jsonl") + shown(taken, "jsonl")) == Counter(range(9))
        assert sink.commit(committable).status is CommitStatus.ALREADY_COMMITTED


@pytest.mark.parametrize("calls", [["commit"] * 3, ["commit", "abort"] * 2], ids=["commits", "commits and aborts"])
def test_of_what_is_done_at_once_all_or_nothing_becomes_visible_and_everybody_is_told(tmp_path: Path, calls: list[str]):
    for epoch in range(30):
        sink = FileSink("files", tmp_path / str(epoch), format="jsonl", partition_by=["k"])
        committable, said = prepared(sink, numbers(9), epoch=epoch), list[tuple[str, str]]()
        ready = threading.Barrier(len(calls))

        def go(call: str, sink: FileSink = sink, committable: Committable = committable) -> None:
            ready.wait()  # noqa: B023 - joined below
            said.append((call, getattr(sink, call)(committable).status))  # noqa: B023

        threads = [threading.Thread(target=go, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = len(shown(tmp_path / str(epoch), "jsonl"))
        commits = {status for call, status in said if call == "commit"}
        aborts = {status for call, status in said if call == "abort"}
        assert len(said) == len(calls)
        assert (rows, commits <= set(GOOD), AbortStatus.ABORTED in aborts) in ((9, True, False), (0, False, True))


@pytest.mark.parametrize("on_lost", list(OnLost))
def test_files_that_a_loader_takes_before_the_epoch_is_completed_are_not_lost(tmp_path: Path, on_lost: OnLost):
    """Neither a false alarm, nor a record of a loss, nor rows that are written again."""
    folder, store, about = tmp_path / "out", MemoryStore(), EpochInput(query="q", end=0)
    sink = FileSink("files", folder, format="jsonl")

    def start() -> Coordinator:
        coordinator = Coordinator("p", store, [sink], CommitPolicy(on_lost=on_lost))
        coordinator.open()
        return coordinator

    def die(step: Step) -> None:
        if step is Step.COMPLETE_BEFORE:
            raise Crash

    first = start()
    transaction = sink.begin(first.context("files", 0, subtask=0))
    sink.write(transaction, pa.RecordBatch.from_pylist(numbers(3)))
    ack = Acknowledgement(epoch=0, subtask=0, attempt=0, sinks=("files",), committables=(sink.pre_commit(transaction),))
    first.admit(0, about)
    with hooked(die), pytest.raises(Crash):
        first.commit(0, [ack], about)
    [file] = folder.glob("*.jsonl")
    file.rename(tmp_path / "taken")
    view = start().view
    assert (view.completed, view.skipped) == (0, frozenset())
    assert shown(folder, "jsonl") == []


def test_a_pending_file_that_is_gone_is_a_loss(tmp_path: Path):
    sink = FileSink("files", tmp_path, format="jsonl", partition_by=["k"])
    committable = prepared(sink, numbers(9))
    shutil.rmtree(next((tmp_path / "_onceward" / file_name(committable.transaction)).iterdir()))
    outcome = sink.commit(committable)
    assert outcome.status is CommitStatus.LOST
    assert "k=k" in outcome.detail
    assert shown(tmp_path, "jsonl") == []


def test_an_abort_that_was_cut_off_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sink = FileSink("files", tmp_path)
    committable = prepared(sink, numbers(2))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            sink.abort(committable)
    assert sink.commit(committable).status is CommitStatus.LOST
    [left] = sink.lingering(SCOPE)
    assert sink.abort(left).status is AbortStatus.ABORTED
    assert list(sink.lingering(SCOPE)) == []


def test_rows_that_a_format_cannot_hold_are_an_error_of_ours(tmp_path: Path):
    wrong: list[tuple[FileFormat, Any]] = [("jsonl", {"n": float("nan")}), ("csv", {"n": b"\xff"})]
    for format_, row in wrong:
        sink = FileSink("files", tmp_path, format=format_)
        transaction = sink.begin(context("files"))
        with pytest.raises(SinkError, match=r"cannot be written as .*: column 'n'"):
            sink.write(transaction, pa.RecordBatch.from_pylist([row]))
        sink.discard(transaction)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_columns_of_one_name_are_refused(tmp_path: Path):
    for format_ in FORMATS:
        with pytest.raises(SchemaError, match=r"sink files: columns \['a', 'a'\] have the same name"):
            FileSink("files", tmp_path, format=format_).validate(pa.schema([("a", pa.int64()), ("a", pa.int64())]))


@pytest.mark.parametrize("partition_by", [[], ["k"]])
def test_a_null_alone_in_its_line_of_csv_is_refused(tmp_path: Path, partition_by: list[str]):
    """It would be an empty line, which Spark and pyarrow skip."""
    sink = FileSink("files", tmp_path, format="csv", partition_by=partition_by)
    rows = [{"word": word, "k": 1} if partition_by else {"word": word} for word in ("x", "", None)]
    sink.commit(prepared(sink, rows[:2]))
    [file] = tmp_path.rglob("*.csv")
    assert file.read_text() == '"word"\n"x"\n""\n'
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["x", None]))
    for batch in (pa.RecordBatch.from_pylist(rows), pa.record_batch({"word": coded, "k": [1, 1]}).select([*rows[0]])):
        transaction = sink.begin(context("files", 2))
        with pytest.raises(SchemaError, match=r"'word' is null.*another format.*a second column.*\[sink files\]"):
            sink.write(transaction, batch)
        sink.discard(transaction)


@pytest.mark.parametrize("format_", ["parquet", "jsonl", "arrow"])
def test_a_struct_that_is_null_may_have_fields_that_never_are(tmp_path: Path, format_: FileFormat):
    never = pa.struct([pa.field("reason", pa.string(), nullable=False)])
    structs = pa.StructArray.from_buffers(never, 2, [pa.py_buffer(b"\2")], children=[pa.array([None, "late"])])
    sink = FileSink("files", tmp_path, format=format_)
    sink.commit(prepared(sink, pa.record_batch({"rejected": structs})))
    assert shown(tmp_path, format_) == [{"rejected": None}, {"rejected": {"reason": "late"}}]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ms", "Europe/Berlin"), pa.date32(), pa.date64()])
def test_years_that_csv_cannot_hold_are_told_with_their_column(tmp_path: Path, kind: pa.DataType):
    """Arrow writes `<value out of range: …>`, or of an instant with a zone another year."""
    days = pa.array([None, 11 * 10**6, 12 * 10**6], pa.int32()).cast(pa.date32())  # of the years 32086 and 34824
    batch = pa.record_batch({"n": [0, 1, 2], "at": days.cast(kind)})
    sink = FileSink("files", tmp_path, format="csv")
    transaction = sink.begin(context("files"))
    sink.write(transaction, batch.slice(0, 2))
    with pytest.raises(SchemaError, match=r"column 'at' has a time outside of the years -32767 to 32767.*sink files"):
        sink.write(transaction, batch)
    sink.discard(transaction)


def test_bytes_that_csv_cannot_hold_are_told_with_their_column(tmp_path: Path):
    sink = FileSink("files", tmp_path, format="csv")
    with pytest.raises(SinkError, match=r"column 'b' holds bytes that are not UTF-8.*base64"):
        prepared(sink, pa.record_batch({"a": [b"x"], "b": [b"\xff"]}))


def test_a_folders_name_that_is_too_long_ends_the_pipeline(tmp_path: Path):
    """A restart would meet the same row again."""
    job = pipeline("p")
    job.source(SequenceSource([{"n": 1, "k": "x" * 300}])).sink(FileSink("files", tmp_path, partition_by=["k"]))
    with pytest.raises(ConfigurationError, match=r"k=xxx.*too long for the name of a folder"):
        job.run()


def test_a_folders_name_that_is_too_long_is_a_refusal_of_its_row(tmp_path: Path):
    sink = FileSink("files", tmp_path, partition_by=["k"])
    with pytest.raises(ConfigurationError) as refused:
        prepared(sink, pa.RecordBatch.from_pylist([{"n": 1, "k": "x" * 300}]))
    assert refused.value.refuses_rows


def test_more_partitions_than_files_may_be_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The least recently used file is completed."""
    monkeypatch.setattr(file_formats, "OPEN_FILES", 5, raising=False)
    sink = FileSink("files", tmp_path, partition_by=["k"])
    transaction = sink.begin(context("files"))
    before = open_files()
    for n in range(30):
        sink.write(transaction, pa.RecordBatch.from_pylist([{"n": n, "k": 0 if n % 2 else n}]))
        assert open_files() <= before + 5
    sink.commit(sink.pre_commit(transaction))
    assert sorted(row["n"] for row in shown(tmp_path, "parquet")) == list(range(30))
    assert len(list(tmp_path.glob("k=0/*.parquet"))) == 1


def test_a_limit_of_open_files_that_is_too_low_is_a_wrong_setting(tmp_path: Path):
    sink = FileSink("files", tmp_path, partition_by=["k"], format="jsonl")
    transaction = sink.begin(context("files"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 20, limits[1]))
    try:
        with pytest.raises(ConfigurationError, match=r"Too many open files.*ulimit -n") as refused:
            sink.write(transaction, pa.RecordBatch.from_pylist([{"n": n, "k": n} for n in range(100)]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    sink.discard(transaction)
    assert not refused.value.refuses_rows


@pytest.mark.parametrize(
    ("options", "match"),
    [({"format": "xml"}, "format 'xml'"), ({"roll_bytes": 0}, "roll_bytes"), ({"folder": "s3://b"}, "is a URL")],
)
def test_a_setting_without_sense_is_refused(tmp_path: Path, options: dict[str, Any], match: str):
    with pytest.raises(ConfigurationError, match=match):
        FileSink(**{"name": "files", "folder": tmp_path, **options})


@pytest.mark.parametrize(
    ("options", "rows", "match"),
    [
        ({"partition_by": ["no"]}, {"a": 1}, r"names \['no'\]"),
        ({"partition_by": ["a"]}, {"a": 1}, "leaves no column"),
        ({"partition_by": ["a", "a"]}, {"a": 1, "b": 2}, "names a column twice"),
        ({"format": "csv"}, {"a": [1]}, "csv files cannot hold column 'a'"),
        ({"format": "parquet"}, {"a": {}}, r"parquet files cannot hold column 'a' of type struct<> .*: cast it"),
        ({"format": "jsonl"}, {"a": pa.scalar(1, pa.timestamp("ns"))}, "column 'a' of type timestamp"),
        ({"partition_by": ["b"]}, {"a": 1, "b": b"x"}, "'b' is binary: cast it"),
        ({"partition_by": ["_b"]}, {"a": 1, "_b": 1}, "treat folders that begin with"),
        ({}, {"a": 1, "A": 2}, r"columns \['a', 'A'\] have the same name"),
        (
            {"format": "csv", "partition_by": ["a"]},
            {"a": 1, "A": 2, "b": 3},
            r"columns \['a', 'A'\] have the same name",
        ),
        ({}, {"d": pa.scalar(Decimal("1E+2"), pa.decimal128(5, -2))}, r"column 'd'.*negative scale.*cast it"),
        (
            {},
            {"l": pa.scalar([Decimal("1E+2")], pa.list_(pa.decimal128(5, -2)))},
            r"column 'l'.*negative scale.*cast it",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], rows: dict[str, Any], match: str
):
    sink = FileSink("files", tmp_path, **options)
    with pytest.raises(SchemaError, match=match):
        sink.validate(pa.RecordBatch.from_pylist([rows]).schema)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format_", FORMATS)
def test_in_a_pipeline_that_fails_at_each_step_each_row_takes_effect_once(tmp_path: Path, format_: FileFormat):
    rows = numbers(300)
    left = list(Step)[:]
    lock = threading.Lock()

    def hook(step: Step) -> None:
        with lock:
            if step not in left:
                return
            left.remove(step)
        raise ConnectionError(f"told to fail at {step}")

    p = pipeline(
        store=MemoryStore(),
        checkpointing=CheckpointConfig(interval=0.01, tolerable_failures=100),
        restart=RestartStrategy.fixed_delay(attempts=100, delay=0),
    )
    sink = FileSink("files", tmp_path, format=format_, partition_by=["k"])
    p.source(SequenceSource(rows, units=2, batch_rows=10), parallelism=2).sink(sink, parallelism=2)
    with hooked(hook):
        job = p.start()
        assert p.wait(60)
    assert job.restarts > 5
    assert Counter(row["n"] for row in shown(tmp_path, format_)) == Counter(range(300))


def test_a_folder_that_went_back_to_an_older_copy_is_noticed_at_the_start(tmp_path: Path):
    """Without anything that waits: the newest completed epoch has left its proof, and the copy has none."""
    folder, copy, store = tmp_path / "out", tmp_path / "copy", MemoryStore()
    for epoch in range(3):
        coordinator = Coordinator("p", store, [FileSink("files", folder)])
        coordinator.open()
        if epoch == 2:
            shutil.copytree(folder, copy)
        transaction = coordinator.sinks["files"].begin(coordinator.context("files", epoch, subtask=0))
        coordinator.sinks["files"].write(transaction, pa.RecordBatch.from_pylist(numbers(3)))
        committables = (coordinator.sinks["files"].pre_commit(transaction),)
        ack = Acknowledgement(epoch=epoch, subtask=0, attempt=0, sinks=("files",), committables=committables)
        about = EpochInput(query="q", digest=str(epoch))
        coordinator.admit(epoch, about)
        coordinator.commit(epoch, [ack], about)
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    with pytest.raises(DataLossError, match="was a lagging standby promoted, or a backup restored"):
        Coordinator("p", store, [FileSink("files", folder)]).open()


def test_a_folder_that_is_a_file_is_told_before_anything_is_written(tmp_path: Path):
    (tmp_path / "out").touch()
    with pytest.raises(ConfigurationError, match="out is not a folder"):
        FileSink("files", tmp_path / "out").validate(pa.schema([("n", pa.int64())]))


def test_a_folder_whose_bytes_are_no_text_is_refused_by_name(tmp_path: Path):
    sink = FileSink("files", tmp_path, partition_by=("city",))
    city = pa.array([b"K\xf6ln"], pa.binary()).view(pa.string())
    with pytest.raises(SchemaError, match=r"partition_by column 'city' holds bytes that are not UTF-8 \(b'K\\xf6ln'\)"):
        sink.write(sink.begin(context("files")), pa.record_batch({"city": city, "n": [1]}))


@pytest.mark.parametrize(
    ("metadata", "below", "match"),
    [
        ("_spark_metadata/0", "", r"Spark's file sink.*_spark_metadata.*Give another folder.*move .*away"),
        ("_delta_log/0.json", "", "belongs to a Delta Lake table"),
        ("_delta_log/0.json", "country=de", "belongs to a Delta Lake table"),
        (".hoodie/hoodie.properties", "", "belongs to a Hudi table"),
        ("metadata/v1.metadata.json", "", "belongs to an Iceberg table"),
        ("metadata/00001-a.metadata.json.gz", "", "belongs to an Iceberg table"),
        ("metadata/version-hint.text", "data", "belongs to an Iceberg table"),
    ],
)
def test_a_folder_whose_metadata_decide_what_readers_see_is_refused(
    tmp_path: Path, metadata: str, below: str, match: str
):
    (tmp_path / metadata).parent.mkdir()
    (tmp_path / metadata).touch()
    before = set(tmp_path.rglob("*"))
    with pytest.raises(ConfigurationError, match=match):
        FileSink("files", tmp_path / below).validate(pa.schema([("n", pa.int64())]))
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("partition_by", "there", "fits"),
    [
        (["k"], "k=a/0.parquet", True),
        (["k", "j"], "k=a/j=b/0.parquet", True),
        (["a b", "j"], "a b=1/j=b/0.parquet", True),
        (["a:b"], "a%3Ab=1/0.parquet", True),
        (["k"], "README.md", True),
        (["k"], "_SUCCESS", True),
        ([], "part-0.parquet", True),
        ([], "archive/0.parquet", True),
        ([], "_old/k=a/0.parquet", True),
        ([], "k=a/0.parquet", False),
        (["k"], "part-0.parquet", False),
        (["k"], "j=a/0.parquet", False),
        (["k"], "K=a/0.parquet", False),
        (["k"], "archive/0.parquet", False),
        (["k"], "k=a/j=b/0.parquet", False),
        (["k", "j"], "j=b/k=a/0.parquet", False),
        (["k", "j"], "k=a/0.parquet", False),
    ],
)
def test_a_folder_that_is_partitioned_otherwise_is_refused(
    tmp_path: Path, partition_by: list[str], there: str, fits: bool
):
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).touch()
    schema = pa.schema([(name, pa.string()) for name in ("n", "k", "j", "a b", "a:b")])
    sink = FileSink("files", tmp_path, partition_by=partition_by)
    if fits:
        sink.validate(schema)
        return
    with pytest.raises(ConfigurationError, match=r"does not fit partition_by, .*Set partition_by.*\[sink files\]"):
        sink.validate(schema)


def test_empty_folders_of_other_partitions_are_no_obstacle(tmp_path: Path):
    (tmp_path / "day=1" / "_temporary").mkdir(parents=True)
    FileSink("files", tmp_path, partition_by=["k"]).validate(pa.schema([("n", pa.int64()), ("k", pa.string())]))


def in_the_way(path: Path, kind: str) -> None:
    if kind == "a file":
        path.touch()
    else:
        path.symlink_to(path.with_name("nowhere"))


@pytest.mark.parametrize("kind", ["a file", "a link to nothing"])
def test_what_is_in_the_way_of_a_partition_is_reported_before_the_decision(tmp_path: Path, kind: str):
    sink = FileSink("files", tmp_path, partition_by=["k"])
    in_the_way(tmp_path / "k=k1", kind)
    with pytest.raises(
        SinkError, match=r"k=k1'?: a file, or a link to nothing, is where.*move it away.*files"
    ) as caught:
        prepared(sink, numbers(3))
    assert not caught.value.retryable
    (tmp_path / "k=k1").unlink()
    sink.commit(prepared(sink, numbers(3)))
    assert len(shown(tmp_path, "parquet")) == 3


@pytest.mark.parametrize("kind", ["a file", "a link to nothing"])
def test_what_is_put_in_the_way_after_the_decision_is_no_fault_that_passes(tmp_path: Path, kind: str):
    """The pipeline stops at once, with what to do; a start commits the rest once that is done."""
    sink = FileSink("files", tmp_path, partition_by=["k"])
    committable = prepared(sink, numbers(3))
    in_the_way(tmp_path / "k=k1", kind)
    with pytest.raises(SinkError, match=r"is where a folder must be: move it away") as caught:
        sink.commit(committable)
    assert not caught.value.retryable
    (tmp_path / "k=k1").unlink()
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert len(shown(tmp_path, "parquet")) == 3


def test_a_link_to_a_folder_of_the_same_file_system_may_be_a_partition(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "k=k1").symlink_to(tmp_path / "elsewhere")
    sink = FileSink("files", tmp_path / "out", partition_by=["k"])
    sink.commit(prepared(sink, numbers(3)))
    assert len(list((tmp_path / "elsewhere").glob("*.parquet"))) == 1


def test_a_link_to_nothing_is_no_folder(tmp_path: Path):
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="out is not a folder"):
        FileSink("files", tmp_path / "out").validate(pa.schema([("n", pa.int64())]))


def test_partitions_that_a_file_system_takes_for_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file system of this test ignores case in so far as one folder has two names."""
    sink = FileSink("files", tmp_path, partition_by=["k"])
    sink.commit(prepared(sink, [{"n": 1, "k": "de"}]))
    iterdir = Path.iterdir
    (tmp_path / "_ONCEWARD").symlink_to(tmp_path / "_onceward")
    (tmp_path / "k=DE").symlink_to(tmp_path / "k=de")
    monkeypatch.setattr(Path, "iterdir", lambda path: (each for each in iterdir(path) if each.name != "k=DE"))
    with pytest.raises(ConfigurationError, match=r"has a folder k=de, which is k=DE, too.*make the values alike"):
        prepared(sink, [{"n": 2, "k": "DE"}], epoch=2)
    sink.commit(prepared(sink, [{"n": 3, "k": "de"}], epoch=2))


@pytest.mark.parametrize("format_", FORMATS)
def test_dictionaries_may_differ_between_batches(tmp_path: Path, format_: FileFormat):
    """An Arrow file has one for each column, so another one begins a new file."""
    words = [["a", "b"], ["c", "a"], ["c", "a"], ["a", None]]
    batches = [pa.record_batch({"n": [0, 1], "k": pa.array(pair).dictionary_encode()}) for pair in words]
    if format_ in ("jsonl", "arrow"):  # pyarrow cannot read them in Parquet
        nested = [pa.StructArray.from_arrays([batch["k"]], names=["w"]) for batch in batches]
        batches = [batch.append_column("s", each) for batch, each in zip(batches, nested, strict=True)]
    sink = FileSink("files", tmp_path, format=format_)
    committable = prepared(sink, *batches)
    assert len(committable.handle["files"]) == (3 if format_ == "arrow" else 1)
    sink.commit(committable)
    found = shown(tmp_path, format_)
    assert [row["k"] or None for row in found] == [word for pair in words for word in pair]
    assert "s" not in found[0] or [row["s"]["w"] for row in found] == [row["k"] for row in found]


def test_a_sink_shows_its_name_folder_and_format(tmp_path: Path):
    assert repr(FileSink("orders", tmp_path, format="csv")) == f"FileSink('orders', {str(tmp_path)!r}, format='csv')"
