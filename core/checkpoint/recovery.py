"""Recovery: what the log says of a transaction and the target shows, in one table (after TigerBeetle's); and the sweep.

The sweep runs on the table, and the operator's commands read their advice from it. It aborts what lingers: open or
prepared, and certainly named by no decision.

Invariant 4: a transaction named by no decision is aborted only by a writer that has made it impossible for any
decision naming it to be written. A sweep therefore takes four steps, in this order:

1. list the exact handles in the target;
2. check that the target still has what was committed to it: a target that went back to an older state may again show
   as prepared what a completed decision named, and that decision may have been pruned from the log since;
3. check that this writer's START is still the newest in the log (so whoever prepared the listed transactions is fenced,
   and those of writers that start from now on were not listed);
4. abort exactly the listed handles, never "whatever the name holds now".

What the own writer made is swept only for epochs that are decided: its live epoch is left alone. What says no epoch
is not of a live one: a sweep that is not `busy` comes when no subtask of the own writer is at work. While one is, only
what certainly is an older writer's is swept: the name must say so.

One sink's error leaves no other sink unswept. What belongs to sinks that the pipeline no longer has is found through
the sinks that share their target.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ..contract import validated as answers
from ..contract.events import about
from ..contract.sink import by_urgency
from ..contract.transaction import ANY_EPOCH, AbortOutcome, Committable, Observation
from ..kit.crash_points import Step, crash_point
from .target_check import check_kept

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..contract.sink import TwoPhaseCommitSink
    from ..log import LogView, LogWriter

_log = logging.getLogger("onceward.sweep")


class TransactionStatus(StrEnum):
    """What the decision log says of a transaction."""

    DECIDED = "decided"
    """A decision names it that is not completed: it will be committed."""
    COMPLETED = "completed"
    """A completed decision names it: it has ended."""
    IN_DOUBT = "in doubt"
    """No decision names it, and its writer may still be at work."""
    LINGERING = "lingering"
    """Certainly named by no decision, now and ever."""
    FOREIGN = "of another log"
    """Another decision log made it, and it carries the name of the pipeline."""
    OUTDATED_LOG = "ahead of the log"
    """Its writer or epoch is one that this log has not come to: the log is an outdated copy."""
    UNKNOWN = "log not given"


class Action(StrEnum):
    """What recovery does with a transaction."""

    COMMIT = "commit"
    ABORT = "abort"
    NOTHING = "nothing"
    REPORT = "report"
    """Tell the operator, touch nothing."""
    LOST = "lost"
    """Named by a decision, and can no longer be committed: on_lost applies (invariant 8)."""


_HELD: Final = dict.fromkeys((Observation.OPEN, Observation.PREPARED, Observation.BEGUN), Action.REPORT)
RECOVERY: Final[dict[TransactionStatus, dict[Observation, Action]]] = {
    # Decided: committed again and again until the target answers, and lost only if the target shows that it ended
    # without a commit. What it does not show (ABSENT, NO_ANSWER) the commit itself finds out.
    TransactionStatus.DECIDED: {
        **dict.fromkeys(Observation, Action.COMMIT),  # what is not seen now, the commit's own answer tells
        Observation.COMMITTED: Action.NOTHING,
        Observation.ABORTED: Action.LOST,
        Observation.EXPIRED: Action.LOST,
    },
    # Lingering: aborted, for no decision will ever name it. Found committed, it is reported: nothing can take it back.
    TransactionStatus.LINGERING: {
        Observation.OPEN: Action.ABORT,
        Observation.PREPARED: Action.ABORT,
        Observation.BEGUN: Action.REPORT,  # somebody has begun to commit it by hand, against invariant 1
        Observation.COMMITTED: Action.REPORT,  # the same
    },
    # Completed, and open or prepared all the same: the target went back to an older state. A sweep reports it; the
    # check in target_check.py commits it again.
    TransactionStatus.COMPLETED: _HELD,
    # In doubt: its writer may decide at any moment, so nobody else may end it (invariant 4).
    TransactionStatus.IN_DOUBT: _HELD,
    # Of another log: never touched (invariant 9).
    TransactionStatus.FOREIGN: _HELD,
    # Ahead of the log: it is an outdated copy, and the one that knows the transaction may have decided it (rule H).
    TransactionStatus.OUTDATED_LOG: _HELD,
    # No log was given: nothing is known, so nothing is done.
    TransactionStatus.UNKNOWN: _HELD,
}
"""Pairs that are not listed need no action."""


def action(status: TransactionStatus, seen: Observation) -> Action:
    """Return the one action for a status in the log and a state in the target."""
    return RECOVERY[status].get(seen, Action.NOTHING)


def status_of(committable: Committable, view: LogView | None) -> TransactionStatus:
    """Return the status of a transaction in the log for an onlooker; a log of None was not given.

    Unlike a sweeper, an onlooker has put no START. So what the newest writer made may be decided at any moment: it is
    in doubt, and only the START of a new writer settles that (invariant 4).
    """
    if view is None:
        return TransactionStatus.UNKNOWN
    if committable.log != view.log:
        return TransactionStatus.FOREIGN
    if view.named(committable):
        return TransactionStatus.DECIDED if view.undone is not None else TransactionStatus.COMPLETED
    if committable.generation > view.tail or _skips_an_epoch(committable, view):
        return TransactionStatus.OUTDATED_LOG
    by_the_newest = committable.generation == ANY_EPOCH or committable.generation >= view.start
    undecided = committable.epoch == ANY_EPOCH or committable.epoch > view.decided
    if (by_the_newest and undecided) or _replaces(committable, view, view.start):
        return TransactionStatus.IN_DOUBT
    return TransactionStatus.LINGERING


def status_for_sweeper(committable: Committable, view: LogView, start: int) -> TransactionStatus:
    """Return the status of a transaction for the writer whose START is at `start`: older writers are fenced."""
    if committable.log != view.log:
        return TransactionStatus.FOREIGN
    if committable.generation > start:
        return TransactionStatus.OUTDATED_LOG
    if view.named(committable):
        return TransactionStatus.DECIDED if view.undone is not None else TransactionStatus.COMPLETED
    # The own writer's live epoch may still be decided; everything older is fenced by its START.
    live = committable.generation == start and committable.epoch > view.decided
    if live or _replaces(committable, view, start):
        return TransactionStatus.IN_DOUBT
    return TransactionStatus.LINGERING


def _replaces(committable: Committable, view: LogView, start: int) -> bool:
    """Return whether the writer whose START is at `start` may be writing lost rows of a decided epoch again in it."""
    undone = view.undone
    return undone is not None and undone.start < start == committable.generation and committable.epoch == undone.epoch


def _skips_an_epoch(committable: Committable, view: LogView) -> bool:
    """Return whether a decision made since must be missing from this log; where epochs have gaps nobody can say."""
    if view.newest is None or view.newest.follows is not None:
        return False
    return committable.epoch > view.decided + 1


@dataclass(frozen=True)
class Swept:
    """What a sweep did.

    Attributes:
        aborted: Transactions that are gone now.
        reported: Left alone, because they are not this log's or this writer's.
        left: Transactions that are to be aborted, but the target did not do it now: sweep again.
    """

    aborted: tuple[Committable, ...] = ()
    reported: tuple[Committable, ...] = ()
    left: tuple[Committable, ...] = ()


def sweep(
    writer: LogWriter,
    sinks: Iterable[TwoPhaseCommitSink[Any]],
    *,
    only: Collection[tuple[str, str, str]] | None = None,
    busy: bool = False,
    abandoned: bool = False,
    skip: Collection[str] = (),
) -> Swept:
    """Abort what lingers; a sweeper that is fenced aborts nothing.

    Args:
        writer: The newest writer.
        sinks: All sinks of the pipeline, or those of the transactions in `only`.
        only: Identities of the transactions that are meant; None: all.
        busy: Subtasks of this writer are at work: touch only what names an older writer.
        abandoned: Also what sinks have left behind that this pipeline had once.
        skip: Names of sinks that are left alone.

    Raises:
        SinkError: A target did not answer; the others were swept.
        StoreError: The log did not answer; nothing was aborted since.
    """
    crash_point(Step.SWEEP_BEFORE)
    sinks = by_urgency(sinks)
    names = {sink.name for sink in sinks}
    aborted: list[Committable] = []
    reported: list[Committable] = []
    left: list[Committable] = []
    errors: list[Exception] = []
    for sink in (sink for sink in sinks if sink.name not in skip):
        try:
            # (1) Exact handles: what a name holds later is another transaction.
            listed = list(_abandoned(sink, writer, names)) if abandoned else []
            listed += answers.many(sink, "lingering", sink.lingering(writer.scope(sink.name)), Committable)
            listed = [c for c in listed if only is None or c.identity() in only]
            # While subtasks are at work, a handle that names no writer may be one of theirs.
            listed = [c for c in listed if not busy or ANY_EPOCH < c.generation < writer.token.start]
            if not listed:
                continue
            # (2) A target that went back may show as prepared what a pruned decision named.
            _check_kept(sink, writer)
        except Exception as error:  # noqa: BLE001 - whatever one sink raises, the others are swept
            errors.append(error)
            continue
        # (3) After the listing: a START before it may belong to a writer whose transactions were listed.
        if not writer.still_newest():
            break
        for committable in listed:
            # (4) Only what was listed, and only if no decision names it (invariant 4).
            what = action(status_for_sweeper(committable, writer.view, writer.token.start), Observation.PREPARED)
            if what is Action.REPORT:
                reported.append(committable)
            elif what is Action.ABORT:
                (aborted if _abort(sink, committable, errors) else left).append(committable)
    crash_point(Step.SWEEP_AFTER)
    for committable in reported:
        _log.warning(
            "left alone: another decision log or writer has %s open",
            committable.transaction,
            extra=about(committable),
        )
    if errors:
        raise errors[0]
    return Swept(tuple(aborted), tuple(reported), tuple(left))


def _check_kept(sink: TwoPhaseCommitSink[Any], writer: LogWriter) -> None:
    # After a rewind, until the next decision, targets are taken as they are.
    for error in check_kept(writer, {} if writer.view.rewound else {sink.name: sink}).values():
        raise error


def _abandoned(sink: TwoPhaseCommitSink[Any], writer: LogWriter, names: Collection[str]) -> Iterable[Committable]:
    committables = sink.lingering_elsewhere(writer.pipeline, writer.token.log)
    own = [
        c for c in committables if c.sink not in names and (c.pipeline, c.log) == (writer.pipeline, writer.token.log)
    ]
    for committable in own:
        _log.warning(
            "%s is of sink %s, which this pipeline no longer has",
            committable.transaction,
            committable.sink,
            extra=about(committable),
        )
    return own


def _abort(sink: TwoPhaseCommitSink[Any], committable: Committable, errors: list[Exception]) -> bool:
    crash_point(Step.ABORT_BEFORE)
    try:
        outcome = answers.one(sink, "abort", sink.abort(committable), AbortOutcome, epoch=committable.epoch)
    except Exception as error:  # noqa: BLE001 - as above
        errors.append(error)
        return False
    crash_point(Step.ABORT_AFTER)
    if outcome.done:
        return True
    _log.warning(
        "could not abort %s: %s, %s",
        committable.transaction,
        outcome.status,
        outcome.detail,
        extra=about(committable),
    )
    return False
