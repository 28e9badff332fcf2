"""Check that each target still has what was committed to it: at each start, before each decision, in each sweep.

A target no longer has it if it is another target, or was replaced by an older copy of itself: a lagging standby was
promoted, or a backup was restored. docs/design/0017-what-a-target-remembers.md says what each target can tell.

A target may go back at any moment of a run, so a check at the start is not enough. Going back, it loses the end of its
history: whatever it has prepared after a commit is lost with that commit. So if a target has all earlier commits once
an epoch is prepared, committing the epoch cannot hide a loss.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..contract import validated as answers
from ..contract.events import about
from ..contract.names import NOTHING, Remembered
from ..contract.transaction import CommitOutcome, CommitStatus, Committable, Observation
from ..errors import (
    DataLossError,
    DecisionInDoubtError,
    EpochConflictError,
    FencedError,
    OncewardError,
    RetryableSinkError,
    SinkError,
    TargetWentBackError,
)
from ..log import Resolved, Rewind
from ..log.view import NONE
from .loss_table import LossAction, LossFacts, rule_of
from .losses import check_newest, settle_completed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..contract.sink import TwoPhaseCommitSink
    from ..log import Decide, LogView, LogWriter
    from .loss_table import Failures

_log = logging.getLogger("onceward.commit")

_UNFINISHED: Final = frozenset({Observation.PREPARED, Observation.BEGUN})
"""States of a committed transaction in a target that went back to before the commit, or to the midst of it."""
TAKEN_BACK: Final = (
    "it was committed, but the target no longer has it: was a lagging standby promoted, or a backup restored? "
    "Then earlier epochs may be missing, too"
)


def check_kept(
    writer: LogWriter, sinks: Mapping[str, TwoPhaseCommitSink[Any]], *, starting: bool = False
) -> dict[str, OncewardError]:
    """Check that each target knows no other log, and still has what was committed, as far as it can tell.

    All are asked concurrently, so that one that does not answer delays no other whose transactions may expire.

    Args:
        writer: The newest writer.
        sinks: Sinks whose targets are asked, by name.
        starting: True if nothing of a new epoch is prepared yet, and nothing was listed to be aborted. Otherwise it is
            an error, too, if something had to be committed again: a second failover could undo that commit, and leave
            the rest as it was seen.

    Returns:
        Errors by name of the sink: a DataLossError if its target has lost something that the policy does not say to
        skip, and what the sink raised if its target did not answer.

    Raises:
        EpochConflictError: A target knows the names from another decision log, or from a newer state of this one.
        FencedError: A newer writer has started.
        DecisionInDoubtError: The store did not answer whether the record of an accepted loss is written.
    """
    errors: dict[str, OncewardError] = {}
    unanswered: dict[str, Exception] = {}
    remembered: dict[str, Remembered | None] = {}
    progress = writer.view.progress

    def ask(sink: TwoPhaseCommitSink[Any]) -> None:
        try:
            answer = answers.ledger(sink).check_claim(writer.scope(sink.name), progress)
            valid = None if answer is None else answers.one(sink, "ledger().check_claim", answer, Remembered)
            remembered[sink.name] = valid
        except Exception as error:  # noqa: BLE001 - raised below, when all were asked
            unanswered[sink.name] = error

    def answer_of(name: str) -> Remembered | None:
        if name in unanswered:
            raise unanswered[name]
        return remembered[name]

    writer.policy.make_all([partial(ask, sink) for sink in sinks.values()])
    waiting = list(sinks.items())
    while waiting:
        committed, errors = False, {}
        for name, sink in waiting:
            try:
                committed |= _check_kept(writer, sink, answer_of(name), starting=starting)
            except (EpochConflictError, FencedError, DecisionInDoubtError):
                raise
            except OncewardError as error:
                errors[name] = error
            except Exception as error:  # noqa: BLE001 - whatever one sink raises, the others are asked
                errors[name] = SinkError(f"asked what it remembers, it raised {error!r}", sink=name)
                errors[name].__cause__ = error
        # Rows may refer to rows of another sink, so what was refused is asked for again whenever others were committed.
        waiting = [(name, sinks[name]) for name in errors] if committed else []
    return errors


def _check_kept(
    writer: LogWriter, sink: TwoPhaseCommitSink[Any], remembered: Remembered | None, *, starting: bool
) -> bool:
    """Check that the target still has what was committed; return whether something was committed again.

    If its ledger records transactions, the sink is asked for each one of the newest completed decision. Those that are
    prepared again are committed again, as the decision says. Of earlier epochs, the log knows only the newest one of
    each sink.
    """
    view, ledger = writer.view, answers.ledger(sink)
    done = _newest_completed(view) if ledger.records_transactions else None
    own = [c for c in done.committables if c.sink == sink.name] if done is not None else []
    observations = answers.of_each(sink, "inspect_many", own, sink.inspect_many(own), Observation) if own else []
    if why := describe_loss(view, sink.name, remembered, told_apart=bool(own)):
        if remembered is None or remembered.lost or all(at not in _UNFINISHED for _, at in observations):
            _go_on_without(writer, sink, why)
            return False
        check_newest(writer)
        ledger.claim(writer.scope(sink.name))  # it follows the first epoch's prepare, so nothing older is missing
    if done is None or not own:
        return False
    if not starting and any(at is Observation.NO_ANSWER for _, at in observations):
        why = f"it does not say whether it still has what was committed: {sink.why_silent(own)}"
        raise RetryableSinkError(why, sink=sink.name)
    failures: Failures = [
        (c, CommitOutcome(CommitStatus.LOST, TAKEN_BACK)) for c, at in observations if at is Observation.ABORTED
    ]
    # (Invariant 3) What is decided is finished, also a second time: the target went back to before that commit.
    again = [c for c, at in observations if at in _UNFINISHED]
    failures += _committed_again(sink, again, starting=starting)
    if failures:
        settle_completed(done, failures, writer)
        if writer.view.undone is not None:  # the log no longer knows by the transaction's name which sink it was
            _go_on_without(writer, sink, TAKEN_BACK)
    # An epoch that was prepared before that may be lost with the next failover: prepare it again.
    if again and not starting:
        raise TargetWentBackError(
            "the target went back to an older state (was a lagging standby promoted?). What was committed before is "
            "committed again; a restart writes the newest epoch again",
            pipeline=view.pipeline,
            sink=sink.name,
            epoch=done.epoch,
        )
    return bool(again)


def _committed_again(sink: TwoPhaseCommitSink[Any], again: Sequence[Committable], *, starting: bool) -> Failures:
    """Commit what was committed and is prepared again; return which ones could not be."""
    failures: Failures = []
    outcomes = answers.of_each(sink, "commit", again, sink.commit_many(again), CommitOutcome) if again else []
    for committable, outcome in outcomes:
        if outcome.status is CommitStatus.RETRY_LATER and starting:
            raise RetryableSinkError(f"cannot commit again what the target has lost: {outcome.detail}", sink=sink.name)
        if not outcome.settled and outcome.status is not CommitStatus.RETRY_LATER:
            failures.append((committable, outcome))
        _log.warning(
            "%s was committed, and was prepared again: the target went back to an older state. Committing it again: %s",
            committable.transaction,
            outcome.status,
            extra=about(committable),
        )
    return failures


def _newest_completed(view: LogView) -> Decide | None:
    """Return the newest completed decision since a rewind, without the transactions that were given up later."""
    rewound = max((entry.position for entry in view.entries if isinstance(entry, Rewind)), default=NONE)
    for decision, completed in reversed(view.decisions):
        if completed is None or completed.position < rewound:
            continue
        later = [e for e in view.entries if isinstance(e, Resolved) and e.position > decision.position]
        names, sinks = {e.transaction for e in later}, {e.sink for e in later}
        kept = [c for c in decision.committables if c.transaction not in names and c.sink not in sinks]
        return msgspec.structs.replace(decision, committables=tuple(kept))
    return None


def describe_loss(view: LogView, sink: str, remembered: Remembered | None, *, told_apart: bool = False) -> str:
    """Return a sentence on what a sink's target has lost, judging by what it remembers of this log; empty if nothing.

    With `told_apart`, the target is asked for each transaction of the sink's newest epoch.
    """
    if remembered is None or remembered.lost:
        return "" if remembered is None else remembered.lost
    if sink in view.claimed and not remembered.owned:
        return (
            "this pipeline has used it before, but it does not know this pipeline and sink. Is it another target, or "
            "was it emptied or replaced, or is a disk not mounted? Bring back the right one; or, to begin with a new "
            "target, give the sink another name (in tests: delete the checkpoint together with the services)"
        )
    reached = view.reached.get(sink)
    if told_apart or reached is None or remembered.progress > reached.progress:
        return ""
    if remembered.progress == reached.progress:
        count = reached.transactions if remembered.transactions is None else remembered.transactions
        if count >= reached.transactions:
            return ""
        return (
            f"it has {count} of the {reached.transactions} transactions of epoch {reached.epoch}. The rest is missing: "
            f"{TAKEN_BACK}"
        )
    known = f"ends at epoch {remembered.progress.epoch}" if remembered.progress != NOTHING else "is empty"
    missing = f"Epoch {reached.epoch}" if reached.epoch != NONE else "An epoch"
    return f"what it knows of this pipeline and sink {known}. {missing} is missing: {TAKEN_BACK}"


def _go_on_without(writer: LogWriter, sink: TwoPhaseCommitSink[Any], why: str) -> None:
    """Accept what a target has, if the policy says so; otherwise, and if another writer has started, raise."""
    check_newest(writer)
    view, policy = writer.view, writer.policy
    loss = LossFacts(policy.on_lost, waits=False, skippable=CommitStatus.LOST in policy.skips)
    if rule_of(loss).action is not LossAction.SKIP:
        raise DataLossError(
            f"the target is not as it was left: {why}. Choices: bring back what is missing; rewind='why', with an "
            "older checkpoint, writes again what comes after it; on_lost='skip' continues with the target as it is and "
            "leaves an audit record",
            pipeline=view.pipeline,
            sink=sink.name,
            epoch=view.completed,
        )
    why = f"{policy.skipped_why}; sink {sink.name}: {why}" if policy.skipped_why else f"sink {sink.name}: {why}"
    _log.error("continuing with a target as it is: %s", why, extra={"pipeline": view.pipeline, "sink": sink.name})
    writer.resolve(view.completed, "", action="skip", who=policy.skipped_by, why=why, sink=sink.name)
    answers.ledger(sink).accept_loss(writer.scope(sink.name))  # after the record: what dies in between accepts it again
