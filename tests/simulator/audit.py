"""The audit: it sees every effect in the log and in the targets, and compares it with what must always be true.

It knows the truth (which transaction holds which rows, who ended it), which no process of the simulation can know. The
laws carry the numbers of the invariants; where they are words, the text says what they mean.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from onceward.core.log import Completed, Decide, Resolved, Rewind, Start, Void
from onceward.core.log.entries import decode

from .world import Violation

if TYPE_CHECKING:
    from onceward.core.log import Entry

    from .world import World

PIPELINE = "orders"
read_entry = lru_cache(512)(decode)
"""Entries never change, and are read much more often than written."""
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

    def __repr__(self) -> str:
        where = f"{self.sink} epoch {self.epoch} subtask {self.subtask}.{self.attempt} writer {self.writer}"
        return f"<{where} rows {self.rows} {self.state}{' by ' + self.cause if self.cause else ''}>"


class Audit:
    """What is true in all logs and targets of one run."""

    def __init__(self, world: World, sinks: list[str], records: int) -> None:
        self.world = world
        self.sinks = sinks
        self.records = records
        self.visible: dict[str, Counter[int]] = {sink: Counter() for sink in sinks}
        self.prepared: dict[tuple[str, str, str], Txn] = {}
        self.logs: dict[str, LogAudit] = {}
        self.losses = 0
        self.voids = 0

    def log_of(self, txn: Txn) -> LogAudit | None:
        """The log whose writer made the transaction."""
        return self.logs.get(txn.log)

    def lingering(self, log: LogAudit) -> list[Txn]:
        """What is prepared, of this log, and certainly named by no decision."""
        mine = [txn for txn in self.prepared.values() if txn.log == log.log and txn.state == "prepared"]
        return [txn for txn in mine if txn.decision is None and not log.may_decide(txn)]

    def on_prepared(self, identity: tuple[str, str, str], txn: Txn) -> None:
        """A committable for the transaction was handed out."""
        self.prepared[identity] = txn

    def on_commit(self, txn: Txn) -> None:
        """The transaction is committed; its rows are visible now or will be."""
        self.world.note(f"COMMITTED {txn}")
        if txn.pipeline != PIPELINE:
            raise Violation("9", f"a transaction of another pipeline was committed: {txn}")
        if txn.decision is None:
            raise Violation("1", f"committed without a durable decision that names it: {txn}")
        txn.state = "committed"

    def on_visible(self, txn: Txn, rows: list[int]) -> None:
        """These of the transaction's rows can be read now."""
        if txn.state != "committed":
            raise Violation("1", f"rows {rows} became visible without a commit of their transaction: {txn}")
        for row in rows:
            txn.shown += 1
            self.visible[txn.sink][row] += 1
            if self.visible[txn.sink][row] > 1:
                raise Violation("3", f"record {row} is visible twice in sink {txn.sink}: {txn}")

    def on_abort(self, txn: Txn, cause: str) -> None:
        """The transaction's rows will never be visible."""
        if txn.state in ("aborted", "committed"):
            return
        before, txn.state, txn.cause = txn.state, "aborted", cause
        self.world.note(f"ABORTED {txn}")
        if cause not in BY_THE_LIBRARY:
            self.losses += 1
            return
        if txn.pipeline != PIPELINE:
            raise Violation("9", f"a transaction of another pipeline was aborted: {txn}")
        if txn.decision is not None:
            raise Violation("4", f"a decided transaction was aborted by the library: {txn}")
        log = self.log_of(txn)
        if cause != "discard" and before == "prepared" and log is not None and log.may_decide(txn):
            raise Violation("4", f"aborted by the library while its decision could still be written: {txn}")

    def on_logged(self, log: LogAudit, epoch: int, start: int, end: int) -> None:
        """The driver recorded the epoch as done: from here on nobody writes this input again."""
        done = log.done.get(epoch)
        if done is None:
            raise Violation("5", f"epoch {epoch} was recorded as done and is not completed in the log")
        if (done.input.start, done.input.end) != (start, end):
            raise Violation(
                "5",
                f"epoch {epoch} was recorded as done with input {start}-{end}, decided {done.input.start}-"
                f"{done.input.end}",
            )

    def check_end(self, log: LogAudit) -> None:
        """At rest, after an undisturbed run to the end: every record exactly once, unless its loss was loud."""
        skipped = Counter((txn.sink, row) for txn in log.skipped for row in txn.rows)
        for sink in self.sinks:
            for row in range(self.records):
                seen, given_up = self.visible[sink][row], skipped[sink, row] > 0
                if seen != 1 and not (seen == 0 and given_up):
                    raise Violation("8", f"record {row} is visible {seen} times in sink {sink}; nobody said so")


