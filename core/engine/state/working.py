"""Working copies of state on a local disk, and the removal of those that dead runs left.

A working copy is a folder that its process locks as long as it uses it; the system ends the lock with the process,
whatever kills it. The folder gets its name only when it is locked. So a folder of that name that nobody locks is of a
dead run, and the next start of the same pipeline removes it. Where a file system has no locks, nothing is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import StateError, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "onceward-state-"
_ADVICE: Final = (
    "Make room, or choose another folder: RocksDBBackend(local=…), or the environment variable TMPDIR where local is "
    "not given"
)


class WorkingCopy:
    """A folder for one working copy; making one removes those that dead runs of the same owner left.

    Args:
        local: Folder in which it is made; None: the system's folder for temporary files (TMPDIR).
        owner: Identity of its owner: the location of a pipeline's checkpoints.

    Raises:
        StateError: It cannot be made; the message names the folder.
    """

    def __init__(self, local: Path | None, owner: str) -> None:
        name = f"{PREFIX}{hashlib.sha256(owner.encode()).hexdigest()[:12]}-"
        with room(local):
            base = Path(tempfile.gettempdir()) if local is None else local
        with room(base):
            if local is not None:
                base.mkdir(parents=True, exist_ok=True)
            _remove_dead(base, name)
            self.folder = base / f"{name}{secrets.token_hex(6)}"
            unlocked = base / f".{self.folder.name}"
            unlocked.mkdir(mode=0o700)
            self._lock: int | None = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unlocked.rename(self.folder)

    def close(self) -> None:
        """Delete the working copy, and release its lock."""
        if self._lock is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


@contextmanager
def room(folder: Path | None) -> Iterator[None]:
    """Raise errors of the file system below a folder (full, missing, read-only) as a StateError that names it."""
    try:
        yield
    except OSError as error:
        where = f" in {folder}" if folder is not None else ""
        raise StateError(f"the working copy of state{where} cannot be written: {text_of(error)}. {_ADVICE}") from error


def _remove_dead(base: Path, name: str) -> None:
    for folder in base.glob(f"{name}*"):
        with suppress(OSError):  # it is gone, or a link, or locks do not work here
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(handle).st_uid == os.geteuid():
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
