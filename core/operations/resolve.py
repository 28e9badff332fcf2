"""End transactions on an operator's word: what is decided is committed, what is not is aborted, never otherwise.

Nothing here has a protocol of its own. Committing is what every start of a pipeline does first (START, then finish the
decision), aborting is what it does next (START, then sweep): simulator and crash tests of the coordinator hold for the
operator too.

1. Whoever was at work under the name is fenced before anything is ended. What is refused without contacting anybody,
   or because the targets look wrong, is refused before that: a run is not ended for an operator's mistake.
2. The operator ends what he has seen. If another decision waits meanwhile, nothing is done.
3. Only what a durable decision names is committed, and only what none names and none can name is aborted.
4. A transaction that can expire does not wait for a target that was not given or does not answer.
5. A loss is skipped only if it is proven, and with a record of who said so and why.
"""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ..checkpoint import CommitPolicy, OnLost, finish, sweep
from ..checkpoint.recovery import TransactionStatus
from ..checkpoint.target_check import check_kept
from ..contract.events import EpochCompleted
from ..contract.outcome import PROVEN_NOT_COMMITTED, Observation
from ..contract.refusals import Refusal, RefusedError
from ..contract.sink import TwoPhaseCommitSink
from ..errors import (
    ConfigurationError,
    DataLossError,
    EpochConflictError,
    FencedError,
    SinkError,
)
from ..log import LogWriter
from ..log.note_kinds import EpochNote
from ..log.notes import leave
from ..log.reader import read_behind_gap
from .survey import UNPROVEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from ..contract.names import Scope
    from ..contract.targets import Target
    from ..contract.transaction import AbortOutcome, CommitOutcome, Committable, WriteContext
    from ..log import Decide, LogView
    from .log_locations import Log
    from .survey import FoundTransaction

_WHY_NOT: Final = {
    TransactionStatus.DECIDED: ("a decision names it: it is committed, never aborted", Refusal.DECIDED),
    TransactionStatus.COMPLETED: ("a completed decision names it: it is committed, never aborted", Refusal.COMPLETED),
    TransactionStatus.FOREIGN: ("it belongs to another decision log", Refusal.FOREIGN),
    TransactionStatus.UNKNOWN: ("its decision log is not known", Refusal.LOG_UNKNOWN),
}
_ORPHANS: Final = (TransactionStatus.FOREIGN, TransactionStatus.UNKNOWN)
_UNDECIDED: Final = (TransactionStatus.IN_DOUBT, TransactionStatus.LINGERING)
_MEANWHILE: Final = "it was decided or ended meanwhile, or its target did not abort it"
_COMMIT_TIMEOUT: Final = 10.0
"""Seconds; an operator waits for the answer."""


@dataclass(frozen=True)
class CommitPlan:
    """What `commit_decided` would do.

    Attributes:
        epoch: The epoch that would be completed.
        transactions: The transactions that its decision names, as the survey found them.
    """

    epoch: int
    transactions: tuple[FoundTransaction, ...]

    @property
    def lost(self) -> tuple[FoundTransaction, ...]:
        """Those that can no longer be committed; `commit_decided` then needs `skip_lost`, or commits nothing."""
        return tuple(one for one in self.transactions if one.lost)


@dataclass(frozen=True)
class CommittedEpoch:
    """An epoch whose decision was finished by hand.

    Attributes:
        epoch: Number of the epoch.
        committed: Number of its transactions that are committed, now or before.
        given_up: Number of its transactions that were given up, now or before.
    """

    epoch: int
    committed: int
    given_up: int


@dataclass(frozen=True)
class NotAborted:
    """A transaction that was to be aborted and was not.

    Attributes:
        transaction: The transaction, as the survey found it.
        why: Reason why it was not aborted.
    """

    transaction: FoundTransaction
    why: str


@dataclass(frozen=True)
class Aborted:
    """What became of transactions that were to be aborted.

    Attributes:
        aborted: Transactions that are gone.
        left: Transactions that were not aborted.
    """

    aborted: tuple[FoundTransaction, ...] = ()
    left: tuple[NotAborted, ...] = ()


@dataclass(frozen=True)
class LogRepair:
    """Effect that a repair of a decision log would have, or has had.

    Attributes:
        pipeline: Pipeline that owns the log.
        epoch: Newest decided epoch, after which the log continues.
        position: Position of the entry that decides it. Entries below it are void.
        completed: True if that epoch is completed; if it is not, the pipeline's next start commits it.
    """

    pipeline: str
    epoch: int
    position: int
    completed: bool


