"""Settle what can no longer be committed, as the user's policy says: fail, write the epoch again, or skip it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..errors import DataLossError, FencedError
from ..events import about
from ..outcome import PROVEN_NOT_COMMITTED
from ..policy import OnLost

if TYPE_CHECKING:
    from ..log import Decide, LogWriter
    from ..policy import CommitPolicy
    from ..transaction import CommitOutcome, Committable

_log = logging.getLogger("onceward.commit")

Failures = list[tuple["Committable", "CommitOutcome"]]


def resolve(decision: Decide, failures: Failures, writer: LogWriter, policy: CommitPolicy) -> bool:
    """Settle what cannot be committed as the policy says; whether the decision still stands."""
    check_newest(writer)
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


def check_newest(writer: LogWriter) -> None:
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
