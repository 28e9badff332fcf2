"""Carry out what the table of losses (loss_table.py) says of a decision that has lost something."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import TYPE_CHECKING

from ..contract.events import about
from ..contract.outcome import PROVEN_NOT_COMMITTED
from ..errors import DataLossError, EpochTornError, FencedError
from .healing import is_proven
from .loss_table import LossAction, LossFacts, Rest, rule_of
from .void import Withdrawal, withdraw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..log import Decide, LogWriter
    from .loss_table import Failures
    from .sink_share import Share

_log = logging.getLogger("onceward.commit")


class LossVerdict(StrEnum):
    """What became of the losses of a decision in one round of its commit."""

    NONE = "none"
    """No loss is known."""
    ACCEPTED = "accepted"
    """The policy has accepted what was lost, with an audit record: the rest can be committed."""
    VOIDED = "voided"
    """The epoch can be written again: nothing of it was committed, and nothing ever will be."""
    WAITS = "waits"
    """A target does not answer, so nobody knows yet."""


def settle(decision: Decide, shares: Sequence[Share], writer: LogWriter, *, heals: bool = False) -> LossVerdict:
    """Settle what cannot be committed as the table says, before anything else is committed.

    Args:
        decision: A decision that is not completed.
        shares: Shares of all sinks of the decision, some of which have lost something.
        writer: The newest writer.
        heals: True if the caller can write the lost part of the epoch again.

    Raises:
        DataLossError: The table says to fail. Nothing was committed since the loss was seen, except what expires of an
            epoch that is visible in part already.
        EpochTornError: The lost part of the epoch can be written again.
        FencedError: A newer writer has started.
    """
    check_newest(writer)
    loss = _loss(shares, writer, heals=heals)
    if rule_of(loss).action is LossAction.VOID:
        withdrawal = withdraw(decision, shares, writer)
        if withdrawal is not Withdrawal.REFUSED:
            return LossVerdict.VOIDED if withdrawal is Withdrawal.VOIDED else LossVerdict.WAITS
        writer.policy.make_all([share.look for share in shares])
        loss = _loss(shares, writer, heals=heals, visible=True)
    if (rest := rule_of(loss).rest) is not Rest.LEFT:
        waits = _commit_expiring(shares, writer)
        if waits and rest is Rest.AWAITED:
            return LossVerdict.WAITS
        # What expires may have been found missing just now, in its commit.
        loss = _loss(shares, writer, heals=heals, visible=True)
    try:
        _carry_out(loss, decision, _failures(shares), writer)
    except DataLossError as error:
        for share in shares:
            if why := share.error or (share.detail if share.waits else ""):
                error.add_note(f"besides, sink {share.sink.name} has not committed its part: {why}")
        raise
    for share in shares:
        share.failures.clear()
    return LossVerdict.ACCEPTED


def _loss(shares: Sequence[Share], writer: LogWriter, *, heals: bool, visible: bool = False) -> LossFacts:
    failures = _failures(shares)
    late = [one.sink.name for one in shares if one.sink.ordered and one.lost_before_others]
    return LossFacts(
        on_lost=writer.policy.on_lost,
        waits=True,
        skippable=_is_skippable(failures, writer),
        proven=all(outcome.status in PROVEN_NOT_COMMITTED for _, outcome in failures),
        visible=visible or _is_visible(shares, writer),
        late=late,
        heals=heals,
        unhashed=sorted({c.sink for c, _ in failures if not is_proven(c)}),
    )


def _failures(shares: Sequence[Share]) -> Failures:
    return [failure for share in shares for failure in share.failures]


def _is_skippable(failures: Failures, writer: LogWriter) -> bool:
    return all(outcome.status in writer.policy.skips for _, outcome in failures)


def _is_visible(shares: Sequence[Share], writer: LogWriter) -> bool:
    return bool(writer.view.skipped) or any(share.visible for share in shares)


def _commit_expiring(shares: Sequence[Share], writer: LogWriter) -> bool:
    """Commit the shares that can expire of an epoch that cannot be voided; return whether one is still pending.

    Its rows will stay, whether the rest is written again or given up. So they must not be lost, too.
    """
    writer.policy.make_all([share.ask for share in shares if share.waits and share.expires])
    return any(share.waits and share.expires for share in shares)


def settle_completed(decision: Decide, failures: Failures, writer: LogWriter) -> None:
    """Settle as the table says that a target no longer has what a completed decision named.

    Raises:
        DataLossError: The table says to fail.
        FencedError: A newer writer has started.
    """
    check_newest(writer)
    loss = LossFacts(writer.policy.on_lost, waits=False, skippable=_is_skippable(failures, writer))
    _carry_out(loss, decision, failures, writer)


def check_newest(writer: LogWriter) -> None:
    """Raise FencedError if a newer writer has started: it may have reused the names, so UNKNOWN would prove nothing."""
    if not writer.still_newest():
        raise FencedError("a newer writer has started", pipeline=writer.pipeline, epoch=writer.view.decided)


def _carry_out(loss: LossFacts, decision: Decide, failures: Failures, writer: LogWriter) -> None:
    """Give up what is lost, or raise the rule's error."""
    rule = rule_of(loss)
    if rule.action is LossAction.HEAL:
        raise _torn(decision, failures)
    if rule.action is not LossAction.SKIP:
        obstacle = rule.obstacle.format(late=", ".join(loss.late), unhashed=", ".join(loss.unhashed))
        raise _data_loss(decision, failures, obstacle=obstacle, waits=loss.waits)
    _give_up(decision, failures, writer)


def _give_up(decision: Decide, failures: Failures, writer: LogWriter) -> None:
    policy = writer.policy
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


def _torn(decision: Decide, failures: Failures) -> EpochTornError:
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


def _data_loss(decision: Decide, failures: Failures, *, obstacle: str, waits: bool) -> DataLossError:
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
