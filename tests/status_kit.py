"""Decision logs and notes of a given age, and what is said of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from onceward.core.checkpoint import CommitPolicy
from onceward.core.contract.transaction import Committable
from onceward.core.log import EpochInput, LogView, LogWriter, MemoryStore
from onceward.core.log.notes import note_of, notes
from onceward.core.operations.status import Answers, PipelineStatus, assess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from onceward.core.log.note_kinds import Note


N = TypeVar("N")
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(ago: float) -> str:
    return (NOW - timedelta(seconds=ago)).isoformat(timespec="milliseconds")


def noted(folder: Path, kind: type[N]) -> list[N]:
    """The notes of a kind beside the log in a folder."""
    return [one for one in notes(folder, 500) if isinstance(one, kind)]


def written(*seconds_ago: float, what: str = "epoch", **fields: Any) -> list[Note]:
    """Notes as they are read from a file, left so long ago."""
    about = {"epoch": {"epoch": 0}}.get(what, {})
    read = [note_of(what, at(ago), {**about, **fields}) for ago in seconds_ago]
    return [one for one in read if one is not None]


def log(
    ago: float,
    *,
    decided: bool = False,
    completed: bool = False,
    moved: str = "",
    sinks: Sequence[str] = ("files",),
    kind: str = "files",
    targets: Any = None,
) -> LogView:
    """A log whose entries were all written so long ago."""
    writer = LogWriter(MemoryStore(), "orders", CommitPolicy(now=lambda: at(ago)))
    writer.start()
    if decided:
        lost = [
            Committable(
                kind=kind, pipeline="orders", sink=sink, log=writer.view.log, generation=0, epoch=0, subtask=0,
                attempt=0, transaction=f"t{number}" if number else "t", rows=538,
            )
            for number, sink in enumerate(sinks)
        ]  # fmt: skip
        writer.decide(0, lost, sinks=list(sinks), epoch_input=EpochInput(), targets=targets)
    if completed:
        writer.complete(0)
    if moved:
        writer.move(moved)
    return writer.view


def judged(view: LogView, noted: list[Note], *, obstacle: str = "", **answers: Any) -> PipelineStatus:
    in_order = sorted(noted, key=lambda one: one.at)
    return assess("orders", "folder a", view, in_order, NOW, answers=Answers(**answers), obstacle=obstacle)
