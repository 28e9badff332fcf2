"""Finish a decision: commit everything it names, then record that it is completed.

Invariant 1: `finish` takes a permit. Invariant 7: COMPLETED is put only after every target's own answer.
"""

from __future__ import annotations

import logging
from itertools import groupby
from typing import TYPE_CHECKING

from ..errors import CommitPendingError, DataLossError, EpochConflictError, FencedError
from ..steps import Step, reach
from ..transaction.recovery import AFTER_COMMIT, PROVEN_NOT_COMMITTED, AfterCommit
from .policy import CommitPolicy, OnLost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..log import CommitPermit, LogWriter
    from ..transaction import CommitOutcome, Committable
    from .participant import Participant

_log = logging.getLogger("onceward.commit")

Failures = list[tuple["Committable", "CommitOutcome"]]


def finish(permit: CommitPermit, writer: LogWriter, sinks: Mapping[str, Participant], policy: CommitPolicy) -> bool:
    """Commit what the decision names and put COMPLETED; idempotent. False if the decision was voided instead.

    Raises:
        EpochConflictError: The decision names a sink that the pipeline no longer has.
        CommitPendingError: A target did not answer in time; the decision stands.
        DataLossError: A transaction can no longer be committed, and the policy says to fail.
        FencedError: A newer writer has finished it, or will.
    """
    _check_sinks(permit, sinks)
    failures: Failures = []
    for sink in sinks.values():
        failures += _commit_sink(permit, sink, policy, writer)
    if failures and not _resolve(permit, failures, writer, policy):
        return False
    writer.complete(permit.decision.epoch)
    return True


def _check_sinks(permit: CommitPermit, sinks: Mapping[str, Participant]) -> None:
    decision = permit.decision
    missing = sorted({c.sink for c in decision.committables} - sinks.keys())
    if missing:
        raise EpochConflictError(
            f"epoch {decision.epoch} is decided and names transactions of sinks that this pipeline no longer has: "
            f"{missing}. Start once more with these sinks, so that their transactions can be committed",
            pipeline=decision.pipeline,
            epoch=decision.epoch,
        )


def _commit_sink(permit: CommitPermit, sink: Participant, policy: CommitPolicy, writer: LogWriter) -> Failures:
    """Commit one sink's transactions until each is settled or proven not to be had.

    A decision of the embedded engine may name several epochs (of checkpoints that were given up): an epoch is asked for
    only when those before it are settled, or an upsert that has to wait would overwrite a later one's rows.
    """
    mine = [c for c in permit.committables(sink.name) if c.transaction not in writer.view.skipped]
    mine.sort(key=lambda c: c.epoch)
    failures: Failures = []
    for _, epoch in groupby(mine, key=lambda c: c.epoch):
        failures += _commit_epoch(permit, sink, policy, list(epoch))
    return failures


def _commit_epoch(
    permit: CommitPermit, sink: Participant, policy: CommitPolicy, waiting: list[Committable]
) -> Failures:
    failures: Failures = []
    attempt = 0
    while waiting:
        reach(Step.COMMIT_BEFORE)
        outcomes = sink.commit_many(waiting)
        reach(Step.COMMIT_AFTER)
        verdicts = [AFTER_COMMIT[outcome.status] for outcome in outcomes]
        answered = list(zip(waiting, outcomes, verdicts, strict=True))
        failures += [(c, outcome) for c, outcome, verdict in answered if verdict is AfterCommit.LOST]
        waiting = [c for c, _, verdict in answered if verdict is AfterCommit.AGAIN]
        if waiting and not policy.commits.pause(attempt):
            raise _pending(permit, sink, waiting, answered)
        attempt += 1
    return failures


def _pending(
    permit: CommitPermit,
    sink: Participant,
    waiting: Sequence[Committable],
    answered: Sequence[tuple[Committable, CommitOutcome, AfterCommit]],
) -> CommitPendingError:
    detail = next(outcome.detail for _, outcome, verdict in answered if verdict is AfterCommit.AGAIN)
    return CommitPendingError(
        f"{len(waiting)} decided transactions could not be committed yet ({detail}). Nothing is lost: the decision "
        "stands, and the next start commits them",
        pipeline=permit.decision.pipeline,
        sink=sink.name,
        epoch=permit.decision.epoch,
        transaction=waiting[0].transaction,
    )


def _resolve(permit: CommitPermit, failures: Failures, writer: LogWriter, policy: CommitPolicy) -> bool:
    """Settle what cannot be committed as the policy says; whether the decision still stands."""
    decision = permit.decision
    if not writer.still_newest():
        # A newer writer may have finished it and made the names ready again: then "unknown" means nothing here.
        raise FencedError("a newer writer finishes this epoch", pipeline=decision.pipeline, epoch=decision.epoch)
    if policy.on_lost is OnLost.SKIP and all(outcome.status in policy.skips for _, outcome in failures):
        for committable, outcome in failures:
            seen = f"{outcome.status}: {outcome.detail}; {committable.rows} rows"
            why = f"{policy.skipped_why}; {seen}" if policy.skipped_why else seen
            _log.error("skipping lost transaction %s of epoch %s: %s", committable.transaction, decision.epoch, why)
            writer.resolve(decision.epoch, committable.transaction, action="skip", who=policy.skipped_by, why=why)
        return True
    proven = [c for c, outcome in failures if outcome.status in PROVEN_NOT_COMMITTED]
    if policy.on_lost is OnLost.REPLAY and len(proven) == len(decision.committables):
        writer.void(decision.epoch, [f"{c.transaction}: {outcome.detail}" for c, outcome in failures])
        return False
    raise _data_loss(permit, failures, policy)


def _data_loss(permit: CommitPermit, failures: Failures, policy: CommitPolicy) -> DataLossError:
    decision = permit.decision
    rows = sum(c.rows for c, _ in failures)
    listed = "; ".join(
        f"sink {c.sink} subtask {c.subtask} {c.transaction} ({c.rows} rows): {outcome.status}, {outcome.detail}"
        for c, outcome in failures[:5]
    )
    refused = (
        " Replay was asked for and refused: not every transaction of the epoch is proven not committed."
        if policy.on_lost is OnLost.REPLAY
        else ""
    )
    return DataLossError(
        f"{len(failures)} decided transactions with {rows} rows can no longer be committed: {listed}.{refused} "
        "Choices: on_lost='replay' writes the epoch again if every one of its transactions is proven not committed "
        "and the source still has the rows; on_lost='skip' goes on without them and leaves an audit record",
        pipeline=decision.pipeline,
        sink=failures[0][0].sink,
        epoch=decision.epoch,
        transaction=failures[0][0].transaction,
    )
