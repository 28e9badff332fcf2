"""Writers of one run, which starts again after failures, in the same process or in another one.

A START drives out whoever wrote before it. So two runs of one pipeline that both start again after each failure would
take the pipeline from each other for ever, and an older one would win over the newer one that an operator has started.
A run therefore starts again only if no other run has started since it did.

`onceward run` starts the processes of one run: it passes them a folder, where each notes the writers it becomes, and
the directories of its decision logs, beside which `onceward run` notes how each process has ended.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ..errors import ConfigurationError, StoreError, text_of
from ..kit import typed
from .entries import Start
from .store import DirectoryStore

if TYPE_CHECKING:
    from .store import LogStore
    from .view import LogView

RUN_VARIABLE: Final = "ONCEWARD_RUN"
"""Environment variable with the folder of the run, which `onceward run` sets for its driver."""
OVERTAKEN: Final = "overtaken"
"""File in that folder which says why the run must not start again."""
_LOG: Final = ".log"
"""Suffix of a file in that folder with the directory of a decision log."""
_KEPT: Final = 1000
"""Number of newest writers that are remembered; older ones are behind them in the log."""


class _Notes(msgspec.Struct):
    writers: list[str] = []
    since: int | None = None


@dataclass
class RunWriters:
    """Writers of one run.

    Attributes:
        writers: Their identities, the newest ones last.
        since: Position of the log's tail when the first of them started; None before that.
        start: Position of the newest START that this process has put; None before that.
        file: File in which they are noted for later processes of the same run; None if it has one process.
    """

    writers: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    since: int | None = None
    file: Path | None = None
    start: int | None = None

    @classmethod
    def of(cls, pipeline: str, store: LogStore) -> RunWriters:
        """Return the writers of this run of a pipeline, with those of its earlier processes.

        Raises:
            ConfigurationError: The folder of the run cannot be read.
        """
        folder = os.environ.get(RUN_VARIABLE)
        if not folder:
            return cls()
        register_log(store)
        key = _digest(f"{pipeline}\n{store.describe()}")
        file = Path(folder, f"{key}.json")
        try:
            notes = typed.decode(file.read_bytes(), _Notes)
        except FileNotFoundError:
            notes = _Notes()
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigurationError(
                f"{RUN_VARIABLE}={folder}: the notes of `onceward run` cannot be read: {text_of(error)}. End it, start "
                "anew"
            ) from error
        return cls(deque(notes.writers, _KEPT), notes.since, file)

    def note(self, writer_id: str, tail: int) -> None:
        """Note a writer before its START is put, because the answer may be lost.

        Args:
            writer_id: Identity of the writer.
            tail: Position of the log's last entry.

        Raises:
            StoreError: It cannot be noted for later processes.
        """
        self.writers.append(writer_id)
        if self.since is None:
            self.since = tail
        if self.file is not None:
            _write(self.file, msgspec.json.encode(_Notes(list(self.writers), self.since)))

    def overtaken(self, view: LogView) -> str:
        """Return why the run must not start again: another one has started since it did; empty if none has.

        A START that a tool has put does not count (an operator ends transactions in doubt, for example): a run goes on
        after it.
        """
        since = -1 if self.since is None else self.since
        tools = {entry.writer_id for entry in view.entries if isinstance(entry, Start) and entry.tool}
        for entry in reversed(view.entries):
            if entry.position <= since or entry.writer_id in self.writers:
                return ""
            if entry.writer_id not in tools:
                return f"entry {entry.position} is of another run, which has started since"
        return ""

    def end(self, why: str) -> None:
        """Tell `onceward run` why this run must not start again."""
        if self.file is not None:
            _write(self.file.with_name(OVERTAKEN), why.encode())


def register_log(store: LogStore) -> None:
    """Tell `onceward run`, if it has started this process, beside which decision log it can note how this one ends."""
    folder = os.environ.get(RUN_VARIABLE)
    if not folder or not isinstance(store, DirectoryStore):
        return
    path = os.path.abspath(store.path)  # noqa: PTH100 - without resolving links
    with suppress(OSError):
        Path(folder, f"{_digest(path)}{_LOG}").write_bytes(os.fsencode(path))


def registered_logs(folder: Path) -> list[Path]:
    """Return the directories of the decision logs that the processes of a run have used.

    Args:
        folder: Folder of the run.
    """
    paths: list[Path] = []
    for file in sorted(folder.glob(f"*{_LOG}")):
        with suppress(OSError, ValueError):
            path = Path(os.fsdecode(file.read_bytes()))
            paths += [path] if path.is_absolute() else []
    return paths


def writers_in(folder: Path) -> list[str]:
    """Return the identities of the writers that the processes of a run have become.

    Args:
        folder: Folder of the run.
    """
    writers: list[str] = []
    for file in sorted(folder.glob("*.json")):
        with suppress(OSError, msgspec.MsgspecError):
            writers += typed.decode(file.read_bytes(), _Notes).writers
    return writers


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _write(file: Path, data: bytes) -> None:
    new = file.with_suffix(".new")
    try:
        new.write_bytes(data)
        new.replace(file)
    except OSError as error:
        raise StoreError(f"the notes for `onceward run` cannot be written: {text_of(error)}") from error
