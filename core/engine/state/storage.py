"""A folder of checkpoints, on a disk or in an object store: files that are there whole and proven, or not at all.

    <root>/chk-<id>-<start>/metadata    written last, right before the decision that names it
    <root>/chk-<id>-<start>/decided     written after that decision
    <root>/chk-<id>-<start>/…           files of this checkpoint alone
    <root>/shared/…                     files that several checkpoints refer to

The second number is the generation, the position of the writer's START: a fenced run writes and deletes nothing of its
successor. The root carries the decision log's identity: a fresh log over an old folder leaves the old one's checkpoints
alone.

Each file is read back against its size and SHA-256, so that a damaged file is an error that names it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from ...errors import ConfigurationError, StateDamagedError, StateError, text_of
from ...kit.folders import make_folder, put_once, sync_folder
from ...log.objects import ObjectFiles, open_objects
from .handles import FileRef, Metadata, decode_metadata, encode_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHARED: Final = "shared"
METADATA: Final = "metadata"
PROOF: Final = "decided"
"""Name of the file beside the metadata that proves that they were decided. See engine.reference."""
_CHUNK: Final = 1 << 20
_GONE: Final = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_FOLDER: Final = re.compile(r"chk-[0-9]+-[0-9]+")


class CheckpointStorage:
    """A folder of checkpoints; its root is a path, file:///…, or a URL that fsspec knows (s3://bucket/folder)."""

    def __init__(self, root: str | Path) -> None:
        self.root = locate(root)
        self._files = _open_files(self.root)

    def at(self, path: str) -> str:
        """Return the location of something in the storage; "" is the folder itself."""
        return inside(self.root, path)

    def write(self, path: str, chunks: Iterable[bytes], *, name: str = "", shared: bool = False) -> FileRef:
        """Write a file that must not be there yet; a StateError if that fails."""
        digest, size = hashlib.sha256(), 0

        def counted() -> Iterator[bytes]:
            nonlocal size
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        try:
            if self._files.exists(path):
                raise StateError(f"{self.at(path)} already exists: no file of a checkpoint is ever overwritten")
            self._files.put(path, counted())
        except OSError as error:
            raise StateError(f"cannot write {self.at(path)}: {text_of(error)}") from error
        return FileRef(name or path.rpartition("/")[2], path, size, digest.hexdigest(), shared)

    def put_once(self, path: str, data: bytes) -> bool:
        """Write a small file unless it is there; of two processes, one does. Whether this call wrote it."""
        try:
            return self._files.put_once(path, data)
        except OSError as error:
            raise StateError(f"cannot write {self.at(path)}: {text_of(error)}") from error

    def copy_in(self, source: Path, path: str, *, shared: bool) -> FileRef:
        try:
            with source.open("rb") as file:
                return self.write(path, _chunks(file), name=source.name, shared=shared)
        except OSError as error:
            raise StateError(f"cannot read {source}: {text_of(error)}") from error

    def read(self, ref: FileRef) -> bytes:
        return b"".join(self.proven(ref))

    def copy_out(self, ref: FileRef, target: Path) -> None:
        with target.open("xb") as copy:
            copy.writelines(self.proven(ref))

    def proven(self, ref: FileRef) -> Iterator[bytes]:
        """Yield a file's bytes; after them, raise StateDamagedError if they are not those that were written."""
        digest, size = hashlib.sha256(), 0
        for chunk in self.chunks(ref.path, "the checkpoint's file"):
            digest.update(chunk)
            size += len(chunk)
            yield chunk
        if size != ref.size or digest.hexdigest() != ref.sha256:
            raise StateDamagedError(
                f"the checkpoint's file {self.at(ref.path)} is damaged: its size or checksum differs from what was "
                f"written ({size} of {ref.size} bytes)"
            )

    def chunks(self, path: str, what: str) -> Iterator[bytes]:
        """Yield a file's bytes as they are; `what` names the file in the error."""
        try:
            with self._files.open(path) as file:
                yield from _chunks(file)
        except OSError as error:  # what may not be read, or is not answered, may still be whole
            kind = StateDamagedError if isinstance(error, _GONE) else StateError
            raise kind(f"{what} {self.at(path)} cannot be read: {text_of(error)}") from error

    def write_metadata(self, metadata: Metadata, folder: str) -> FileRef:
        return self.write(inside(folder, METADATA), [encode_metadata(metadata)])

    def read_metadata(self, folder: str) -> tuple[Metadata, str]:
        """Read a checkpoint's metadata; return them with the SHA-256 of their file."""
        path = inside(folder, METADATA)
        data = b"".join(self.chunks(path, "the checkpoint's metadata"))
        return decode_metadata(data, self.at(path)), hashlib.sha256(data).hexdigest()

    def read_if_there(self, path: str) -> bytes:
        """Read a small file; return no bytes if it is missing."""
        try:
            with self._files.open(path) as file:
                return b"".join(_chunks(file))
        except (FileNotFoundError, NotADirectoryError):  # below a file is nothing
            return b""
        except OSError as error:
            raise StateError(f"{self.at(path)} cannot be read: {text_of(error)}") from error

    @property
    def is_empty(self) -> bool:
        return not self.names()

    def names(self, folder: str = "") -> list[str]:
        """Return the names right below a folder, in no order; none if there is no folder."""
        with self._listing():
            return self._files.names(folder)

    def walk(self) -> dict[str, Any]:
        """Return every file below the root, with a stamp that changes when the file is written again."""
        with self._listing():
            return self._files.walk()

    def checkpoints(self) -> list[str]:
        """Return the folders of checkpoints, oldest first."""
        names = [name for name in self.names() if _FOLDER.fullmatch(name)]
        return sorted(names, key=lambda name: [int(number) for number in name.split("-")[1:]])

    def shared_files(self) -> list[str]:
        return [inside(SHARED, name) for name in self.names(SHARED)]

    @contextmanager
    def _listing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(f"cannot list {self.root}: {text_of(error)}") from error

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; missing ones are no error."""
        for path in paths:
            self._files.delete(path)

    def delete_folder(self, name: str) -> None:
        """Delete a checkpoint's own files, its metadata first: without them nobody takes it for one."""
        self._files.delete(inside(name, METADATA))
        self._files.delete_folder(name)

    def delete_empty(self, folder: str) -> None:
        """Delete a folder, and those in it, as far as there is no file."""
        self._files.delete_empty(folder)


