"""What the page shows of a pipeline, out of what it writes; JSON-serialisable.

Only files are read, nothing is synced or locked, and a look costs a few `stat` calls while nothing has changed. Each
list has a limit, so a look costs no more for a pipeline that runs for months. A decision log that is not in a directory
is asked every ten seconds.
"""

from __future__ import annotations

import hashlib
import re
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onceward.core.engine.completion import QUERY as EMBEDDED
from onceward.core.engine.events import CheckpointRecord, TaskRecord
from onceward.core.errors import OncewardError
from onceward.core.log import Decide, DirectoryStore
from onceward.core.log.entries import position_of
from onceward.core.log.notes import FILE, notes
from onceward.core.operations.survey import GivenUp, given_up
from onceward.core.transaction import rows_by_sink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from onceward.core.log.notes import Note
    from onceward.core.operations.logs import Log

EPOCHS: Final = 50
TRANSACTIONS: Final = 200
"""Of an epoch; how many there are is told anyway."""
_NOTES: Final = 4 * EPOCHS
_STARTS: Final = 10
_BATCH: Final = re.compile(r"[0-9]{1,18}")
"""Name of a file in Spark's checkpoint."""
SEARCH_EVERY: Final = 10.0
"""Seconds between two searches for new pipelines, and between two looks at a store that is no directory."""


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that a decision names."""

    transaction: str
    sink: str
    subtask: int
    rows: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step in the life of an epoch's transactions."""

    step: str
    state: str
    """`done`, `waiting`, `ahead` or `failed`."""
    at: str | None = None
    detail: str = ""


class Epoch(msgspec.Struct, kw_only=True):
    """An epoch or a checkpoint; times are UTC, and None is what nobody wrote down."""

    epoch: int
    kind: str = "epoch"
    status: str = "in progress"
    reason: str = ""
    began: str | None = None
    prepared: str | None = None
    """When its decision was about to be written."""
    decided: str | None = None
    position: int | None = None
    """Of the decision in the log."""
    completed: str | None = None
    logged: str | None = None
    """When Spark recorded the batch as finished."""
    milliseconds: float | None = None
    commit_milliseconds: float | None = None
    rows: int | None = None
    sinks: dict[str, int | None] = {}
    transactions: int | None = None
    written: list[Transaction] = []
    size: int | None = None
    """Bytes of state."""
    alignment: float | None = None
    """Longest time, in seconds, for which a subtask waited for barriers."""
    subtasks: int | None = None
    acknowledged: int | None = None
    tasks: list[TaskRecord] = []
    steps: list[Step] = []

    @property
    def newest_time(self) -> str:
        return self.completed or self.decided or self.began or ""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A start of the pipeline: what it finished and what it swept."""

    at: str
    position: int | None = None
    milliseconds: float = 0
    finished: list[str] = []
    aborted: list[str] = []


class Pipeline(msgspec.Struct, kw_only=True):
    """A pipeline as the page shows it."""

    id: str
    name: str
    store: str
    driver: str = ""
    log: str = ""
    error: str = ""
    newest: str = ""
    """Time of the log's newest entry."""
    writer: int = -1
    """Position of the newest START."""
    waiting: int | None = None
    """Position of the decision that is not completed."""
    epochs: list[Epoch] = []
    starts: list[Start] = []
    given_up: list[GivenUp] = []


