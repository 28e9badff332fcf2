# ruff: noqa: ARG002 - overridden methods keep their signatures
"""Errors that the protocol must not have, each put back on purpose: the simulator has to catch every one of them.

A mutant replaces a class or a function of the code under test. `narrow` makes the plans fit the error, so that few
runs are enough; it never says where or when to disturb.
"""

from __future__ import annotations

import hashlib
import random
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec

from onceward.connectors.kafka import commits, ownership, pool
from onceward.connectors.kafka import sink as sink_module
from onceward.connectors.kafka.sink import KafkaTransaction
from onceward.connectors.kafka.transaction_state import Handle, Inside, Prepared, judge, listed_committable
from onceward.connectors.spark.formats import writers as writer_module
from onceward.connectors.spark.session import classic, query
from onceward.connectors.spark.session.query import epoch_input
from onceward.connectors.spark.write.handler import EpochHandler
from onceward.core.checkpoint import (
    Admission,
    Coordinator,
    admission,
    commit,
    coordinator,
    healing,
    losses,
    recovery,
    sweep,
    target_check,
    void,
)
from onceward.core.checkpoint.healing import Lost
from onceward.core.checkpoint.losses import settle
from onceward.core.checkpoint.sink_share import Share
from onceward.core.checkpoint.target_check import describe_loss
from onceward.core.contract.names import Scope, parse_pooled_name
from onceward.core.contract.proof import Wrote
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    Acknowledgement,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    Progress,
    WriteContext,
)
from onceward.core.errors import DecisionInDoubtError, EpochConflictError, ExternalError
from onceward.core.log import LogView, LogWriter, WriterToken, reader, writer
from onceward.core.log import read as read_log
from onceward.core.log.entries import decode_entry
from onceward.core.run.pipeline_run import RunEpoch

from .broker import FENCED
from .database_sinks import PreparedSink, StagedSink
from .kafka_sink import KafkaLikeSink, SimulatedClient
from .plan import Event, Kind, Plan
from .run import Parts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from onceward.core.checkpoint import CommitPolicy
    from onceward.core.contract.names import TransactionName
    from onceward.core.log import CommitPermit, Decide, EpochInput


@dataclass(frozen=True)
class Mutant:
    """One error.

    Attributes:
        error: What is wrong, in a sentence.
        laws: Which of the audit's laws it must break; one of them is enough.
        parts: Classes that have it.
        patches: Or attributes that are replaced: (owner, name, value).
        narrow: Makes plans fit.
    """

    error: str
    laws: frozenset[str]
    parts: Parts = field(default_factory=Parts)
    patches: tuple[tuple[Any, str, Any], ...] = ()
    narrow: Callable[[Plan], Plan] = lambda plan: plan

    @contextmanager
    def installed(self) -> Iterator[Parts]:
        """The error is in the code inside the block."""
        patchers = [patch.object(owner, name, value) for owner, name, value in self.patches]
        for patcher in patchers:
            patcher.start()
        try:
            yield self.parts
        finally:
            for patcher in patchers:
                patcher.stop()


def with_config(**changes: Any) -> Callable[[Plan], Plan]:
    """Plans whose configuration has these values."""
    return lambda plan: replace(plan, config=replace(plan.config, **{"neighbour": "", **changes}))


def with_kinds(*kinds: Kind, **changes: Any) -> Callable[[Plan], Plan]:
    """Plans whose disturbances are of these kinds, in turns."""

    def narrow(plan: Plan) -> Plan:
        events = tuple(Event(e.tick, kinds[e.arg % len(kinds)], e.arg) for e in plan.events)
        return Plan(plan.seed, replace(plan.config, **{"neighbour": "", **changes}), events)

    return narrow


def crowded(*kinds: Kind, within: int, **changes: Any) -> Callable[[Plan], Plan]:
    """Plans with many disturbances of these kinds in a short time."""

    def narrow(plan: Plan) -> Plan:
        rng = random.Random(plan.seed)
        events = sorted(Event(rng.randint(1, within), rng.choice(kinds), rng.getrandbits(16)) for _ in range(16))
        return Plan(plan.seed, replace(plan.config, **{"neighbour": "", **changes}), tuple(events))

    return narrow


# The log


def _decide_unfenced(self: LogWriter, *args: Any, **kwargs: Any) -> CommitPermit:
    self.view = reader.read(self.store)
    self.token = WriterToken(self.token.log, self.token.writer_id, self.token.start, self.view.tail)
    self._head = self.view.head
    return _REAL_DECIDE(self, *args, **kwargs)


def _move_unfenced(self: LogWriter, to: str) -> None:
    self.view = reader.read(self.store)
    self.token = WriterToken(self.token.log, self.token.writer_id, self.token.start, self.view.tail)
    self._head = self.view.head
    _REAL_MOVE(self, to)


def _believe_the_put(self: LogWriter, position: int) -> None:
    if self._pending is None:
        self.view = self.look()
    else:
        own = decode_entry(self._pending[1], position)
        self.view = _REAL_FOLD([*self.view.entries, own], self.view.floor)


def _complete_after_pruning(self: LogWriter, epoch: int, claimed: Any = None) -> None:
    newest = self.view.newest
    self._prune(newest.position if newest is not None else 0)
    _REAL_COMPLETE(self, epoch, claimed)


def _fold_forgetting(entries: list[Any], floor: int = 0) -> Any:
    view = _REAL_FOLD(entries, floor)
    there = any(entry.position == view.start for entry in view.entries)
    return view if there else replace(view, start=-1, writer_id="")


def _put_anywhere(store: Any, key: str, data: bytes, *_: Any) -> bool:
    return bool(store.put_if_absent(key, data))


def _put_judged_by_writer(self: LogWriter, key: str, data: bytes, *_: Any) -> bool:
    won = self.store.put_if_absent(key, data)
    there = self.store.get(key)
    return won or (there is not None and decode_entry(there, int(key)).writer_id == self.token.writer_id)


def _named_by_handle(self: LogView, committable: Committable) -> Committable | None:
    decided = self.newest.committables if self.newest is not None else ()
    return next((c for c in decided if c.identity() == committable.identity()), None)


