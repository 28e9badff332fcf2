"""The past of a pipeline, from its decision log and the notes beside it: epochs, starts, and what was given up.

The log keeps the newest epochs only. Notes say more of the past, and how long things took; only a log in a folder
has them (see core/log/notes.py). What only a note says is for people: nothing is decided by it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..checkpoint.recovery import TransactionStatus
from ..contract.transaction import rows_by_sink
from ..engine.completion import QUERY as EMBEDDED
from ..errors import ConfigurationError
from ..kit import typed
from ..log import Replace, Resolved, Void, audit_records
from ..log.note_kinds import CheckpointRecord, EpochNote, StartNote, TaskRecord
from ..log.notes import notes_beside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..log import Completed, Decide, LogView
    from ..log.note_kinds import Note
    from .log_locations import Log
    from .survey import FoundTransaction

TRANSACTIONS: Final = 200
"""Maximum number of transactions or tasks of an epoch that are listed; their total is shown anyway."""
_EPOCHS: Final = 50
_NOTES_OF_AN_EPOCH: Final = 4
"""Maximum number of notes for each epoch, failed checkpoints and starts among them."""
_EPOCHS_OF_DAYS: Final = 10_000
"""Number of epochs that is more than notes are kept of."""
_STARTS: Final = 10
_FAILED: Final = frozenset({"failed", "declined", "subsumed"})


class DecidedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that a decision names."""

    transaction: str
    sink: str
    subtask: int
    rows: int


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch, or a checkpoint of the embedded engine. Times are UTC; None is what is not known.

    A log alone says less of an epoch than the notes beside it. Fields that one reader alone fills say so.
    """

    epoch: int
    kind: str = "epoch"
    """Kind: "epoch", or that of the checkpoint: "checkpoint", "savepoint", …"""
    status: str = "in progress"
    """Status: "in progress", "decided" (its commit waits), "completed", or the end of its checkpoint: "failed", …"""
    reason: str = ""
    """Reason why the checkpoint failed; empty if it did not."""
    began: str | None = None
    prepared: str | None = None
    """Time at which its decision was about to be written."""
    decided: str | None = None
    position: int | None = None
    """Position of the decision in the log."""
    completed: str | None = None
    """Time of its completion; None while it waits for its commit."""
    logged: str | None = None
    """Time when Spark recorded the batch as finished; only `onceward ui` reads Spark's checkpoint."""
    milliseconds: float | None = None
    """Milliseconds from its beginning to its end."""
    commit_milliseconds: float | None = None
    """Milliseconds from its decision to its end."""
    rows: int | None = None
    sinks: dict[str, int | None] = {}
    """Rows of each sink."""
    transactions: int | None = None
    written: list[DecidedTransaction] = []
    """Transactions of the epoch, as long as the log holds its decision; 200 at most."""
    size: int | None = None
    """Size of the checkpoint's state, in bytes."""
    alignment: float | None = None
    """Longest time, in seconds, for which a subtask waited for barriers."""
    subtasks: int | None = None
    """Number of subtasks that were to acknowledge the checkpoint."""
    acknowledged: int | None = None
    """Number of subtasks that acknowledged it."""
    tasks: list[TaskRecord] = []
    input: Any = None
    """Offsets where its input ended, by `history`."""
    checkpoint: str | None = None
    """Folder of the embedded engine's checkpoint, by `history`."""
    retained: tuple[str, ...] = ()
    """Earlier checkpoints beside it, from which a run can be restored too, by `history`; empty if this machine cannot
    read them."""
    expires_in: int | None = None
    """Seconds until a target ends the first of the transactions that wait for their commit, by `history`; None if no
    target that was given will end one."""

    @property
    def newest_time(self) -> str:
        """Time of the newest step that is known: completed, decided or began; empty if none is."""
        return self.completed or self.decided or self.began or ""

    @property
    def failed(self) -> bool:
        """Whether the checkpoint failed, and the epoch was not decided."""
        return self.status in _FAILED and self.position is None and self.completed is None


