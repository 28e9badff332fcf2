"""What others wrote into a decision log's folder: nothing is written elsewhere, hangs, or hides another pipeline."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from onceward.cli.ui.desk import Unsynced
from onceward.core.errors import StoreError
from onceward.core.log import DirectoryStore
from onceward.core.log.entries import key_of
from onceward.core.log.notes import FILE, note, notes
from onceward.core.log.store import MOST_BYTES

from .ui_kit import Folder

if TYPE_CHECKING:
    from pathlib import Path

    from onceward.cli.ui.desk import Desk

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("ui_jobs", None)
    return Folder(tmp_path)


def test_a_note_is_not_written_through_a_link(tmp_path: Path) -> None:
    store, other = DirectoryStore(tmp_path / "log"), tmp_path / "other"
    other.write_bytes(b"")
    (store.path / FILE).symlink_to(other)
    note(store, "epoch", {"epoch": 1})
    assert other.read_bytes() == b""


def test_notes_are_not_read_through_a_link(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "log")
    note(store, "epoch", {"epoch": 1})
    (store.path / FILE).rename(tmp_path / "other")
    (store.path / FILE).symlink_to(tmp_path / "other")
    assert notes(store.path, 10) == []


def test_a_pipe_in_place_of_the_notes_hangs_neither_the_pipeline_nor_the_page(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "log")
    os.mkfifo(store.path / FILE)
    note(store, "epoch", {"epoch": 1})
    assert notes(store.path, 10) == []


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "sparse"])
def test_an_entry_that_is_no_regular_file_of_an_entrys_size_is_not_read(tmp_path: Path, kind: str) -> None:
    store, entry = DirectoryStore(tmp_path / "log"), tmp_path / "log" / key_of(0)
    if kind == "link":
        (tmp_path / "other").write_bytes(b"secret")
        entry.symlink_to(tmp_path / "other")
    elif kind == "pipe":
        os.mkfifo(entry)
    elif kind == "folder":
        entry.mkdir()
    else:
        entry.touch()
        os.truncate(entry, 3 * MOST_BYTES)
    for reader in (store, Unsynced(store.path)):
        with pytest.raises(StoreError, match=key_of(0)):
            reader.get(key_of(0))


@pytest.mark.parametrize("name", ["²", "٣", "9" * 100])
def test_a_file_in_offsets_that_is_no_batch_hides_no_epoch(folder: Folder, name: str) -> None:
    folder.finish(0)
    (folder.orders / "offsets" / name).write_text("v1")
    [orders] = folder.watch().look()
    assert ([row.epoch for row in orders.shown.epochs], orders.shown.error) == ([0], "")


def test_an_entry_that_is_truncated_while_the_page_is_open_is_shown_at_its_pipeline(folder: Folder) -> None:
    folder.finish(0)
    folder.run_engine()
    watch = folder.watch()
    watch.look()
    newest = max((folder.orders / "onceward").glob("0*"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:20])
    shown = {one.shown.pipeline: one.shown.error for one in watch.look()}
    assert newest.name.lstrip("0") in shown["orders"]
    assert shown["totals"] == ""
    newest.write_bytes(whole)
    assert [one.shown.error for one in watch.look()] == ["", ""]


def listed(desk: Desk) -> list[Any]:
    update = desk.state()
    assert update is not None
    return [msgspec.json.decode(part) for name, part in update.parts.items() if name]


def pipeline(desk: Desk, id_: str) -> Any:
    update = desk.pipeline(id_)
    assert update is not None
    return msgspec.json.decode(update.parts[""])["pipeline"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"what": "epoch", "at": "2026-01-01T00:00:00+00:00", "fields": {"epoch": 1' + b"0" * 30 + b"}}",
        b'{"what": "epoch", "at": "never", "fields": {"epoch": 1, "milliseconds": 1e400}}',
        b'{"what": "start", "at": "2026-01-01T00:00:00+00:00", "fields": {"position": 1' + b"0" * 30 + b"}}",
        b"[" * 100_000,
    ],
)
def test_notes_of_somebody_else_hide_no_other_pipeline(folder: Folder, line: bytes) -> None:
    folder.finish(0)
    folder.run_engine()
    with (folder.orders / "onceward" / FILE).open("ab") as file:
        file.write(line + b"\n")
    desk = folder.desk()
    shown = {one["name"]: pipeline(desk, one["id"]) for one in listed(desk)}
    assert shown["totals"]["error"] == ""
    assert len(shown) == 2


def test_a_folder_whose_name_is_no_text_hides_no_pipeline(folder: Folder) -> None:
    folder.finish(0)
    shutil.copytree(folder.orders, folder.checkpoints / os.fsdecode(b"\xff") / "orders")
    assert len(listed(folder.desk())) == 1
