"""The stores of a decision log: what one must offer, those in memory and in a folder, how to open one by its URL.

Implementers guarantee:

- `put_if_absent` is atomic and durable: of all concurrent puts on a key exactly one answers True, and when it does, a
  reader anywhere sees the whole value, also after a crash. A partial value is never seen.
- False means that a value was there. An exception means nothing: the put may have happened, or may land later.
- `get` and `list_keys` are linearizable with puts (a value whose put answered is seen), and durable: what they show
  does not go away in a crash.

Callers treat every exception of put_if_absent as "in doubt" and offer the same bytes again.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable
from urllib.parse import parse_qs, unquote, urlsplit

from ..errors import ConfigurationError, NoDecisionLogError, StoreError, text_of
from ..kit.folders import make_folder, open_regular, put_once, remove_abandoned, sync_folder
from .objects import CONDITIONAL_PUT, ObjectStore, open_objects
from .time_limits import bounded

if TYPE_CHECKING:
    from collections.abc import Iterator

EXPLAINING: Final = ContextVar("EXPLAINING", default=False)
"""True while pipelines are built to be explained and not to run: then no store is opened."""
IN_CHECKPOINT: Final = "onceward"
"""Folder of the decision log inside a Spark checkpoint, so that it is copied and moved with it."""
MOVED_MARK: Final = f"{IN_CHECKPOINT}/.moved"
"""File in a checkpoint that a restored savepoint has replaced, if the log is elsewhere: it names the new checkpoint."""
MOST_BYTES: Final = 1 << 30
"""Size in bytes of the largest entry in a folder: a larger one was not written by onceward."""
_SQL: Final = ("sqlite", "postgresql", "mariadb", "mysql")


@runtime_checkable
class LogStore(Protocol):
    """A flat folder of small values, for one pipeline. Keys have 20 characters: digits, or a letter and digits.

    Several threads may call one object concurrently. Every method but `describe` raises StoreError if the store did not
    answer. None waits for ever.
    """

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Store `data` under `key` unless the key has a value; whether this call stored it."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return the value, or None if there is none."""
        ...

    def list_keys(self) -> list[str]:
        """Return all keys, ascending."""
        ...

    def delete(self, key: str) -> None:
        """Remove a key; nothing happens if it is not there."""
        ...

    def describe(self) -> str:
        """Return where this is, for messages; never with a password."""
        ...

    @property
    def shared(self) -> bool:
        """Whether processes on other machines see the same store."""
        ...


def put_behind(store: LogStore, key: str, data: bytes, after: str, begins: bytes) -> bool:
    """Store `data` under `key` if that has no value, and the value of `after` begins with `begins`.

    Return whether this call stored it.

    A store whose server may be replaced by an older copy of itself does it in one step, in a method of this name. Other
    stores are asked first.
    """
    at_once = getattr(store, "put_behind", None)
    if at_once is not None:
        return bool(at_once(key, data, after, begins))
    predecessor = store.get(after)
    return predecessor is not None and predecessor.startswith(begins) and store.put_if_absent(key, data)


class MemoryStore:
    """LogStore in a dictionary of this process, for trials and tests."""

    shared = False

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = Lock()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._lock:
            there = key in self._values
            self._values.setdefault(key, data)
        return not there

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def list_keys(self) -> list[str]:
        with self._lock:
            return sorted(self._values)

    def delete(self, key: str) -> None:
        with self._lock:
            self._values.pop(key, None)

    def describe(self) -> str:
        return "memory of this process"


