"""End what is prepared of a decision that a rewind has taken back.

A rewind that goes back to a decided epoch, or before it, writes its rows again. So the rows that are prepared for it
must never become visible beside them:

1. REWIND comes first. From then on every reader of the log knows that the decision is taken back, so nobody commits it
   any more, whichever writer starts next.
2. What is prepared is aborted by its exact handle. Repeating that does no harm, even by a writer that is fenced by now.
3. What the target shows committed stays, as everything that was visible before the rewind. Its commit is repeated, in
   case a partition of Kafka still waits for its marker; one that has begun is finished.
4. VOID is put when every target has said that nothing is left. Until then, no epoch can be decided.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from .. import answers
from ..errors import CommitPendingError, ExternalError
from ..steps import Step, crash_point
from ..transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, Observation
from .subtask import DirectlyWritten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..log import Decide, LogWriter
    from ..sink import TwoPhaseCommitSink
    from ..transaction import Committable

_VISIBLE: Final = frozenset({Observation.COMMITTED, Observation.BEGUN})
_ENDED: Final = frozenset({*_VISIBLE, Observation.ABORTED, Observation.EXPIRED})
_NO_ANSWER: Final = "the target does not say what became of its transactions"


def end_taken_back(decision: Decide, sinks: Mapping[str, TwoPhaseCommitSink[Any]], writer: LogWriter) -> None:
    """Abort what is prepared of a decision that was taken back, and put VOID.

    Raises:
        CommitPendingError: A target did not answer in time; the next start goes on.
        FencedError: A newer writer has started, and does the same.
    """
    policy = writer.policy
    deadline = policy.monotonic() + policy.commit_timeout
    waiting: dict[str, str] = {}
    left: dict[str, list[Committable]] = defaultdict(list)
    for committable in decision.committables:
        if not isinstance(sinks[committable.sink], DirectlyWritten):
            left[committable.sink].append(committable)

    def end(name: str) -> None:
        waiting[name] = _end(sinks[name], left[name])

    for attempt in count():
        policy.make_all([partial(end, name) for name in left if waiting.get(name, _NO_ANSWER)])
        if not any(waiting.values()):
            # (4) Every target has said that nothing is left.
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


def _end(sink: TwoPhaseCommitSink[Any], committables: Sequence[Committable]) -> str:
    """End one sink's part; return why it has to be repeated, or nothing."""
    try:
        observations = answers.of_each(sink, "inspect_many", committables, sink.inspect_many(committables), Observation)
        if any(state is Observation.NO_ANSWER for _, state in observations):
            return _NO_ANSWER
        for committable in (c for c, state in observations if state not in _ENDED):
            crash_point(Step.ABORT_BEFORE)
            outcome = answers.one(sink, "abort", sink.abort(committable), AbortOutcome, epoch=committable.epoch)
            crash_point(Step.ABORT_AFTER)
            if outcome.status in (AbortStatus.RETRY_LATER, AbortStatus.UNKNOWN):
                return outcome.detail or outcome.status
        return _settle(sink, [c for c, state in observations if state in _VISIBLE])
    except ExternalError as error:
        return str(error)


def _settle(sink: TwoPhaseCommitSink[Any], committed: Sequence[Committable]) -> str:
    if not committed:
        return ""
    outcomes = answers.of_each(sink, "commit", committed, sink.commit_many(committed), CommitOutcome)
    return next((o.detail or o.status for _, o in outcomes if o.status is CommitStatus.RETRY_LATER), "")
