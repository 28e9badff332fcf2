"""Finish a decision: commit everything it names, then record that it is completed.

Invariant 1: `finish` takes a permit. Invariant 7: COMPLETED is put only after every target's own answer.

1. (Rule A) Shares that can expire are committed first, each on its own. Shares that cannot expire are committed once
   every share that can has been. So nothing that could wait is visible while something that could not is lost, and
   an epoch of which nothing is visible can be written again.
2. Before the first commit of a decision that an earlier process made, every target is asked what has become of the
   pending transactions, and those that cannot expire are asked again after each pause. If one of them is proven lost,
   nothing is committed until the policy has decided. A process that has just made the decision skips the question: each
   transaction was prepared moments ago.
3. Targets of the same kind are independent: each round asks them at the same time, and what one of them raises is
   raised at the end.
4. Targets of the same kind may still be related, as tables by a foreign key: an inserted row needs the row that it
   refers to, and a row can be deleted only when nothing refers to it. No order serves both, so what a target refuses is
   asked for again whenever something else of the decision was committed.
"""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ..contract.events import Committed, CommitWaits, moment, tell, wall_clock
from ..contract.policy import OnLost
from ..contract.sink import by_urgency
from ..errors import CommitPendingError, DataLossError, ExternalError
from ..kit.times import duration
from .admission import check_sinks
from .losses import LossVerdict, settle
from .sink_share import Share
from .target_check import check_kept

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..contract.policy import CommitPolicy
    from ..contract.sink import TwoPhaseCommitSink
    from ..log import CommitPermit, LogWriter

_log = logging.getLogger("onceward.commit")

TOLD_AFTER: Final = 8
"""Repetitions before a warning names what is waited for: three seconds by default, if each attempt fails at once."""


def finish(
    permit: CommitPermit,
    writer: LogWriter,
    sinks: Mapping[str, TwoPhaseCommitSink[Any]],
    *,
    hold: Collection[str] = (),
    fresh: bool = False,
    heals: bool = False,
    claims: bool = True,
) -> bool:
    """Commit what the decision names and put COMPLETED; idempotent.

    Args:
        permit: Permit that the decision gives.
        writer: The newest writer; its policy says for how long to try, and what to do with what is lost.
        sinks: The pipeline's, by name.
        hold: Sinks that get no commits, because their targets have lost earlier ones: after COMPLETED, what a target
            has would no longer show that.
        fresh: True if this process made the decision just now, so that the first round need not ask what is lost (2).
        heals: True if the caller can write the lost part of an epoch again.
        claims: True if the sinks that took part claim their names; False if a rewind settles whose they are.

    Returns:
        Whether COMPLETED was put; not if the decision was voided, or has a share of a sink in `hold`.

    Raises:
        EpochConflictError: The decision names a sink that the pipeline no longer has, or another decision log owns
            a sink's names.
        CommitPendingError: A target did not answer in time; the decision stands.
        DataLossError: A transaction can no longer be committed, and the policy says to fail.
        EpochTornError: The same, and the policy says to write the lost part again, which the caller can do.
        FencedError: A newer writer has finished it, or will.
    """
    check_sinks(permit.decision, sinks)
    policy = writer.policy
    shares = [Share(permit, sink, writer, claims=claims) for sink in by_urgency(sinks.values())]
    deadline = policy.monotonic() + policy.commit_timeout
    # A target that lost earlier commits keeps its share: after COMPLETED nothing would show that loss any more.
    held = [share for share in shares if share.waits and share.sink.name in hold]
    active = [share for share in shares if share not in held]
    for attempt in count():
        if attempt or not fresh:
            policy.make_all([share.look for share in _to_look_at(active, first=not attempt)])  # (2)
        verdict = _commit_round(permit, shares, active, writer, heals=heals)
        if verdict is LossVerdict.VOIDED:
            _announce(permit, shares, voided=True)
            return False
        waiting = _waiting(active)
        if not waiting and verdict is LossVerdict.NONE:
            break
        tell(_waits(permit, shares))
        if attempt == TOLD_AFTER:
            _warn_of_waiting(permit, waiting, policy)
        if not policy.commits.pause(attempt, deadline - policy.monotonic()):
            break
    if held:
        return False
    # (Invariant 7) Every target has given its own answer by here, so COMPLETED may say that all has ended.
    _raise_errors(permit, shares)
    writer.complete(permit.decision.epoch, [share.sink.name for share in shares if share.owns])
    _announce(permit, shares)
    return True


def _to_look_at(active: Sequence[Share], *, first: bool) -> list[Share]:
    """Return the shares of which to learn, before anything is committed, whether something is lost.

    A transaction that is alone in its decision needs no look: its commit tells. Nor do those that can expire after the
    first round: they are asked to commit in each, and a look costs seconds while a partition does not answer (rule I).
    """
    if sum(len(share.committables) for share in active) == 1:
        return []
    return [share for share in active if share.waits and (first or not share.expires)]


