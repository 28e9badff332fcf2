"""Finish a decision: commit everything it names, then record that it is completed.

Invariant 1: `finish` takes a permit. Invariant 7: COMPLETED is put only after every target's own answer.

Targets are independent: each round asks every sink at the same time, and what one of them raises or has lost is told
at the end. So a target that is away delays no other, and a loss in one sink takes a fault of that sink.
"""

from __future__ import annotations

import logging
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, Final

from ..errors import (
    CommitPendingError,
    DataLossError,
    EpochConflictError,
    ExternalError,
    FencedError,
    RetryableSinkError,
)
from ..events import Committed, CommitWaits, about, moment, tell, wall_clock
from ..names import NOTHING, Scope
from ..outcome import PROVEN_NOT_COMMITTED
from ..policy import CommitPolicy, OnLost
from ..sink import by_urgency
from ..steps import Step, crash_point
from ..transaction import CommitOutcome, CommitStatus, Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..log import CommitPermit, Decide, LogView, LogWriter
    from ..names import Remembered
    from ..sink import TwoPhaseCommitSink
    from ..transaction import Committable

_log = logging.getLogger("onceward.commit")

TOLD_AFTER: Final = 8
"""Repetitions before a warning names what is waited for: three seconds by default, if each attempt fails at once."""
TAKEN_BACK: Final = (
    "it was committed, but the target no longer has it: was a lagging standby promoted, or a backup restored? "
    "Then earlier epochs may be missing, too"
)
Failures = list[tuple["Committable", "CommitOutcome"]]


def finish(
    permit: CommitPermit, writer: LogWriter, sinks: Mapping[str, TwoPhaseCommitSink[Any]], policy: CommitPolicy
) -> bool:
    """Commit what the decision names and put COMPLETED; idempotent. False if the decision was voided instead.

    Raises:
        EpochConflictError: The decision names a sink that the pipeline no longer has, or another decision log owns
            a sink's names.
        CommitPendingError: A target did not answer in time; the decision stands.
        DataLossError: A transaction can no longer be committed, and the policy says to fail.
        FencedError: A newer writer has finished it, or will.
    """
    _check_sinks(permit, sinks)
    shares = [_Share(permit, sink, writer, policy.monotonic) for sink in by_urgency(sinks.values())]
    deadline = policy.monotonic() + policy.commit_timeout
    waiting = [share for share in shares if share.waits]
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
    stands = _conclude(permit, shares, writer, policy)
    seconds = {share.sink.name: share.seconds for share in shares if share.took_part}
    tell(Committed(permit.decision.pipeline, permit.decision.epoch, seconds, voided=not stands))
    return stands


def check_kept(
    writer: LogWriter, sink: TwoPhaseCommitSink[Any], policy: CommitPolicy, remembered: Remembered | None
) -> None:
    """See that the target still has what was committed, as far as it can tell.

    It has not if it is another target, or was replaced by an older copy of itself: a standby that lagged was promoted,
    or a backup was restored. A ledger is asked for each transaction of the newest completed decision, and what is
    prepared there again is committed again, as the decision says. Of earlier epochs the log knows the newest.

    Args:
        writer: The newest writer.
        sink: Whose target.
        policy: What to do if it has not.
        remembered: What the target remembers of this log.

    Raises:
        DataLossError: Some of it is gone, and the policy does not say to skip it.
        FencedError: A newer writer has started.
        SinkError: The target did not answer.
    """
    view = writer.view
    done = view.newest.committables if view.newest is not None and view.undone is None and sink.keeps_ledger else ()
    mine = [c for c in done if c.sink == sink.name and c.transaction not in view.skipped]
    if why := forgotten(view, sink.name, remembered, told_apart=bool(mine)):
        _go_on_without(writer, sink.name, why, policy)
        return
    if view.newest is None or not mine:
        return
    seen = list(zip(mine, sink.inspect_many(mine), strict=True))
    failures: Failures = [
        (c, CommitOutcome(CommitStatus.LOST, TAKEN_BACK)) for c, at in seen if at is Observation.ABORTED
    ]
    again = [c for c, at in seen if at is Observation.PREPARED]
    for committable, outcome in zip(again, sink.commit_many(again) if again else (), strict=True):
        if outcome.status is CommitStatus.RETRY_LATER:
            raise RetryableSinkError(f"cannot commit again what the target has lost: {outcome.detail}", sink=sink.name)
        if not outcome.settled:
            failures.append((committable, outcome))
        _log.warning(
            "%s was committed, and was prepared again: the target went back to an older state. Committing it again: %s",
            committable.transaction,
            outcome.status,
            extra=about(committable),
        )
    if failures:
        _resolve(view.newest, failures, writer, policy)


def forgotten(view: LogView, sink: str, remembered: Remembered | None, *, told_apart: bool = False) -> str:
    """What a target must have forgotten; empty if nothing says so.

    Args:
        view: What the log says.
        sink: Its name.
        remembered: What the target remembers of this log.
        told_apart: The target is asked for each transaction of the sink's newest epoch.
    """
    if remembered is None:
        return ""
    if sink in view.claimed and not remembered.owned:
        return (
            "it has been written to, but does not know this pipeline and sink. Is it another target, or was it "
            "emptied, or is a disk not mounted? Bring back the right one; or, to begin with a new target, give the "
            "sink another name"
        )
    reached = view.reached.get(sink, NOTHING)
    if told_apart or remembered.progress >= reached:
        return ""
    known = f"ends at epoch {remembered.progress.epoch}" if remembered.progress != NOTHING else "is empty"
    return f"what it knows of this pipeline and sink {known}. Epoch {reached.epoch} is missing: {TAKEN_BACK}"


