"""Abort what lingers: open or prepared, and certainly named by no decision.

Invariant 4: a transaction named by no decision is aborted only by a writer that has made it impossible for any
decision naming it to be written. A sweep therefore takes three looks, in this order:

1. list the exact handles in the target;
2. see that the own START is still the newest in the log (so whoever made the listed ones before is fenced, and
   whoever starts from now on was not listed);
3. abort exactly the listed handles, never "whatever the name holds now".

What the own writer made is swept only for epochs that are decided: its live epoch is left alone. Names that carry
neither writer nor epoch are swept only by a caller that says that no subtask of its own is at work (`quiet`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..names import Scope
from ..steps import Step, reach
from ..transaction import ANY_EPOCH, Committable, ExternalState
from ..transaction.recovery import Action, LogState, action

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..log import LogView, LogWriter
    from .participant import Participant

_log = logging.getLogger("onceward.sweep")


@dataclass(frozen=True)
class Swept:
    """What a sweep did.

    Attributes:
        aborted: Gone.
        reported: Left alone, because they are not this log's or this writer's.
        left: To be aborted, but the target did not do it now: sweep again.
    """

    aborted: tuple[Committable, ...] = ()
    reported: tuple[Committable, ...] = ()
    left: tuple[Committable, ...] = ()


def classify(committable: Committable, view: LogView, start: int) -> LogState:
    """What the log says of a listed transaction, to the writer whose START is at `start`."""
    if committable.log != view.log or committable.writer > start:
        return LogState.NO_START
    if view.named(committable):
        return LogState.DECIDED if view.undone is not None else LogState.COMPLETED
    if committable.writer == start and (committable.epoch == ANY_EPOCH or committable.epoch > view.decided):
        return LogState.NO_START
    return LogState.STARTED


def sweep(
    writer: LogWriter, sinks: Iterable[Participant], *, only: Collection[tuple[str, str, str]] | None = None
) -> Swept:
    """Abort what lingers. Call it only while no subtask of this writer is at work (after START, between epochs).

    Args:
        writer: The newest writer.
        sinks: Whose transactions.
        only: Identities of those that are meant; None: all.

    Raises:
        FencedError: Never; a fenced sweeper just aborts nothing.
    """
    reach(Step.SWEEP_BEFORE)
    aborted: list[Committable] = []
    reported: list[Committable] = []
    left: list[Committable] = []
    for sink in sinks:
        listed = list(sink.lingering(Scope(writer.pipeline, sink.name, writer.token.log)))
        listed = [c for c in listed if only is None or c.identity() in only]
        if not listed:
            continue
        if not writer.still_newest():
            break
        for committable in listed:
            what = action(classify(committable, writer.view, writer.token.start), ExternalState.PREPARED)
            if what is Action.REPORT:
                reported.append(committable)
            elif what is Action.ABORT:
                (aborted if _abort(sink, committable) else left).append(committable)
    reach(Step.SWEEP_AFTER)
    for committable in reported:
        _log.warning("left alone: %s is open and not this log's or this writer's", committable.transaction)
    return Swept(tuple(aborted), tuple(reported), tuple(left))


def _abort(sink: Participant, committable: Committable) -> bool:
    reach(Step.SWEEP_ABORT_BEFORE)
    outcome = sink.abort(committable)
    if outcome.done:
        return True
    _log.warning("could not abort %s: %s, %s", committable.transaction, outcome.status, outcome.detail)
    return False