def _commit_round(
    permit: CommitPermit, shares: Sequence[Share], active: Sequence[Share], writer: LogWriter, *, heals: bool
) -> LossVerdict:
    """Commit what may be committed now; what is lost is settled before anything else is committed."""
    while True:
        if not any(share.failures for share in shares):
            _commit_in_order(shares, active, writer.policy)
        if any(share.failures for share in shares):
            verdict = settle(permit.decision, shares, writer, heals=heals)
            if verdict is not LossVerdict.ACCEPTED:
                return verdict
        elif not _accept_losses(active, writer):
            return LossVerdict.NONE


def _accept_losses(active: Sequence[Share], writer: LogWriter) -> bool:
    """Have the policy accept what a target was found in its commit to have lost; return whether to ask it again.

    Rule R: that is a condition of the target, so no transaction is given up for it. A target that loses something once
    more in the same commit is an error.
    """
    if writer.policy.on_lost is not OnLost.SKIP:
        return False
    losing = [share for share in active if isinstance(share.error, DataLossError) and not share.accepted]
    for share in losing:
        share.accepted = True
        if not check_kept(writer, {share.sink.name: share.sink}, starting=True):
            share.error = None
    return any(share.error is None for share in losing)


def _commit_in_order(shares: Sequence[Share], active: Sequence[Share], policy: CommitPolicy) -> None:
    policy.make_all([share.ask for share in active if share.waits and share.expires])  # (1)
    unfinished = [share for share in shares if share.expires and not share.ended]
    lasting = [share for share in active if share.waits and not (share.expires or share.unseen)]
    if unfinished:
        for share in lasting:
            share.detail = f"not asked before {', '.join(one.sink.name for one in unfinished)}, which can expire"
        return
    left = _left(active)
    policy.make_all([share.ask for share in lasting])
    while (now := _left(active)) < left:  # (4)
        left = now
        refused = [share for share in active if share.refused and not share.expires]
        for share in refused:
            share.error = None
        policy.make_all([share.ask for share in refused])


def _left(shares: Sequence[Share]) -> int:
    return sum(len(share.pending) for share in shares)


def _waiting(active: Sequence[Share]) -> list[Share]:
    """Return the shares to wait for: a final error of an expiring share blocks the lasting ones."""
    blocked = any(share.expires and share.error is not None for share in active)
    return [share for share in active if share.waits and (share.expires or not blocked)]


def _announce(permit: CommitPermit, shares: Sequence[Share], *, voided: bool = False) -> None:
    seconds = {share.sink.name: share.seconds for share in shares if share.committables}
    tell(Committed(permit.decision.pipeline, permit.decision.epoch, seconds, voided=voided))


def _waits(permit: CommitPermit, shares: Sequence[Share]) -> CommitWaits:
    decision = permit.decision
    return CommitWaits(
        pipeline=decision.pipeline,
        epoch=decision.epoch,
        since=moment(decision.at) or wall_clock(),
        waiting={share.sink.name: share.expires_at() for share in shares if share.waits},
        done=[share.sink.name for share in shares if share.committables and not share.waits],
    )


def _warn_of_waiting(permit: CommitPermit, waiting: Sequence[Share], policy: CommitPolicy) -> None:
    _log.warning(
        "%s. Retrying for up to %g s%s",
        _waiting_for(permit, waiting),
        policy.commit_timeout,
        _time_left(waiting),
        extra={"pipeline": permit.decision.pipeline, "epoch": permit.decision.epoch},
    )


def _time_left(waiting: Sequence[Share]) -> str:
    """Return when the first of the transactions expires, for the log; empty if none does, or if that is not known."""
    times = [at for share in waiting if (at := share.expires_at()) is not None]
    return f"; the first of them expires in {duration(max(0.0, min(times) - wall_clock()))}" if times else ""


def _raise_errors(permit: CommitPermit, shares: Sequence[Share]) -> None:
    errors = [share.error for share in shares if share.error is not None]
    pending = [share for share in shares if share.waits or share.failures]
    if pending:
        errors.append(_pending(permit, pending))
    if errors:
        first, *others = errors
        for other in others:
            first.add_note(f"besides: {other}")
        raise first


def _pending(permit: CommitPermit, shares: Sequence[Share]) -> CommitPendingError:
    waiting = [c for share in shares for c in share.pending]
    return CommitPendingError(
        f"{_waiting_for(permit, shares)}. The decision remains valid, and the next start commits them"
        f"{_deadline(shares[0].sink)}",
        pipeline=permit.decision.pipeline,
        sink=shares[0].sink.name,
        epoch=permit.decision.epoch,
        transaction=waiting[0].transaction if waiting else None,
    )


def _waiting_for(permit: CommitPermit, shares: Sequence[Share]) -> str:
    waiting = sum(len(share.pending) for share in shares)
    names = ", ".join(f"{share.sink.name}: {share.detail or 'waits for the others'}" for share in shares)
    return f"{waiting} decided transactions of epoch {permit.decision.epoch} could not be committed yet ({names})"


def _deadline(sink: TwoPhaseCommitSink[Any]) -> str:
    """Return how long the most urgent sink keeps its transactions, as the end of an error's sentence."""
    try:
        timeout = sink.transaction_timeout
    except ExternalError:
        return ", unless the target's transaction timeout ends them before that: bring it back and restart soon"
    if timeout is None:
        return ": nothing is lost"
    return (
        f", unless they end before that: the target aborts a transaction {timeout:.0f} s after it began. Restart soon"
    )
