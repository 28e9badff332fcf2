"""Files in an object store, through fsspec; and a decision log in one, where a conditional put exists.

fsspec's base class only emulates "create if absent" by looking first, so the file systems whose `mode="create"` is a
real conditional request are listed here, and the store is probed with two concurrent puts when it is opened.
"""

from __future__ import annotations

import secrets
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from ..errors import ConfigurationError, StoreError, named_text_of, text_of
from ..kit.secrets import shown_address
from .time_limits import bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fsspec import AbstractFileSystem

T = TypeVar("T")

CONDITIONAL_PUT = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
}
"""Protocols whose conditional put is real, and their packages: s3fs and adlfs send `If-None-Match: *`, gcsfs sends
`ifGenerationMatch=0`."""
PRECONDITION_FAILED: Final = 412
CONFLICT: Final = 409
"""Amazon's answer to one of two conditional puts at the same time: nothing was written, try again."""
CONFLICTS: Final = 5
REFUSED: Final = (400, 401, 403)
"""Answers to credentials that expired; Amazon's to a token is 400."""


class ObjectFiles:
    """The files under a prefix of an object store, which are there when their upload is complete; paths have "/".

    Whatever goes wrong is an OSError: every backend of fsspec has errors of its own. A client whose credentials are
    refused has not changed anything, so the call is made once more by a new one: clients read credentials when they are
    made, and temporary ones that expired may have been renewed since, in a file or by another program.

    Args:
        filesystem: An fsspec file system.
        root: Prefix of the files' paths in the file system.
    """

    def __init__(self, filesystem: AbstractFileSystem, root: str) -> None:
        from fsspec.config import apply_config  # noqa: PLC0415 - an extra

        self.filesystem = filesystem
        self._root = root.rstrip("/")
        configured = apply_config(type(filesystem), {})
        options = filesystem.storage_options
        self._options = {name: value for name, value in options.items() if configured.get(name) != value}

    def put(self, path: str, chunks: Iterable[bytes]) -> None:
        with tempfile.NamedTemporaryFile(prefix="onceward-upload-") as file:
            file.writelines(chunks)
            file.flush()
            self._call(lambda files: files.put_file(file.name, self._at(path)))

    def put_once(self, path: str, data: bytes) -> bool:
        """Write a file unless it is there; whether this call wrote it. Atomic on the protocols of CONDITIONAL_PUT."""
        for _ in range(CONFLICTS):
            try:
                self._call(lambda files: files.pipe_file(self._at(path), data, mode="create"))
            except FileExistsError:
                return False
            except OSError as error:
                status = _status(error)
                if status == PRECONDITION_FAILED:
                    return False
                if status == CONFLICT:
                    continue
                raise
            return True
        raise OSError(f"it conflicted with another writer's put {CONFLICTS} times in a row")

    @contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        opened = self._call(lambda files: files.open(self._at(path), "rb"))
        with _as_os_error(), opened as file:
            yield file

    def read(self, path: str) -> bytes:
        """Read a small file in one request."""
        return bytes(self._call(lambda files: files.cat_file(self._at(path))))

    def exists(self, path: str) -> bool:
        def look(files: AbstractFileSystem) -> bool:
            files.invalidate_cache(self._at(path).rpartition("/")[0])
            return bool(files.exists(self._at(path)))

        return self._call(look)

    def names(self, folder: str) -> list[str]:
        """List the entries directly below a folder; none if there is no folder."""
        where = self._at(folder)

        def look(files: AbstractFileSystem) -> list[Any]:
            files.invalidate_cache(where)
            try:
                listing: list[Any] = files.ls(where, detail=False)
            except FileNotFoundError:
                return []
            files.invalidate_cache(where)  # a listing that is kept would hide later files from `open`
            return listing

        paths = [str(path).rstrip("/") for path in self._call(look)]
        plain = self.filesystem._strip_protocol(where)  # noqa: SLF001 - fsspec's way to a plain path
        return [path.rpartition("/")[2] for path in paths if path not in {where, plain}]  # some list the folder itself

    def walk(self) -> dict[str, Any]:
        """Return all files by their paths, each with a value that changes when it is written again."""

        def look(files: AbstractFileSystem) -> dict[str, Any]:
            files.invalidate_cache()
            try:
                found: dict[str, Any] = files.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
            return found

        start = len(self._root) + 1
        # Some servers list folders too, the root itself among them.
        return {
            path[start:]: info for path, info in self._call(look).items() if info["type"] == "file" and path[-1] != "/"
        }

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._call(lambda files: files.rm_file(self._at(path)))

    def delete_folder(self, folder: str) -> None:
        """Delete all that is in a folder, as far as that works."""
        with suppress(OSError):
            self._call(lambda files: files.rm(self._at(folder), recursive=True))

    def delete_empty(self, folder: str) -> None:
        """Do nothing: an object store has no folders."""

    def _call(self, call: Callable[[AbstractFileSystem], T]) -> T:
        filesystem = self.filesystem
        try:
            with _as_os_error():
                return call(filesystem)
        except OSError as error:
            if not _is_refused(error):
                raise
        if self.filesystem is filesystem:
            kind = type(filesystem)
            kind.clear_instance_cache()  # it would be given to whoever opens this store next
            self.filesystem = kind(*filesystem.storage_args, **self._options)
        try:
            with _as_os_error():
                return call(self.filesystem)
        except OSError as error:
            if not _is_refused(error):
                raise
            raise PermissionError(
                f"{text_of(error).rstrip('.')}. The store refuses the credentials of this process, or they do not "
                "include this right: renew them, or grant it"
            ) from error

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def open_objects(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL such as s3://bucket/folder and the path in it; otherwise a ConfigurationError."""
    if (shown := shown_address(url)) != url:
        raise ConfigurationError(
            f"{shown} holds a password, and no object store reads it there: give the credentials to fsspec, for "
            "example in the environment (FSSPEC_S3_KEY, FSSPEC_S3_SECRET)"
        )
    try:
        import fsspec  # noqa: PLC0415 - an extra

        filesystem, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        package = CONDITIONAL_PUT.get(url.partition("://")[0], "")
        raise ConfigurationError(
            f"{url} cannot be opened: {text_of(error)}. Install its file system's package: "
            f"pip install fsspec {package}".rstrip()
        ) from error
    return filesystem, root


class ObjectStore:
    """LogStore under a prefix of an object store.

    Args:
        filesystem: An fsspec file system.
        prefix: Folder of this log in it.
        probe: Try two concurrent puts; not needed for reading.

    Raises:
        ConfigurationError: The file system has no conditional put, or the probe shows that it does not work.
    """

    def __init__(self, filesystem: AbstractFileSystem, prefix: str, *, probe: bool = True) -> None:
        self._files = ObjectFiles(filesystem, prefix)
        self.prefix = prefix.rstrip("/")
        protocols = {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)
        if not protocols & CONDITIONAL_PUT.keys():
            raise ConfigurationError(
                f"the file system {sorted(protocols)} has no conditional put, so two writers could both win a slot of "
                f"the decision log. Use one of {sorted(CONDITIONAL_PUT)}, a shared folder, or a database"
            )
        if probe:
            self._probe()

    def _probe(self) -> None:
        key = f".probe-{secrets.token_hex(8)}"
        try:
            with ThreadPoolExecutor(2) as pool:
                won = list(pool.map(lambda data: self.put_if_absent(key, data), [b"first", b"second"]))
            # A client that repeats a put whose answer was lost finds its own file, and takes itself for the loser.
            is_put = any(won) or self.get(key) is not None
        finally:
            self.delete(key)
        if all(won) or not is_put:
            raise ConfigurationError(
                f"{self.describe()} let {sum(won)} of two concurrent writers win one key: its conditional put does "
                "not work, so it cannot hold a decision log"
            )

    @bounded
    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._doing(f"write entry {key} in"):  # whatever error comes leaves the put in doubt
            return self._files.put_once(key, data)

    @bounded
    def get(self, key: str) -> bytes | None:
        with self._doing("read in"), suppress(FileNotFoundError):
            return self._files.read(key)
        return None

    @bounded
    def list_keys(self) -> list[str]:
        with self._doing("list"):
            return sorted(name for name in self._files.names("") if not name.startswith("."))

    @bounded
    def delete(self, key: str) -> None:
        with self._doing("delete in"):
            self._files.delete(key)

    def describe(self) -> str:
        return f"object store {self._files.filesystem.unstrip_protocol(self.prefix)}"

    @property
    def shared(self) -> bool:
        return True

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot {what} {self.describe()}: {text_of(error)}") from error


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(named_text_of(error)) from error


def _is_refused(error: OSError) -> bool:
    return isinstance(error, PermissionError) or _status(error) in REFUSED


def _status(error: Exception) -> int | None:
    """Return the HTTP status with which an S3 server refused.

    s3fs knows a taken key only by a field that Amazon's answer has and those of SeaweedFS and others have not; else it
    raises an OSError whose cause is botocore's ClientError (s3fs 2026.9).
    """
    response = getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return None
    status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status