_REAL_DECIDE, _REAL_COMPLETE, _REAL_FOLD = LogWriter.decide, LogWriter.complete, reader.fold
_REAL_MOVE = LogWriter.move
_REAL_OTHER_LOGS = ownership._other_logs


# The coordinator


_REFERRING: dict[str, Any] = {"sinks": ("staged", "prepared"), "style": "batch", "refers": True, "neighbour": ""}


def _without_a_count(view: LogView, sink: str, known: Any, **how: Any) -> str:
    return describe_loss(view, sink, known and known._replace(transactions=None), **how)


class CommitsFirst(Coordinator):
    """Commits before it decides."""

    def commit(self, epoch: int, acknowledgements: Sequence[Acknowledgement], *args: Any, **kwargs: Any) -> None:
        """The wrong way round."""
        for ack in acknowledgements:
            for committable in ack.committables:
                self.sinks[committable.sink].commit_many([committable])
        super().commit(epoch, acknowledgements, *args, **kwargs)


class DropsAnAcknowledgement(Coordinator):
    """Decides before the last subtask has answered."""

    def commit(self, epoch: int, acknowledgements: Sequence[Acknowledgement], *args: Any, **kwargs: Any) -> None:
        """Without the last one."""
        super().commit(epoch, acknowledgements[:-1], *args, **kwargs)


class AbortsInDoubt(Coordinator):
    """Takes a put that raised for one that did not happen."""

    def commit(self, epoch: int, acknowledgements: Sequence[Acknowledgement], *args: Any, **kwargs: Any) -> None:
        """Cleans up where nothing may be touched."""
        try:
            super().commit(epoch, acknowledgements, *args, **kwargs)
        except DecisionInDoubtError:
            for ack in acknowledgements:
                for committable in ack.committables:
                    self.sinks[committable.sink].abort(committable)
            raise


class ForgetsToFinish(Coordinator):
    """Does not finish what an earlier writer has decided."""

    def _finish_decided(self, hold: Collection[str], *, claims: bool = True) -> Sequence[Committable]:
        return ()


class SweepsFirst(Coordinator):
    """Aborts what lingers before START has fenced whoever made it."""

    def open(self, **kwargs: Any) -> Any:
        """Sweep, then START."""
        view = reader.read(self.writer.store)
        named = {c.identity() for c in view.newest.committables} if view.newest is not None else set()
        for sink in self.sinks.values():
            for committable in sink.lingering(Scope(self.pipeline, sink.name, view.log)):
                if committable.log == view.log and committable.identity() not in named:
                    sink.abort(committable)
        return super().open(**kwargs)


class AbandonsEverything(Coordinator):
    """abort() aborts whatever there is."""

    def resume(self, token: WriterToken, lost: Collection[str] = ()) -> None:
        """Goes on whatever the log says."""
        try:
            super().resume(token, lost)
        except Exception:  # noqa: BLE001 - that is the error
            self.writer.token = token

    def give_up(self) -> None:
        """Without a look at the log."""
        for sink in self.sinks.values():
            for committable in sink.lingering(self.writer.scope(sink.name)):
                sink.abort(committable)


class AbandonsWithoutBar(Coordinator):
    """abort() looks whether the epoch is decided, and does not make sure that it never will be."""

    def give_up(self) -> None:
        """Acts on what it saw when it resumed."""
        for sink in self.sinks.values():
            for committable in sink.lingering(self.writer.scope(sink.name)):
                if not self.view.named(committable):
                    sink.abort(committable)


class ClaimsNothing(Coordinator):
    """Does not ask the targets whether another log owns the names."""

    def _own_names(self) -> dict[str, Exception]:
        return {}


class CountsForItself(Coordinator):
    """Trusts the driver's own count of epochs."""

    def admit(self, epoch: int, epoch_input: EpochInput, *, adopt: bool = False) -> Admission:
        """Whatever comes is new."""
        return Admission.NEW


def _finish_too_early(permit: CommitPermit, log: LogWriter, sinks: Any, **_: Any) -> bool:
    log.complete(permit.decision.epoch)
    for share in [Share(permit, sink, log) for sink in sinks.values()]:
        for attempt in range(log.policy.commits.attempts or 0):
            if share.waits:
                share.ask()
                log.policy.commits.pause(attempt)
    return True


def _skip_nothing(decision: Decide, failures: Any, _: LogWriter) -> None:
    raise losses._data_loss(decision, failures, obstacle="", waits=True)


def _withdraw_unproven(decision: Decide, shares: Sequence[Share], log: LogWriter) -> void.Withdrawal:
    log.void(decision.epoch, [c.transaction for share in shares for c, _ in share.failures])
    return void.Withdrawal.VOIDED


def _go_back_after_finishing(self: Any, wanted: Any) -> Any:
    finished = self._finish_decided(())
    self.writer.rewind(admission.with_earlier(wanted, self.view.rewind))
    return finished


def _go_back_after_releasing(self: Any, wanted: Any) -> Any:
    with suppress(ExternalError):
        for sink in self.sinks.values():
            sink.ledger().release(self.writer.scope(sink.name))
    return _REAL_GO_BACK(self, wanted)


_REAL_GO_BACK = Coordinator._go_back


def _wait_for_what_left_no_trace(sink: Any, committables: Sequence[Committable]) -> None:
    _REAL_END(sink, committables)
    if Observation.UNKNOWN in sink.inspect_many(committables):
        raise void._Waits("how it ended is unknown")


_REAL_END = void._end


def _other_logs_of_the_sink(client: Any, scope: Scope) -> dict[str, set[str]]:
    return {sink: logs for sink, logs in _REAL_OTHER_LOGS(client, scope).items() if sink == scope.sink}


def _commit_all_at_once(_: Any, active: Sequence[Share], policy: CommitPolicy) -> None:
    policy.make_all([share.ask for share in active if share.waits])


def _read_back(sink: str, committables: Collection[Committable]) -> tuple[int, str]:
    """Rows and hash of what can be read back from the target."""
    wrote = Wrote().plus(*(c.wrote() for c in committables if c.sink == sink))
    return wrote.rows, wrote.hash


def _write_everything_again(self: Lost, sink: str) -> None:
    """As if the sink had lost all of the epoch."""


