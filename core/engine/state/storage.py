"""A folder of checkpoints: files that are there whole and proven, or not at all.

    <root>/chk-<id>-<start>/metadata    written last, right before the decision that names it
    <root>/chk-<id>-<start>/decided     written after that decision
    <root>/chk-<id>-<start>/…           files of this checkpoint alone
    <root>/shared/…                     files that several checkpoints refer to

The second number is the position of the writer's START: a fenced run writes and deletes nothing of its successor. The
root carries the decision log's identity: a fresh log over an old folder leaves the old one's checkpoints alone.

Each file is read back against its size and SHA-256, so that a damaged file is an error that names it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import ConfigurationError, StateDamagedError, StateError
from .files import below, locate, open_files
from .handles import FileRef, Metadata, decode_metadata, encode_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHARED: Final = "shared"
METADATA: Final = "metadata"
PROOF: Final = "decided"
"""Beside the metadata: they were decided. See engine.reference."""
_CHUNK: Final = 1 << 20
_GONE: Final = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_FOLDER: Final = re.compile(r"chk-[0-9]+-[0-9]+")


class CheckpointStorage:
    """A folder of checkpoints.

    Args:
        root: A path, file:///…, or a URL that fsspec knows (s3://bucket/folder).

    Attributes:
        root: Its location: an absolute path or a URL.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = locate(root)
        self._files = open_files(self.root)

    def at(self, path: str) -> str:
        return below(self.root, path)

    def write(self, path: str, chunks: Iterable[bytes], *, name: str = "", shared: bool = False) -> FileRef:
        """Write a file that must not be there yet.

        Raises:
            StateError: It could not be written.
        """
        digest, size = hashlib.sha256(), 0

        def counted() -> Iterator[bytes]:
            nonlocal size
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        try:
            if self._files.exists(path):
                raise StateError(f"{self.at(path)} is there already: nothing of a checkpoint is ever written over")
            self._files.put(path, counted())
        except OSError as error:
            raise StateError(f"cannot write {self.at(path)}: {error}") from error
        return FileRef(name or path.rpartition("/")[2], path, size, digest.hexdigest(), shared)

    def copy_in(self, source: Path, path: str, *, shared: bool) -> FileRef:
        try:
            with source.open("rb") as file:
                return self.write(path, iter(lambda: file.read(_CHUNK), b""), name=source.name, shared=shared)
        except OSError as error:
            raise StateError(f"cannot read {source}: {error}") from error

    def read(self, ref: FileRef) -> bytes:
        return b"".join(self._proven(ref))

    def copy_out(self, ref: FileRef, target: Path) -> None:
        with target.open("xb") as copy:
            copy.writelines(self._proven(ref))

    def _proven(self, ref: FileRef) -> Iterator[bytes]:
        """A file's bytes; an error behind them if they are not what was written."""
        digest, size = hashlib.sha256(), 0
        try:
            for chunk in self._files.chunks(ref.path):
                digest.update(chunk)
                size += len(chunk)
                yield chunk
        except OSError as error:
            raise _unreadable(f"the checkpoint's file {self.at(ref.path)}", error) from error
        if size != ref.size or digest.hexdigest() != ref.sha256:
            raise StateDamagedError(
                f"the checkpoint's file {self.at(ref.path)} is damaged: it has {size} bytes where {ref.size} were "
                "written, or other ones"
            )

    def write_metadata(self, metadata: Metadata, folder: str) -> FileRef:
        return self.write(inside(folder, METADATA), [encode_metadata(metadata)])

    def read_metadata(self, folder: str) -> Metadata:
        path = inside(folder, METADATA)
        try:
            data = b"".join(self._files.chunks(path))
        except OSError as error:
            raise _unreadable(f"the checkpoint's metadata {self.at(path)}", error) from error
        return decode_metadata(data, self.at(path))

    def read_if_there(self, path: str) -> bytes:
        """A small file's bytes; none if it is missing.

        Raises:
            StateError: It cannot be read.
        """
        try:
            return b"".join(self._files.chunks(path))
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StateError(f"{self.at(path)} cannot be read: {error}") from error

    @property
    def is_empty(self) -> bool:
        return not self._files.names("")

    def checkpoints(self) -> list[str]:
        """Folders of checkpoints, oldest first."""
        names = [name for name in self._files.names("") if _FOLDER.fullmatch(name)]
        return sorted(names, key=lambda name: [int(number) for number in name.split("-")[1:]])

    def shared_files(self) -> Iterator[str]:
        yield from (f"{SHARED}/{name}" for name in self._files.names(SHARED))

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; what is not there is not missed."""
        for path in paths:
            self._files.delete(path)

    def delete_folder(self, name: str) -> None:
        """Delete a checkpoint's own files, its metadata first: without them nobody takes it for one."""
        self._files.delete(inside(name, METADATA))
        self._files.delete_folder(name)


def _unreadable(what: str, error: OSError) -> StateError:
    """What is not there will not come by itself; a store that does not answer will."""
    kind = StateDamagedError if isinstance(error, _GONE) else StateError
    return kind(f"{what} cannot be read: {error}")


def folder_in(root: str, name: str) -> str:
    """The location of a folder right below another one.

    Raises:
        ConfigurationError: The name leads elsewhere.
    """
    if Path(name).name != name or name in {"", ".."}:
        raise ConfigurationError(f"{name!r} cannot be the name of a folder: give a name without '/' that is not '..'")
    return below(root, name)


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
