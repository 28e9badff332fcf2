"""What sinks into folders have in common: what is written is synced, and a folder remembers whose it is."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..core.errors import ConfigurationError, EpochConflictError, RetryableSinkError
from ..core.folders import make_folder, sync_folder
from ..core.names import TransactionName, parse_transaction_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..core.names import Scope
    from ..core.transaction import Committable

IDENTITY = ".identity"
"""File with the identity of a folder."""


def check_folder(sink: str, directory: str | Path) -> None:
    """Refuse what is no path.

    Raises:
        ConfigurationError: It is a URL.
    """
    if "://" in str(directory):
        raise ConfigurationError(f"sink {sink}: {directory} is no folder of a local or mounted file system")


@contextmanager
def sole(path: Path) -> Iterator[bool]:
    """Be the only one who commits or aborts what is at a path: a file or a folder that both delete at their end.

    Yields:
        Whether it is there; False also if somebody has ended it meanwhile.

    Raises:
        RetryableSinkError: Another process is at it.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RetryableSinkError(f"another process is at {path}") from error
        yield path.exists()  # it may have been deleted between the two
    finally:
        os.close(handle)


def identity_of(folder: Path) -> str:
    """A folder's random identity, made and synced when it is first asked for: it is in what is prepared there."""
    path = folder / IDENTITY
    if not path.exists():
        make_folder(folder)
        put_once(path, secrets.token_hex(8))
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


def put_once(path: Path, text: str) -> bool:
    """Write a file that nobody sees a part of, unless it is there; whether this call wrote it."""
    written = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with written.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(written, path)  # of two at once, one wins
        sync_folder(path.parent)
    except FileExistsError:
        return False
    finally:
        written.unlink()
    return True


class FolderClaims:
    """Which decision log stands behind each pipeline and sink that wrote into a folder.

    Args:
        folder: Where the notes are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, scope: Scope) -> None:
        """Note the log behind these names.

        Raises:
            EpochConflictError: The folder knows them from another one.
        """
        path = self._path(scope)
        make_folder(path.parent)
        if put_once(path, scope.log):
            return
        known = path.read_text()
        if known != scope.log:
            raise EpochConflictError(
                f"{self._folder} knows this pipeline and sink from another decision log ({known}): its rows were "
                "written already. Bring the log back, give the pipeline another name, or rewind it",
                pipeline=scope.pipeline,
                sink=scope.sink,
            )

    def known(self, scope: Scope) -> str | None:
        """The log behind these names, if one has claimed them."""
        path = self._path(scope)
        return path.read_text() if path.exists() else None

    def release(self, scope: Scope) -> None:
        """Forget it."""
        self._path(scope).unlink(missing_ok=True)

    def _path(self, scope: Scope) -> Path:
        return self._folder / f"{scope.pipeline}:{scope.sink}.claim"


def name_in(text: str, scope: Scope) -> TransactionName | None:
    """A transaction's name, if it is of exactly this pipeline and sink."""
    name = parse_transaction_name(text)
    return name if name is not None and name.scope[:2] == scope[:2] else None
