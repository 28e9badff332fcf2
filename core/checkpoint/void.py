"""Take a decision back: make sure that nothing more of it can become visible, and put VOID.

This is the only place where VOID is put. After it, the epoch can be decided once more (invariant 3).

`withdraw` takes back a decision that has lost something and of which nothing is visible. Every transaction that it
names must be proven not committed, and none of them may be committed any more by whoever still holds the decision. So,
in this order:

1. Every target is asked for what is not known to be lost. Only transactions that are still prepared, or that have
   ended without a commit, allow the next step; nothing was ended until then. A commit that has begun does not.
2. What is still prepared is aborted by its exact handle. A process that read the decision earlier and was suspended
   may commit at the same moment: the target decides who wins, and an abort that lost ends the attempt. What was aborted
   until then is written again by itself, if there is a proof of its rows. So sinks without one come last, when all
   others have agreed.
3. What was aborted is asked for once more: it must be shown as ended without a commit. "There is no such transaction"
   is no proof.
4. VOID is put, with the proofs. A crash before that leaves a decision whose transactions are all lost, which the next
   start takes back in the same way.

`end_rewound` ends a decision that a rewind has taken back. A rewind that goes back to a decided epoch, or before it,
writes its rows again. So the rows that are prepared for it must never become visible beside them:

5. REWIND comes first. From then on every reader of the log knows that the decision is taken back, so nobody commits it
   any more, whichever writer starts next. Before it, `check_can_end` refuses a program that could not end the decision.
6. What is prepared is aborted by its exact handle. Repeating that does no harm, even by a writer that is fenced by now.
7. What the target shows committed stays, as everything that was visible before the rewind. Its commit is repeated, in
   case a partition of Kafka still waits for its marker; one that has begun is finished. What can no longer be completed
   stays as it is.
8. (Rule U) A transaction of which a target has no trace has ended, however it did: its decision named it because it was
   prepared, so it cannot appear any more. Only a target that does not answer, or that is at work on a transaction, is
   asked again. So the taking back ends as soon as every target answers.
9. VOID is put when every target has said that nothing is left. Until then, no epoch can be decided.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from contextlib import suppress
from enum import StrEnum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ..contract import validated as answers
from ..contract.outcome import LOST_STATES, VISIBLE_STATES
from ..contract.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, Observation
from ..errors import CommitPendingError, DataLossError, ExternalError
from ..kit.crash_points import Step, crash_point
from .admission import check_sinks
from .healing import is_proven
from .subtask import DirectlyWritten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..contract.sink import TwoPhaseCommitSink
    from ..contract.transaction import Committable
    from ..log import Decide, LogView, LogWriter
    from .sink_share import Share

_log = logging.getLogger("onceward.commit")

_HELD: Final = frozenset({Observation.PREPARED, Observation.OPEN})
_ENDED: Final = VISIBLE_STATES | LOST_STATES


class Withdrawal(StrEnum):
    """The result of an attempt to take back a decision of which nothing is visible."""

    VOIDED = "voided"
    """VOID was put."""
    WAITS = "waits"
    """A target does not answer now."""
    REFUSED = "refused"
    """Some of it was committed, or may have been; transactions may have been aborted until that was seen."""


class _Waits(Exception):  # noqa: N818 - a step that has to be repeated, no fault
    """A target does not answer now, or is at work on a transaction, as the text says."""


class _Refused(Exception):  # noqa: N818 - the same
    """Something of the epoch was committed, or may have been."""


def withdraw(decision: Decide, shares: Sequence[Share], writer: LogWriter) -> Withdrawal:
    """Void a decision if all of it is proven not committed.

    Args:
        decision: The decision, some of whose transactions are lost.
        shares: Shares of all sinks of the decision.
        writer: The newest writer.

    Raises:
        FencedError: A newer writer has started.
        StoreError: The log did not answer.
    """
    two_phase = [share for share in shares if not isinstance(share.sink, DirectlyWritten)]
    held: dict[str, list[Committable]] = {}
    try:
        _of_each(two_phase, writer, lambda share: held.update({share.sink.name: _not_ended(share)}))  # (1)
        for last in (False, True):
            some = [share for share in two_phase if all(map(is_proven, held[share.sink.name])) is not last]
            _of_each(some, writer, lambda share: _abort_all(share.sink, held[share.sink.name]))  # (2)
        _of_each(two_phase, writer, lambda share: _check_ended(share.sink, held[share.sink.name]))  # (3)
    except _Refused:
        return Withdrawal.REFUSED
    except _Waits:
        return Withdrawal.WAITS
    proofs = [f"{c.transaction}: {outcome.detail}" for share in shares for c, outcome in share.failures]
    proofs += [f"{c.transaction}: aborted, because of the others" for some in held.values() for c in some]
    writer.void(decision.epoch, proofs)  # (4)
    return Withdrawal.VOIDED


def _of_each(shares: Sequence[Share], writer: LogWriter, step: Callable[[Share], None]) -> None:
    def take(share: Share) -> None:
        try:
            step(share)
        except _Waits as waits:
            share.detail = str(waits)
            raise

    writer.policy.make_all([partial(take, share) for share in shares])


def _not_ended(share: Share) -> list[Committable]:
    seen = _inspect(share.sink, share.pending)
    if any(state not in _HELD | LOST_STATES for _, state in seen):
        raise _Refused
    return [c for c, state in seen if state in _HELD]


def _abort_all(sink: TwoPhaseCommitSink[Any], committables: Sequence[Committable]) -> None:
    for committable in committables:
        if _abort(sink, committable) is not AbortStatus.ABORTED:
            raise _Refused


def _check_ended(sink: TwoPhaseCommitSink[Any], committables: Sequence[Committable]) -> None:
    if any(state not in LOST_STATES for _, state in _inspect(sink, committables)):
        raise _Refused


def check_can_end(view: LogView, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> None:
    """Refuse a pipeline that could not end what a rewind takes back, before the rewind is written.

    Raises:
        EpochConflictError: A decision that waits names a sink that the pipeline no longer has.
        ConfigurationError: A sink cannot read its transactions: it was of another kind then.
    """
    decision = view.undone or view.taken_back
    if decision is None:
        return
    check_sinks(decision, sinks)
    for name, committables in _two_phase(decision, sinks).items():
        with suppress(ExternalError):  # a target that does not answer is waited for later
            sinks[name].inspect_many(committables)


def end_rewound(decision: Decide, sinks: Mapping[str, TwoPhaseCommitSink[Any]], writer: LogWriter) -> None:
    """Abort what is prepared of a decision that a rewind has taken back, and put VOID.

    Raises:
        EpochConflictError: The decision names a sink that the pipeline no longer has.
        CommitPendingError: A target did not answer in time; the next start goes on.
        FencedError: A newer writer has started, and does the same.
    """
    check_sinks(decision, sinks)
    policy = writer.policy
    deadline = policy.monotonic() + policy.commit_timeout
    committables = _two_phase(decision, sinks)
    waiting = dict.fromkeys(committables, "not asked yet")

    def end(name: str) -> None:
        try:
            _end(sinks[name], committables[name])
            waiting[name] = ""
        except _Waits as waits:
            waiting[name] = str(waits)

    for attempt in count():
        policy.make_all([partial(end, name) for name, why in waiting.items() if why])
        if not any(waiting.values()):
            # (9) Every target has said that nothing is left.
            writer.void(decision.epoch, ["a rewind has taken it back"], covered=True)
            return
        if not policy.commits.pause(attempt, deadline - policy.monotonic()):
            break
    reasons = "; ".join(f"{name}: {why}" for name, why in waiting.items() if why)
    raise CommitPendingError(
        f"epoch {decision.epoch} was decided, and the rewind takes it back, but not every target has ended its part "
        f"({reasons}). Bring the target back and start again: until then nothing new is written",
        pipeline=writer.pipeline,
        epoch=decision.epoch,
    )


def _two_phase(decision: Decide, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> dict[str, list[Committable]]:
    """Return the decision's transactions by sink, without those that were written directly."""
    committables: dict[str, list[Committable]] = defaultdict(list)
    for committable in decision.committables:
        if not isinstance(sinks[committable.sink], DirectlyWritten):
            committables[committable.sink].append(committable)
    return committables