class Watched:
    """One pipeline, and what was last seen of it."""

    def __init__(self, log: Log, url: str) -> None:
        self.log, self.url = log, url
        where = log.store.describe()
        id_ = hashlib.sha256(f"{log.pipeline}\n{where}".encode()).hexdigest()[:8]
        self.shown = Pipeline(id=id_, name=log.pipeline, store=where)
        self._folder = log.store.path if isinstance(log.store, DirectoryStore) else None
        in_spark = self._folder is not None and (self._folder.parent / "offsets").is_dir()
        self._spark = self._folder.parent if self._folder is not None and in_spark else None
        self._decided: dict[int, Epoch] = {}
        """Out of the log, which forgets them."""
        self._signature: Any = None

    def look(self) -> None:
        """Read again what has changed."""
        signature = self._changes()
        if signature == self._signature and not self.shown.error:
            return
        try:
            shown = self._read()
            msgspec.json.encode(shown)  # a note may hold a number that JSON of the page cannot
            self.shown, self._signature = shown, signature
        except Exception as error:  # noqa: BLE001 - whatever others wrote into the folder, it hides no other pipeline
            told = str(error) if isinstance(error, OncewardError) else f"{type(error).__name__}: {error}"
            self.shown = msgspec.structs.replace(self.shown, error=told)

    def _changes(self) -> Any:
        """What is different after every change of what is read."""
        if self._folder is None:
            return int(time.monotonic() / SEARCH_EVERY)
        try:
            found: list[Any] = sorted(map(_signed, self._folder.iterdir()))
        except OSError as error:
            found = [str(error)]
        folders = [self._spark / "offsets", self._spark / "commits"] if self._spark is not None else []
        for path in (self._folder / FILE, *folders):
            with suppress(OSError):
                stat = path.stat()
                found.append((stat.st_mtime_ns, stat.st_size))
        return found

    def _read(self) -> Pipeline:
        view = self.log.view
        for decision, done in view.decisions:
            self._decided[decision.epoch] = _of_decision(decision, done.at if done is not None else None)
        for old in sorted(self._decided, key=lambda epoch: self._decided[epoch].newest_time)[:-EPOCHS]:
            del self._decided[old]
        noted = notes(self._folder, _NOTES) if self._folder is not None else []
        rows = _rows(noted, self._decided)
        if self._spark is not None:
            _add_spark(rows, self._spark)
        newest = sorted(rows.values(), key=lambda row: (row.newest_time, row.epoch), reverse=True)[:EPOCHS]
        for row in newest:
            row.steps = _steps(row, of_spark=self._spark is not None)
        embedded = view.newest is not None and view.newest.input.query == EMBEDDED
        return Pipeline(
            id=self.shown.id,
            name=self.shown.name,
            store=self.shown.store,
            driver="embedded engine" if embedded else "Spark",
            log=view.log,
            newest=view.entries[-1].at if view.entries else "",
            writer=view.start,
            waiting=view.undone.position if view.undone is not None else None,
            epochs=newest,
            starts=[_start(one) for one in noted if one.what == "start"][-_STARTS:][::-1],
            given_up=given_up(self.log)[-EPOCHS:],
        )


def _signed(path: Path) -> tuple[Any, ...]:
    """Return what is different after a change of an entry; an entry is written once, so others have changed it."""
    if position_of(path.name) is not None:
        with suppress(OSError):
            stat = path.lstat()
            return path.name, stat.st_ino, stat.st_mtime_ns, stat.st_size
    return (path.name,)


def _of_decision(decision: Decide, completed: str | None) -> Epoch:
    rows = rows_by_sink(decision.committables, decision.sinks)
    return Epoch(
        epoch=decision.epoch,
        status="completed" if completed is not None else "decided",
        decided=decision.at,
        position=decision.position,
        completed=completed,
        rows=sum(rows.values()),
        sinks={**rows},
        transactions=len(decision.committables),
        written=[
            Transaction(transaction=c.transaction, sink=c.sink, subtask=c.subtask, rows=c.rows)
            for c in decision.committables[:TRANSACTIONS]
        ],
    )


def _rows(noted: Sequence[Note], decided: dict[int, Epoch]) -> dict[int, Epoch]:
    rows: dict[int, Epoch] = {}
    for one in noted:
        with suppress(msgspec.ValidationError, KeyError):
            if one.what == "epoch":
                given = msgspec.convert(one.fields, Epoch)
                given.status, given.completed = "completed", one.at
                given.began = _before(one.at, given.milliseconds)
                given.prepared = _before(one.at, given.commit_milliseconds)
                rows[given.epoch] = given
            elif one.what == "checkpoint":
                record = msgspec.convert(one.fields, CheckpointRecord)
                _add_checkpoint(rows, record, one.at)
    for number, known in decided.items():
        row = rows.get(number)
        if row is None or (row.completed or "") < (known.decided or ""):  # the same number again, after a rewind
            rows[number] = msgspec.structs.replace(known)
        else:
            row.decided, row.position, row.written = known.decided, known.position, known.written
            row.prepared = min(filter(None, (row.prepared, row.decided)), default=None)  # the note came a little later
            row.rows, row.sinks, row.transactions = known.rows, known.sinks, known.transactions
    return rows


