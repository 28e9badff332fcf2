"""A decision log in a local or shared directory.

A value is put once and whole (core/folders.py). A reader syncs the directory before it acts on what it saw, or a power
failure could take back an entry that it has already acted on.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from ..folders import make_folder, put_once, sync_folder

if TYPE_CHECKING:
    import os


class DirectoryStore:
    """LogStore in a directory.

    Args:
        path: The directory; created if missing.
        shared: Whether the directory is on a file system that all machines of the pipeline see (with hard links and
            close-to-open consistency, as NFS has). A local one is refused where the driver may move.
    """

    def __init__(self, path: str | os.PathLike[str], *, shared: bool = False) -> None:
        self.path = Path(path)
        self._shared = shared
        try:
            make_folder(self.path)
            for parent in list(self.path.parents)[:3]:  # Spark and mkdir make folders without syncing them
                with suppress(PermissionError):  # it may be entered and not read, as homes often are
                    sync_folder(parent)
        except OSError as error:
            raise StoreError(f"cannot make the decision log's directory {self.path}: {error}") from error

    def put_if_absent(self, key: str, data: bytes) -> bool:
        try:
            return put_once(self.path / key, data)
        except OSError as error:
            raise StoreError(f"cannot write entry {key} in {self.path}: {error}") from error

    def get(self, key: str) -> bytes | None:
        try:
            data = (self.path / key).read_bytes()
            sync_folder(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read entry {key} in {self.path}: {error}") from error
        return data

    def list_keys(self) -> list[str]:
        try:
            sync_folder(self.path)
            return sorted(file.name for file in self.path.iterdir() if not file.name.startswith("."))
        except OSError as error:
            raise StoreError(f"cannot list {self.path}: {error}") from error

    def delete(self, key: str) -> None:
        try:
            (self.path / key).unlink(missing_ok=True)
            sync_folder(self.path)
        except OSError as error:
            raise StoreError(f"cannot delete entry {key} in {self.path}: {error}") from error

    def describe(self) -> str:
        return f"directory {self.path}"

    @property
    def shared(self) -> bool:
        return self._shared