class DirectoryStore:
    """LogStore in a folder.

    A value is put once and whole (core/kit/folders.py). A reader syncs the folder before it acts on what it saw, or a
    power failure could take back an entry that it has already acted on.

    Args:
        path: The folder; created if missing.
        shared: True if the folder is on a file system that all machines of the pipeline see (with hard links and
            close-to-open consistency, as NFS has). A local one is refused where the driver may move.
    """

    most_bytes = MOST_BYTES
    """Size of the largest entry that is read."""

    def __init__(self, path: str | os.PathLike[str], *, shared: bool = False) -> None:
        self.path = Path(path)
        self.shared = shared
        self._is_tidy = False
        self._make()

    @bounded
    def _make(self) -> None:
        with self._doing("make the decision log's folder"):
            make_folder(self.path)
            for parent in list(self.path.parents)[:3]:  # Spark and mkdir make folders without syncing them
                with suppress(PermissionError):  # it may be entered and not read, as homes often are
                    sync_folder(parent)

    @bounded
    def put_if_absent(self, key: str, data: bytes) -> bool:
        if len(data) > MOST_BYTES:
            raise StoreError(f"entry {key} has {len(data)} bytes, and {self.describe()} takes at most {MOST_BYTES}")
        with self._doing(f"write entry {key} in"):
            if not self._is_tidy:
                remove_abandoned(self.path)
                self._is_tidy = True
            return put_once(self.path / key, data)

    @bounded
    def get(self, key: str) -> bytes | None:
        with self._doing(f"read entry {key} in"), suppress(FileNotFoundError):
            data = self.contents(key)
            sync_folder(self.path)
            return data
        return None

    @bounded
    def list_keys(self) -> list[str]:
        with self._doing("list"):
            sync_folder(self.path)
            return sorted(file.name for file in self.path.iterdir() if not file.name.startswith("."))

    @bounded
    def delete(self, key: str) -> None:
        with self._doing(f"delete entry {key} in"):
            (self.path / key).unlink(missing_ok=True)
            sync_folder(self.path)

    def describe(self) -> str:
        return f"folder {self.path}"

    def contents(self, key: str) -> bytes:
        """Return the bytes of an entry's file; an OSError if it is no regular file, or larger than any entry is."""
        with os.fdopen(open_regular(self.path / key, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > self.most_bytes:
                raise OSError(errno.EFBIG, f"it has {size} bytes, and at most {self.most_bytes} are read")
            return file.read(size)

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot {what} {self.path}: {text_of(error)}") from error


class UnopenedStore(MemoryStore):
    """Stands for the store of a URL until the pipeline starts; it is never read or written."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def put_if_absent(self, key: str, data: bytes) -> bool:  # noqa: ARG002
        raise StoreError("the pipeline has not been started: nothing is written")

    def describe(self) -> str:
        return "a store that was not opened"


def open_store(url: str | os.PathLike[str], *, pipeline: str = "default", existing: bool = False) -> LogStore:
    """Open the store of one pipeline's decision log.

    Args:
        url: A path or `file:///…` (local folder; add `?shared=true` for one that all machines see), a SQLAlchemy
            URL (`sqlite:///…`, `postgresql+psycopg://…`), or an object store that fsspec knows (`s3://bucket/prefix`).
        pipeline: Name of the pipeline; stores other than a folder keep each pipeline apart by it.
        existing: Only look: nothing is made or probed, and what is not there is an error.

    Raises:
        NoDecisionLogError: There is none, and `existing` is set.
        ConfigurationError: The URL names nothing that can hold a decision log.
        StoreError: The store did not answer.
    """
    url = os.fspath(url)
    if EXPLAINING.get() and not existing:
        return unopened_store(url)
    _check_given(url)
    local = local_folder(url)
    if local is not None:
        path, shared = local
        if existing and not path.is_dir():
            raise NoDecisionLogError(f"no such folder: {path}")
        return DirectoryStore(path, shared=shared)
    if scheme_of(url) in _SQL:
        from .sql import SqlStore  # noqa: PLC0415 - SQLAlchemy is an extra

        return SqlStore(url, pipeline=pipeline, existing=existing)
    filesystem, prefix = open_objects(url)
    return ObjectStore(filesystem, f"{prefix.rstrip('/')}/{pipeline}", probe=not existing)


def unopened_store(url: str | os.PathLike[str]) -> UnopenedStore:
    """Return what stands for a store until it is opened.

    Raises:
        ConfigurationError: The URL names nothing that can hold a decision log.
    """
    url = os.fspath(url)
    _check_given(url)
    if local_folder(url) is None:
        scheme_of(url)
    return UnopenedStore(url)


def _check_given(url: str) -> None:
    if not url.strip():
        raise ConfigurationError("store is empty: give a folder, a database's URL or an object store's")


def scheme_of(url: str) -> str:
    """Return the kind of a store that is not a local folder; a ConfigurationError if it cannot hold a log."""
    scheme = urlsplit(url).scheme.split("+")[0]
    if scheme not in _SQL and scheme not in CONDITIONAL_PUT:
        raise ConfigurationError(
            f"{scheme}:// cannot hold a decision log: give a folder, a SQLAlchemy URL, or one of "
            f"{sorted(CONDITIONAL_PUT)}"
        )
    return scheme


def local_folder(url: str) -> tuple[Path, bool] | None:
    """Return the folder that a store's URL names, and whether all machines see it; None for a URL of another kind."""
    parts = urlsplit(url)
    if parts.scheme not in ("", "file"):
        return None
    plain, _, query = url.rpartition("?")  # without a scheme, "?" and "#" may belong to a name
    shared = parse_qs(query).get("shared") if plain else None
    path = unquote(parts.path) if parts.scheme else plain if shared else url
    return Path(path), shared is not None and shared[-1].lower() == "true"
