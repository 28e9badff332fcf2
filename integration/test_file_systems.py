"""File systems that lack room, or lie across another one: what sinks of folders do there, on a real small disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.sink_kit import prepared

from onceward import FileSink
from onceward.core.errors import SinkError
from onceward.core.transaction import CommitStatus

from .disk_kit import Disk, mounted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
