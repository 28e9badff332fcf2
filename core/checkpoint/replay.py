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
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..contract import validated as answers
from ..contract.transaction import AbortOutcome, AbortStatus, Observation
from ..errors import ExternalError, FencedError
from ..kit.crash_points import Step, crash_point
from .healing import is_proven
from .share import LOST_STATES
from .subtask import DirectlyWritten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..contract.transaction import Committable
    from ..log import Decide, LogWriter
    from .share import Share

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
