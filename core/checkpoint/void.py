"""Take back a decision of which nothing is visible, so that its epoch can be written again.

A decision may be voided only if every transaction that it names is proven not committed, and none of them can be
committed any more by whoever still holds the decision. So, in this order:

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

End what is prepared of a decision that a rewind has taken back.

A rewind that goes back to a decided epoch, or before it, writes its rows again. So the rows that are prepared for it
must never become visible beside them:

1. REWIND comes first. From then on every reader of the log knows that the decision is taken back, so nobody commits it
   any more, whichever writer starts next. Before it, `check_can_end` refuses a program that could not end the decision.
2. What is prepared is aborted by its exact handle. Repeating that does no harm, even by a writer that is fenced by now.
3. What the target shows committed stays, as everything that was visible before the rewind. Its commit is repeated, in
   case a partition of Kafka still waits for its marker; one that has begun is finished. What can no longer be completed
   stays as it is.
4. (Rule U) A transaction of which a target has no trace has ended, however it did: its decision named it because it was
   prepared, so it cannot appear any more. Only a target that does not answer, or that is at work on a transaction, is
   asked again. So the taking back ends as soon as every target answers.
5. VOID is put when every target has said that nothing is left. Until then, no epoch can be decided.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ..contract import validated as answers
from ..contract.outcome import LOST_STATES
from ..contract.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, Observation
from ..errors import CommitPendingError, DataLossError, ExternalError, FencedError
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


class _Waits(Exception):  # noqa: N818 - a step that has to be repeated, no fault
    """A target does not answer now."""


class _Refused(Exception):  # noqa: N818 - the same
    """Something of the epoch was committed, or may have been."""


def withdraw(decision: Decide, shares: Sequence[Share], writer: LogWriter) -> bool | None:
    """Void a decision if all of it is proven not committed.

    Args:
        decision: The decision, some of whose transactions are lost.
        shares: Shares of all sinks of the decision.
        writer: The newest writer.

    Returns:
        Whether VOID was put; None if a target does not answer now. If it was not put, transactions may have been
        aborted while another one was committed: look again.

    Raises:
        FencedError: A newer writer has started.
        StoreError: The log did not answer.
    """
    two_phase = [share for share in shares if not isinstance(share.sink, DirectlyWritten)]
    held: dict[str, list[Committable]] = {}
    try:
        _of_each(two_phase, writer, lambda share: held.update({share.sink.name: _not_ended(share)}))  # 1
        for last in (False, True):
            some = [share for share in two_phase if all(map(is_proven, held[share.sink.name])) is not last]
            _of_each(some, writer, lambda share: _abort(share, held[share.sink.name]))  # 2
        _of_each(two_phase, writer, lambda share: _check_ended(share, held[share.sink.name]))  # 3
    except _Refused:
        return False
    except _Waits:
        return None
    proofs = [f"{c.transaction}: {outcome.detail}" for share in shares for c, outcome in share.failures]
    proofs += [f"{c.transaction}: aborted, because of the others" for some in held.values() for c in some]
    writer.void(decision.epoch, proofs)  # 4
    return True


def _of_each(shares: Sequence[Share], writer: LogWriter, step: Callable[[Share], None]) -> None:
    writer.policy.make_all([partial(step, share) for share in shares])


def _inspected(share: Share, committables: Sequence[Committable]) -> list[tuple[Committable, Observation]]:
    if not committables:
        return []
    sink = share.sink
    try:
        observations = answers.of_each(sink, "inspect_many", committables, sink.inspect_many(committables), Observation)
        if any(state is Observation.NO_ANSWER for _, state in observations):
            share.detail = sink.why_silent(committables)
            raise _Waits
    except ExternalError as error:
        share.detail = str(error)
        raise _Waits from error
    return observations


def _not_ended(share: Share) -> list[Committable]:
    observations = _inspected(share, share.pending)
    if any(state not in _HELD | LOST_STATES for _, state in observations):
        raise _Refused
    return [c for c, state in observations if state in _HELD]


def _abort(share: Share, committables: Sequence[Committable]) -> None:
    for committable in committables:
        crash_point(Step.ABORT_BEFORE)
        outcome = _aborted(share, committable)
        crash_point(Step.ABORT_AFTER)
        if outcome.status is AbortStatus.RETRY_LATER:
            share.detail = outcome.detail
            raise _Waits
        if not outcome.done:
            raise _Refused


def _aborted(share: Share, committable: Committable) -> AbortOutcome:
    try:
        answer: Any = share.sink.abort(committable)
    except FencedError:
        raise
    except ExternalError as error:
        share.detail = str(error)
        raise _Waits from error
    return answers.one(share.sink, "abort", answer, AbortOutcome, epoch=committable.epoch)


def _check_ended(share: Share, committables: Sequence[Committable]) -> None:
    if any(state not in LOST_STATES for _, state in _inspected(share, committables)):
        raise _Refused


_VISIBLE: Final = frozenset({Observation.COMMITTED, Observation.BEGUN})
_ENDED: Final = frozenset({*_VISIBLE, Observation.ABORTED, Observation.EXPIRED})


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


def end_taken_back(decision: Decide, sinks: Mapping[str, TwoPhaseCommitSink[Any]], writer: LogWriter) -> None:
    """Abort what is prepared of a decision that was taken back, and put VOID.

    Raises:
        EpochConflictError: The decision names a sink that the pipeline no longer has.
        CommitPendingError: A target did not answer in time; the next start goes on.
        FencedError: A newer writer has started, and does the same.
    """
    check_sinks(decision, sinks)
    policy = writer.policy
    deadline = policy.monotonic() + policy.commit_timeout
    waiting: dict[str, str] = {}
    left = _two_phase(decision, sinks)

    def end(name: str) -> None:
        waiting[name] = _end(sinks[name], left[name])

    for attempt in count():
        policy.make_all([partial(end, name) for name in left if waiting.get(name, "not asked yet")])
        if not any(waiting.values()):
            # (5) Every target has said that nothing is left.
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


def _end(sink: TwoPhaseCommitSink[Any], committables: Sequence[Committable]) -> str:
    """End one sink's part; return why it has to be repeated, or nothing."""
    try:
        observations = answers.of_each(sink, "inspect_many", committables, sink.inspect_many(committables), Observation)
        if any(state is Observation.NO_ANSWER for _, state in observations):
            return sink.why_silent(committables)
        committed = [c for c, state in observations if state in _VISIBLE]
        for committable in (c for c, state in observations if state not in _ENDED):
            crash_point(Step.ABORT_BEFORE)
            outcome = answers.one(sink, "abort", sink.abort(committable), AbortOutcome, epoch=committable.epoch)
            crash_point(Step.ABORT_AFTER)
            # (4) UNKNOWN is an end: asking again would never give another answer.
            if outcome.status is AbortStatus.RETRY_LATER:
                return outcome.detail or outcome.status
            if outcome.status is AbortStatus.COMMITTED:
                committed.append(committable)
    except ExternalError as error:
        return str(error)
    return _settle(sink, committed)


def _settle(sink: TwoPhaseCommitSink[Any], committed: Sequence[Committable]) -> str:
    """Repeat commits (3); return why that has to be repeated, or nothing."""
    if not committed:
        return ""
    try:
        outcomes = answers.of_each(sink, "commit", committed, sink.commit_many(committed), CommitOutcome)
    except (ExternalError, DataLossError) as error:
        if error.retryable:
            return str(error)
        _log.warning("sink %s cannot complete what was visible before a rewind, which stays: %s", sink.name, error)
        return ""
    return next((o.detail or o.status for _, o in outcomes if o.status is CommitStatus.RETRY_LATER), "")