class GivenUp(msgspec.Struct, frozen=True, kw_only=True):
    """The audit record of a transaction that was given up (RESOLVED), or of rows written again (VOID, REPLACE)."""

    epoch: int
    transaction: str
    """Name of the transaction; empty for all of the epoch."""
    action: str
    """Action that was taken: "skip", "replay" (the epoch was written again) or "heal" (only its lost rows were)."""
    who: str
    why: str
    at: str


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a pipeline's past. Times are UTC."""

    pipeline: str
    store: str
    """Description of the store of its decision log."""
    driver: str = ""
    """"Spark" or "embedded engine"."""
    log: str = ""
    """Identity of the log."""
    newest: str = ""
    """Time of the log's newest entry; empty if it has none."""
    generation: int = -1
    """Position of the newest START."""
    waiting: int | None = None
    """Position of the decision that waits for its commit; None if none does."""
    epochs: list[Epoch] = []
    """Epochs of the pipeline: those of `overview`, the newest first, or those of `history`, the oldest first."""
    starts: list[StartNote] = []
    """Starts of the pipeline that `overview` has found notes of, the newest first; 10 at most."""
    given_up: list[GivenUp] = []
    """Audit records of transactions that were skipped or written again, oldest first."""


def history(log: Log, transactions: Sequence[FoundTransaction] = ()) -> History:
    """Return what a decision log itself says about the past. It is pruned at each completion, so there are few epochs.

    Args:
        log: The pipeline's decision log.
        transactions: Transactions that the targets show now; they say when those of the waiting epoch expire.
    """
    view = log.view
    epochs = decided_epochs(view)
    epochs |= {decision.epoch: _with_input(epochs[decision.epoch], decision) for decision, _ in view.decisions}
    decided = [one for one in transactions if one.status is TransactionStatus.DECIDED]
    waiting = [one for one in decided if one.expires_in is not None]
    for epoch in {one.committable.epoch for one in waiting} & set(epochs):
        seconds = min(one.expires_in or 0 for one in waiting if one.committable.epoch == epoch)
        epochs[epoch] = msgspec.structs.replace(epochs[epoch], expires_in=seconds)
    return _past(log, view, epochs=list(epochs.values()), given_up=given_up(log, view))


def _with_input(epoch: Epoch, decision: Decide) -> Epoch:
    from ..engine.reference import Decided, older_checkpoints  # noqa: PLC0415 - the embedded engine

    decided = Decided.of(decision)
    folder = decided.checkpoint.folder if decided is not None else None
    retained: tuple[str, ...] = ()
    if folder is not None:
        with suppress(Exception):  # this machine may not have access to the checkpoints, and the log says the rest
            retained = older_checkpoints(folder, decision.epoch)
    return msgspec.structs.replace(epoch, input=decision.input.end, checkpoint=folder, retained=retained)


def overview(log: Log, *, epochs: int = _EPOCHS) -> History:
    """Return a pipeline's past, from its decision log and the notes beside it. Asks no target.

    Args:
        log: The decision log. One that is not in a folder has no notes, so it tells only of its newest epochs.
        epochs: Maximum number of epochs to return.

    Raises:
        StoreError: The store did not answer, or the log is damaged.
    """
    view = log.view
    return overview_of(log, view, epochs, decided_epochs(view))


def overview_of(log: Log, view: LogView, most: int, decided: Mapping[int, Epoch]) -> History:
    """Return a pipeline's past if these decisions are known of, some of which the log may have forgotten."""
    noted = notes_beside(log.store, _NOTES_OF_AN_EPOCH * most)
    return _past(
        log,
        view,
        epochs=newest_epochs(_records(noted, decided), most),
        starts=[one for one in noted if isinstance(one, StartNote)][-_STARTS:][::-1],
        given_up=given_up(log, view)[-most:],
    )


def _past(log: Log, view: LogView, **more: Any) -> History:
    embedded = view.newest is not None and view.newest.input.query == EMBEDDED
    return History(
        pipeline=log.pipeline,
        store=log.store.describe(),
        driver="embedded engine" if embedded else "Spark",
        log=view.log,
        newest=view.entries[-1].at if view.entries else "",
        generation=view.start,
        waiting=view.undone.position if view.undone is not None else None,
        **more,
    )


def epochs_of_day(log: Log, sink: str, day: str) -> range | None:
    """Return the epochs that were completed on a day and wrote rows into a sink; None if there are none.

    Args:
        log: The decision log. Notes beside a log in a folder go back more than a thousand epochs; any other log
            knows its newest epochs only.
        sink: Name of the sink.
        day: The day (UTC), such as 2026-11-27.

    Raises:
        ConfigurationError: It is no day.
        StoreError: The store did not answer, or the log is damaged.
    """
    try:
        begins = date.fromisoformat(day).isoformat()
    except ValueError as error:
        raise ConfigurationError(f"{day!r} is no day: give one such as 2026-11-27") from error
    known = overview(log, epochs=_EPOCHS_OF_DAYS).epochs
    numbers = [one.epoch for one in known if one.sinks.get(sink) and (one.completed or "").startswith(begins)]
    return range(min(numbers), max(numbers) + 1) if numbers else None