def _add_checkpoint(rows: dict[int, Epoch], record: CheckpointRecord, at: str) -> None:
    row = rows.setdefault(record.checkpoint, Epoch(epoch=record.checkpoint))
    milliseconds = record.duration * 1000
    row.kind, row.status, row.reason = record.kind, record.status, record.reason
    row.milliseconds, row.began = milliseconds, _before(at, milliseconds)
    row.completed = at if record.status == "completed" else None
    row.size = sum(task.state for task in record.tasks)
    row.alignment = max((task.alignment for task in record.tasks), default=0.0)
    row.subtasks, row.acknowledged = record.subtasks, len(record.tasks)
    row.tasks = record.tasks[:TRANSACTIONS]


def _add_spark(rows: dict[int, Epoch], checkpoint: Path) -> None:
    """When Spark planned each batch, when it recorded its end, and the batch that is in progress."""
    with suppress(OSError):
        names = [path.name for path in (checkpoint / "offsets").iterdir()]
        newest = max((int(name) for name in names if _BATCH.fullmatch(name)), default=None)
        if newest is not None:
            rows.setdefault(newest, Epoch(epoch=newest))
    for row in sorted(rows.values(), key=lambda row: row.epoch)[-EPOCHS:]:
        planned = _written_at(checkpoint / "offsets" / str(row.epoch))
        row.began = min(filter(None, (planned, row.began)), default=None)
        row.logged = _written_at(checkpoint / "commits" / str(row.epoch))
        if row.logged is not None and row.status == "in progress":  # older than all that onceward wrote down
            row.status, row.completed = "completed", row.logged
        if row.milliseconds is None and row.began is not None and row.completed is not None:
            # A decision that waited for an operator, or for the next start, was not written meanwhile.
            row.milliseconds = _between(row.began, row.decided or row.completed)


def _steps(row: Epoch, *, of_spark: bool) -> list[Step]:
    decided, completed = row.position is not None or row.completed is not None, row.completed is not None
    failed = row.status in {"failed", "declined", "subsumed"} and not decided
    plural = "" if row.transactions == 1 else "s"
    many = f"{row.transactions} transaction{plural}" if row.transactions is not None else ""
    acks = f"{row.acknowledged} of {row.subtasks} subtasks" if row.subtasks else ""
    entry = f"entry {row.position}" if row.position is not None else ""
    after = "done" if decided else "ahead"
    steps = [
        Step(step="write", state="done" if decided or failed else "waiting", at=row.began),
        Step(step="pre-commit", state="failed" if failed else after, at=row.prepared, detail=acks or many),
        Step(step="decide", state=after, at=row.decided, detail=entry),
        Step(step="commit", state="done" if completed else "waiting" if decided else "ahead", detail=many),
        Step(step="complete", state="done" if completed else "ahead", at=row.completed),
    ]
    if of_spark:
        steps.append(Step(step="Spark logs the batch", state="done" if row.logged else "ahead", at=row.logged))
    return steps


def _start(one: Note) -> Start:
    try:
        return msgspec.convert({**one.fields, "at": one.at}, Start)
    except msgspec.ValidationError:
        return Start(at=one.at)


def _before(at: str, milliseconds: float | None) -> str | None:
    try:
        when = datetime.fromisoformat(at) - timedelta(milliseconds=milliseconds or 0)
    except (ValueError, OverflowError):
        return None
    return when.isoformat(timespec="milliseconds") if milliseconds is not None else None


def _between(began: str, ended: str) -> float | None:
    with suppress(ValueError, TypeError):
        return max(0.0, (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds() * 1000)
    return None


def _written_at(path: Path) -> str | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="milliseconds")
    except OSError:
        return None
