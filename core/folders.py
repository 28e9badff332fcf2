"""Folders whose names survive a power cut, and files in them that nobody sees a part of."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_TEMPORARY: Final = ".put-"
_ABANDONED_SECONDS: Final = 3600.0
"""An older temporary file is abandoned. If its process is alive after all, its put fails and writes nothing."""


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and what is missing above it; each new name is durable when this returns."""
    missing = [folder, *folder.parents]
    for path in reversed(missing[: next((n for n, path in enumerate(missing) if path.is_dir()), 0)]):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def put_once(path: Path, data: bytes) -> bool:
    """Write a whole file, durably, unless it is there; whether this call wrote it.

    Of two at once one wins: a hard link fails if its name exists. O_EXCL under the final name would be enough for that,
    but exposes an empty file after a crash.
    """
    temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        won = _link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)  # also for the loser: it acts on the winner's file, which must survive a crash
    return won


def remove_abandoned(folder: Path) -> None:
    """Delete what processes that died in `put_once` left, after an hour."""
    for file in folder.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > _ABANDONED_SECONDS:
                file.unlink()


def _link(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    return True
