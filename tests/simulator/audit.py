"""The audit: it sees every effect in the log and in the targets, and compares it with what must always be true.

It knows the truth (which transaction holds which rows, who ended it), which no process of the simulation can know. The
laws carry the numbers of the invariants; where they are words, the text says what they mean.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from onceward.core.contract.proof import Proof, total
from onceward.core.log import Completed, Decide, Moved, Replace, Resolved, Rewind, Start, Void
from onceward.core.log.entries import decode_entry

from .world import Violation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from onceward.core.contract.transaction import Committable
    from onceward.core.log import Entry

    from .pipeline import Driver
    from .spark import Folder
    from .world import Process, World

PIPELINE = "orders"
KINDS = ("kafka", "prepared", "staged")
read_entry = lru_cache(512)(decode_entry)
"""Entries never change, and are read much more often than written."""
LONGEST_CALL = 40
"""Ticks: a call that was begun while nobody answered may act on that a little later."""
GONE_BACK = "failover"
"""Cause that is noted for transactions that a standby lacks, or has as prepared again."""
BY_THE_LIBRARY = frozenset({"sink", "init", "discard"})
"""Who may have ended a transaction on the library's side; everybody else is the outside world."""


@dataclass(eq=False)
class Txn:
    """One transaction in a target, as it truly is."""

    pipeline: str
    sink: str
    log: str = ""
    writer: int = -1
    epoch: int = -1
    subtask: int = 0
    attempt: int = 0
    name: str = ""
    rows: list[int] = field(default_factory=list)
    state: str = "open"
    decision: Decide | None = None
    cause: str = ""
    skipped: bool = False
    shown: int = 0
    """How many rows are visible."""
    ending: bool = False
    """Whether a server is at work on it for somebody."""
    input: str = ""
    """The offsets file that its rows were read by."""
    driver: Driver | None = None
    """For which driver it was begun."""
    began: int = 0
    """How many excuses for an expiry there had been when it began."""
    went_back: bool = False
    """Whether a failover has undone its commit or its end, whatever became of it afterwards."""
    since: int = 0
    """Tick at which it was prepared."""
    ended: int = 0
    """Tick at which it was aborted or committed."""
    by: Process | None = None
    """Who was at work when it was committed."""
    asked: bool = False
    """Whether somebody asked, before a decision, if it was still there."""
    gone: list[int] = field(default_factory=list)
    """Rows that were deleted with their topic."""
    complete: bool = True
    """Whether none of its rows were gone when it was prepared."""

    def __repr__(self) -> str:
        where = f"{self.sink} epoch {self.epoch} subtask {self.subtask}.{self.attempt} writer {self.writer}"
        return f"<{where} rows {self.rows} {self.state}{' by ' + self.cause if self.cause else ''}>"