def plan_commit(log: Log, decision: Decide, transactions: Sequence[FoundTransaction]) -> CommitPlan | None:
    """Return what `commit_decided` would do; None if another process has finished the decision. Changes nothing.

    Args:
        log: The pipeline's decision log.
        decision: The decision that waits: `log.view.undone`.
        transactions: Transactions that a survey has found since.

    Raises:
        ConfigurationError: `commit_decided` would refuse.
        EpochConflictError: Another decision waits now.
    """
    _committing(transactions)
    waiting = log.view.undone
    _check_same(log, decision, waiting)
    if waiting is None:
        return None
    decided = tuple(one for one in transactions if one.status is TransactionStatus.DECIDED)
    return CommitPlan(decision.epoch, decided)


def commit_decided(
    log: Log,
    decision: Decide,
    transactions: Sequence[FoundTransaction],
    *,
    skip_lost: str | None = None,
    policy: CommitPolicy | None = None,
) -> CommittedEpoch | None:
    """Become the newest writer and finish a decision; return None if another process has finished it.

    Args:
        log: The pipeline's decision log.
        decision: The decision that waits: `log.view.undone`.
        transactions: Transactions that a survey has found since.
        skip_lost: Reason to continue without the transactions that are proven not to be committed, now and for ever;
            None: they are an error.
        policy: Clock and pauses.

    Raises:
        ConfigurationError: None of the transactions is in a target that was given and answers, or one is not known
            there, or the log is an outdated copy; nothing was done.
        SinkError: A sink's target was not given; what expires in the others was committed.
        EpochConflictError: Another decision waits now, or a target knows the names from another log or a newer state of
            this one; nothing was committed.
        CommitPendingError: A target did not answer in time; the decision stands.
        DataLossError: A transaction can no longer be committed, or a target has lost what was committed before; the
            others are.
        FencedError: Another writer has started at the same time.
    """
    sinks = _committing(transactions)
    _check_same(log, decision, log.view.undone)
    if log.view.undone is None:
        return None
    policy = policy or CommitPolicy(commit_timeout=_COMMIT_TIMEOUT)
    if skip_lost is not None:
        policy = replace(
            policy, on_lost=OnLost.SKIP, skips=PROVEN_NOT_COMMITTED, skipped_by=_who(), skipped_why=skip_lost
        )
    # (1) From START on, the run that was at work can decide nothing more.
    writer = LogWriter(log.store, log.pipeline, policy)
    # (3) Only a decision that START has read in the log gives a permit.
    permit = writer.start("txn commit").permit()
    # (2) Between the operator's look and START, the run may have finished this epoch and decided the next one.
    _check_same(log, decision, permit.decision if permit is not None else None)
    if permit is None:
        return None
    # What a target cannot answer now, it answers when it is told to commit.
    checked = check_kept(writer, sinks)
    # (4) A target that lost what it had committed is held back, and the others are committed before that is raised.
    lost = {name: error for name, error in checked.items() if isinstance(error, DataLossError)}
    if finish(permit, writer, sinks, hold=lost):
        _note(decision, writer, sinks)
    for loss in lost.values():
        raise loss
    given_up = sum(c.transaction in writer.view.skipped for c in decision.committables)
    return CommittedEpoch(decision.epoch, len(decision.committables) - given_up, given_up)


