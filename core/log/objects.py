"""A decision log in an object store, through fsspec, where a conditional put exists.

fsspec's base class only emulates "create if absent" by looking first, so the file systems whose `mode="create"` is a
real conditional request are listed here, and the store is probed with two concurrent puts when it is opened.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

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


class ObjectStore:
    """LogStore under a prefix of an object store.

    Args:
        filesystem: An fsspec file system.
        prefix: Folder of this log in it.
        trusted: The caller knows that this file system's `pipe_file(mode="create")` is atomic, although it is not in
            CONDITIONAL_PUT (for example fsspec's `memory` inside one process).
        probe: Try two concurrent puts; not needed for reading.

    Raises:
        ConfigurationError: The file system has no conditional put, or the probe shows that it does not work.
    """

    def __init__(
        self, filesystem: AbstractFileSystem, prefix: str, *, trusted: bool = False, probe: bool = True
    ) -> None:
        self._fs = filesystem
        self.prefix = prefix.rstrip("/")
        protocols = {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)
        if not trusted and not protocols & CONDITIONAL_PUT.keys():
            raise ConfigurationError(
                f"the file system {sorted(protocols)} has no conditional put, so two writers could both win a slot of "
                f"the decision log. Use one of {sorted(CONDITIONAL_PUT)}, a shared directory, or a database"
            )
        if probe:
            self._probe()

    def _probe(self) -> None:
        key = f".probe-{secrets.token_hex(8)}"
        try:
            with ThreadPoolExecutor(2) as pool:
                won = list(pool.map(lambda data: self.put_if_absent(key, data), [b"first", b"second"]))
        finally:
            self.delete(key)
        if sorted(won) != [False, True]:
            raise ConfigurationError(
                f"{self.describe()} let {sum(won)} of two concurrent writers win one key: its conditional put does "
                "not work, so it cannot hold a decision log"
            )

    def put_if_absent(self, key: str, data: bytes) -> bool:
        try:
            return create(self._fs, self._path(key), data)
        except Exception as error:  # every backend has errors of its own; any leaves the put in doubt
            raise StoreError(f"cannot write entry {key} in {self.describe()}: {error}") from error

    def get(self, key: str) -> bytes | None:
        data: bytes | None = self._ask("read", lambda: bytes(self._fs.cat_file(self._path(key))), missing=None)
        return data

    def list_keys(self) -> list[str]:
        def names() -> list[str]:
            self._fs.invalidate_cache(self.prefix)
            # Some servers list an empty folder as an entry of its own.
            paths = (str(path).rpartition("/") for path in self._fs.ls(self.prefix, detail=False))
            inside = self._fs._strip_protocol(self.prefix)  # noqa: SLF001 - fsspec's way to a plain path
            return sorted(name for folder, _, name in paths if folder == inside and name and name[0] != ".")

        found: list[str] = self._ask("list", names, missing=[])
        return found

    def delete(self, key: str) -> None:
        self._ask("delete", lambda: self._fs.rm_file(self._path(key)), missing=None)

    def describe(self) -> str:
        return f"object store {self._fs.unstrip_protocol(self.prefix)}"

    @property
    def shared(self) -> bool:
        return True

    def _path(self, key: str) -> str:
        return f"{self.prefix}/{key}"

    def _ask(self, what: str, call: Any, *, missing: Any) -> Any:
        try:
            return call()
        except FileNotFoundError:
            return missing
        except Exception as error:
            raise StoreError(f"cannot {what} in {self.describe()}: {error}") from error


def create(filesystem: AbstractFileSystem, path: str, data: bytes) -> bool:
    """Write an object unless it is there; whether this call wrote it. Atomic on the protocols of CONDITIONAL_PUT.

    Raises:
        Exception: The file system failed; the object may be written.
    """
    for _ in range(CONFLICTS):
        try:
            filesystem.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except Exception as error:
            status = _status(error)
            if status == PRECONDITION_FAILED:
                return False
            if status == CONFLICT:
                continue
            raise
        return True
    raise OSError(f"it conflicted with another writer's put {CONFLICTS} times in a row")


def _status(error: Exception) -> int | None:
    """The HTTP status with which an S3 server refused.

    s3fs knows a taken key only by a field that Amazon's answer has and those of SeaweedFS and others have not; else it
    raises an OSError whose cause is botocore's ClientError (s3fs 2026.9).
    """
    response = getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return None
    status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status
