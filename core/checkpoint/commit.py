"""Finish a decision: commit everything it names, then record that it is completed.

Invariant 1: `finish` takes a permit. Invariant 7: COMPLETED is put only after every target's own answer.

Targets are independent: each round asks every sink at the same time, and what one of them raises or has lost is told
at the end. So a target that is away delays no other, and a loss in one sink takes a fault of that sink.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, Final

from .. import answers
from ..errors import (
    CommitPendingError,
    DataLossError,
    EpochConflictError,
    ExternalError,
    FencedError,
    OncewardError,
)
from ..events import Committed, CommitWaits, about, moment, tell, wall_clock
from ..policy import OnLost
from ..sink import by_urgency
from ..steps import Step, crash_point
from ..transaction import CommitOutcome, CommitStatus
from .losses import resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ..log import CommitPermit, LogWriter
    from ..sink import TwoPhaseCommitSink
    from ..transaction import Committable
    from .losses import Failures

_log = logging.getLogger("onceward.commit")

TOLD_AFTER: Final = 8
"""Repetitions before a warning names what is waited for: three seconds by default, if each attempt fails at once."""
SLOW: Final = 60.0
"""Seconds after which a warning names a call that has not returned."""


def finish(
    permit: CommitPermit,
    writer: LogWriter,
    sinks: Mapping[str, TwoPhaseCommitSink[Any]],
    *,
    hold: Collection[str] = (),
) -> bool:
    """Commit what the decision names and put COMPLETED; idempotent.

    Args:
        permit: The decision.
        writer: The newest writer; its policy says for how long to try, and what to do with what is lost.
        sinks: The pipeline's, by name.
        hold: Sinks that get no commits, because their targets have lost earlier ones: after COMPLETED, what a target
            has would no longer show that.

    Returns:
        Whether COMPLETED was put; not if the decision was voided, or has a share of a sink in `hold`.

    Raises:
        EpochConflictError: The decision names a sink that the pipeline no longer has, or another decision log owns
            a sink's names.
        CommitPendingError: A target did not answer in time; the decision stands.
        DataLossError: A transaction can no longer be committed, and the policy says to fail.
        FencedError: A newer writer has finished it, or will.
    """
    _check_sinks(permit, sinks)
    policy = writer.policy
    shares = [_Share(permit, sink, writer) for sink in by_urgency(sinks.values())]
    deadline = policy.monotonic() + policy.commit_timeout
    held = [share for share in shares if share.waits and share.sink.name in hold]
    waiting = [share for share in shares if share.waits and share not in held]
    for attempt in count():
        policy.make_all([share.ask for share in waiting])
        waiting = [share for share in waiting if share.waits]
        if not waiting:
            break
        tell(_waits(permit, shares))
        if attempt == TOLD_AFTER:
            _log.warning(
                "%s. Retrying for up to %g s",
                _waiting_for(permit, waiting),
                policy.commit_timeout,
                extra={"pipeline": permit.decision.pipeline, "epoch": permit.decision.epoch},
            )
        if not policy.commits.pause(attempt, deadline - policy.monotonic()):
            break
    if held:
        return False
    stands = _conclude(permit, shares, writer)
    seconds = {share.sink.name: share.seconds for share in shares if share.took_part}
    tell(Committed(permit.decision.pipeline, permit.decision.epoch, seconds, voided=not stands))
    return stands


def _waits(permit: CommitPermit, shares: Sequence[_Share]) -> CommitWaits:
    decision = permit.decision
    return CommitWaits(
        pipeline=decision.pipeline,
        epoch=decision.epoch,
        since=moment(decision.at) or wall_clock(),
        waiting={share.sink.name: share.expires_at() for share in shares if share.waits},
        done=[share.sink.name for share in shares if share.took_part and not share.waits],
    )


def _check_sinks(permit: CommitPermit, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> None:
    decision = permit.decision
    missing = sorted({c.sink for c in decision.committables} - sinks.keys())
    if missing:
        raise EpochConflictError(
            f"epoch {decision.epoch} is decided and names transactions of sinks that this pipeline no longer has: "
            f"{missing}. Start once more with these sinks, so that their transactions can be committed",
            pipeline=decision.pipeline,
            epoch=decision.epoch,
        )


class _Share:
    """One sink's share of a decision.

    A decision of the embedded engine may name several epochs (of checkpoints that were given up): an epoch is asked for
    only when those before it have ended, or an upsert that has to wait would overwrite a later one's rows.
    """

    def __init__(self, permit: CommitPermit, sink: TwoPhaseCommitSink[Any], writer: LogWriter) -> None:
        self.sink = sink
        self._clock = writer.policy.monotonic
        self._began = self._clock()
        self.failures: Failures = []
        self.error: Exception | None = None
        self.seconds = 0.0
        self.detail = ""
        mine = [c for c in permit.committables(sink.name) if c.transaction not in writer.view.skipped]
        mine.sort(key=lambda c: c.epoch)
        self.took_part = bool(mine)
        self._epochs = [list(epoch) for _, epoch in groupby(mine, key=lambda c: c.epoch)]
        claimed, claims = sink.name in writer.view.claimed, sink.name in permit.decision.sinks
        self.owns = claimed or claims
        """Whether the sink owns its names in its target when all is answered."""
        self._to_claim = None if claimed or not claims else writer.scope(sink.name)

    @property
    def waits(self) -> bool:
        return self.error is None and bool(self._epochs or self._to_claim)

    @property
    def pending(self) -> list[Committable]:
        return [c for epoch in self._epochs for c in epoch]

    def expires_at(self) -> float | None:
        """When the first transaction that waits expires, for monitoring: whatever a sink raises is no matter."""
        try:
            times = [self.sink.expires_at(c) for c in self.pending]
        except Exception:  # noqa: BLE001 - a sink's
            return None
        return min((at for at in times if at is not None), default=None)

    def ask(self) -> None:
        """Commit one epoch after another, until an answer has to be waited for."""
        try:
            if self._to_claim is not None:
                self.sink.claim(self._to_claim)
                self._to_claim = None
            while self._epochs and self._commit(self._epochs[0]):
                self._epochs.pop(0)
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever one sink raises, the others are asked
            self.detail = f"{type(error).__name__}: {error}"
            if not (isinstance(error, ExternalError) and error.retryable):
                self.error = error
            if not isinstance(error, OncewardError):
                error.add_note(f"raised by sink {self.sink.name} in a commit; its epoch stays decided")
        finally:
            self.seconds = self._clock() - self._began

    def _commit(self, epoch: list[Committable]) -> bool:
        crash_point(Step.COMMIT_BEFORE)
        with _told_if_slow(self.sink, epoch[0]):
            answer = self.sink.commit_many(epoch)
        crash_point(Step.COMMIT_AFTER)
        outcomes = answers.of_each(self.sink, "commit", epoch, answer, CommitOutcome)
        unsettled = [(c, outcome) for c, outcome in outcomes if not outcome.settled]
        later = [(c, outcome) for c, outcome in unsettled if outcome.status is CommitStatus.RETRY_LATER]
        self.failures += [(c, outcome) for c, outcome in unsettled if outcome.status is not CommitStatus.RETRY_LATER]
        self.detail = later[0][1].detail if later else ""
        epoch[:] = [c for c, _ in later]
        return not epoch


@contextmanager
def _told_if_slow(sink: TwoPhaseCommitSink[Any], committable: Committable) -> Iterator[None]:
    def tell_it() -> None:
        _log.warning(
            "the commit of epoch %s in sink %s has not returned for %g s. Nothing interrupts it: commit_timeout counts "
            "only between two calls. If it does not end by itself, give the sink's requests a timeout",
            committable.epoch,
            sink.name,
            SLOW,
            extra=about(committable),
        )

    timer = threading.Timer(SLOW, tell_it)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _conclude(permit: CommitPermit, shares: Sequence[_Share], writer: LogWriter) -> bool:
    failures = [failure for share in shares for failure in share.failures]
    errors = [share.error for share in shares if share.error is not None]
    pending = [share for share in shares if share.waits]
    if pending:
        errors.append(_pending(permit, pending))
    if failures and not (
        pending and writer.policy.on_lost is OnLost.REPLAY
    ):  # it may turn out that nothing was committed
        try:
            if not resolve(permit.decision, failures, writer):
                return False
        except DataLossError as error:
            errors.insert(0, error)
    if errors:
        first, *others = errors
        for other in others:
            first.add_note(f"besides: {other}")
        raise first
    writer.complete(permit.decision.epoch, [share.sink.name for share in shares if share.owns])
    return True


def _pending(permit: CommitPermit, shares: Sequence[_Share]) -> CommitPendingError:
    waiting = [c for share in shares for c in share.pending]
    return CommitPendingError(
        f"{_waiting_for(permit, shares)}. The decision remains valid, and the next start commits them"
        f"{_deadline(shares[0].sink)}",
        pipeline=permit.decision.pipeline,
        sink=shares[0].sink.name,
        epoch=permit.decision.epoch,
        transaction=waiting[0].transaction if waiting else None,
    )


def _waiting_for(permit: CommitPermit, shares: Sequence[_Share]) -> str:
    waiting = sum(len(share.pending) for share in shares)
    names = ", ".join(f"{share.sink.name}: {share.detail}" for share in shares)
    return f"{waiting} decided transactions of epoch {permit.decision.epoch} could not be committed yet ({names})"


def _deadline(sink: TwoPhaseCommitSink[Any]) -> str:
    """What a user must know about the most urgent sink: it may forget the transactions."""
    try:
        timeout = sink.transaction_timeout
    except ExternalError:
        return ", unless the target's transaction timeout ends them before that: bring it back and restart soon"
    if timeout is None:
        return ": nothing is lost"
    return (
        f", unless they end before that: the target aborts a transaction {timeout:.0f} s after it began. Restart soon"
    )
