"""Files on a disk or in an object store, each of them there whole or not at all.

A location is an absolute path, or a URL that fsspec knows. Both kinds raise OSError for whatever goes wrong; paths are
relative to the location, with "/".
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from ...errors import ConfigurationError
from ...folders import make_folder, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CHUNK: Final = 1 << 20


def locate(place: str | Path) -> str:
    """The location of a folder that a user names: a path, file:///…, or a URL such as s3://bucket/folder."""
    parts = urlsplit(str(place))
    if "://" not in str(place):
        return str(Path(place).absolute())
    return str(Path(unquote(parts.path)).absolute()) if parts.scheme == "file" else str(place).rstrip("/")


def below(location: str, name: str) -> str:
    """The location of something in a folder; "" is the folder itself."""
    return f"{location.rstrip('/')}/{name}" if name else location


def above(location: str) -> str:
    """The location of the folder that something is in."""
    return location.rpartition("/")[0] or "/"


class LocalFiles:
    """A folder on a local or mounted file system; it is made when something is written.

    A file is written under another name, synced, renamed, and its folder synced.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file, durably: whoever reads it finds all of it, or nothing."""
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
        sync_folder(target.parent)

    def chunks(self, path: str) -> Iterator[bytes]:
        """A file's bytes, piece by piece; FileNotFoundError if it is not there."""
        with (self._root / path).open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def names(self, folder: str) -> list[str]:
        """What is right below a folder; nothing if there is no folder."""
        try:
            return [path.name for path in (self._root / folder).iterdir()]
        except FileNotFoundError:
            return []

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""
        (self._root / path).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with all that is in it, as far as that works."""
        shutil.rmtree(self._root / folder, ignore_errors=True)


class ObjectFiles:
    """A prefix of an object store. An upload is there when it is complete."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")

    def put(self, path: str, chunks: Iterable[bytes]) -> None:
        with tempfile.NamedTemporaryFile(prefix="onceward-upload-") as file:
            file.writelines(chunks)
            file.flush()
            with _as_os_error():
                self._fs.put_file(file.name, below(self._root, path))

    def chunks(self, path: str) -> Iterator[bytes]:
        with _as_os_error(), self._fs.open(below(self._root, path), "rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def exists(self, path: str) -> bool:
        with _as_os_error():
            self._fs.invalidate_cache(above(below(self._root, path)))
            return bool(self._fs.exists(below(self._root, path)))

    def names(self, folder: str) -> list[str]:
        where = below(self._root, folder)
        with _as_os_error():
            self._fs.invalidate_cache(where)
            try:
                found = self._fs.ls(where, detail=False)
            except FileNotFoundError:
                return []
        paths = (str(path).rstrip("/") for path in found)
        return [path.rpartition("/")[2] for path in paths if path != where]  # some servers list the folder itself

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError), _as_os_error():
            self._fs.rm_file(below(self._root, path))

    def delete_folder(self, folder: str) -> None:
        with suppress(OSError), _as_os_error():
            self._fs.rm(below(self._root, folder), recursive=True)


def open_files(location: str) -> LocalFiles | ObjectFiles:
    """The files at a location.

    Raises:
        ConfigurationError: fsspec, or its package for this kind of URL, is not installed, or there is no such kind.
    """
    if "://" not in location:
        return LocalFiles(Path(location))
    try:
        import fsspec  # noqa: PLC0415 - an extra

        filesystem, root = fsspec.core.url_to_fs(location)
    except ImportError as error:
        raise ConfigurationError(f"{location} needs a package: pip install 'onceward[objects]' and {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{location} is no folder: {error}") from error
    return ObjectFiles(filesystem, root)


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Every backend of fsspec has errors of its own."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