def newest_epochs(records: Mapping[int, Epoch], most: int) -> list[Epoch]:
    """Return so many of the epochs, the newest first."""
    return sorted(records.values(), key=lambda one: (one.newest_time, one.epoch), reverse=True)[:most]


def decided_epochs(view: LogView) -> dict[int, Epoch]:
    """Return the epochs whose decisions the log still holds."""
    return {decision.epoch: _decided(decision, done) for decision, done in view.decisions}


def _decided(decision: Decide, done: Completed | None) -> Epoch:
    rows = rows_by_sink(decision.committables, decision.sinks)
    completed = done.at if done is not None else None
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
            DecidedTransaction(transaction=c.transaction, sink=c.sink, subtask=c.subtask, rows=c.rows)
            for c in decision.committables[:TRANSACTIONS]
        ],
    )


def _records(noted: Sequence[Note], decided: Mapping[int, Epoch]) -> dict[int, Epoch]:
    records: dict[int, Epoch] = {}
    for one in noted:
        if isinstance(one, EpochNote):
            records[one.epoch] = _completed(one)
        elif isinstance(one, CheckpointRecord):
            before = records.get(one.checkpoint, Epoch(epoch=one.checkpoint))
            records[one.checkpoint] = _with_checkpoint(before, one)
    for number, known in decided.items():
        records[number] = _with_decision(records.get(number), known)
    return records


def _completed(note: EpochNote) -> Epoch:
    return Epoch(
        epoch=note.epoch,
        status="completed",
        began=_before(note.at, note.milliseconds),
        prepared=_before(note.at, note.commit_milliseconds),
        decided=note.decided or None,
        completed=note.at,
        milliseconds=note.milliseconds,
        commit_milliseconds=note.commit_milliseconds,
        rows=note.rows,
        sinks=note.sinks,
        transactions=note.transactions,
    )


def _with_decision(record: Epoch | None, known: Epoch) -> Epoch:
    if record is None or (record.completed or "") < (known.decided or ""):  # the same number again, after a rewind
        return known
    return msgspec.structs.replace(
        record,
        decided=known.decided,
        position=known.position,
        written=known.written,
        prepared=min(filter(None, (record.prepared, known.decided)), default=None),  # the note came a little later
        rows=known.rows,
        sinks=known.sinks,
        transactions=known.transactions,
    )


def _with_checkpoint(before: Epoch, record: CheckpointRecord) -> Epoch:
    milliseconds = record.duration * 1000
    return msgspec.structs.replace(
        before,
        kind=record.kind,
        status=record.status,
        reason=record.reason,
        milliseconds=milliseconds,
        began=_before(record.at, milliseconds),
        completed=record.at if record.status == "completed" else None,
        size=sum(task.state for task in record.tasks),
        alignment=max((task.alignment for task in record.tasks), default=0.0),
        subtasks=record.subtasks,
        acknowledged=len(record.tasks),
        tasks=record.tasks[:TRANSACTIONS],
    )


def _before(at: str, milliseconds: float | None) -> str | None:
    try:
        when = datetime.fromisoformat(at) - timedelta(milliseconds=milliseconds or 0)
    except (ValueError, OverflowError):
        return None
    return when.isoformat(timespec="milliseconds") if milliseconds is not None else None


def given_up(log: Log, view: LogView | None = None) -> list[GivenUp]:
    """Return all that was ever given up, oldest first.

    Args:
        log: The pipeline's decision log.
        view: Content of the log, if it was read a moment ago.
    """
    records = {record.position: record for record in audit_records(log.store)}
    for entry in (view or log.view).entries:
        if isinstance(entry, Resolved | Void | Replace):
            records.setdefault(entry.position, entry)
    return [_given_up(record) for record in records.values()]


def _given_up(record: Resolved | Void | Replace) -> GivenUp:
    by_policy: dict[str, str] = {"transaction": "", "who": "policy on_lost=replay"}
    if isinstance(record, Void):
        return GivenUp(epoch=record.epoch, action="replay", why="; ".join(record.proofs), at=record.at, **by_policy)
    if isinstance(record, Replace):
        names = "; ".join(f"{sink} {transaction}" for sink, transaction in record.lost)
        why = f"lost, and written again with the same rows: {names}"
        return GivenUp(epoch=record.epoch, action="heal", why=why, at=record.at, **by_policy)
    return typed.convert(record, GivenUp, from_attributes=True)
