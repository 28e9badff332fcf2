"""File systems that lack room, or lie across another one: what sinks of folders do there, on a real small disk."""

from __future__ import annotations

import gc
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.sink_kit import LOG, Mailbox, context, prepared

from onceward import FileSink
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import RetryableSinkError, SinkError

from .disk_kit import Disk, mounted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.sinks.write_ahead import Delivery


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path / "disk", "1m") as small:
        yield small


def rows(*keys: str) -> list[dict[str, Any]]:
    return [{"n": number, "k": key} for number, key in enumerate(keys)]


def test_a_partition_on_another_file_system_is_refused_before_the_decision(disk: Disk, tmp_path: Path) -> None:
    sink = FileSink("files", tmp_path / "out", partition_by=["k"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "k=b").symlink_to(disk.folder)
    with pytest.raises(SinkError, match=r"cannot be moved to another file system: replace the link") as caught:
        prepared(sink, rows("a", "b"))
    assert not caught.value.retryable
    sink.commit(prepared(sink, rows("a", "c")))


def test_a_partition_that_becomes_another_file_system_later_stops_the_commit_at_once(
    disk: Disk, tmp_path: Path
) -> None:
    sink = FileSink("files", tmp_path / "out", partition_by=["k"])
    committable = prepared(sink, rows("a", "b"))
    (tmp_path / "out" / "k=b").symlink_to(disk.folder)
    with pytest.raises(SinkError, match=r"cannot be moved to another file system: replace the link") as caught:
        sink.commit(committable)
    assert not caught.value.retryable
    (tmp_path / "out" / "k=b").unlink()
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert len(list((tmp_path / "out").glob("k=*/*.parquet"))) == 2


def test_a_folder_of_pending_files_on_another_file_system_is_refused_at_the_start(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "_onceward").symlink_to(disk.folder)
    with pytest.raises(SinkError, match=r"cannot be moved to another file system"):
        FileSink("files", tmp_path / "out").validate(pa.schema([("n", pa.int64())]))


def open_below(folder: Path) -> list[str]:
    links = (link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return [str(link) for link in links if link.is_relative_to(folder)]


@pytest.mark.parametrize("format_", ["parquet", "csv", "jsonl", "arrow"])
@pytest.mark.parametrize("full", ["at the first file", "while files are written", "when they are completed"])
def test_a_full_disk_leaves_no_open_file_and_nothing_pending(disk: Disk, format_: str, full: str) -> None:
    sink = FileSink("files", disk.folder / "out", format=format_, partition_by=["k"])
    sink.commit(prepared(sink, rows("a")))
    transaction = sink.begin(context("files", 2))
    if full == "at the first file":
        disk.fill()
    with pytest.raises(RetryableSinkError, match="No space left on device") as caught:
        write(sink, transaction, disk, until_full=full == "while files are written")
    assert "No space left" in str(caught.value.__cause__)
    sink.discard(transaction)
    gc.collect()  # nothing that is left open says so now
    assert open_below(disk.folder) == []
    assert list(sink.lingering(Scope("p", "files", LOG))) == []
    disk.make_room()
    sink.commit(prepared(sink, rows("a", "b"), epoch=2))


def write(sink: FileSink, transaction: Any, disk: Disk, *, until_full: bool) -> None:
    """Write rows that do not compress, until the disk is full; or a few, which are in buffers when it is filled."""
    for number in range(1000 if until_full else 1):
        words = [secrets.token_hex(500 if until_full else 10) for _ in range(20)]
        sink.write(transaction, pa.record_batch({"word": words, "k": [f"k{(number + n) % 3}" for n in range(20)]}))
    disk.fill()
    sink.pre_commit(transaction)


@pytest.mark.parametrize("before", [0, 1, 600], ids=["before the first", "after the first", "after many"])
def test_a_full_disk_of_segments_repeats_no_delivery(disk: Disk, before: int) -> None:
    """Not even to a target that recognizes none."""

    class Filling(Mailbox):
        def send(self, rows: pa.RecordBatch, delivery: Delivery) -> None:
            super().send(rows, delivery)
            if len(self.taken) == before:
                disk.fill()

    sink = Filling(disk.folder / "segments", rows_per_send=1)
    committable = prepared(sink, range(1000))
    if before == 0:
        disk.fill()
    for _ in range(5):
        assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert before <= len(sink.rows) < 1000
    disk.make_room()
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert sink.rows == list(range(1000))
