"""A store of a decision log that fails in every way that the contract of LogStore allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onceward.core.contract.names import NOTHING
from onceward.core.contract.transaction import Progress
from onceward.core.errors import StoreError
from onceward.core.log import Moved
from onceward.core.log.entries import position_of

from .audit import LogAudit, read_entry
from .world import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from .pipeline import Driver
    from .spark import Folder
    from .world import World

NOT_DONE, ANSWER_LOST, ARRIVES_LATE = range(3)


class Backup(NamedTuple):
    """A checkpoint folder as it was, with its log, and how far that had come."""

    folder: Folder
    entries: dict[str, bytes]
    progress: Progress


class FakeStore:
    """Linearizable put-if-absent in memory; every effect is told to the audit.

    Faults of a call: it was not done; it was done and the answer got lost; it arrives later, perhaps much later.
    """

    def __init__(self, world: World, audit: LogAudit, name: str) -> None:
        self._world = world
        self.audit = audit
        self._name = name
        self._entries: dict[str, bytes] = {}
        self._full_until, self._most = -1, 0
        self.backups: list[Backup] = []
        self._history: list[tuple[dict[str, bytes], Progress]] = []
        """What a standby that lags behind may have, oldest first, with how far the log had come."""
        self._brought_back: tuple[dict[str, bytes], int] | None = None
        """The entries of the server whose place a standby has taken, and when they come back."""
        self._standby: LogAudit | None = None
        self.failovers = 0
        self._end: int | None = None
        """Position of MOVED, with which the log ends here."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See LogStore."""
        return self.put_behind(key, data, "", b"")

    def put_behind(self, key: str, data: bytes, after: str, begins: bytes) -> bool:
        """In one step, as a database does it."""
        self._point(f"put {key[-3:]}")
        by = self._world.current.process.driver if self._world.current is not None else None
        full = self._world.tick < self._full_until and len(data) > self._most
        fault = NOT_DONE if full else self._fault()
        if fault is None:
            return self._put(key, data, by, after, begins)
        if fault == ANSWER_LOST:
            self._put(key, data, by, after, begins)
        elif fault == ARRIVES_LATE:
            self._world.later(f"put {key[-3:]}", self._here(lambda: self._put(key, data, by, after, begins)))
        self._world.note(f"put {key[-3:]} gets no answer ({('not done', 'answer lost', 'arrives late')[fault]})")
        raise StoreError("no answer")

    def get(self, key: str) -> bytes | None:
        """See LogStore."""
        self._point(f"get {key[-3:]}")
        self._read_fault()
        return self._entries.get(key)

    def list_keys(self) -> list[str]:
        """See LogStore."""
        self._point("list")
        self._read_fault()
        return sorted(self._entries)

    def delete(self, key: str) -> None:
        """See LogStore."""
        self._point(f"delete {key[-3:]}")
        fault = self._fault()
        if fault is None or fault == ANSWER_LOST:
            self._delete(key)
        elif fault == ARRIVES_LATE:
            self._world.later(f"delete {key[-3:]}", self._here(lambda: self._delete(key)))
        if fault is not None:
            raise StoreError("no answer")

    def describe(self) -> str:
        """See LogStore."""
        return f"simulated store {self._name}"

    @property
    def shared(self) -> bool:
        """See LogStore."""
        return True

    def fill(self, ticks: int, most: int = 0) -> None:
        """It takes no entry of more than so many bytes for a while."""
        self._full_until, self._most = self._world.trouble(ticks), most

    def back_up(self, folder: Folder) -> None:
        """The checkpoint folder as it is now, this log included, as a nightly backup keeps it."""
        log, newest = self.audit, self.audit.newest
        if newest is not None and log.main:
            kept = folder.older(0, "")
            self.backups.append(Backup(kept, dict(self._entries), Progress(newest.start, newest.epoch)))

    def restored(self, backup: Backup) -> FakeStore:
        """The log as it came back."""
        store = FakeStore(self._world, LogAudit(self.audit.audit, restored=self.audit), "restored")
        store._entries.update(backup.entries)
        return store

    @property
    def is_outdated(self) -> bool:
        """Whether it lacks entries that the true log has."""
        return self.audit.restored is not None or self._standby is not None

    def go_back(self, lacks: int, ticks: int, is_behind: Callable[[Progress], bool]) -> None:
        """A standby without the newest entries answers for a while; then the server is brought back that has them.

        Args:
            lacks: How many.
            ticks: For how long.
            is_behind: Whether a target can tell that a log which had come so far lacks a decision.
        """
        if self._brought_back is not None or lacks >= len(self._history):
            return
        entries, progress = self._history[-1 - lacks]
        if not is_behind(progress):
            return
        self._world.note(f"THE LOG HAS LOST {lacks} ENTRIES")
        self._brought_back = self._entries, self._world.trouble(ticks)
        self._entries = dict(entries)
        self._standby = LogAudit(self.audit.audit, restored=self.audit)
        self._standby.tail = max((p for p in map(position_of, entries) if p is not None), default=-1)
        self.failovers += 1
        self._world.disturbed += 1

    def recover(self) -> None:
        """It takes everything, and the right server answers."""
        self.fill(-1)
        if self._brought_back is not None:
            self._world.note("THE LOG IS WHOLE AGAIN")
            self._entries, _ = self._brought_back
            self._brought_back = self._standby = None
            self._world.disturbed += 1

    def moved(self, entries: dict[str, bytes]) -> FakeStore:
        """Where the log goes on; its truth is the same one."""
        store = FakeStore(self._world, self.audit, "moved")
        store._entries.update(entries)
        store.backups = self.backups
        return store

    def _point(self, what: str) -> None:
        self._world.point(what)
        if self._brought_back is not None and self._world.tick >= self._brought_back[1]:
            self.recover()

    def _here(self, call: Callable[[], object]) -> Callable[[], object]:
        """A request that arrives late: not on another server than it was sent to."""
        server = self._entries
        return lambda: call() if self._entries is server else None

    def _put(self, key: str, data: bytes, by: Driver | None, after: str, begins: bytes) -> bool:
        if key in self._entries or (after and not self._entries.get(after, b"").startswith(begins or b" ")):
            return False
        self._entries[key] = data
        position = position_of(key)
        if position is None:  # an audit record
            return True
        if self._standby is not None:
            self._standby.on_put(key, data, by)
            return True
        if self._end is not None and position > self._end:
            raise Violation("move", f"entry {position} was put into a log that has moved with entry {self._end}")
        void = position <= self.audit.tail
        self.audit.on_put(key, data, by)
        if isinstance(read_entry(data, position), Moved) and not void:
            self._end = position
        newest = self.audit.newest
        self._history.append((dict(self._entries), Progress(newest.start, newest.epoch) if newest else NOTHING))
        return True

    def _delete(self, key: str) -> None:
        if self._entries.pop(key, None) is not None and self._standby is None:
            self.audit.on_delete(key)

    def _fault(self) -> int | None:
        task = self._world.current
        if task is None or not task.store_faults:
            return None
        self._world.disturbed += 1
        return task.store_faults.pop() % 3

    def _read_fault(self) -> None:
        if self._fault() is not None:
            raise StoreError("no answer")
