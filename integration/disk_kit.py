"""A small disk that a test fills. It is a tmpfs, so that these tests need the right to mount one."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Disk:
    """A small file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rest = folder / "rest"

    def fill(self) -> None:
        with self._rest.open("wb", buffering=0) as rest:
            for size in (1 << 20, 65536, 4096, 512, 1):
                try:
                    while rest.write(b"x" * size) == size:
                        pass
                except OSError:
                    continue

    def make_room(self) -> None:
        self._rest.unlink(missing_ok=True)


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Disk]:
    """A disk of this size (as mount understands it) in a new folder; skips the test if it cannot be mounted."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "onceward-test", folder], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small tmpfs: {os.fsdecode(done.stderr).strip()}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", folder], check=True)
