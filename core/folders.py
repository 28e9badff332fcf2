"""Folders whose names survive a power cut."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


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
