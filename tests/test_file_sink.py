"""FileSink: no reader ever sees a part of a file, and each row shows once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import pytest

from onceward.core import CheckpointConfig, RestartStrategy
from onceward.core.errors import ConfigurationError, EpochConflictError, SchemaError
from onceward.core.log.memory import MemoryStore
from onceward.core.names import Scope
from onceward.core.steps import Step, hooked
from onceward.core.transaction import AbortStatus, CommitStatus, Committable, WriteContext
from onceward.sinks import FileSink
from onceward.sources import SequenceSource

from .engine_kit import pipeline

FORMATS = ["parquet", "csv", "jsonl", "arrow"]
SCOPE = Scope("p", "files", "0123abcd")


def context(epoch: int = 1) -> WriteContext:
    return WriteContext(pipeline="p", sink="files", log="0123abcd", writer=1, epoch=epoch, subtask=0)


def prepared(sink: FileSink, *batches: list[dict[str, Any]], epoch: int = 1) -> Committable:
    transaction = sink.begin(context(epoch))
    for rows in batches:
        batch = pa.RecordBatch.from_pylist(rows)
        sink.validate(batch.schema)
        sink.write(transaction, batch)
    return sink.pre_commit(transaction)


def shown(folder: Path, format_: str) -> list[dict[str, Any]]:
    """What a reader of the folder sees, which passes over names with "_" in front."""
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


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"n": n, "k": f"k{n % 3}"} for n in range(count)]


@pytest.mark.parametrize("format_", FORMATS)
def test_files_show_whole_after_the_commit_and_not_before(tmp_path: Path, format_: str):
    sink = FileSink("files", tmp_path, format=format_)
    committable = prepared(sink, numbers(5), numbers(3))
    assert shown(tmp_path, format_) == []
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert shown(tmp_path, format_) == numbers(5) + numbers(3)
    assert sink.commit(committable).status is CommitStatus.ALREADY_COMMITTED
    assert shown(tmp_path, format_) == numbers(5) + numbers(3)


def test_partitions_are_folders_that_datasets_read(tmp_path: Path):
    sink = FileSink("files", tmp_path, partition_by=["k", "d"])
    rows = [{"n": n, "k": k, "d": date(2026, 11, 21)} for n, k in enumerate(["a", "b/c", None, "ä = 1", "a"])]
    sink.commit(prepared(sink, rows))
    assert (tmp_path / "k=a" / "d=2026-11-21").is_dir()
    found = pyarrow.dataset.dataset(tmp_path, partitioning="hive").to_table().to_pylist()
    assert sorted((row["n"], row["k"]) for row in found if row["k"] is not None) == [
        (0, "a"),
        (1, "b/c"),
        (3, "ä = 1"),
        (4, "a"),
    ]
    assert [row["n"] for row in found if row["k"] is None] == [2]


def test_a_file_that_is_large_enough_is_followed_by_another(tmp_path: Path):
    sink = FileSink("files", tmp_path, format="jsonl", roll_bytes=50)
    committable = prepared(sink, *[numbers(3) for _ in range(4)])
    assert len(committable.handle["files"]) == 4
    sink.commit(committable)
    assert len(shown(tmp_path, "jsonl")) == 12


@pytest.mark.parametrize("format_", ["parquet", "arrow", "csv"])
def test_rows_of_another_schema_go_into_another_file(tmp_path: Path, format_: str):
    sink = FileSink("files", tmp_path, format=format_)
    sink.commit(prepared(sink, [{"a": 1}], [{"a": 2, "b": "x"}]))
    assert sorted(shown(tmp_path, format_), key=lambda row: row["a"]) == [{"a": 1}, {"a": 2, "b": "x"}]


def test_json_lines_hold_dates_decimals_and_bytes_as_text(tmp_path: Path):
    sink = FileSink("files", tmp_path, format="jsonl")
    at = datetime(2026, 11, 21, 12, tzinfo=UTC)
    sink.commit(prepared(sink, [{"at": at, "d": Decimal("1.50"), "b": b"\x00\xff", "l": [1, None]}]))
    assert shown(tmp_path, "jsonl") == [{"at": "2026-11-21T12:00:00+00:00", "d": "1.50", "b": "00ff", "l": [1, None]}]


def test_what_is_aborted_is_gone_and_what_is_finished_is_not(tmp_path: Path):
    sink = FileSink("files", tmp_path)
    first, second = prepared(sink, numbers(2)), prepared(sink, numbers(2))
    assert sink.abort(first).status is AbortStatus.ABORTED
    assert sink.commit(first).status is CommitStatus.LOST
    sink.commit(second)
    assert sink.abort(second).status is AbortStatus.COMMITTED
    assert len(shown(tmp_path, "parquet")) == 2


def test_a_commit_that_was_cut_off_between_two_files_is_finished(tmp_path: Path):
    sink = FileSink("files", tmp_path, format="jsonl", partition_by=["k"])
    committable = prepared(sink, numbers(9))
    first = committable.handle["files"][0]
    final = tmp_path / Path(first).parent / f"{committable.transaction}-{Path(first).name}"
    final.parent.mkdir()
    (tmp_path / "_onceward" / committable.transaction / first).rename(final)
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert Counter(row["n"] for row in shown(tmp_path, "jsonl")) == Counter(range(9))


def test_what_lingers_is_found_by_its_exact_name(tmp_path: Path):
    sink = FileSink("files", tmp_path)
    committable = prepared(sink, numbers(2))
    begun = sink.begin(context(2))
    assert {c.transaction for c in sink.lingering(SCOPE)} == {committable.transaction, str(begun.name)}
    assert list(sink.lingering(Scope("p", "file", "0123abcd"))) == []
    for found in sink.lingering(SCOPE):
        assert sink.abort(found).status is AbortStatus.ABORTED
    assert list(sink.lingering(SCOPE)) == []


def test_a_discarded_transaction_leaves_nothing(tmp_path: Path):
    sink = FileSink("files", tmp_path)
    transaction = sink.begin(context())
    sink.write(transaction, pa.RecordBatch.from_pylist(numbers(3)))
    sink.discard(transaction)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_knows_the_name_from_another_log_refuses_it(tmp_path: Path):
    sink = FileSink("files", tmp_path)
    sink.claim(SCOPE)
    with pytest.raises(EpochConflictError):
        sink.claim(SCOPE._replace(log="ffff0000"))


@pytest.mark.parametrize(
    ("options", "match"),
    [({"format": "xml"}, "format 'xml'"), ({"roll_bytes": 0}, "roll_bytes"), ({"directory": "s3://b"}, "no folder")],
)
def test_a_setting_without_sense_is_refused(tmp_path: Path, options: dict[str, Any], match: str):
    with pytest.raises(ConfigurationError, match=match):
        FileSink(**{"name": "files", "directory": tmp_path, **options})


@pytest.mark.parametrize(
    ("options", "rows", "match"),
    [
        ({"partition_by": ["no"]}, {"a": 1}, r"names \['no'\]"),
        ({"partition_by": ["a"]}, {"a": 1}, "leaves no column"),
        ({"format": "csv"}, {"a": [1]}, "CSV cannot hold column 'a'"),
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
def test_in_a_pipeline_that_fails_at_each_step_each_row_shows_once(tmp_path: Path, format_: str):
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
        checkpoint=CheckpointConfig(interval=0.01, tolerable_failures=100),
        restart=RestartStrategy.fixed_delay(attempts=100, delay=0),
    )
    sink = FileSink("files", tmp_path, format=format_, partition_by=["k"])
    p.source(SequenceSource(rows, units=2, batch_rows=10), parallelism=2).sink(sink, parallelism=2)
    with hooked(hook):
        job = p.start()
        assert p.wait(60)
    assert job.restarts > 5
    assert Counter(row["n"] for row in shown(tmp_path, format_)) == Counter(range(300))