def _finish_in_turns(permit: CommitPermit, log: LogWriter, sinks: Any, **_: Any) -> bool:
    """Sink after sink, as they are given; the first that does not answer ends it."""
    shares = [Share(permit, sink, log) for sink in sinks.values()]
    for share in shares:
        attempt = 0
        while share.waits:
            share.ask()
            if share.waits and not log.policy.commits.pause(attempt):
                break
            attempt += 1
        if share.error is not None or share.failures:
            break
    if any(share.failures for share in shares):
        settle(permit.decision, shares, log)
    commit._raise_errors(permit, shares)
    log.complete(permit.decision.epoch)
    return True


def _complete_whatever_the_store_says(self: LogWriter, epoch: int, claimed: Any = None) -> None:
    try:
        _REAL_COMPLETE(self, epoch, claimed)
    except DecisionInDoubtError:
        self._pending = None
        self.view = replace(self.view, completed=epoch, undone=None)


class ForgetsTheAge(Coordinator):
    """Counts an epoch's age from when this process admitted it."""

    def commit(self, *args: Any, age: float | None = None, **kwargs: Any) -> None:
        """Whatever the first process said."""
        super().commit(*args, **kwargs)


class GivesUpWithoutBar(Coordinator):
    """Gives an epoch up and leaves room for its decision, so that nobody may touch its transactions."""

    def give_up(self) -> None:
        """Sweeps alone."""
        sweep(self.writer, self.sinks.values())


def _ids_if_told(client: Any, topics: Collection[str], _name: str) -> dict[str, str | None]:
    ids = {topic: found for topic, found in client.topic_ids(topics).items() if found}
    return ids | (client.topic_ids(set(topics) - ids.keys(), everywhere=True) if set(topics) - ids.keys() else {})


def _goes_back_again(view: LogView, wanted: Any, epoch_input: EpochInput | None) -> bool:
    newest = view.newest
    same = newest is not None and epoch_input is not None and newest.input.same_as(epoch_input)
    return wanted is not None and not same


def _goes_back_to_later(view: LogView, wanted: Any, epoch_input: EpochInput | None) -> bool:
    try:
        return _REAL_GOES_BACK(view, wanted, epoch_input)
    except EpochConflictError:
        if wanted.epoch == view.rewind.epoch:  # type: ignore[union-attr]
            raise
        return True


_REAL_GOES_BACK = admission.goes_back


def _goes_back_to_earlier(view: LogView, wanted: Any, epoch_input: EpochInput | None) -> bool:
    try:
        return _REAL_GOES_BACK(view, wanted, epoch_input)
    except EpochConflictError:
        if wanted.epoch >= view.rewind.epoch:  # type: ignore[union-attr]
            raise
        return True


class KeepsItsCoordinator(EpochHandler):
    """Goes on with the coordinator of a run that has failed."""

    def __call__(self, frame: Any, batch: int) -> None:
        """Whatever run it is."""
        this = self._this
        if this.current is not None:
            this.current = self._session.current_run(None)
            this.query, this.run = this.current[:2]
        super().__call__(frame, batch)


class SweepsRenamedSinksAtFirst(Coordinator):
    """Takes what old names have left for gone once the new ones have decided."""

    def _sweep_now(self, *, abandoned: bool = False, **how: Any) -> Exception | None:
        newest = self.view.newest
        changed = newest is None or set(newest.sinks) != self.sinks.keys()
        return super()._sweep_now(abandoned=abandoned and changed, **how)


class TakesASweepForALoss(Coordinator):
    """Says that data were lost when a newer writer has swept them."""

    def _check_age(self, epoch: int, committables: Sequence[Committable], age: float) -> None:
        admission.check_age(self.pipeline, self.sinks, epoch, committables, age=age)


class SkipsReplays(EpochHandler):
    """Returns at once when an epoch is a replay."""

    def __call__(self, frame: Any, batch: int) -> None:
        """The frame is not computed by a write."""
        nothing = SimpleNamespace(save=lambda: None)
        write = SimpleNamespace(format=lambda _: SimpleNamespace(mode=lambda _: nothing))
        unwritten: Any = SimpleNamespace(coalesce=frame.coalesce, write=write)
        super().__call__(unwritten, batch)


def _write_without_reading(self: Any, epoch: int, batches: Any, session: str = "") -> Any:
    if self.opened.replay:
        return writer_module.WrittenPartition(self.opened, None)
    return _REAL_WRITE(self, epoch, batches, session)


def _write_a_replay(self: Any, epoch: int, batches: Any, session: str = "") -> Any:
    self.opened = msgspec.structs.replace(self.opened, replay=False)
    return _REAL_WRITE(self, epoch, batches, session)


_REAL_WRITE = writer_module._Writer._write


class DecidesAgain(EpochHandler):
    """After a put in doubt it writes the epoch again, and offers the new decision for the same slot."""

    def __call__(self, frame: Any, batch: int) -> None:
        """Once more, with other transactions."""
        try:
            super().__call__(frame, batch)
        except DecisionInDoubtError:
            again, run = self.run.coordinator, self._this.current
            if again is None or run is None:
                raise
            again.writer._pending = None
            about = epoch_input(self._this.read_text, run.checkpoint, run.query, batch)
            epoch = RunEpoch(again, batch, about, Admission.NEW)
            acks, _ = self._write(frame, epoch, None, None)
            epoch.commit(acks)


# The sinks


class ReusesInstances(KafkaLikeSink):
    """Writes the next epoch's transaction on the instance whose transaction another process ends."""

    def begin(self, context: WriteContext) -> KafkaTransaction:
        """On the instance that is there."""
        kept = self.kept_in_this_process()
        if kept is None:
            transaction = super().begin(context)
            self.kept_in_this_process(transaction.producer)
            return transaction
        kept.rows, kept.txn = 0, None
        return KafkaTransaction(context, self._pool(context.scope), kept)

    def kept_in_this_process(self, producer: Any = None) -> Any:
        """The instance."""
        assert self.world.current is not None
        memory = self.world.current.process.memory
        return memory.setdefault("kept", producer) if producer is not None else memory.get("kept")

    def warm_up(self, context: WriteContext) -> None:
        """There is nothing to make ready."""