class Audit:
    """What is true of one pipeline, in all logs and targets of one run.

    Args:
        world: Of the run.
        records: Length of the pipeline's input.
        pipeline: Its name.
        beside: The audit of the pipeline with which it shares its targets.
    """

    def __init__(self, world: World, records: int, pipeline: str = PIPELINE, beside: Audit | None = None) -> None:
        self.world = world
        self.records = records
        self.pipeline = pipeline
        self.visible: dict[str, Counter[int]] = {kind: Counter() for kind in KINDS}
        self.prepared: dict[tuple[str, str, str], Txn] = {}
        self.logs: dict[str, LogAudit] = beside.logs if beside is not None else {}
        self.all: dict[str, Audit] = beside.all if beside is not None else {}
        """By pipeline. What the targets tell one of them, it hands on to the transaction's own."""
        self.all[pipeline] = self
        self.lost: set[str] = set()
        """Kinds of the sinks of which somebody outside, or a timeout, took something."""
        self.says = world.plan.config.on_lost
        """What the command line says of losses now."""
        self.voids = self.heals = 0
        self.promised: Counter[tuple[str, int]] = Counter()
        """How often each record was decided for each target: once, and once more for each rewind to before it."""

    def of(self, txn: Txn) -> Audit:
        """The audit of the transaction's pipeline; that of a stranger, whom nobody may touch, is this one."""
        return self.all.get(txn.pipeline, self)

    def on_lost(self, kinds: Collection[str]) -> None:
        """Somebody outside, or a timeout, took something from these targets."""
        for audit in self.all.values():
            audit.lost.update(kinds)

    def log_of(self, txn: Txn) -> LogAudit | None:
        """The log whose writer made the transaction."""
        return self.logs.get(txn.log)

    def lingering(self, log: LogAudit) -> list[Txn]:
        """What is prepared, of this log, and certainly named by no decision."""
        mine = [txn for txn in self.prepared.values() if txn.log == log.log and txn.state == "prepared"]
        return [txn for txn in mine if txn.decision is None and not log.may_decide(txn)]

    def on_begin(self, txn: Txn) -> Txn:
        """A subtask begins to write."""
        task = self.world.current
        txn.began = self.world.excuses
        if task is not None:
            txn.input, txn.driver = task.input, task.driver
        log = self.log_of(txn)
        # A fenced writer may read a later rewind; it decides nothing, and what it prepares is swept.
        newest = log is not None and txn.writer == log.start
        if log is not None and newest and txn.epoch <= log.known_at.get(txn.writer, -1) and not log.heals(txn):
            raise Violation("3", f"an epoch is written again that was decided before its writer's START: {txn}")
        return txn

    def on_prepared(self, identity: tuple[str, str, str], txn: Txn) -> None:
        """A committable for the transaction was handed out."""
        txn.since, txn.complete = self.world.tick, not txn.gone
        self.prepared[identity] = txn

    def on_commit(self, txn: Txn) -> None:
        """The transaction is committed; its rows are visible now or will be."""
        log = self.log_of(txn)
        starter = self.world.current is not None and log is not None and self.world.current.process is log.starter
        if log is not None and txn.decision is not None and txn.decision is log.taken_back and starter:
            raise Violation("rewind", f"committed by the writer that has taken its decision back: {txn}")
        self.world.note(f"COMMITTED {txn}")
        if txn.pipeline != self.pipeline:
            raise Violation("9", f"a transaction of another pipeline was committed: {txn}")
        if txn.decision is None:
            raise Violation("1", f"committed without a durable decision that names it: {txn}")
        self._check_whole(txn, txn.decision)
        if (
            txn.skipped and txn.cause == GONE_BACK and log is not None
        ):  # a standby had it, though others were lost there
            txn.skipped = False
            log.skipped.remove(txn)
        txn.state, txn.ended = "committed", self.world.tick
        txn.by = self.world.current.process if self.world.current is not None else None

    def _check_whole(self, txn: Txn, decision: Decide) -> None:
        """The first commit of a decision: nothing else that it names was lost before, or a replay is spoiled."""
        named = [self.prepared[c.identity()] for c in decision.committables]
        lost = [one for one in named if one.state == "aborted" and not one.skipped]
        if not lost or txn.cause == GONE_BACK or any(one.state == "committed" for one in named):
            return  # what was committed before is committed again, whatever else a standby lacks
        if any(self._lacks_an_older_epoch(one) for one in lost):
            return  # nothing of that sink is settled before a person decides, and writing one epoch again helps nobody
        log = self.log_of(txn)
        starter = log is not None and self.world.current is not None and self.world.current.process is log.starter
        known = starter and not self.world.landing and log is not None and min(one.ended for one in lost) < log.started
        if target_of(txn) != "kafka" and any(target_of(one) == "kafka" for one in lost):
            raise Violation("torn", f"committed, though what can expire of its epoch is lost: {txn}, {lost}")
        troubled = self.world.tick < self.world.troubled_until + LONGEST_CALL
        if troubled and 2 * (self.world.tick - txn.since) > self.world.plan.config.timeout:
            return  # who does not say what became of the lost one is waited for during half of the timeout
        if known:
            raise Violation("torn", f"a start committed this, though of its epoch this was lost before: {txn}, {lost}")

    def _lacks_an_older_epoch(self, lost: Txn) -> bool:
        older = (txn for txn in self.prepared.values() if txn.sink == lost.sink and txn.epoch < lost.epoch)
        return any(txn.cause == GONE_BACK and txn.decision is not None and txn.state != "committed" for txn in older)

    def on_gone_back(self, txn: Txn, state: str) -> None:
        """Its target is as it was before: the transaction is prepared again, or has never been."""
        if txn.state == state:
            return
        if txn.state == "committed":
            self.visible[target_of(txn)] -= Counter(txn.rows)
        self.world.note(f"GONE BACK {txn}, now {state}")
        txn.state, txn.cause, txn.ended, txn.shown = state, GONE_BACK, self.world.tick, 0
        txn.went_back = True
        self.lost.add(target_of(txn))

    def on_visible(self, txn: Txn, rows: list[int]) -> None:
        """These of the transaction's rows can be read now."""
        if txn.state != "committed":
            raise Violation("1", f"rows {rows} became visible without a commit of their transaction: {txn}")
        for row in rows:
            txn.shown += 1
            seen = self.visible[target_of(txn)]
            seen[row] += 1
            if seen[row] > self.promised[target_of(txn), row]:
                raise Violation("3", f"record {row} is visible {seen[row]} times in sink {txn.sink}: {txn}")

    def on_abort(self, txn: Txn, cause: str) -> None:
        """The transaction's rows will never be visible."""
        if txn.state in ("aborted", "committed"):
            return
        store = self.world.current.process.store if self.world.current is not None else None
        if store is not None and store.is_outdated and target_of(txn) == "kafka":
            cause = "outdated copy"  # which Kafka cannot tell while the target that could does not answer
        before, txn.state, txn.cause, txn.ended = txn.state, "aborted", cause, self.world.tick
        self.world.note(f"ABORTED {txn}")
        if cause not in BY_THE_LIBRARY:
            self.lost.add(target_of(txn))
            if cause == "timeout" and txn.decision is not None and txn.began == self.world.excuses:
                raise Violation("independent", f"decided, and lost by its timeout without a fault of its own: {txn}")
            return
        if txn.pipeline != self.pipeline:
            raise Violation("9", f"a transaction of another pipeline was aborted: {txn}")
        log = self.log_of(txn)
        taken_back = log is not None and txn.decision is not None and txn.decision is log.taken_back
        # With its topic, since it was prepared: a fence is the proof of that.
        gone = bool(txn.rows) and txn.complete and set(txn.rows) <= set(txn.gone)
        if txn.decision is not None and not (txn.skipped or gone or taken_back or self._may_withdraw(txn.decision)):
            raise Violation("4", f"a decided transaction was aborted by the library: {txn}")
        decidable = log is not None and log.may_decide(txn) and not log.is_of_copy(txn)
        if cause != "discard" and before == "prepared" and decidable:
            raise Violation("4", f"aborted by the library while its decision could still be written: {txn}")

    def _may_withdraw(self, decision: Decide) -> bool:
        """Whether nothing of a decision is committed, and something is lost: then it may be voided."""
        states = [self.prepared[c.identity()] for c in decision.committables]
        lost = any(txn.state == "aborted" and txn.cause not in BY_THE_LIBRARY for txn in states)
        return lost and self.says == "replay" and all(txn.state != "committed" for txn in states)

    def on_logged(self, driver: Driver, epoch: int) -> None:
        """The driver recorded the epoch as done: from here on nobody writes this input again."""
        log, folder = driver.store.audit, driver.folder
        if epoch not in log.done:
            raise Violation("5", f"epoch {epoch} was recorded as done and is not completed in the log")
        logged = (*folder.range_of(epoch), folder.offsets[epoch])
        if all(set(driver.kinds) - log.kinds_of(done) for done in log.done[epoch]):
            raise Violation("sinks", f"epoch {epoch} was recorded as done, and {driver.kinds} did not all get it")
        decided = [self._inputs(done) for done in log.done[epoch]]
        if not any(logged[:2] == found[:2] and found[2] in (logged[2], "") for found in decided):
            raise Violation("5", f"epoch {epoch} was recorded as done with input {logged}, decided with {decided}")

    def _inputs(self, done: Decide) -> tuple[int, int, str]:
        """Where a decided epoch's input begins and ends, and by which file it was read; no file if it had no rows."""
        files = {self.prepared[c.identity()].input for c in done.committables}
        return at(done.input.start), at(done.input.end), " and ".join(sorted(files))

    def check_end(self, log: LogAudit) -> None:
        """At rest, after an undisturbed run to the end: every record exactly once, unless its loss was loud."""
        skipped = Counter((target_of(txn), row) for txn in log.skipped for row in txn.rows)
        deleted = [txn for txn in self.prepared.values() if txn.decision is not None and not txn.skipped]
        skipped += Counter((target_of(txn), row) for txn in deleted for row in txn.gone)
        for row in range(self.records):
            if not any(self.promised[kind, row] for kind in KINDS):
                raise Violation("8", f"record {row} was never decided")
            for kind in KINDS:
                seen, given_up = self.visible[kind][row], skipped[kind, row]
                if seen + given_up != self.promised[kind, row]:
                    raise Violation("8", f"record {row} is visible {seen} times in sink {kind}; nobody said so")


