"""What sinks into folders have in common: which folder it is, whose it is, and errors of its file system.

    <folder>/.identity                    tells this folder from another one, and from a place where none is mounted
    <folder>/.<pipeline>~<sink>.claim     the decision log that owns these names

Names that begin with a dot are hidden from all readers of files.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from onceward.core.errors import ConfigurationError, RetryableSinkError, SinkError
from onceward.core.folders import make_folder, put_once
from onceward.core.names import file_name, other_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.core.names import Scope
    from onceward.core.transaction import Committable

IDENTITY: Final = ".identity"
"""File with the identity of a folder."""


@contextmanager
def file_errors(sink: str, place: str | Path) -> Iterator[None]:
    """Raise the errors of a file system (full, away, stale handles) as RetryableSinkError, which names the place."""
    try:
        yield
    except OSError as error:
        raise RetryableSinkError(f"{place}: {error}", sink=sink) from error


def check_folder(sink: str, directory: str | Path) -> None:
    """Refuse what is no path.

    Raises:
        ConfigurationError: It is a URL.
    """
    if "://" in str(directory):
        raise ConfigurationError(f"sink {sink}: {directory} is no folder of a local or mounted file system")


@contextmanager
def sole(path: Path) -> Iterator[bool]:
    """Be the only one who commits or aborts what is in a file that both delete at their end.

    The file is opened for writing: on NFSv4 no other is locked (flock(2), "NFS details": EBADF).

    Yields:
        Whether it is there; False also if somebody has ended it meanwhile.

    Raises:
        RetryableSinkError: Another process is at it, or it cannot be opened.
        SinkError: Its file system knows no locks.
    """
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield False
        return
    except OSError as error:
        raise RetryableSinkError(f"cannot open {path}: {error}") from error
    try:
        yield _lock(handle, path)
    finally:
        os.close(handle)


def _lock(handle: int, path: Path) -> bool:
    """Whether what is locked is still there: it may have been deleted before."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RetryableSinkError(f"another process is at {path}") from error
    except OSError as error:
        raise SinkError(
            f"cannot lock {path}: {error}. Its file system must have locks (flock), and over NFS a lock service that "
            "all machines reach"
        ) from error
    try:
        return path.exists()
    except OSError as error:
        raise RetryableSinkError(f"cannot look at {path}: {error}") from error


def identity_of(folder: Path) -> str:
    """A folder's random identity, made and synced when it is first asked for: it is in what is prepared there."""
    path = folder / IDENTITY
    if not path.exists():
        make_folder(folder)
        put_once(path, secrets.token_hex(8).encode())
    return path.read_text().strip()


def elsewhere(folder: Path, committable: Committable) -> str:
    """What is wrong if a committable was prepared in another folder (a wrong path, a disk that is not mounted)."""
    prepared_in = committable.handle.get("folder")
    path = folder / IDENTITY
    if prepared_in is None or (path.exists() and path.read_text().strip() == prepared_in):
        return ""
    return (
        f"{folder} is not the folder that this was prepared in: is it the right one, and mounted? If that folder is "
        f"gone for good, say so: write {prepared_in} into {path}, and what was prepared there counts as lost"
    )


class FolderClaims:
    """Which decision log owns the names of each pipeline and sink that wrote into a folder.

    Args:
        folder: Where the claims are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, scope: Scope) -> None:
        """Refuse names that another log owns.

        Raises:
            EpochConflictError: It does.
        """
        known = self.known(scope)
        if known not in (None, scope.log):
            raise other_log(scope, str(known), str(self._folder))

    def claim(self, scope: Scope) -> None:
        """Make this log the owner of the names.

        Raises:
            EpochConflictError: Another one owns them.
        """
        make_folder(self._folder)
        if not put_once(self._path(scope), scope.log.encode()):
            self.check(scope)

    def known(self, scope: Scope) -> str | None:
        """The log that owns the names, if one has claimed them."""
        path = self._path(scope)
        return path.read_text() if path.exists() else None

    def release(self, scope: Scope, *, own: bool = False) -> None:
        """Forget another log's claim; this one's too if the target itself has forgotten it."""
        if own or self.known(scope) != scope.log:
            self._path(scope).unlink(missing_ok=True)

    def _path(self, scope: Scope) -> Path:
        return self._folder / f".{file_name(f'{scope.pipeline}:{scope.sink}')}.claim"
