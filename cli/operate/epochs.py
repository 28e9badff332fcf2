"""The epochs that a decision log still holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from onceward.core.engine.reference import Decided, older_checkpoints
from onceward.core.log import Completed, Decide, Resolved, Void, audit_records

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
    """The audit record of a transaction that was given up (RESOLVED), or of an epoch that was written again (VOID).

    Attributes:
        epoch: Of the data.
        transaction: Which; empty for all of the epoch.
        action: What was done: "skip" or "replay".
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
    records += [e for _, e in log.view.positions if isinstance(e, Resolved | Void) and e.position not in kept]
    return History(epochs=epochs_of(log), given_up=[_given(record) for record in records])


def _given(record: Resolved | Void) -> Given:
    if isinstance(record, Void):
        why = "; ".join(record.proofs)
        return Given(
            epoch=record.epoch, transaction="", action="replay", who="policy on_lost=replay", why=why, at=record.at
        )
    return Given(
        epoch=record.epoch,
        transaction=record.transaction,
        action=record.action,
        who=record.who,
        why=record.why,
        at=record.at,
    )


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
    decided = Decided.of(decision)
    folder = decided.checkpoint.folder if decided is not None else None
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
        retained=older_checkpoints(folder, decision.epoch) if folder is not None else (),
    )
