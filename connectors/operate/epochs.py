"""The epochs that a decision log still holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...core.engine.retained import Reference
from ...core.engine.state.storage import METADATA
from ...core.log import Completed, Decide
from ...core.log.reader import audit_records

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
    given_up = [
        Given(epoch=r.epoch, transaction=r.transaction, action=r.action, who=r.who, why=r.why, at=r.at) for r in records
    ]
    return History(epochs=epochs_of(log), given_up=given_up)


def epochs_of(log: Log) -> list[Epoch]:
    """Oldest first. A log is pruned at each completion, so there are few."""
    entries = [entry for _, entry in log.view.positions]
    completed = {entry.epoch: entry.at for entry in entries if isinstance(entry, Completed)}
    return [_epoch(log, entry, completed.get(entry.epoch)) for entry in entries if isinstance(entry, Decide)]


def _epoch(log: Log, decision: Decide, completed: str | None) -> Epoch:
    reference = Reference.of(decision.state)
    folder = reference.folder if reference is not None else None
    return Epoch(
        pipeline=log.pipeline,
        epoch=decision.epoch,
        decided=decision.at,
        completed=completed,
        sinks=decision.sinks,
        transactions=len(decision.committables),
        rows=sum(committable.rows for committable in decision.committables),
        input=decision.input.end,
        checkpoint=folder,
        retained=_beside(Path(folder)) if folder is not None else (),
    )


def _beside(folder: Path) -> tuple[str, ...]:
    others = (path.parent for path in folder.parent.glob(f"*/{METADATA}"))
    return tuple(sorted(str(other) for other in others if other != folder))