def hash_of(rows: Iterable[int]) -> str:
    """The hash of all that a sink was handed: rows that are numbers."""
    return total(f"{7919 * (row + 1):016x}{104729 * (row + 1):016x}" for row in rows)


def readable(rows: Iterable[int]) -> Proof:
    """The proof of what can be read back from a target, which leaves the numbers out, as of a nested column."""
    return Proof(hash_of(0 for _ in rows))


def kind_of(sink: str) -> str:
    """Where a sink writes to, whatever it is called now."""
    return sink.partition("-")[0]


def target_of(txn: Txn) -> str:
    """Where its rows go."""
    return kind_of(txn.sink)


def at(offsets: list[str] | None) -> int:
    """The record at which offsets point."""
    return int(offsets[0]) if offsets is not None else 0


class LogAudit:
    """One decision log, as it truly is, and the rules of its entries.

    Args:
        audit: Of the run.
        main: Whether it is the pipeline's own.
        restored: The log of which this one is an older copy, from a backup or a standby: nothing may be decided in it.
    """

    def __init__(self, audit: Audit, *, main: bool = False, restored: LogAudit | None = None) -> None:
        self.audit = audit
        self.main = main
        self.restored = restored
        self.log = ""
        self.tail = -1
        self.floor = 0
        self.start = -1
        self.writer = ""
        self.started = 0
        """Tick of the newest START."""
        self.starter: Process | None = None
        """Who put it."""
        self.undone: Decide | None = None
        self.newest: Decide | None = None
        self.taken_back: Decide | None = None
        """A decision that was not completed when a rewind covered it."""
        self.folder: Folder | None = None
        """The checkpoint of which the newest decision is, or that was gone back to."""
        self.decided: int | None = None
        self.end = 0
        self.done: dict[int, list[Decide]] = {}
        self.skipped: list[Txn] = []
        self.known_at: dict[int, int] = {}
        """For each START, the newest epoch that was decided before."""
        self.undone_at: dict[int, Decide | None] = {}
        """For each START, the decision that waited."""
        self.kinds: dict[int, tuple[str, ...]] = {}
        """For each decision, by its position: the targets of all sinks that took part."""
        self.rewinds: dict[tuple[str, str], int] = {}
        """Query and reason of each rewind, and the first epoch after it."""

    def kinds_of(self, decision: Decide) -> set[str]:
        """The targets of all sinks that took part in a decision, with rows or without."""
        return set(self.kinds[decision.position])

    def heals(self, txn: Txn) -> bool:
        """Whether the transaction's writer found a decision of its epoch that waited, and that has lost something."""
        found = self.undone_at.get(txn.writer)
        if found is None or found.epoch != txn.epoch:
            return False
        lost = [one for one in self._named(found) if one.state == "aborted" or one.cause == GONE_BACK]
        return any(one.sink == txn.sink for one in lost)

    def may_heal(self, txn: Txn) -> bool:
        """Whether the transaction may still replace one of the decision that waits."""
        waits = self.undone is not None and self.undone.epoch == txn.epoch and self.undone.start < txn.writer
        return waits and txn.writer == self.start and self.heals(txn)

    def may_decide(self, txn: Txn) -> bool:
        """Whether a decision that names the transaction can still come into being."""
        if txn.log == self.log and txn.decision is None and self.may_heal(txn):
            return True
        return txn.log == self.log and txn.writer == self.start and (self.decided is None or txn.epoch > self.decided)

    def is_of_copy(self, txn: Txn) -> bool:
        """Whether its START was only in a copy of the log, and has the number of this log's newest one."""
        starter = self.starter.driver if self.starter is not None else None
        known = txn.driver is not None and starter is not None
        return known and txn.writer == self.start and txn.driver is not starter

    def on_put(self, key: str, data: bytes, by: Driver | None) -> None:
        """A value came into being under a key."""
        position = int(key)
        entry = read_entry(data, position)
        if self.restored is not None:
            if isinstance(entry, Decide):
                raise Violation("H", f"an outdated copy of the log decides epoch {entry.epoch}, and a target knows")
            self.log, self.tail, self.start, self.writer = entry.log, position, entry.start, entry.writer_id
            return
        if position <= self.tail:
            if position >= self.floor:
                raise Violation("log", f"slot {position} was empty, is not below the floor {self.floor}, and is taken")
            self.audit.world.note(f"VOID ENTRY {position} {type(entry).__name__}")
            return
        if position != self.tail + 1:
            raise Violation("log", f"entry {position} was put behind entry {self.tail}: a gap")
        self._take(entry, position, by)

    def on_delete(self, key: str) -> None:
        """A value is gone."""
        if self.restored is None and int(key) >= self.floor:
            raise Violation("log", f"entry {key} was deleted; the durable floor is {self.floor}")

    def _take(self, entry: Entry, position: int, by: Driver | None) -> None:  # noqa: C901 - one case for each kind
        self.audit.world.note(f"ENTRY {position} {_describe(entry)}")
        if not self.log:
            self.log = entry.log
            self.audit.logs[self.log] = self
        if not isinstance(entry, Start) and (entry.start, entry.writer_id) != (self.start, self.writer):
            raise Violation("3", f"entry {position} is of a writer that was fenced by START {self.start}")
        self.tail = position
        match entry:
            case Start():
                self.start, self.writer, self.started = position, entry.writer_id, self.audit.world.tick
                task = self.audit.world.current
                self.starter = task.process if task is not None else None
                self.undone_at[position] = self.undone
                self.known_at[position] = -1 if self.decided is None else self.decided
            case Rewind():
                self._rewind(entry, by)
            case Decide():
                self._decide(entry, by)
            case Completed():
                self._complete(entry)
            case Void(covered=True):
                self._end_taken_back(entry)
            case Void():
                self._void(entry)
            case Replace():
                self._replace(entry)
            case Resolved():
                self._resolve(entry)
            case Moved():
                self._move(position)

    def _decide(self, entry: Decide, by: Driver | None) -> None:
        if self.undone is not None:
            raise Violation("3", f"epoch {entry.epoch} decided while epoch {self.undone.epoch} is not completed")
        if self.decided is not None and entry.epoch != self.decided + 1:
            raise Violation("3", f"epoch {entry.epoch} decided after epoch {self.decided}")
        start, end = at(entry.input.start), at(entry.input.end)
        if start != self.end:
            raise Violation("5", f"epoch {entry.epoch} begins at {start}; the last one ended at {self.end}")
        self.kinds[entry.position] = kinds = by.kinds if by is not None else ()
        rows: dict[str, list[int]] = {kind: [] for kind in kinds}
        for committable in entry.committables:
            txn = self.audit.prepared.get(committable.identity())
            if txn is None:
                raise Violation("2", f"epoch {entry.epoch} names what was never prepared: {committable.transaction}")
            if txn.state == "aborted" and txn.cause in BY_THE_LIBRARY:
                raise Violation("4", f"epoch {entry.epoch} names what the library has aborted: {txn}")
            if by is not None and txn.cause == "timeout" and txn.ended < by.acknowledged and not txn.asked:
                raise Violation("age", f"decided after its timeout, and nobody had asked: {txn}")
            rows[target_of(txn)] += txn.rows
            txn.decision = entry
        for sink, found in rows.items():
            if sorted(found) != list(range(start, end)):
                raise Violation("2", f"epoch {entry.epoch} names rows {sorted(found)} in {sink}, input {entry.input}")
        self.undone = self.newest = entry
        self.decided, self.end = entry.epoch, end
        self.folder = by.folder if by is not None else self.folder
        self._promise(entry, 1)

    def _complete(self, entry: Completed) -> None:
        if self.undone is None or self.undone.epoch != entry.epoch:
            raise Violation("7", f"epoch {entry.epoch} is completed, but undone is {self.undone}")
        for txn in self._named(self.undone):
            hidden = txn.shown < len(set(txn.rows) - set(txn.gone)) and not txn.went_back
            if hidden and not txn.skipped:
                raise Violation("7", f"epoch {entry.epoch} is recorded as completed before its rows are visible: {txn}")
        if entry.floor > self.undone.position:
            raise Violation("log", f"the floor {entry.floor} is above the newest decision {self.undone.position}")
        self.done.setdefault(entry.epoch, []).append(self.undone)
        self.floor, self.undone = max(self.floor, entry.floor), None

    def _end_taken_back(self, entry: Void) -> None:
        if self.taken_back is None or self.taken_back.epoch != entry.epoch:
            raise Violation("rewind", f"epoch {entry.epoch} is voided, but {self.taken_back} was taken back")
        named = self._named(self.taken_back)
        for txn in named:
            if txn.state in ("open", "prepared") and txn.cause != GONE_BACK:
                raise Violation("rewind", f"epoch {entry.epoch} was taken back, and this can still be committed: {txn}")
            if txn.state != "committed":
                txn.decision = None
                self.skipped = [one for one in self.skipped if one is not txn]  # it is written again after all
        stay = {(target_of(txn), row) for txn in named if txn.state == "committed" for row in txn.rows}
        self._promise(self.taken_back, -1, stay)
        self.taken_back = None

    def _void(self, entry: Void) -> None:
        if self.undone is None or self.undone.epoch != entry.epoch:
            raise Violation("8", f"epoch {entry.epoch} is voided, but undone is {self.undone}")
        named = self._named(self.undone)
        for txn in named:
            if txn.state == "committed":
                raise Violation("8", f"epoch {entry.epoch} is voided, but this was committed: {txn}")
            if txn.state in ("open", "prepared") and txn.cause != GONE_BACK:
                raise Violation("8", f"epoch {entry.epoch} is voided, and this can still be committed: {txn}")
            txn.decision = None
        self.audit.voids += 1
        self._promise(self.undone, -1)
        self.end, self.decided = at(self.undone.input.start), entry.epoch - 1
        self.known_at[self.start] = min(self.decided, self.known_at.get(self.start, self.decided))
        self.undone = self.newest = None

    def _replace(self, entry: Replace) -> None:
        """What is lost was written again: the same rows, of what can never become visible any more."""
        if self.undone is None or self.undone.epoch != entry.epoch:
            raise Violation("heal", f"replaces transactions of epoch {entry.epoch}, but undone is {self.undone}")
        lost = [c for c in self.undone.committables if (c.sink, c.transaction) in entry.lost]
        for txn in map(self._txn, lost):
            if (txn.state != "aborted" and txn.cause != GONE_BACK) or txn.shown or txn.skipped:
                raise Violation("heal", f"replaced, though it is not lost: {txn}")
        for sink in {c.sink for c in (*lost, *entry.committables)}:
            before, after = (
                sorted(row for c in some if c.sink == sink for row in self._txn(c).rows)
                for some in (lost, entry.committables)
            )
            if before != after:
                raise Violation("heal", f"rows {after} replace rows {before} in sink {sink}")
        kept = tuple(c for c in self.undone.committables if c not in lost)
        decision = replace(self.undone, committables=(*kept, *entry.committables), start=entry.start)
        for txn in map(self._txn, lost):
            txn.decision = None
        for c in decision.committables:
            self._txn(c).decision = decision
        self.undone = self.newest = decision
        self.audit.heals += 1

    def _txn(self, committable: Committable) -> Txn:
        return self.audit.prepared[committable.identity()]

    def _promise(self, decision: Decide, times: int, stay: Collection[tuple[str, int]] = ()) -> None:
        """Each record of a decision, in each target, but for those that stay as they are."""
        if self.main:
            for row in range(at(decision.input.start), at(decision.input.end)):
                for kind in self.kinds_of(decision):
                    if (kind, row) not in stay:
                        self.audit.promised[kind, row] += times

    def _rewind(self, entry: Rewind, by: Driver | None) -> None:
        back = entry.rewind
        if self.undone is not None and back.epoch > self.undone.epoch:
            raise Violation("rewind", f"{back} while epoch {self.undone.epoch} is not completed")
        mine = [txn for txn in self.audit.prepared.values() if txn.log == self.log and txn.by is self.starter]
        for txn in mine:
            if txn.state == "committed" and txn.ended >= self.started and txn.epoch >= back.epoch:
                raise Violation("rewind", f"a writer committed this before it went back over it: {txn}")
        self.taken_back, self.undone = self.undone or self.taken_back, None
        if (back.query, back.why) in self.rewinds:
            raise Violation("rewind", f"{back} is done a second time")
        self.rewinds[back.query, back.why] = back.epoch
        if by is not None:
            self.folder = by.folder
            self.end = by.folder.end_of(back.epoch - 1)
        self.decided = back.epoch - 1 if back.epoch > 0 else None
        self.known_at[self.start] = back.epoch - 1
        self.newest = None

    def _resolve(self, entry: Resolved) -> None:
        named = [txn for txn in (self._named(self.undone) if self.undone else []) if txn.name == entry.transaction]
        older = [
            txn for txn in self.audit.prepared.values() if txn.name == entry.transaction and txn.state != "committed"
        ]
        sinks = {entry.sink} if entry.sink else {txn.sink for txn in older if not named}
        if sinks:  # their target is taken as it is
            decided = [txn for txn in self.audit.prepared.values() if txn.sink in sinks and txn.decision is not None]
            named = [txn for txn in decided if txn.decision is not self.undone and txn.state != "committed"]
        for txn in named:
            if txn.state == "committed":
                raise Violation("8", f"given up, but it was committed: {txn}")
            if not txn.skipped:
                self.skipped.append(txn)
            txn.skipped = True

    def _move(self, position: int) -> None:
        """The log goes on in a copy, which lacks this entry."""
        if self.undone is not None:
            raise Violation("move", f"the log ends while epoch {self.undone.epoch} is not completed")
        self.tail = position - 1

    def _named(self, decision: Decide) -> list[Txn]:
        return [self.audit.prepared[c.identity()] for c in decision.committables]


def _describe(entry: Entry) -> str:
    epoch = "" if isinstance(entry, Start | Rewind | Moved) else f" epoch {entry.epoch}"
    return f"{type(entry).__name__.upper()}{epoch} of START {entry.start}"
