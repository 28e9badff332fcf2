"""Folders whose names survive a power cut, and files in them that nobody sees a part of, or ends beside another."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from ..errors import RetryableSinkError, SinkError, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TEMPORARY: Final = ".put-"
_ABSENT: Final = ".absent"
_ABANDONED_SECONDS: Final = 3600.0
"""An older temporary file is abandoned. If its process is alive after all, its put fails and writes nothing."""

_UNABLE: Final = (
    "the file system cannot do that, or forbids it. It needs hard links, renames, exclusive creation, locks and fsync "
    "of folders: `onceward doctor --place files:FOLDER` tries them"
)
_IN_THE_WAY: Final = "a file, or a link to nothing, is where a folder must be: move it away"
_LASTING: Final = {
    errno.EXDEV: "a file cannot be moved to another file system: replace the link or the mount by a folder",
    errno.EEXIST: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EISDIR: "a folder is where a file must be: move it away",
    errno.ELOOP: "its links lead to each other: replace them by a folder",
    errno.ENAMETOOLONG: "use a shorter path",
    errno.EACCES: "give this process the permission to read and write there",
    errno.EROFS: "the file system is mounted read-only: mount it for writing",
    **dict.fromkeys((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL), _UNABLE),
}
"""Faults that stay until somebody changes something, and what to do."""


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and the missing ones above it; each new name is durable when this returns."""
    missing = [folder, *folder.parents]
    for path in reversed(missing[: next((n for n, path in enumerate(missing) if path.is_dir()), 0)]):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file; others may write into its folder, too.

    A link may lead to any file that this process can read or write, and a pipe waits for its other end.

    Raises:
        OSError: It cannot be opened, or it is a link, a pipe, a folder or a device.
    """
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link and not a regular file", str(path)) from error
        raise
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def put_once(path: Path, data: bytes) -> bool:
    """Write a whole file, durably, unless it is there; return whether this call wrote it.

    Of two processes one wins: a hard link fails if its name exists. O_EXCL under the final name would do that, too, but
    exposes an empty file after a crash.
    """
    temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        won = _link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)  # also for the loser: it acts on the winner's file, which must survive a crash
    return won


def remove_abandoned(folder: Path) -> None:
    """Delete the files, older than an hour, of processes that died in `put_once`."""
    for file in folder.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > _ABANDONED_SECONDS:
                file.unlink()


def _link(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    return True


def check_rename(source: Path, target: Path) -> None:
    """Check that files can be renamed from one folder into another, which need not exist.

    Nothing is changed: the kernel refuses another file system before it looks for the file, which does not exist.

    Raises:
        OSError: They cannot.
    """
    nearest = next(path for path in (target, *target.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
    with suppress(FileNotFoundError):
        (source / _ABSENT).rename(nearest / _ABSENT)
    if source.stat().st_dev != nearest.stat().st_dev:  # such as of two subvolumes, which share a mount
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(nearest))


@contextmanager
def file_errors(sink: str | None, place: str | Path) -> Iterator[None]:
    """Raise the errors of a file system as one that names the place.

    Raises:
        RetryableSinkError: The fault may pass: the file system is full or away, or a handle is stale.
        SinkError: It stays until somebody changes something; the message says what.
    """
    try:
        yield
    except OSError as error:
        if advice := _LASTING.get(error.errno or 0):
            raise SinkError(f"{place}: {text_of(error)}: {advice}", sink=sink) from error
        raise RetryableSinkError(f"{place}: {text_of(error)}", sink=sink) from error


@contextmanager
def sole(path: Path) -> Iterator[bool]:
    """Hold the only right to commit or abort the rows in a file, which both delete at their end.

    The file is opened for writing: on NFSv4 no other is locked (flock(2), "NFS details": EBADF).

    Yields:
        Whether it is there; False also if somebody has ended it meanwhile.

    Raises:
        RetryableSinkError: Another process holds it, or it cannot be opened now.
        SinkError: It cannot be opened until somebody changes something, or its file system has no locks.
    """
    handle: int | None = None
    with file_errors(None, path), suppress(FileNotFoundError):
        handle = os.open(path, os.O_RDWR)
    if handle is None:
        yield False
        return
    try:
        _lock(handle, path)
        try:
            with file_errors(None, path):
                there = path.exists()  # it may have been deleted before it was locked
            yield there
        finally:
            # Not by closing it alone: a process that was forked meanwhile has a copy, and would keep the lock.
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RetryableSinkError(f"another process is committing or aborting {path}") from error
    except OSError as error:
        raise SinkError(
            f"cannot lock {path}: {text_of(error)}. Its file system must have locks (flock), and over NFS a lock "
            "service that all machines reach"
        ) from error