def folder_in(root: str, name: str) -> str:
    """Return the location of a folder right below another one; refuse any other name, as a log may be forged."""
    if Path(name).name != name or name in {"", ".."}:
        raise ConfigurationError(f"{name!r} cannot be the name of a folder: give a name without '/' that is not '..'")
    return inside(root, name)


def folder_of(checkpoint: int, generation: int) -> str:
    """Return the name of a checkpoint's folder, which a writer of this generation wrote."""
    return f"chk-{checkpoint}-{generation}"


def locate(place: str | Path) -> str:
    """Return the location of a folder that a user names: a path, file:///…, or a URL such as s3://bucket/folder."""
    parts = urlsplit(str(place))
    if "://" not in str(place):
        return str(_absolute(Path(place)))
    return str(_absolute(Path(unquote(parts.path)))) if parts.scheme == "file" else str(place).rstrip("/")


def _absolute(path: Path) -> Path:
    """Return the absolute path without `..`, which would give one folder several locations."""
    return path.resolve() if ".." in path.parts else path.absolute()


def above(location: str) -> str:
    """Return the location of the folder that something is in."""
    return location.rpartition("/")[0] or "/"


def inside(folder: str, name: str) -> str:
    """Return the location of something in a folder; "" is the storage's root, and the name of the folder itself."""
    return f"{folder.rstrip('/')}/{name}" if folder and name else folder or name


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK), b"")


class _LocalFiles:
    """A folder on a local or mounted file system, made when something is written. Its methods are as ObjectFiles'."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file durably, under another name first: a reader finds all of it, or no file."""
        target = self._root / path
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        make_folder(target.parent)
        try:
            with partial.open("xb") as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        # The new name must be durable too, before a decision names the file.
        sync_folder(target.parent)

    def put_once(self, path: str, data: bytes) -> bool:
        make_folder(self._root)
        return put_once(self._root / path, data)

    def open(self, path: str) -> IO[bytes]:
        return (self._root / path).open("rb")

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def names(self, folder: str) -> list[str]:
        try:
            return [path.name for path in (self._root / folder).iterdir()]
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            raise ConfigurationError(f"{error.filename} is a file, not a folder") from None

    def walk(self) -> dict[str, Any]:
        files: dict[str, Any] = {}
        for folder, _, names in os.walk(self._root):
            for path in (Path(folder, name) for name in names):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    stat = path.stat()
                    files[path.relative_to(self._root).as_posix()] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        return files

    def delete(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        # The metadata are deleted before, so nobody takes what is left for a checkpoint.
        shutil.rmtree(self._root / folder, ignore_errors=True)

    def delete_empty(self, folder: str) -> None:
        # From the inside out, because a folder is empty only when those in it are gone.
        for inner, _, _ in os.walk(self._root / folder, topdown=False):
            with suppress(OSError):
                # It fails where there is a file, and such a folder must stay.
                Path(inner).rmdir()


def _open_files(location: str) -> _LocalFiles | ObjectFiles:
    return ObjectFiles(*open_objects(location)) if "://" in location else _LocalFiles(Path(location))