def _note(decision: Decide, writer: LogWriter, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> None:
    """Leave a note of the epoch, as a run of the pipeline does; its decision may have waited for long."""
    committed = [c for c in decision.committables if c.transaction not in writer.view.skipped]
    completed = EpochCompleted(
        writer.pipeline, decision.log, decision.epoch, decision.input, committables=committed, sinks=sinks
    )
    leave(writer.store, EpochNote(**completed.facts(), decided=decision.at, tool="txn commit"))


def _committing(transactions: Sequence[FoundTransaction]) -> Mapping[str, TwoPhaseCommitSink[Any]]:
    """Return the sinks by which decided transactions are committed, by name.

    Raises:
        ConfigurationError: As of commit_decided.
    """
    _check_current(transactions)
    decided = [one for one in transactions if one.status is TransactionStatus.DECIDED]
    reached = [one for one in decided if one.target is not None]
    if decided and not reached:
        c = decided[0].committable
        raise RefusedError(_not_given(c), Refusal.NEEDS_TARGET, pipeline=c.pipeline)
    # (1) Nothing is fenced yet: a target that does not know the transaction is probably the wrong one.
    sinks = _sinks_of(reached)
    _check_known(reached, sinks)
    # (4) A stand-in for each target that was not given keeps its share decided.
    not_given = {one.committable.sink: one.committable for one in decided if one.target is None}
    return {**sinks, **{name: _NotGiven(name, committable) for name, committable in not_given.items()}}


def _check_current(transactions: Sequence[FoundTransaction]) -> None:
    """Refuse a log that is an outdated copy, if the targets prove it."""
    for one in transactions:
        if one.status is TransactionStatus.OUTDATED_LOG:
            raise ConfigurationError(
                f"the decision log given is an outdated copy: {one.name} was made under it later than its newest "
                "entry. Give the current one. Nothing was done",
                pipeline=one.committable.pipeline,
            )


def _sinks_of(transactions: Sequence[FoundTransaction]) -> Mapping[str, TwoPhaseCommitSink[Any]]:
    """Return the sinks by which one pipeline's transactions are ended, by name."""
    targets: dict[str, Target] = {}
    for one in transactions:
        c = one.committable
        if one.target is None:
            continue
        if targets.setdefault(c.sink, one.target) is not one.target:
            raise ConfigurationError(
                f"sink {c.sink} has transactions in {targets[c.sink].title} and in {one.target.title}: give one of "
                "them",
                pipeline=c.pipeline,
            )
    return {name: target.sink(name) for name, target in targets.items()}


def _not_given(c: Committable) -> str:
    return f"transactions of kind {c.kind} (sink {c.sink}) cannot be reached through any of the given targets"


class _NotGiven(TwoPhaseCommitSink[Any]):
    """In place of a sink whose target was not given: what expires in the others is committed, and it stays decided."""

    def __init__(self, name: str, committable: Committable) -> None:
        super().__init__(name)
        self._why = f"{_not_given(committable)}: give its address, or the pipeline's own sinks"

    @property
    def transaction_timeout(self) -> float | None:
        """Unknown, so what cannot expire waits for this sink."""
        raise SinkError(self._why, sink=self.name)

    def begin(self, context: WriteContext) -> Any:  # noqa: ARG002 - nothing is written here
        raise SinkError(self._why, sink=self.name)

    def write(self, transaction: Any, batch: pa.RecordBatch) -> None:  # noqa: ARG002
        raise SinkError(self._why, sink=self.name)

    def pre_commit(self, transaction: Any) -> Committable:  # noqa: ARG002
        raise SinkError(self._why, sink=self.name)

    def commit(self, committable: Committable) -> CommitOutcome:
        raise SinkError(f"{self._why}. The epoch stays decided, without this part", sink=committable.sink)

    def abort(self, committable: Committable) -> AbortOutcome:
        raise SinkError(self._why, sink=committable.sink)

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        return [Observation.NO_ANSWER for _ in committables]

    def lingering(self, scope: Scope) -> Iterable[Committable]:  # noqa: ARG002
        return ()


def _check_same(log: Log, decision: Decide, waiting: Decide | None) -> None:
    """Refuse if another decision waits than the one that the operator has seen."""
    if waiting is not None and waiting.position != decision.position:
        raise EpochConflictError(
            f"another process has finished epoch {decision.epoch}, and epoch {waiting.epoch} waits now: look again",
            pipeline=log.pipeline,
            epoch=waiting.epoch,
        )


def _check_known(decided: Sequence[FoundTransaction], sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> None:
    """Refuse, before a run is fenced, a target that can tell and knows none of a sink's decided transactions."""
    silent = {
        name
        for name in sinks
        if all(one.state is Observation.NO_ANSWER for one in decided if one.committable.sink == name)
    }
    for name, sink in sinks.items():
        own = [one for one in decided if one.committable.sink == name]
        can_tell = type(sink).inspect_many is not TwoPhaseCommitSink.inspect_many
        if name in silent and len(silent) < len(sinks):
            continue  # it stays decided; what expires in the others must not wait for it
        # One transaction that is known there is enough: the others may be committed and pruned.
        if can_tell and all(not one.listed and one.state in UNPROVEN for one in own):
            raise ConfigurationError(
                f"the target given for sink {name} does not have the decided transaction {own[0].name}, or did not "
                "answer. Check that it is the right target; if it is, start the pipeline. Nothing was done"
            )


def abort_undecided(
    log: Log, transactions: Sequence[FoundTransaction], *, policy: CommitPolicy | None = None
) -> Aborted:
    """Become the newest writer, so that none of these can be decided any more, and abort exactly these.

    Transactions that were decided, or ended, since they were found are left alone.

    Args:
        log: The pipeline's decision log.
        transactions: Transactions to abort, as `abortable` returns them.
        policy: Clock and pauses.

    Raises:
        FencedError: Another writer has started at the same time; nothing was aborted.
        StoreError: The log's store did not answer; nothing was aborted.
    """
    targets = dict.fromkeys((one.committable.sink, one.target) for one in transactions if one.target is not None)
    writer = LogWriter(log.store, log.pipeline, (policy or CommitPolicy()))
    writer.start("txn abort")
    # (2) By name and handle: the name alone may be in use again.
    identities = {one.committable.identity() for one in transactions}
    swept = sweep(writer, [target.sink(sink) for sink, target in targets], only=identities)
    # (1) The sweep of a writer that was fenced aborts nothing, which is not the same as nothing to abort.
    if not swept.aborted and not writer.still_newest():
        raise FencedError("another writer has started meanwhile; nothing was aborted", pipeline=log.pipeline)
    gone = {committable.identity() for committable in swept.aborted}
    aborted = tuple(one for one in transactions if one.committable.identity() in gone)
    return Aborted(aborted, tuple(NotAborted(one, _MEANWHILE) for one in transactions if one not in aborted))


def abort_orphaned(transactions: Sequence[FoundTransaction]) -> Aborted:
    """Abort exactly these, whose decision log is gone for good: nobody can decide or commit them any more.

    Args:
        transactions: Transactions to abort, as `abortable` returns them.

    Raises:
        ConfigurationError: The decision log of one of them was given to the survey; nothing was aborted.
        SinkError: A target did not answer.
    """
    # (3) No log can be fenced here: that these are nobody's is the operator's word, so each must be named.
    orphans = abortable(transactions, [one.name for one in transactions], orphaned=True)
    ended = [(one, one.target.sink(one.committable.sink).abort(one.committable)) for one in orphans if one.target]
    return Aborted(
        tuple(one for one, outcome in ended if outcome.done),
        tuple(NotAborted(one, f"{out.status}, {out.detail}") for one, out in ended if not out.done),
    )


def abortable(
    transactions: Sequence[FoundTransaction], names: Sequence[str] = (), *, orphaned: bool = False
) -> list[FoundTransaction]:
    """Return the transactions that may be aborted: those that no decision names and, from now on, none can.

    Aborts nothing: it says what `abort_undecided` and `abort_orphaned` would do.

    Args:
        transactions: Transactions that a survey has found.
        names: The ones to return, by `FoundTransaction.exact`, or by name, whatever that holds now; none: all that may
            be aborted.
        orphaned: Return those whose decision log is another one, or was not given; they must be named.

    Raises:
        RefusedError: One that is named must not be aborted, or is not open or prepared.
        ConfigurationError: The decision log given is an outdated copy, or orphans are not named.
    """
    _check_current(transactions)
    may = _ORPHANS if orphaned else _UNDECIDED
    if not names:
        if orphaned:
            raise ConfigurationError(
                "orphaned=True needs the names of the transactions: without their log, none is proven"
            )
        return [one for one in transactions if one.held and one.status in may]
    held = [one for one in transactions if one.held]
    by_name = {one.name: one for one in held} | {one.exact: one for one in held}
    for name in names:
        if name not in by_name:
            another = by_name.get(name.rpartition("+")[0])
            gone = f"; {another.name} holds another transaction now" if another is not None else ""
            raise RefusedError(f"{name} is not open or prepared in any of the targets given{gone}", Refusal.NOT_HELD)
        status = by_name[name].status
        if status not in may:
            why, reason = _WHY_NOT.get(status, ("its decision log was given", Refusal.LOG_GIVEN))
            raise RefusedError(f"{name} is not aborted: {why}", reason)
    return list({id(one): one for one in map(by_name.__getitem__, names)}.values())


def plan_repair(log: Log) -> LogRepair:
    """Return what `repair_log` would do. Changes nothing.

    Args:
        log: The damaged log, opened with `repairs=True`.

    Raises:
        LogDamagedError: There is no gap, or it cannot be explained.
        StoreError: The log's store did not answer.
    """
    return _repair(log, read_behind_gap(log.store))


def _repair(log: Log, view: LogView) -> LogRepair:
    decision, completed = view.decisions[-1]
    return LogRepair(log.pipeline, decision.epoch, decision.position, completed is not None)


def repair_log(log: Log, why: str, *, policy: CommitPolicy | None = None) -> LogRepair:
    """Become the newest writer, and make void what is below the log's gap.

    Args:
        log: The damaged log, opened with `repairs=True`.
        why: The reason, which is recorded in the log.
        policy: Clock and pauses.

    Raises:
        LogDamagedError: There is no gap, or it cannot be explained; nothing was written.
        FencedError: Another writer has started at the same time.
    """
    writer = LogWriter(log.store, log.pipeline, policy or CommitPolicy())
    # (1) A run that is still at work is fenced by the repair, too.
    view = writer.start("repair-log", repairs=True)
    repair = _repair(log, view)
    writer.resolve(repair.epoch, "", action="repair", who=_who(), why=why)
    return repair


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