class EndsInsteadOfFencing(SimulatedClient):
    """Its fence is EndTxn(abort) alone."""

    def fence(self, transactional_id: str, producer_id: int, producer_epoch: int, *, once: bool = False) -> int:
        """Nothing is fenced."""
        return self.end_one(Handle(transactional_id, producer_id, producer_epoch, -1), commit=False)


class AbortsWithoutFence(KafkaLikeSink):
    """Sweeps by EndTxn(abort) alone, also what a living producer writes."""

    client_class = EndsInsteadOfFencing


class BelievesFenced(KafkaLikeSink):
    """Takes 90 for a proof of the commit."""

    def commit_many(self, committables: Sequence[Committable]) -> list[CommitOutcome]:
        """Whatever is not settled is sent again, and 90 is taken for "committed before"."""
        outcomes = super().commit_many(committables)
        return [self._believe(c, outcome) for c, outcome in zip(committables, outcomes, strict=True)]

    def _believe(self, committable: Committable, outcome: CommitOutcome) -> CommitOutcome:
        prepared = Prepared.of(committable)
        fenced = prepared is not None and self.client.end_one(prepared.handle, commit=True) == FENCED
        return CommitOutcome(CommitStatus.ALREADY_COMMITTED) if fenced and not outcome.settled else outcome


def _serve_going_on(self: pool.ProducerPool, context: WriteContext) -> None:
    is_first = self._generation < 0
    self._generation, self._session = context.generation, context.session
    if is_first:
        self._start_over()


def _abort_believing(client: Any, transaction: Prepared) -> AbortOutcome:
    outcome = _REAL_ABORT(client, transaction)
    seen = judge(transaction.handle, client.describe([transaction.handle[0]])[transaction.handle[0]])
    return AbortOutcome(AbortStatus.ABORTED) if seen in (Observation.ABORTED, Observation.EXPIRED) else outcome


_REAL_ABORT = commits.abort


def _inspection_believing(inspector: commits.Inspector, transaction: Prepared, description: Any) -> commits.Inspection:
    found = _REAL_INSPECTION(inspector, transaction, description)
    return found._replace(seen=Observation.ABORTED) if found.doubtful else found


_REAL_INSPECTION = commits.Inspector._inspection


class KafkaByPrefix(KafkaLikeSink):
    """Compares names by prefix."""

    def lingering(self, scope: Scope) -> list[Committable]:
        """What begins alike."""
        found = []
        for name in map(parse_pooled_name, self.client.list_transactions(["Ongoing"])):
            if name is not None and name.scope.pipeline.startswith(scope.pipeline):
                opened = self.client.describe([str(name)])[str(name)].open
                committable = listed_committable(opened) if opened is not None else None
                found += [committable] if committable is not None else []
        return found


class PreparedByPrefix(PreparedSink):
    """Compares names by prefix."""

    def is_mine(self, name: TransactionName, scope: Scope) -> bool:
        """Begins alike."""
        return name.scope.pipeline.startswith(scope.pipeline) and name.scope.sink.startswith(scope.sink)


class NamesTwice(PreparedSink):
    """Uses a name again for the next try of the same subtask."""

    def transaction_name(self, context: WriteContext) -> TransactionName:
        """Neither START, nor attempt, nor anything random."""
        return context.transaction_name()._replace(start=0, attempt=0, epoch=0, unique="feedbeef")


class BusyIsLost(PreparedSink):
    """Takes "busy" for "gone"."""

    def commit(self, committable: Committable) -> CommitOutcome:
        """Busy is lost."""
        outcome = super().commit(committable)
        return CommitOutcome(CommitStatus.LOST) if outcome.detail == "55000" else outcome


class KeepsNoLedger(PreparedSink):
    """Takes "does not exist" for "gone"."""

    def commit(self, committable: Committable) -> CommitOutcome:
        """Without a look into the ledger."""
        outcome = super().commit(committable)
        return CommitOutcome(CommitStatus.LOST) if outcome.status is CommitStatus.ALREADY_COMMITTED else outcome


class MergesWithoutLedger(StagedSink):
    """Takes rows that are not staged any more for merged ones."""

    def _outcome(self, committable: Committable, merged: list[str]) -> CommitOutcome:
        return CommitOutcome(CommitStatus.COMMITTED)


class SaysPrepared(StagedSink):
    """Does not say that a commit has begun."""

    def _seen(self, committable: Committable, held: set[str]) -> Observation:
        seen = super()._seen(committable, held)
        return Observation.PREPARED if seen is Observation.BEGUN else seen


def _laws(*laws: str) -> frozenset[str]:
    return frozenset(laws)


K = Kind


def _checks_as_at_a_start(self: Coordinator, _: int) -> float:
    for error in target_check.check_kept(self.writer, self.sinks, starting=True).values():
        raise error
    return 0.0


