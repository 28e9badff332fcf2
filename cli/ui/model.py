"""What the page shows of a pipeline: its overview, and what the files of Spark's checkpoint add; JSON-serialisable.

Only files are read, nothing is synced or locked, and a look costs a few `stat` calls while nothing has changed. Each
list has a limit, so a look costs no more for a pipeline that runs for months. A decision log that is not in a folder
is asked every ten seconds.
"""

from __future__ import annotations

import hashlib
import re
import time
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onceward.core.errors import OncewardError, StoreError, named_text_of, text_of
from onceward.core.kit.times import duration
from onceward.core.log import DirectoryStore
from onceward.core.log.entries import position_of
from onceward.core.log.notes import FILE, notes_beside
from onceward.core.operations.history import decided_epochs, newest_epochs, overview_of
from onceward.core.operations.status import NOTES, judged, obstacle_of, unreadable
from onceward.operations import Epoch, History

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from onceward.core.log import LogView
    from onceward.core.log.note_kinds import Note
    from onceward.operations import Log, PipelineStatus

EPOCHS: Final = 50
_BATCH: Final = re.compile(r"[0-9]{1,18}")
"""Name of a file in Spark's checkpoint."""
SEARCH_EVERY: Final = 10.0
"""Seconds between two searches for new pipelines, and between two looks at a store that is no folder."""
PATIENCE: Final = 2.0
"""Seconds for which the page waits for a store that is no folder."""
_ASSESS_EVERY: Final = 10
"""Seconds for which a state is shown again while nothing is written, so that nothing is sent and drawn meanwhile."""


class ShownStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in the life of an epoch's transactions."""

    step: str
    state: str
    """`done`, `waiting`, `ahead` or `failed`."""
    at: str | None = None
    detail: str = ""


class ShownPipeline(History, frozen=True, kw_only=True):
    """A pipeline as the page shows it: its past, and what the page itself knows of it."""

    id: str
    error: str = ""
    read: str | None = None
    """Time when the rest was read, if there is an error; None if it never was."""
    of_spark: bool = False
    """True if its log is inside a checkpoint of Spark."""


def with_steps(epoch: Epoch, *, of_spark: bool) -> dict[str, Any]:
    """Return an epoch as the page shows it, with the steps in the life of its transactions."""
    return {**msgspec.structs.asdict(epoch), "steps": _steps(epoch, of_spark=of_spark)}