def _go_on_without(writer: LogWriter, sink: str, why: str, policy: CommitPolicy) -> None:
    """Accept what a target has, if the policy says so; otherwise, and if another writer has started, raise."""
    _check_newest(writer)
    view = writer.view
    if policy.on_lost is not OnLost.SKIP or CommitStatus.LOST not in policy.skips:
        raise DataLossError(
            f"the target is not as it was left: {why}. Choices: bring back what is missing; rewind='why', with an "
            "older checkpoint, writes again what comes after it; on_lost='skip' continues with the target as it is and "
            "leaves an audit record",
            pipeline=view.pipeline,
            sink=sink,
            epoch=view.completed,
        )
    why = f"{policy.skipped_why}; sink {sink}: {why}" if policy.skipped_why else f"sink {sink}: {why}"
    _log.error("continuing with a target as it is: %s", why, extra={"pipeline": view.pipeline, "sink": sink})
    writer.resolve(view.completed, "", action="skip", who=policy.skipped_by, why=why, sink=sink)


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

    def __init__(
        self, permit: CommitPermit, sink: TwoPhaseCommitSink[Any], writer: LogWriter, clock: Callable[[], float]
    ) -> None:
        self.sink = sink
        self._clock, self._began = clock, clock()
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
        self._to_claim = None if claimed or not claims else Scope(writer.pipeline, sink.name, writer.token.log)

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
        finally:
            self.seconds = self._clock() - self._began

    def _commit(self, epoch: list[Committable]) -> bool:
        crash_point(Step.COMMIT_BEFORE)
        outcomes = self.sink.commit_many(epoch)
        crash_point(Step.COMMIT_AFTER)
        unsettled = [(c, outcome) for c, outcome in zip(epoch, outcomes, strict=True) if not outcome.settled]
        later = [(c, outcome) for c, outcome in unsettled if outcome.status is CommitStatus.RETRY_LATER]
        self.failures += [(c, outcome) for c, outcome in unsettled if outcome.status is not CommitStatus.RETRY_LATER]
        self.detail = later[0][1].detail if later else ""
        epoch[:] = [c for c, _ in later]
        return not epoch


def _conclude(permit: CommitPermit, shares: Sequence[_Share], writer: LogWriter, policy: CommitPolicy) -> bool:
    failures = [failure for share in shares for failure in share.failures]
    errors = [share.error for share in shares if share.error is not None]
    pending = [share for share in shares if share.waits]
    if pending:
        errors.append(_pending(permit, pending))
    if failures and not (pending and policy.on_lost is OnLost.REPLAY):  # it may turn out that nothing was committed
        try:
            if not _resolve(permit.decision, failures, writer, policy):
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


def _resolve(decision: Decide, failures: Failures, writer: LogWriter, policy: CommitPolicy) -> bool:
    """Settle what cannot be committed as the policy says; whether the decision still stands."""
    _check_newest(writer)
    if policy.on_lost is OnLost.SKIP and all(outcome.status in policy.skips for _, outcome in failures):
        for committable, outcome in failures:
            seen = f"{outcome.status}: {outcome.detail}; {committable.rows} rows"
            why = f"{policy.skipped_why}; {seen}" if policy.skipped_why else seen
            _log.error(
                "skipping lost transaction %s of epoch %s: %s",
                committable.transaction,
                decision.epoch,
                why,
                extra=about(committable),
            )
            writer.resolve(decision.epoch, committable.transaction, action="skip", who=policy.skipped_by, why=why)
        return True
    waits = writer.view.undone is not None  # a completed decision cannot be voided
    proven = [c for c, outcome in failures if waits and outcome.status in PROVEN_NOT_COMMITTED]
    if policy.on_lost is OnLost.REPLAY and len(proven) == len(decision.committables):
        writer.void(decision.epoch, [f"{c.transaction}: {outcome.detail}" for c, outcome in failures])
        return False
    raise _data_loss(decision, failures, policy, waits=waits)


def _check_newest(writer: LogWriter) -> None:
    """A newer writer may have finished the epoch and made its names ready again: then "unknown" means nothing here."""
    if not writer.still_newest():
        raise FencedError("a newer writer has started", pipeline=writer.pipeline, epoch=writer.view.decided)


def _data_loss(decision: Decide, failures: Failures, policy: CommitPolicy, *, waits: bool) -> DataLossError:
    rows = sum(c.rows for c, _ in failures)
    listed = "; ".join(
        f"sink {c.sink} subtask {c.subtask} {c.transaction} ({c.rows} rows): {outcome.status}, {outcome.detail}"
        for c, outcome in failures[:5]
    )
    refused = (
        " Replay was requested but refused: not every transaction of the epoch is proven not committed."
        if policy.on_lost is OnLost.REPLAY and waits
        else ""
    )
    replay = (
        "on_lost='replay' writes the epoch again if every one of its transactions is proven not committed and the "
        "source still has the rows"
        if waits
        else "rewind='why', with an older checkpoint, writes again what comes after it"
    )
    return DataLossError(
        f"{len(failures)} decided transactions with {rows} rows can no longer be committed: {listed}.{refused} "
        f"Choices: {replay}; on_lost='skip' continues without them and leaves an audit record",
        pipeline=decision.pipeline,
        sink=failures[0][0].sink,
        epoch=decision.epoch,
        transaction=failures[0][0].transaction,
    )
