"""The epochs that a decision log still holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...core.engine.retained import Reference, load
from ...core.engine.state.storage import CheckpointStorage
from ...core.errors import OncewardError
from ...core.log import Completed, Decide, Resolved, Void
from ...core.log.records import audit_records

if TYPE_CHECKING:
    from .logs import Log


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch, as `--json` shows it.

    Attributes:
        pipeline: Whose it is.
        epoch: Its number.
        decided: When (UTC).
        completed: When all was committed; None if that waits.
        sinks: Those that took part.
        transactions: How many.
        rows: How many.
        input: Offsets where its input ended.
        checkpoint: Folder of the embedded engine's checkpoint.
        retained: Earlier checkpoints beside it, from which a run can be restored too.
    """

    pipeline: str
    epoch: int
    decided: str
    completed: str | None
    sinks: tuple[str, ...]
    transactions: int
    rows: int
    input: Any
    checkpoint: str | None
    retained: tuple[str, ...]


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The audit record of a transaction that was given up, as `--json` shows it: RESOLVED of PROTOCOL.

    Attributes:
        epoch: Of the data.
        transaction: Which.
        action: What was done.
        who: By whose word.
        why: What the target had said.
        at: When (UTC).
    """

    epoch: int
    transaction: str
    action: str
    who: str
    why: str
    at: str


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision log tells of the past."""

    epochs: list[Epoch]
    given_up: list[Given]


def history(log: Log) -> History:
    """Epochs that the log still holds, and all that was ever given up.

    Raises:
        StoreError: The store did not answer.
    """
    records = audit_records(log.store)
    kept = {record.position for record in records}
    records += [e for _, e in log.view.positions if isinstance(e, Resolved) and e.position not in kept]
    given_up = [
        Given(epoch=r.epoch, transaction=r.transaction, action=r.action, who=r.who, why=r.why, at=r.at) for r in records
    ]
    return History(epochs=epochs_of(log), given_up=given_up)


def epochs_of(log: Log) -> list[Epoch]:
    """Oldest first. A log is pruned at each completion, so there are few."""
    epochs: dict[int, Epoch] = {}
    for _, entry in log.view.positions:
        if isinstance(entry, Decide):
            epochs[entry.epoch] = _epoch(log, entry)
        elif isinstance(entry, Completed) and entry.epoch in epochs:
            epochs[entry.epoch] = msgspec.structs.replace(epochs[entry.epoch], completed=entry.at)
        elif isinstance(entry, Void):
            epochs.pop(entry.epoch, None)
    return list(epochs.values())


def _epoch(log: Log, decision: Decide) -> Epoch:
    reference = Reference.of(decision.state)
    folder = reference.folder if reference is not None else None
    return Epoch(
        pipeline=log.pipeline,
        epoch=decision.epoch,
        decided=decision.at,
        completed=None,
        sinks=decision.sinks,
        transactions=len(decision.committables),
        rows=sum(committable.rows for committable in decision.committables),
        input=decision.input.end,
        checkpoint=folder,
        retained=_retained(Path(folder), decision.epoch) if folder is not None else (),
    )


def _retained(folder: Path, epoch: int) -> tuple[str, ...]:
    """Checkpoints beside it that are older: what is newer, and named by no decision, is a leaving."""
    storage = CheckpointStorage(folder.parent)
    older = []
    for name in storage.checkpoints():
        path = folder.parent / name
        try:
            metadata, _ = load(path)
        except OncewardError:
            continue  # it is not whole
        if metadata.checkpoint < epoch and path != folder:
            older.append(str(path))
    return tuple(older)
