"""What a target has lost: seen at a start, or when a commit cannot be made, and settled as the user's policy says.

A target no longer has what was committed to it if it is another target, or was replaced by an older copy of itself: a
standby that lagged was promoted, or a backup was restored. docs/design/2026-11-25-what-a-target-remembers.md says what
can be told of each target. The policy says whether to fail, to write the epoch again, or to skip what is lost.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .. import answers
from ..errors import DataLossError, EpochTornError, ExternalError, FencedError, RetryableSinkError
from ..events import about
from ..names import NOTHING, Remembered
from ..outcome import PROVEN_NOT_COMMITTED
from ..policy import OnLost
from ..transaction import CommitOutcome, CommitStatus, Observation
from .replay import withdraw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..log import Decide, LogView, LogWriter
    from ..sink import TwoPhaseCommitSink
    from .share import Failures, Share

_log = logging.getLogger("onceward.commit")

TAKEN_BACK: Final = (
    "it was committed, but the target no longer has it: was a lagging standby promoted, or a backup restored? "
    "Then earlier epochs may be missing, too"
)


def check_kept(writer: LogWriter, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> dict[str, Exception]:
    """See that each target knows no other log, and still has what was committed, as far as it can tell.

    All are asked at once: one that does not answer keeps none waiting whose transactions may expire.

    Returns:
        Of each sink whose target has lost something that the policy does not say to skip, a DataLossError, and of each
        whose target did not answer, what it raised.

    Raises:
        EpochConflictError: A target knows the names from another decision log, or from a newer state of this one.
        FencedError: A newer writer has started.
    """
    errors: dict[str, Exception] = {}
    remembered: dict[str, Remembered | None] = {}
    progress = writer.view.progress

    def ask(sink: TwoPhaseCommitSink[Any]) -> None:
        try:
            answer = sink.check_claim(writer.scope(sink.name), progress)
            remembered[sink.name] = None if answer is None else answers.one(sink, "check_claim", answer, Remembered)
        except Exception as error:  # noqa: BLE001 - raised below, when all were asked
            errors[sink.name] = error

    writer.policy.make_all([partial(ask, sink) for sink in sinks.values()])
    for name, sink in sinks.items():
        try:
            if name in errors:
                raise errors[name]
            _check_kept(writer, sink, remembered[name])
        except (ExternalError, DataLossError) as error:
            errors[name] = error
    return errors


def _check_kept(writer: LogWriter, sink: TwoPhaseCommitSink[Any], remembered: Remembered | None) -> None:
    """See that the target still has what was committed.

    A ledger is asked for each transaction of the newest completed decision, and what is prepared there again is
    committed again, as the decision says. Of earlier epochs the log knows the newest.
    """
    view = writer.view
    done = view.newest.committables if view.newest is not None and view.undone is None and sink.keeps_ledger else ()
    mine = [c for c in done if c.sink == sink.name and c.transaction not in view.skipped]
    if why := forgotten(view, sink.name, remembered, told_apart=bool(mine)):
        _go_on_without(writer, sink.name, why)
        return
    if view.newest is None or not mine:
        return
    seen = answers.of_each(sink, "inspect_many", mine, sink.inspect_many(mine), Observation)
    failures: Failures = [
        (c, CommitOutcome(CommitStatus.LOST, TAKEN_BACK)) for c, at in seen if at is Observation.ABORTED
    ]
    again = [c for c, at in seen if at is Observation.PREPARED]
    outcomes = answers.of_each(sink, "commit", again, sink.commit_many(again), CommitOutcome) if again else []
    for committable, outcome in outcomes:
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
        resolve(view.newest, failures, writer)


def forgotten(view: LogView, sink: str, remembered: Remembered | None, *, told_apart: bool = False) -> str:
    """What a sink's target must have forgotten, by what it remembers of this log; empty if nothing says so.

    With `told_apart`, the target is asked for each transaction of the sink's newest epoch.
    """
    if remembered is None:
        return ""
    if sink in view.claimed and not remembered.owned:
        return (
            "this pipeline has used it before, but it does not know this pipeline and sink. Is it another target, or "
            "was it emptied or replaced, or is a disk not mounted? Bring back the right one; or, to begin with a new "
            "target, give the sink another name (in tests: delete the checkpoint together with the services)"
        )
    reached = view.reached.get(sink, NOTHING)
    if told_apart or remembered.progress >= reached:
        return ""
    known = f"ends at epoch {remembered.progress.epoch}" if remembered.progress != NOTHING else "is empty"
    return f"what it knows of this pipeline and sink {known}. Epoch {reached.epoch} is missing: {TAKEN_BACK}"


def _go_on_without(writer: LogWriter, sink: str, why: str) -> None:
    """Accept what a target has, if the policy says so; otherwise, and if another writer has started, raise."""
    check_newest(writer)
    view, policy = writer.view, writer.policy
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


class Verdict(StrEnum):
    """What the policy says of a decision some of which can no longer be committed."""

    STANDS = "stands"
    """Go on without what is lost: it was given up, with an audit record."""
    VOIDED = "voided"
    """Nothing of it was committed, and nothing ever will be: the epoch can be written again."""
    WAITS = "waits"
    """A target does not answer, so nobody knows yet."""


def settle(decision: Decide, shares: Sequence[Share], writer: LogWriter, *, heals: bool = False) -> Verdict:
    """Settle what cannot be committed as the policy says, before anything else is committed.

    Args:
        decision: A decision that is not completed.
        shares: Those of all its sinks.
        writer: The newest writer.
        heals: Whether the caller can write the lost part of the epoch again.

    Raises:
        DataLossError: The policy says to fail, or what it says would not be sound. Nothing was committed since the loss
            was seen, except what expires of an epoch that is visible in part already.
        EpochTornError: The lost part of the epoch can be written again.
        FencedError: A newer writer has started.
    """
    failures = _failures(shares)
    policy = writer.policy
    if policy.on_lost is not OnLost.REPLAY:
        if policy.on_lost is OnLost.FAIL and _is_visible(shares, writer):
            _finish_expiring(shares, writer)
        resolve(decision, _failures(shares), writer)
        return Verdict.STANDS
    check_newest(writer)
    unproven = any(outcome.status not in PROVEN_NOT_COMMITTED for _, outcome in failures)
    if not unproven and not _is_visible(shares, writer):
        voided = withdraw(decision, shares, writer)
        if voided is not False:
            return Verdict.VOIDED if voided else Verdict.WAITS
        policy.make_all([share.look for share in shares])
    if _finish_expiring(shares, writer):
        return Verdict.WAITS
    obstacle = "it cannot be proven that what is missing was not committed" if unproven else ""
    raise torn(decision, _failures(shares), heals=heals, obstacle=obstacle)


def _failures(shares: Sequence[Share]) -> Failures:
    return [failure for share in shares for failure in share.failures]


def _is_visible(shares: Sequence[Share], writer: LogWriter) -> bool:
    return bool(writer.view.skipped) or any(share.visible for share in shares)


def _finish_expiring(shares: Sequence[Share], writer: LogWriter) -> bool:
    """Commit what expires of an epoch that cannot be voided; whether some of it has to be waited for.

    Its rows will stay, whether the rest is written again or given up. So they must not be lost, too.
    """
    writer.policy.make_all([share.ask for share in shares if share.waits and share.expires])
    return any(share.waits and share.expires for share in shares)


def resolve(decision: Decide, failures: Failures, writer: LogWriter) -> None:
    """Give up what cannot be committed, with an audit record, if the policy says so; else raise a DataLossError."""
    check_newest(writer)
    policy = writer.policy
    if policy.on_lost is not OnLost.SKIP or not all(outcome.status in policy.skips for _, outcome in failures):
        raise _data_loss(decision, failures, waits=writer.view.undone is not None)
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


def check_newest(writer: LogWriter) -> None:
    """Raise FencedError if a newer writer has started: it may have reused the names, so UNKNOWN would prove nothing."""
    if not writer.still_newest():
        raise FencedError("a newer writer has started", pipeline=writer.pipeline, epoch=writer.view.decided)


def torn(decision: Decide, failures: Failures, *, heals: bool, obstacle: str = "") -> DataLossError:
    """Make the error for an epoch some of which is visible, or may be, and some of which is lost.

    Args:
        decision: The epoch's.
        failures: What is lost.
        heals: Whether the caller can write the lost part again.
        obstacle: Why that would not be sound; empty if nothing is known to be in the way.
    """
    if not obstacle and not heals:
        obstacle = (
            "some of the epoch is visible already, and only a Spark query can compute the rest again, when it starts"
        )
    unproven = sorted({c.sink for c, _ in failures if not c.wrote().hash})
    if not obstacle and unproven:
        obstacle = (
            f"the decision holds no hash of the rows of {', '.join(unproven)} (proof=False, an upsert, or a sink that "
            "makes none), so rows that are written again could not be compared"
        )
    if obstacle:
        return _data_loss(decision, failures, waits=True, obstacle=obstacle)
    lost = sorted(f"{c.sink} subtask {c.subtask} ({c.rows} rows)" for c, _ in failures)
    error = EpochTornError(
        f"{len(lost)} decided transactions were lost while others of the epoch were committed: {', '.join(lost[:5])}. "
        "The query's next attempt computes the epoch again, and writes and commits exactly these if the rows are the "
        "same",
        pipeline=decision.pipeline,
        sink=failures[0][0].sink,
        epoch=decision.epoch,
        transaction=failures[0][0].transaction,
    )
    error.lost = tuple(c for c, _ in failures)
    return error


def _data_loss(decision: Decide, failures: Failures, *, waits: bool, obstacle: str = "") -> DataLossError:
    rows = sum(c.rows for c, _ in failures)
    listed = "; ".join(
        f"sink {c.sink} subtask {c.subtask} {c.transaction} ({c.rows} rows): {outcome.status}, {outcome.detail}"
        for c, outcome in failures[:5]
    )
    refused = f" Writing it again was refused: {obstacle}." if obstacle else ""
    replay = (
        "on_lost='replay' writes again what is proven not committed, if the source still has the rows"
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