def _end(sink: TwoPhaseCommitSink[Any], committables: Sequence[Committable]) -> None:
    """End one sink's part of a decision that a rewind has taken back (6, 7)."""
    seen = _inspect(sink, committables)
    committed = [c for c, state in seen if state in VISIBLE_STATES]
    # (8) UNKNOWN is an end: asking again would never give another answer.
    committed += [c for c, state in seen if state not in _ENDED and _abort(sink, c) is AbortStatus.COMMITTED]
    if not committed:
        return
    try:
        outcomes = answers.of_each(sink, "commit", committed, sink.commit_many(committed), CommitOutcome)
    except (ExternalError, DataLossError) as error:
        if error.retryable:
            raise _Waits(str(error)) from error
        _log.warning("sink %s cannot complete what was visible before a rewind, which stays: %s", sink.name, error)
        return
    for _, outcome in outcomes:
        if outcome.status is CommitStatus.RETRY_LATER:
            raise _Waits(outcome.detail or outcome.status)


def _inspect(
    sink: TwoPhaseCommitSink[Any], committables: Sequence[Committable]
) -> list[tuple[Committable, Observation]]:
    """Return what a target shows of transactions; raise _Waits if it does not answer."""
    if not committables:
        return []
    try:
        seen = answers.of_each(sink, "inspect_many", committables, sink.inspect_many(committables), Observation)
        if any(state is Observation.NO_ANSWER for _, state in seen):
            raise _Waits(sink.why_silent(committables))
    except ExternalError as error:
        raise _Waits(str(error)) from error
    return seen


def _abort(sink: TwoPhaseCommitSink[Any], committable: Committable) -> AbortStatus:
    """Abort a transaction by its exact handle (2, 6); raise _Waits if the target does not do it now."""
    crash_point(Step.ABORT_BEFORE)
    try:
        outcome = answers.one(sink, "abort", sink.abort(committable), AbortOutcome, epoch=committable.epoch)
    except ExternalError as error:
        raise _Waits(str(error)) from error
    crash_point(Step.ABORT_AFTER)
    if outcome.status is AbortStatus.RETRY_LATER:
        raise _Waits(outcome.detail or outcome.status)
    return outcome.status
