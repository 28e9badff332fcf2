"""A folder of checkpoints: files that are there whole and proven, or not at all.

    <root>/chk-<id>-<start>/metadata    written last, right before the decision that names it
    <root>/chk-<id>-<start>/…           files of this checkpoint alone
    <root>/shared/…                     files that several checkpoints refer to

The second number is the position of the writer's START: a fenced run writes and deletes nothing of its successor.

A file is written under another name, synced, renamed, and its folder synced. Each is read back against its size and
SHA-256, so that a damaged file is an error that names it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import ConfigurationError, StateDamagedError, StateError
from ...folders import make_folder, sync_folder
from .handles import FileRef, Metadata, decode_metadata, encode_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHARED: Final = "shared"
METADATA: Final = "metadata"
_CHUNK: Final = 1 << 20
_FOLDER: Final = re.compile(r"chk-[0-9]+-[0-9]+")


class CheckpointStorage:
    """A folder of checkpoints on a local or mounted file system.

    Args:
        root: The folder; it is made when something is written.
    """

    def __init__(self, root: str | Path) -> None:
        if "://" in str(root):
            raise ConfigurationError(f"{root}: checkpoints are kept in a folder of a local or mounted file system")
        self.root = Path(root).absolute()

    def write(self, path: str, chunks: Iterable[bytes], *, name: str = "", shared: bool = False) -> FileRef:
        """Write a file that must not be there yet.

        Raises:
            StateError: It could not be written.
        """
        target = self.root / path
        if target.exists():
            raise StateError(f"{target} is there already: nothing of a checkpoint is ever written over")
        digest, size = hashlib.sha256(), 0
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            make_folder(target.parent)
            with partial.open("xb") as file:
                for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(target)
            sync_folder(target.parent)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise StateError(f"cannot write {target}: {error}") from error
        return FileRef(name or target.name, path, size, digest.hexdigest(), shared)

    def copy_in(self, source: Path, path: str, *, shared: bool) -> FileRef:
        """Write a copy of a local file under the source's name."""
        try:
            with source.open("rb") as file:
                return self.write(path, iter(lambda: file.read(_CHUNK), b""), name=source.name, shared=shared)
        except OSError as error:
            raise StateError(f"cannot read {source}: {error}") from error

    def read(self, ref: FileRef) -> bytes:
        """A file's bytes.

        Raises:
            StateDamagedError: It is missing, or not what was written.
        """
        path = self.root / ref.path
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StateDamagedError(f"the checkpoint's file {path} cannot be read: {error}") from error
        if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
            raise StateDamagedError(
                f"the checkpoint's file {path} is damaged: it has {len(data)} bytes where {ref.size} were written, "
                "or other ones"
            )
        return data

    def copy_out(self, ref: FileRef, target: Path) -> None:
        """Write a file's bytes into a local file, proven."""
        try:
            with (self.root / ref.path).open("rb") as source, target.open("xb") as copy:
                digest, size = hashlib.sha256(), 0
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    size += len(chunk)
                    copy.write(chunk)
        except OSError as error:
            raise StateDamagedError(f"the checkpoint's file {self.root / ref.path} cannot be read: {error}") from error
        if size != ref.size or digest.hexdigest() != ref.sha256:
            raise StateDamagedError(f"the checkpoint's file {self.root / ref.path} is damaged: its checksum is another")

    def write_metadata(self, metadata: Metadata, folder: str) -> FileRef:
        """The last file of a checkpoint."""
        return self.write(inside(folder, METADATA), [encode_metadata(metadata)])

    def read_metadata(self, folder: str) -> Metadata:
        """A checkpoint's metadata.

        Raises:
            StateDamagedError: They are missing or damaged.
        """
        path = self.root / folder / METADATA
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StateDamagedError(f"the checkpoint's metadata {path} cannot be read: {error}") from error
        return decode_metadata(data, str(path))

    def checkpoints(self) -> list[str]:
        """Folders of checkpoints, oldest first."""
        if not self.root.is_dir():
            return []
        names = [path.name for path in self.root.iterdir() if _FOLDER.fullmatch(path.name)]
        return sorted(names, key=lambda name: [int(number) for number in name.split("-")[1:]])

    def shared_files(self) -> Iterator[str]:
        """Paths of all shared files."""
        folder = self.root / SHARED
        if folder.is_dir():
            yield from (f"{SHARED}/{path.name}" for path in folder.iterdir())

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; what is not there is not missed."""
        for path in paths:
            (self.root / path).unlink(missing_ok=True)

    def delete_folder(self, name: str) -> None:
        """Delete a checkpoint's own files, its metadata first: without them nobody takes it for one."""
        folder = self.root / name
        (folder / METADATA).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def folder_of(checkpoint: int, writer: int) -> str:
    """The folder of a checkpoint's own files: a fenced run cannot touch those of its successor.

    Args:
        checkpoint: Its id.
        writer: Position of the writer's START in the decision log.
    """
    return f"chk-{checkpoint}-{writer}"


def inside(folder: str, name: str) -> str:
    """Path of a file in a folder of the storage; "" is its root."""
    return f"{folder}/{name}" if folder else name
