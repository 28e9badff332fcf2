"""The epochs that a decision log still holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...core.engine.retained import Reference
from ...core.engine.state.storage import METADATA
from ...core.log import Completed, Decide

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