class Question:
    """A question to a store, which may never be answered: it is waited for once, and looked at again later.

    Args:
        where: Name of the store, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._answer: Future[Any] | None = None
        self._began = 0.0

    def ask(self, call: Callable[[], Any], seconds: float) -> Any:
        """Return the answer to a call, or to the one before if that has not been answered yet.

        Args:
            call: Function that asks the store.
            seconds: Seconds to wait for the answer, if it is asked now.

        Raises:
            StoreError: It has not been answered.
        """
        answer, wait = self._answer, 0.0
        if answer is None:
            answer, wait, self._began = Future[Any](), seconds, time.monotonic()
            self._answer = answer
            # Not a pool of threads: the interpreter waits for those when it ends.
            Thread(target=_work, args=(answer, call), name="onceward-question", daemon=True).start()
        try:
            given = answer.result(wait)
        except TimeoutError as error:
            if not answer.done():
                waited = duration(time.monotonic() - self._began)
                raise StoreError(f"{self._where} has not answered for {waited}") from error
            raise
        finally:
            self._answer = None if answer.done() else answer
        return given


def _work(answer: Future[Any], call: Callable[[], Any]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised by whoever waits
        answer.set_exception(error)


class Watched:
    """One pipeline, and what was last seen of it.

    Args:
        log: Its decision log.
        url: URL of the log's store.
        patience: Seconds to wait for a store that is no folder; after that, what was last seen is shown, with its age.
    """

    def __init__(self, log: Log, url: str, patience: float = PATIENCE) -> None:
        self.log, self.url, self._patience = log, url, patience
        self._question = Question(log.store.describe())
        self._read_at: str | None = None
        where = log.store.describe()
        id_ = hashlib.sha256(f"{log.pipeline}\n{where}".encode()).hexdigest()[:8]
        self.shown = ShownPipeline(id=id_, pipeline=log.pipeline, store=where)
        self._folder = log.store.path if isinstance(log.store, DirectoryStore) else None
        in_spark = self._folder is not None and (self._folder.parent / "offsets").is_dir()
        self._spark = self._folder.parent if self._folder is not None and in_spark else None
        self._decided: dict[int, Epoch] = {}
        """Out of the log, which forgets them."""
        self._signature: Any = None
        self._known: tuple[LogView, Sequence[Note]] | None = None
        """The log and the notes as they were read last."""
        self._status: tuple[Any, PipelineStatus] | None = None

    def status(self, now: datetime) -> PipelineStatus:
        """Return the pipeline's state, from what `look` has read."""
        now = now.replace(second=now.second // _ASSESS_EVERY * _ASSESS_EVERY, microsecond=0)
        key = (now, self.shown.error)
        if self._status is None or self._status[0] != key:
            where = self.log.store.describe()
            if self.shown.error or self._known is None:
                status_ = unreadable(self.log.pipeline, where, self.shown.error)
            else:
                status_ = judged(self.log.pipeline, where, *self._known, now, obstacle=obstacle_of(self.log.store))
            self._status = key, status_
        return self._status[1]

    def look(self) -> None:
        """Read again what has changed."""
        signature = self._changes()
        if signature == self._signature and not self.shown.error:
            return
        try:
            shown = self._read() if self._folder is not None else self._question.ask(self._read, self._patience)
            msgspec.json.encode(shown)  # a note may hold a number that JSON of the page cannot
            self.shown, self._signature = shown, signature
            self._read_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        except Exception as error:  # noqa: BLE001 - whatever others wrote into the folder, it hides no other pipeline
            text = text_of(error) if isinstance(error, OncewardError) else named_text_of(error)
            self.shown = msgspec.structs.replace(self.shown, error=text, read=self._read_at)

    def _changes(self) -> Any:
        """Return a value that differs after every change of the files that are read."""
        if self._folder is None:
            return int(time.monotonic() / SEARCH_EVERY)
        try:
            signatures: list[Any] = sorted(map(_signed, self._folder.iterdir()))
        except OSError as error:
            signatures = [text_of(error)]
        folders = [self._spark / "offsets", self._spark / "commits"] if self._spark is not None else []
        for path in (self._folder / FILE, *folders):
            with suppress(OSError):
                stat = path.stat()
                signatures.append((stat.st_mtime_ns, stat.st_size))
        return signatures

    def _read(self) -> ShownPipeline:
        view = self.log.view
        self._decided |= decided_epochs(view)
        self._decided = {record.epoch: record for record in newest_epochs(self._decided, EPOCHS)}
        now = overview_of(self.log, view, EPOCHS, self._decided)
        self._known = view, notes_beside(self.log.store, NOTES)
        self._status = None
        epochs = {epoch.epoch: epoch for epoch in now.epochs}
        if self._spark is not None:
            _add_spark(epochs, self._spark)
        now = msgspec.structs.replace(now, epochs=newest_epochs(epochs, EPOCHS))
        return ShownPipeline(id=self.shown.id, of_spark=self._spark is not None, **msgspec.structs.asdict(now))


def _signed(path: Path) -> tuple[Any, ...]:
    """Return what is different after a change of an entry; an entry is written once, so others have changed it."""
    if position_of(path.name) is not None:
        with suppress(OSError):
            stat = path.lstat()
            return path.name, stat.st_ino, stat.st_mtime_ns, stat.st_size
    return (path.name,)


def _add_spark(records: dict[int, Epoch], checkpoint: Path) -> None:
    """Add when Spark planned each batch, when it recorded its end, and the batch that is in progress."""
    with suppress(OSError):
        names = [path.name for path in (checkpoint / "offsets").iterdir()]
        newest = max((int(name) for name in names if _BATCH.fullmatch(name)), default=None)
        if newest is not None:
            records.setdefault(newest, Epoch(epoch=newest))
    for number, record in records.items():
        records[number] = _of_spark(record, checkpoint)


def _of_spark(record: Epoch, checkpoint: Path) -> Epoch:
    planned = _written_at(checkpoint / "offsets" / str(record.epoch))
    logged = _written_at(checkpoint / "commits" / str(record.epoch))
    began = min(filter(None, (planned, record.began)), default=None)
    record = msgspec.structs.replace(record, began=began, logged=logged)
    if logged is not None and record.status == "in progress":  # older than all that onceward wrote down
        record = msgspec.structs.replace(record, status="completed", completed=logged)
    if record.milliseconds is None and began is not None and record.completed is not None:
        # A decision that waited for an operator, or for the next start, was not written meanwhile.
        record = msgspec.structs.replace(record, milliseconds=_between(began, record.decided or record.completed))
    return record


def _steps(row: Epoch, *, of_spark: bool) -> list[ShownStep]:
    decided, completed = row.position is not None or row.completed is not None, row.completed is not None
    failed = row.failed
    plural = "" if row.transactions == 1 else "s"
    many = f"{row.transactions} transaction{plural}" if row.transactions is not None else ""
    acks = f"{row.acknowledged} of {row.subtasks} subtasks" if row.subtasks else ""
    entry = f"entry {row.position}" if row.position is not None else ""
    after = "done" if decided else "ahead"
    steps = [
        ShownStep(step="write", state="done" if decided or failed else "waiting", at=row.began),
        ShownStep(step="pre-commit", state="failed" if failed else after, at=row.prepared, detail=acks or many),
        ShownStep(step="decide", state=after, at=row.decided, detail=entry),
        ShownStep(step="commit", state="done" if completed else "waiting" if decided else "ahead", detail=many),
        ShownStep(step="complete", state="done" if completed else "ahead", at=row.completed),
    ]
    if of_spark:
        steps.append(ShownStep(step="Spark logs the batch", state="done" if row.logged else "ahead", at=row.logged))
    return steps


def _between(began: str, ended: str) -> float | None:
    with suppress(ValueError, TypeError):
        return max(0.0, (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds() * 1000)
    return None


def _written_at(path: Path) -> str | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="milliseconds")
    except OSError:
        return None