class LogAudit:
    """One decision log, as it truly is, and the rules of its entries."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        self.log = ""
        self.tail = -1
        self.floor = 0
        self.start = -1
        self.writer = ""
        self.undone: Decide | None = None
        self.newest: Decide | None = None
        self.decided: int | None = None
        self.end: object = 0
        self.done: dict[int, Decide] = {}
        self.skipped: list[Txn] = []

    def may_decide(self, txn: Txn) -> bool:
        """Whether a decision that names the transaction can still come into being."""
        return txn.log == self.log and txn.writer == self.start and (self.decided is None or txn.epoch > self.decided)

    def on_put(self, key: str, data: bytes) -> None:
        """A value came into being under a key."""
        position = int(key)
        entry = read_entry(data, position)
        if position <= self.tail:
            if position >= self.floor:
                raise Violation("log", f"slot {position} was empty, is not below the floor {self.floor}, and is taken")
            self.audit.world.note(f"VOID ENTRY {position} {type(entry).__name__}")
            return
        if position != self.tail + 1:
            raise Violation("log", f"entry {position} was put behind entry {self.tail}: a gap")
        self._take(entry, position)

    def on_delete(self, key: str) -> None:
        """A value is gone."""
        if int(key) >= self.floor:
            raise Violation("log", f"entry {key} was deleted; the durable floor is {self.floor}")

    def _take(self, entry: Entry, position: int) -> None:
        self.audit.world.note(f"ENTRY {position} {_describe(entry)}")
        if not self.log:
            self.log = entry.log
            self.audit.logs[self.log] = self
        if not isinstance(entry, Start) and (entry.start, entry.writer) != (self.start, self.writer):
            raise Violation("3", f"entry {position} is of a writer that was fenced by START {self.start}")
        self.tail = position
        match entry:
            case Start():
                self.start, self.writer = position, entry.writer
            case Decide():
                self._decide(entry)
            case Completed():
                self._complete(entry)
            case Void():
                self._void(entry)
            case Resolved():
                self._resolve(entry)
            case _:
                raise Violation("log", f"nobody rewinds here: {entry}")

    def _decide(self, entry: Decide) -> None:
        if self.undone is not None:
            raise Violation("3", f"epoch {entry.epoch} decided while epoch {self.undone.epoch} is not completed")
        if self.decided is not None and entry.epoch != self.decided + 1:
            raise Violation("3", f"epoch {entry.epoch} decided after epoch {self.decided}")
        if entry.input.start != self.end:
            raise Violation("5", f"epoch {entry.epoch} begins at {entry.input.start}; the last one ended at {self.end}")
        rows: dict[str, list[int]] = {sink: [] for sink in self.audit.sinks}
        for committable in entry.committables:
            txn = self.audit.prepared.get(committable.identity())
            if txn is None:
                raise Violation("2", f"epoch {entry.epoch} names what was never prepared: {committable.transaction}")
            if txn.state == "aborted" and txn.cause in BY_THE_LIBRARY:
                raise Violation("4", f"epoch {entry.epoch} names what the library has aborted: {txn}")
            rows[txn.sink] += txn.rows
            txn.decision = entry
        for sink, found in rows.items():
            if sorted(found) != list(range(entry.input.start, entry.input.end)):
                raise Violation("2", f"epoch {entry.epoch} names rows {sorted(found)} in {sink}, input {entry.input}")
        self.undone = self.newest = entry
        self.decided, self.end = entry.epoch, entry.input.end

    def _complete(self, entry: Completed) -> None:
        if self.undone is None or self.undone.epoch != entry.epoch:
            raise Violation("7", f"epoch {entry.epoch} is completed, but undone is {self.undone}")
        for txn in self._named(self.undone):
            if txn.shown < len(txn.rows) and not txn.skipped:
                raise Violation("7", f"epoch {entry.epoch} is recorded as completed before its rows are visible: {txn}")
        if entry.floor > self.undone.position:
            raise Violation("log", f"the floor {entry.floor} is above the newest decision {self.undone.position}")
        self.done[entry.epoch] = self.undone
        self.floor, self.undone = max(self.floor, entry.floor), None

    def _void(self, entry: Void) -> None:
        if self.undone is None or self.undone.epoch != entry.epoch:
            raise Violation("8", f"epoch {entry.epoch} is voided, but undone is {self.undone}")
        for txn in self._named(self.undone):
            if txn.state == "committed":
                raise Violation("8", f"epoch {entry.epoch} is voided, but this was committed: {txn}")
            txn.decision = None
        self.audit.voids += 1
        self.end, self.decided = self.undone.input.start, entry.epoch - 1
        self.undone = self.newest = None

    def _resolve(self, entry: Resolved) -> None:
        named = self._named(self.undone) if self.undone is not None else []
        for txn in (txn for txn in named if txn.name == entry.transaction):
            if txn.state == "committed":
                raise Violation("8", f"given up, but it was committed: {txn}")
            txn.skipped = True
            self.skipped.append(txn)

    def _named(self, decision: Decide) -> list[Txn]:
        return [self.audit.prepared[c.identity()] for c in decision.committables]


def _describe(entry: Entry) -> str:
    epoch = "" if isinstance(entry, Start | Rewind) else f" epoch {entry.epoch}"
    return f"{type(entry).__name__.upper()}{epoch} of START {entry.start}"
