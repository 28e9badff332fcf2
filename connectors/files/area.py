"""The folder of a FileSink: where the files of a transaction are at each step, and how they get from one to the next.

    <root>/_onceward/<transaction>/<partition>/.<n>.<format>.pending    being written, then prepared: complete, synced
    <root>/_onceward/<transaction>.commit/…                             decided: what is in it is still to be moved
    <root>/_onceward/<transaction>.abort/…                              given up: being deleted
    <root>/<partition>/<transaction>-<n>.<format>                       finished

1. The transaction's folder is renamed before anything else happens to it, which a file system does atomically: of a
   commit and an abort at once, one finds nothing.
2. A file is renamed from pending to finished: no reader sees a part of it. Files of one transaction appear one after
   the other. The finished name says which transaction wrote it.
3. Nothing but a commit takes files out of `.commit`, and it puts each under its finished name. So a file that is not
   there any more has been finished, even if a loader has taken it away since.
4. The empty `.commit` stays until a newer transaction's is completed: it proves the commit whatever becomes of the
   finished files, and shows how far the decision log had come.
5. No reader sees what is pending, however it looks for files: Spark, Hive and pyarrow ignore names that begin with "_"
   or ".", whether they list the root or a glob names a folder below it; DuckDB and globs look for the extension.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onceward.core.folders import make_folder, sync_folder
from onceward.core.names import file_name
from onceward.sinks.folders import names_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.core.names import TransactionName

AREA: Final = "_onceward"
COMMIT, ABORT = ".commit", ".abort"


class FileArea:
    """The files of all transactions below one root.

    Args:
        root: Folder of the sink.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / AREA

    def pending(self, transaction: str) -> Path:
        """Folder of a transaction until its end begins."""
        return self.path / file_name(transaction)

    def names(self, *suffixes: str) -> list[TransactionName]:
        """Transactions that have a folder with one of these suffixes; "" for pending ones."""
        found = sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []
        return names_of(text.removesuffix(suffix) for suffix in suffixes for text in found if text.endswith(suffix))

    def begin_commit(self, transaction: str, files: Sequence[str]) -> list[str]:
        """Give the transaction's folder to its commit, if it is pending and whole.

        Returns:
            Pending files that are missing; then nothing was done.
        """
        pending = self.pending(transaction)
        missing = [file for file in files if not (pending / hidden(file)).exists()]
        with suppress(FileNotFoundError):
            if missing:
                pending.stat()  # looked at after the files: another commit may have begun meanwhile
                return missing
            pending.rename(self._of(transaction, COMMIT))
        if self.path.is_dir():
            sync_folder(self.path)
        return []

    def has_begun(self, transaction: str) -> bool:
        """Whether the transaction's commit has begun, and its proof is kept."""
        return self._of(transaction, COMMIT).is_dir()

    def finish(self, transaction: str, files: Sequence[str]) -> bool:
        """Move what is left to be moved; whether there was anything."""
        folder, moved = self._of(transaction, COMMIT), False
        finals = {folder / hidden(file): self.final(transaction, file) for file in files}
        for source, final in finals.items():
            if source.exists():
                make_folder(final.parent)
                moved = _move(source, final) or moved
        for parent in {final.parent for final in finals.values()}:
            if parent.is_dir():
                sync_folder(parent)
        if not self.is_finished(transaction, files):
            raise FileExistsError(errno.EEXIST, "not all of it was moved", str(folder))
        for left, _, _ in os.walk(folder, topdown=False):
            if left != str(folder):
                _remove_if_empty(Path(left))
        return moved

    def is_finished(self, transaction: str, files: Sequence[str]) -> bool:
        """Whether nothing is left to be moved of a transaction whose commit has begun."""
        return not any((self._of(transaction, COMMIT) / hidden(file)).exists() for file in files)

    def final(self, transaction: str, file: str) -> Path:
        """Finished name of a file."""
        path = Path(file)
        return self.root / path.parent / f"{file_name(transaction)}-{path.name}"

    def abort(self, transaction: str) -> bool:
        """Delete what is pending; whether there was anything."""
        folder = self._of(transaction, ABORT)
        found = folder.exists()
        if found:
            shutil.rmtree(folder)
        with suppress(FileNotFoundError):
            self.pending(transaction).rename(folder)
            shutil.rmtree(folder)
            found = True
        return found

    def forget(self, name: TransactionName, *, give_up: bool) -> None:
        """Delete the proof of a commit. Files that were never moved stay, or are given up to the next sweep."""
        folder = self._of(str(name), COMMIT)
        _remove_if_empty(folder)
        if give_up and folder.exists():
            folder.rename(self._of(str(name), ABORT))

    def _of(self, transaction: str, suffix: str) -> Path:
        return self.path / f"{file_name(transaction)}{suffix}"


def hidden(file: str) -> str:
    """Name of a file of a transaction while it is pending."""
    path = Path(file)
    return str(path.parent / f".{path.name}.pending")


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST}:
            raise


def _move(source: Path, final: Path) -> bool:
    try:
        source.rename(final)
    except FileNotFoundError:
        if source.exists():
            raise  # the folder that it goes to is gone
        return False  # another commit was faster
    return True
