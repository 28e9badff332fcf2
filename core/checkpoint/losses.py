"""Settle what can no longer be committed, as the policy says: fail, write the epoch again, or skip what is lost."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import TYPE_CHECKING

from ..contract.events import about
from ..contract.outcome import PROVEN_NOT_COMMITTED
from ..contract.policy import OnLost
from ..errors import DataLossError, EpochTornError, FencedError
from .healing import is_proven
from .void import Withdrawal, withdraw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..log import Decide, LogWriter
    from .sink_share import Failures, Share

_log = logging.getLogger("onceward.commit")


class LossVerdict(StrEnum):
    """What the policy says of a decision some of which can no longer be committed."""

    STANDS = "stands"
    """Go on without what is lost: it was given up, with an audit record."""
    VOIDED = "voided"
    """The epoch can be written again: nothing of it was committed, and nothing ever will be."""
    WAITS = "waits"
    """A target does not answer, so nobody knows yet."""


def settle(decision: Decide, shares: Sequence[Share], writer: LogWriter, *, heals: bool = False) -> LossVerdict:
    """Settle what cannot be committed as the policy says, before anything else is committed.

    Args:
        decision: A decision that is not completed.
        shares: Shares of all sinks of the decision.
        writer: The newest writer.
        heals: True if the caller can write the lost part of the epoch again.

    Raises:
        DataLossError: The policy says to fail, or what it says would not be sound. Nothing was committed since the loss
            was seen, except what expires of an epoch that is visible in part already.
        EpochTornError: The lost part of the epoch can be written again.
        FencedError: A newer writer has started.
    """
    policy = writer.policy
    if policy.on_lost is not OnLost.REPLAY:
        if policy.on_lost is OnLost.FAIL and _is_visible(shares, writer):
            _finish_expiring(shares, writer)
        resolve(decision, _failures(shares), writer)
        return LossVerdict.STANDS
    # A newer writer may have finished the epoch and used the names again: then no answer proves a loss.
    check_newest(writer)
    if _is_proven_lost(shares) and not _is_visible(shares, writer):
        withdrawal = withdraw(decision, shares, writer)
        if withdrawal is not Withdrawal.REFUSED:
            return LossVerdict.VOIDED if withdrawal is Withdrawal.VOIDED else LossVerdict.WAITS
        policy.make_all([share.look for share in shares])
    if _finish_expiring(shares, writer):
        return LossVerdict.WAITS
    unproven = "it cannot be proven that what is missing was not committed"
    # Asked once more: what expires may have been found missing just now, in its commit.
    obstacle = _of_order(shares) if _is_proven_lost(shares) else unproven
    raise torn(decision, _failures(shares), heals=heals, obstacle=obstacle)


def _failures(shares: Sequence[Share]) -> Failures:
    return [failure for share in shares for failure in share.failures]


def _is_proven_lost(shares: Sequence[Share]) -> bool:
    return all(outcome.status in PROVEN_NOT_COMMITTED for _, outcome in _failures(shares))


def _is_visible(shares: Sequence[Share], writer: LogWriter) -> bool:
    return bool(writer.view.skipped) or any(share.visible for share in shares)


def _of_order(shares: Sequence[Share]) -> str:
    """Return why what is lost of an upsert cannot be written again after what follows it; empty if that is sound."""
    late = [one.sink.name for one in shares if one.sink.ordered and one.lost_before_others]
    return f"it would overwrite what {', '.join(late)} has of a later epoch of the same decision" if late else ""


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
        waits = writer.view.undone is not None and writer.view.undone.epoch == decision.epoch
        raise _data_loss(decision, failures, waits=waits)
    # (Invariant 8) Each loss leaves an audit record of its own.
    for committable, outcome in failures:
        text = f"{outcome.status}: {outcome.detail}; {committable.rows} rows"
        why = f"{policy.skipped_why}; {text}" if policy.skipped_why else text
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
        decision: Decision of the epoch.
        failures: Transactions that are lost, with the targets' answers.
        heals: True if the caller can write the lost part again.
        obstacle: Reason why that would not be sound; empty if nothing is known to be in the way.
    """
    if not obstacle and not heals:
        obstacle = (
            "some of the epoch is visible already, and only a pipeline whose sources can be read again can compute the "
            "rest, when it starts"
        )
    unproven = sorted({c.sink for c, _ in failures if not is_proven(c)})
    if not obstacle and unproven:
        obstacle = (
            f"the decision holds no hash of all that {', '.join(unproven)} was handed (proof=False, values that cannot "
            "be hashed, or a decision of an older version), so rows that are written again could not be compared"
        )
    if obstacle:
        return _data_loss(decision, failures, waits=True, obstacle=obstacle)
    lost = sorted(f"{c.sink} subtask {c.subtask} ({c.rows} rows)" for c, _ in failures)
    error = EpochTornError(
        f"{len(lost)} decided transactions were lost while others of the epoch were committed: {', '.join(lost[:5])}. "
        "The next attempt computes the epoch again, and writes and commits exactly these if the rows are the "
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
    # What was just refused is no choice; and what is completed is not written again.
    replay = ["on_lost='replay' writes again what is proven not committed, if the source still has the rows"]
    choices = replay if waits and not obstacle else []
    choices += ["rewind='why', with an older checkpoint, writes again what comes after it"]
    return DataLossError(
        f"{len(failures)} decided transactions with {rows} rows can no longer be committed: {listed}.{refused} "
        f"Choices: {'; '.join(choices)}; on_lost='skip' continues without them and leaves an audit record",
        pipeline=decision.pipeline,
        sink=failures[0][0].sink,
        epoch=decision.epoch,
        transaction=failures[0][0].transaction,
    )