MUTANTS: dict[str, Mutant] = {
    "skip the fence": Mutant(
        "A writer appends behind whatever is the tail, not behind its own last entry.",
        _laws("3"),
        patches=((LogWriter, "decide", _decide_unfenced),),
        narrow=with_kinds(K.TWIN, K.NAP, style="batch"),
    ),
    "commit before the decision": Mutant(
        "Transactions are committed before the decision is durable.", _laws("1"), Parts(coordinator=CommitsFirst)
    ),
    "decide without an acknowledgement": Mutant(
        "An epoch is decided before every subtask has answered.", _laws("2"), Parts(coordinator=DropsAnAcknowledgement)
    ),
    "forget to finish the last decision": Mutant(
        "A new writer does not finish what is decided.",
        _laws("5", "progress"),
        Parts(coordinator=ForgetsToFinish),
        narrow=with_kinds(K.CRASH),
    ),
    "sweep before fencing": Mutant(
        "A new writer aborts what lingers before its START is in the log.",
        _laws("4"),
        Parts(coordinator=SweepsFirst),
        narrow=with_kinds(K.TWIN, K.NAP, K.SWITCH),
    ),
    "prefix match (Kafka)": Mutant(
        "Names are compared by prefix.", _laws("9"), Parts(kafka=KafkaByPrefix), narrow=with_config(sinks=("kafka",))
    ),
    "prefix match (PostgreSQL)": Mutant(
        "Names are compared by prefix.",
        _laws("9"),
        Parts(prepared=PreparedByPrefix),
        narrow=with_config(sinks=("prepared",)),
    ),
    "no floor check after a put": Mutant(
        "A put that wins is believed, though the slot had been pruned and re-opened.",
        _laws("1"),
        patches=((LogWriter, "_look_at_tail", _believe_the_put), (writer, "put_behind", _put_anywhere)),
        narrow=crowded(K.TWIN, K.NAP, within=250, style="batch"),
    ),
    "prune before the floor is durable": Mutant(
        "Entries are deleted before COMPLETED carries the floor above them.",
        _laws("log"),
        patches=((LogWriter, "complete", _complete_after_pruning),),
    ),
    "forget the newest writer with its pruned START": Mutant(
        "The newest writer is looked for among the START entries that are left.",
        _laws("sweep", "fence"),
        patches=((reader, "fold", _fold_forgetting),),
        narrow=with_config(speculate=(1, 2, 3)),
    ),
    "a fenced starter sweeps": Mutant(
        "A sweep does not look at the log's tail between listing and aborting.",
        _laws("4"),
        patches=((LogWriter, "still_newest", lambda _: True),),
        narrow=crowded(K.TWIN, K.NAP, K.SWITCH, within=250, sinks=("kafka",)),
    ),
    "a listing that knows less is another transaction": Mutant(
        "What a waiting decision names is looked for by whole handles, also in listings that do not have them.",
        _laws("1", "4", "7", "8"),
        patches=((LogView, "named", _named_by_handle),),
        narrow=crowded(K.OPERATOR, K.CRASH, K.TARGET_FAULT, within=250, sinks=("staged",)),
    ),
    "abort() touches decided committables": Mutant(
        "abort() aborts what it is given, without a look at the log.",
        _laws("4"),
        Parts(coordinator=AbandonsEverything),
        narrow=with_kinds(K.CRASH_OTHER, K.STORE_FAULT, K.TARGET_FAULT, K.CRASH, style="format"),
    ),
    "abort() does not bar the decision": Mutant(
        "abort() sees that the epoch is not decided, and aborts while the decision is on its way.",
        _laws("4"),
        Parts(coordinator=AbandonsWithoutBar),
        narrow=with_kinds(K.STORE_FAULT, K.STORE_FAULT, K.LAND, style="format", tries=0),
    ),
    "an errored put taken for not written": Mutant(
        "A put that raised is taken for one that did not happen.",
        _laws("4"),
        Parts(coordinator=AbortsInDoubt),
        narrow=with_kinds(K.STORE_FAULT, tries=0),
    ),
    "an errored put tried again with other content": Mutant(
        "After a put in doubt another decision is offered for its slot, and the answer is judged by the writer's id.",
        _laws("1", "2", "4"),
        Parts(handler=DecidesAgain),
        patches=((LogWriter, "_put", _put_judged_by_writer), (LogWriter, "_look_at_tail", _believe_the_put)),
        narrow=with_kinds(K.STORE_FAULT, style="batch", tries=0),
    ),
    "ids made ready before COMPLETED is durable": Mutant(
        "A transactional id is initialised again while its transaction waits for its decision or its commit.",
        _laws("4", "8"),
        patches=((WriteContext, "may_reuse", lambda context, generation, _epoch: generation <= context.generation),),
        narrow=with_config(sinks=("kafka",)),
    ),
    "ids of aborted transactions are reused": Mutant(
        "A transactional id is used again although its last transaction was not committed.",
        _laws("ids", "1", "4", "8"),
        patches=((pool.ProducerPool, "_committed", lambda *_: True),),
        narrow=crowded(K.LOSE_LEADER, K.LOSE_EXECUTOR, K.SWITCH, within=250, sinks=("kafka",), speculate=(0, 1, 2, 3)),
    ),
    "names are kept across STARTs of different sessions": Mutant(
        "A process goes on with its transactional ids under a START of another session, or of none.",
        _laws("names"),
        patches=((pool.ProducerPool, "_serve", _serve_going_on),),
        narrow=with_kinds(K.CRASH, K.TWIN, sinks=("kafka",), same_app=True),
    ),
    "abort believes the coordinator": Mutant(
        "An abort is believed although a partition still has the transaction open.",
        _laws("sweep"),
        patches=((commits, "abort", _abort_believing),),
        narrow=crowded(K.LOSE_LEADER, K.TASK_FAILS, K.CRASH, within=200, sinks=("kafka",), speculate=(0, 1, 2, 3)),
    ),
    "a deposed coordinator's word": Mutant(
        "A coordinator that calls open what its partitions have ended is believed at the second look.",
        _laws("8", "2", "3"),
        patches=((commits.Inspector, "_inspection", _inspection_believing),),
        narrow=crowded(
            *(K.DEPOSE, K.TWIN, K.NAP, K.SWITCH), within=150, sinks=("kafka",), subtasks=1, on_lost="replay"
        ),
    ),
    "two transactions on one instance": Mutant(
        "A producer instance is used again after another process has ended its transaction.",
        _laws("1", "2"),
        Parts(kafka=ReusesInstances),
        narrow=crowded(K.STALE_END, K.NAP, within=250, sinks=("kafka",), subtasks=1),
    ),
    "EndTxn(abort) on a live writer": Mutant(
        "A sweep ends a transaction without fencing its producer, whose next message opens it again.",
        _laws("sweep"),
        Parts(kafka=AbortsWithoutFence),
        narrow=crowded(
            K.NAP, K.LOSE_EXECUTOR, K.SWITCH, within=200, sinks=("kafka",), steps=(2,), subtasks=1, speculate=(0, 1)
        ),
    ),
    "a restored counter reuses a decided epoch": Mutant(
        "The driver's own count of epochs is trusted.",
        _laws("3", "5"),
        Parts(coordinator=CountsForItself),
        patches=((writer, "check_next", lambda *_: None),),
        narrow=with_kinds(K.COPY, K.CRASH, K.NAP),
    ),
    "an epoch admitted by its number": Mutant(
        "An epoch of the right number is admitted, whatever query and offsets it comes from.",
        _laws("5"),
        patches=((admission, "check_continues", lambda *_, **__: None),),
        narrow=with_kinds(K.FOREIGN, K.CRASH),
    ),
    "a fresh checkpoint under an old name": Mutant(
        "The targets are not asked whether another decision log owns the names.",
        _laws("3"),
        Parts(coordinator=ClaimsNothing),
        patches=((Coordinator, "_check_kept", lambda *_: 0.0),),  # which would ask before the first decision
        narrow=with_kinds(K.IMPOSTOR),
    ),
    "a fresh checkpoint and other names of sinks": Mutant(
        "Kafka is asked only for what another decision log has committed under the same sink's name.",
        _laws("3"),
        patches=((ownership, "_other_logs", _other_logs_of_the_sink),),
        narrow=with_kinds(K.IMPOSTOR, sinks=("kafka",)),
    ),
    "COMPLETED before the answer": Mutant(
        "COMPLETED is put before the targets have answered.",
        _laws("7"),
        patches=((coordinator, "finish", _finish_too_early),),
    ),
    "void a decision of which a part is committed": Mutant(
        "A decision is voided although not all of its transactions are proven not committed.",
        _laws("8"),
        patches=((losses, "withdraw", _withdraw_unproven), (losses, "_is_visible", lambda *_: False)),
        narrow=with_kinds(K.ROLLBACK, K.EXPIRE, K.NAP, sinks=("staged", "prepared"), on_lost="replay"),
    ),
    "void a decision that can still be committed": Mutant(
        "What is still prepared of a decision is not aborted before the decision is voided.",
        _laws("1", "8"),
        patches=((void, "_abort_all", lambda *_: None), (void, "_check_ended", lambda *_: None)),
        narrow=crowded(
            *(K.ROLLBACK, K.TWIN, K.NAP, K.SWITCH),
            within=100,
            style="batch",
            sinks=("prepared", "staged"),
            subtasks=1,
            steps=(1,),
            unique=False,
            on_lost="replay",
        ),
    ),
    "commit all shares at once": Mutant(
        "What cannot expire is committed before it is known that what can was committed.",
        _laws("torn"),
        patches=((commit, "_commit_in_order", _commit_all_at_once),),
        narrow=with_kinds(K.EXPIRE, K.NAP, K.CRASH, K.OUTAGE, style="batch", sinks=("prepared", "kafka"), timeout=400),
    ),
    "a start commits before it has looked": Mutant(
        "A start commits what can expire before it knows that what cannot is lost.",
        _laws("torn"),
        patches=((Share, "look", lambda _: None),),
        narrow=with_kinds(K.ROLLBACK, K.CRASH, style="batch", sinks=("prepared", "kafka"), subtasks=2),
    ),
    "other rows in place of lost ones": Mutant(
        "Rows that are written again are not compared with those that were lost.",
        _laws("heal"),
        patches=((coordinator, "check_same_rows", lambda *_: None),),
        narrow=with_kinds(
            K.EXPIRE, K.ROLLBACK, K.CRASH, style="batch", subtasks=2, steps=(2, 2, 2, 2), on_lost="replay"
        ),
    ),
    "what can be read back heals": Mutant(
        "Rows that are written again are compared by a hash that leaves columns out.",
        _laws("heal"),
        patches=((healing, "_handed", _read_back),),
        narrow=with_kinds(
            K.EXPIRE, K.ROLLBACK, K.CRASH, style="batch", subtasks=2, steps=(2, 2, 2, 2), on_lost="replay"
        ),
    ),
    "healthy subtasks write again": Mutant(
        "All subtasks of a sink write again, although some of its transactions are committed.",
        _laws("heal", "3", "2"),
        patches=((Lost, "writes", _write_everything_again), (coordinator, "check_same_rows", lambda *_: None)),
        narrow=with_kinds(
            K.EXPIRE, K.ROLLBACK, K.CRASH, style="batch", subtasks=2, steps=(2, 2, 2, 2), on_lost="replay"
        ),
    ),
    "90 taken for committed": Mutant(
        "PRODUCER_FENCED is taken for a proof of the commit.",
        _laws("7"),
        Parts(kafka=BelievesFenced),
        narrow=with_kinds(K.EXPIRE, K.CRASH, sinks=("kafka",)),
    ),
    "a gid used twice": Mutant(
        "A prepared transaction has the name of an earlier one.",
        _laws("1", "3", "2", "4"),
        Parts(prepared=NamesTwice),
        narrow=with_config(sinks=("prepared",)),
    ),
    "busy taken for lost": Mutant(
        "A prepared transaction that another session is ending is taken for a lost one.",
        _laws("1", "8"),
        Parts(prepared=BusyIsLost),
        narrow=crowded(K.NAP, K.TWIN, K.SWITCH, within=150, sinks=("prepared",)),
    ),
    "stop at the first sink that does not answer": Mutant(
        "A decision is finished sink by sink, and an outage of one delays the others past their timeout.",
        _laws("independent"),
        patches=((coordinator, "finish", _finish_in_turns),),
        narrow=with_kinds(K.OUTAGE, style="batch", sinks=("prepared", "kafka"), timeout=400),
    ),
    "what a target refuses is asked for once": Mutant(
        "Rows that were refused because those that they refer to came a moment later stop the query.",
        _laws("progress"),
        patches=((commit, "_left", lambda _: 0),),
        narrow=lambda plan: Plan(plan.seed, replace(plan.config, **_REFERRING)),
    ),
    "stop at the first sink that refuses": Mutant(
        "A decision is finished sink by sink, and one that refuses delays the others past their timeout.",
        _laws("independent"),
        patches=((coordinator, "finish", _finish_in_turns),),
        narrow=with_kinds(K.REFUSE, style="batch", sinks=("staged", "kafka"), timeout=400),
    ),
    "wait for a silent partition for ever": Mutant(
        "EndTxn waits for every partition's answer, also when the transaction's timeout is near.",
        _laws("independent"),
        patches=((commits, "_overdue", lambda *_: []),),
        narrow=with_kinds(K.LOSE_LEADER, sinks=("kafka",), subtasks=1, timeout=400),
    ),
    "wait for a deleted topic": Mutant(
        "A partition of a deleted topic is waited for like one without a leader.",
        _laws("independent", "progress"),
        patches=((commits.Inspector, "_is_deleted", lambda *_: False),),
        narrow=with_kinds(K.DELETE_TOPIC, K.SWITCH, sinks=("kafka",)),
    ),
    "prepared without asking the partitions": Mutant(
        "Pre-commit believes the coordinator alone, and a topic's new id is taken for that of the deleted rows.",
        _laws("sweep", "4"),
        patches=((sink_module, "judge_partitions", lambda *_: Inside.OPEN),),
        narrow=crowded(K.DELETE_TOPIC, within=200, sinks=("kafka",), on_lost="skip"),
    ),
    "prepared without the ids of topics": Mutant(
        "A topic whose id no broker told is prepared without one; created again, it looks like an operator's abort.",
        _laws("4"),
        patches=((sink_module, "_ids_of_topics", _ids_if_told),),
        narrow=crowded(K.DELETE_TOPIC, K.OUTAGE, K.TARGET_FAULT, within=200, sinks=("kafka",), on_lost="replay"),
    ),
    "the age begins in the second process": Mutant(
        "The process that decides counts an epoch's age from its own beginning.",
        _laws("age"),
        Parts(coordinator=ForgetsTheAge),
        narrow=crowded(K.NAP, K.SWITCH, within=300, style="format", sinks=("kafka",), timeout=400),
    ),
    "put behind a gap": Mutant(
        "An entry is put without the one before it, which the server does not have that has taken another one's place.",
        _laws("log", "H"),
        patches=((writer, "put_behind", _put_anywhere),),
        narrow=crowded(K.LOG_GOES_BACK, K.CRASH, K.TWIN, K.SWITCH, within=300, sinks=("prepared",), style="batch"),
    ),
    "an older log is believed": Mutant(
        "A writer goes on with what a standby says that lags behind, also when the right server is back.",
        _laws("3", "H", "log"),
        patches=((LogWriter, "_read", lambda self: read_log(self.store)),),
        narrow=crowded(K.LOG_GOES_BACK, K.TWIN, K.SWITCH, within=300, sinks=("kafka", "staged"), style="batch"),
    ),
    "a rewind that is taken again": Mutant(
        "A rewind that a supervisor repeats is done at each start.",
        _laws("rewind"),
        patches=((coordinator, "goes_back", _goes_back_again),),
        narrow=with_kinds(K.REWIND, K.CRASH, K.CRASH_OTHER, unique=False),
    ),
    "a rewind to a later epoch": Mutant(
        "The words of a rewind that was done are permission to go back over what a copy of the checkpoint decided.",
        _laws("rewind"),
        patches=((coordinator, "goes_back", _goes_back_to_later),),
        narrow=crowded(K.REWIND, K.COPY, K.SWITCH, within=500, unique=False, records=4, on_lost="fail"),
    ),
    "a rewind to an earlier epoch": Mutant(
        "The words of a rewind that was done are permission to go back further, with an older checkpoint.",
        _laws("rewind"),
        patches=((coordinator, "goes_back", _goes_back_to_earlier),),
        narrow=crowded(K.REWIND, K.COPY, K.SWITCH, K.CRASH, within=400, unique=False, records=4),
    ),
    "targets forget before a rewind is written": Mutant(
        "A rewind that did not take place leaves targets that know nothing of what was committed to them.",
        _laws("8"),
        patches=((Coordinator, "_go_back", _go_back_after_releasing),),
        narrow=crowded(K.REWIND, K.CHANGE_SINKS, K.CRASH, K.THINK_BETTER, K.STORE_FAULT, within=300, unique=False),
    ),
    "what left no trace is asked for again": Mutant(
        "A rewind waits for ever for a target that cannot tell how a transaction ended of which nothing is left.",
        _laws("progress"),
        patches=((void, "_end", _wait_for_what_left_no_trace),),
        narrow=crowded(K.REWIND, K.ROLLBACK, K.OCCUPY, K.CRASH, within=300, unique=False, vague=True),
    ),
    "a loss that no choice ends": Mutant(
        "The message of a loss names on_lost='skip', which is refused as well.",
        _laws("progress"),
        patches=((losses, "_give_up", _skip_nothing),),
        narrow=crowded(K.ROLLBACK, K.CRASH, K.OUTAGE, K.EXPIRE, within=300, on_lost="fail"),
    ),
    "a rewind that an older command line repeats": Mutant(
        "The log remembers the newest rewind only.",
        _laws("rewind"),
        patches=((coordinator, "with_earlier", lambda rewind, _: rewind),),
        narrow=crowded(K.REWIND, K.NAP, K.SWITCH, within=300, unique=False, records=4, on_lost="fail"),
    ),
    "a rewind commits what it covers": Mutant(
        "A decision that waits is committed before a rewind writes its rows again.",
        _laws("rewind"),
        patches=((Coordinator, "_go_back", _go_back_after_finishing),),
        narrow=with_kinds(K.REWIND, K.CRASH, unique=False, on_lost="fail"),
    ),
    "after a rewind any query will do": Mutant(
        "Nobody asks which query the newest decision, or the rewind, was of.",
        _laws("5"),
        patches=tuple((module, "check_query", lambda *_, **__: None) for module in (admission, coordinator)),
        narrow=crowded(K.REWIND, K.FOREIGN, K.SWITCH, within=250, unique=False),
    ),
    "give up without a bar": Mutant(
        "An epoch that failed is given up while its decision could still be written, so nothing of it is aborted.",
        _laws("sweep"),
        Parts(coordinator=GivesUpWithoutBar),
        narrow=crowded(K.TASK_FAILS, K.SWITCH, within=150, style="batch", subtasks=2, records=4, steps=(2,)),
    ),
    "no sweep after failed stages": Mutant(
        "What the attempts of a stage that was tried again have prepared is left until the next start.",
        _laws("sweep"),
        patches=((classic, "any_stage_failed", lambda *_: False),),
        narrow=with_kinds(K.TASK_FAILS, style="batch", speculate=(), subtasks=1, sinks=("prepared", "staged")),
    ),
    "a coordinator that outlives its run": Mutant(
        "A query that runs again in the same process goes on with what the failed one had in memory.",
        _laws("progress", "bug", "3", "5", "fence"),
        Parts(handler=KeepsItsCoordinator),
        narrow=with_kinds(K.STORE_FAULT, style="batch", same_process=True, tries=0),
    ),
    "a replay is not run": Mutant(
        "A replayed batch is not computed, so a stateful query misses a version of its state.",
        _laws("replay"),
        Parts(handler=SkipsReplays),
        narrow=with_kinds(K.CRASH, style="batch"),
    ),
    "a replayed partition is not read": Mutant(
        "A format's task answers for a replay without reading its rows.",
        _laws("replay"),
        patches=((writer_module._Writer, "_write", _write_without_reading),),
        narrow=with_kinds(K.CRASH, style="format"),
    ),
    "a format writes a decided epoch again": Mutant(
        "The tasks of a format do not look whether their epoch is decided.",
        _laws("3"),
        patches=((writer_module._Writer, "_write", _write_a_replay),),
        narrow=with_kinds(K.CRASH, style="format"),
    ),
    "a constant digest of offsets": Mutant(
        "Two micro-batches with the same offsets are the same, whatever else the checkpoint says of them.",
        _laws("5"),
        patches=((query, "hashlib", SimpleNamespace(sha256=lambda _: hashlib.sha256(b""))),),
        narrow=with_kinds(K.COPY, K.CRASH, K.NAP, style="batch"),
    ),
    "a renamed sink's leftovers": Mutant(
        "A sweep looks under the names of the sinks that there are now.",
        _laws("sweep"),
        patches=((sys.modules[sweep.__module__], "_abandoned", lambda *_: ()),),
        narrow=with_kinds(K.RENAME, K.CRASH),
    ),
    "a renamed sink's late leftovers": Mutant(
        "What a zombie prepares for a renamed sink after the new one's first decision is left for ever.",
        _laws("sweep"),
        Parts(coordinator=SweepsRenamedSinksAtFirst),
        narrow=crowded(K.RENAME, K.TWIN, K.NAP, within=200, style="batch", sinks=("staged",), speculate=(0, 1, 2, 3)),
    ),
    "a sweep taken for a loss": Mutant(
        "A driver that slept is told that data were lost, when a newer one has swept them.",
        _laws("8"),
        Parts(coordinator=TakesASweepForALoss),
        narrow=crowded(K.NAP, K.SWITCH, within=300, sinks=("kafka",), style="batch", timeout=400),
    ),
    "targets are looked at only when a run starts": Mutant(
        "A run goes on where a standby was promoted that lacks what the run had completed.",
        _laws("8", "4"),
        patches=((Coordinator, "_check_kept", lambda *_: 0.0),),
        narrow=with_kinds(K.FAIL_OVER, K.SWITCH, sinks=("prepared",), style="batch", records=4, steps=(1,)),
    ),
    "transactions of an older epoch are not counted": Mutant(
        "A standby with one of an older epoch's two commits passes: only the newest epoch's are asked for one by one.",
        _laws("8", "4"),
        patches=((target_check, "describe_loss", _without_a_count),),
        narrow=with_kinds(
            K.FAIL_OVER, K.CRASH, sinks=("prepared",), style="batch", subtasks=2, records=3, steps=(2, 0, 0, 1)
        ),
    ),
    "a sweep believes a target that went back": Mutant(
        "A sweep aborts what a completed decision named, where a standby has it prepared again.",
        _laws("4"),
        patches=((recovery, "_check_kept", lambda *_, **__: None),),
        narrow=with_kinds(K.FAIL_OVER, K.CRASH, sinks=("prepared",), style="format", records=4, steps=(1,)),
    ),
    "what was committed again counts at once": Mutant(
        "An epoch is decided that was prepared before the one before it was committed again.",
        _laws("8", "4"),
        patches=((Coordinator, "_check_kept", _checks_as_at_a_start),),
        narrow=crowded(
            K.FAIL_OVER, within=250, sinks=("prepared",), style="batch", records=4, steps=(1,), on_lost="fail"
        ),
    ),
    "an outdated copy of the log": Mutant(
        "Targets are told that the log knows everything.",
        _laws("H", "3", "4"),
        patches=((LogView, "progress", property(lambda _: Progress(1 << 40, 0))),),
        narrow=with_kinds(K.RESTORE, K.CRASH),
    ),
    "a log that has moved goes on": Mutant(
        "A START does not mind that the log has ended with MOVED.",
        _laws("move"),
        patches=((writer, "check_owner", lambda *_: None),),
        narrow=crowded(K.MOVE, K.NAP, K.TWIN, within=200, records=4, steps=(1,)),
    ),
    "moved by a fenced writer": Mutant(
        "MOVED ends the log although another driver has started since the copy was made.",
        _laws("3", "move"),
        patches=((LogWriter, "move", _move_unfenced),),
        narrow=crowded(K.MOVE, K.TWIN, K.SWITCH, within=300, style="batch"),
    ),
    "go on without COMPLETED": Mutant(
        "An epoch counts as completed although the store did not take the entry.",
        _laws("3", "5", "7", "bug", "log"),
        patches=((LogWriter, "complete", _complete_whatever_the_store_says),),
        narrow=with_kinds(K.FULL_STORE, tries=0),
    ),
    "absent taken for merged": Mutant(
        "Staged rows that are gone are taken for merged ones without a look into the ledger.",
        _laws("7"),
        Parts(staged=MergesWithoutLedger),
        narrow=with_kinds(K.ROLLBACK, K.CRASH, sinks=("staged",)),
    ),
    "begun taken for prepared": Mutant(
        "A commit that has begun is taken for one that can still be aborted, so the rest of its epoch is.",
        _laws("4", "torn"),
        Parts(staged=SaysPrepared),
        narrow=crowded(
            K.ROLLBACK,
            K.CRASH,
            K.SWITCH,
            K.TARGET_FAULT,
            within=120,
            style="batch",
            sinks=("prepared", "staged"),
            subtasks=2,
            steps=(2, 2, 2, 2),
            on_lost="replay",
            stepwise=True,
            refers=False,
        ),
    ),
    "absent taken for lost": Mutant(
        "A prepared transaction that is gone is taken for a lost one without a look into the ledger.",
        _laws("8"),
        Parts(prepared=KeepsNoLedger),
        narrow=with_kinds(K.TARGET_FAULT, K.CRASH, sinks=("prepared",)),
    ),
}
