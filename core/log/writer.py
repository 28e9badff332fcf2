"""Write to a decision log, fenced with nothing but put-if-absent.

The rule: a writer appends only at the position right after its own last entry. So a new writer's START, which takes
the position after the tail, makes every older writer's next put fail at that instant.

1. (Invariant 3) Two decisions of one epoch would need two entries after one predecessor; put-if-absent allows one.
2. (Invariant 4) Once START is in the slot that an undecided epoch's decision would take, that decision can never be.
3. A put that raised is in doubt. The same bytes are offered until the answer is definite; while it is not, this
   writer offers nothing else (log rule 1).
4. After each put the tail is read: an own entry that is missing or below the floor is void, for the slot had been
   pruned and this writer had long been fenced (log rule 2).
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..contract.names import Scope
from ..errors import (
    DecisionInDoubtError,
    EpochConflictError,
    FencedError,
    LifecycleError,
    LogDamagedError,
    OncewardError,
    ProtocolError,
    StoreError,
    text_of,
)
from ..kit.crash_points import Step, crash_point
from .entries import (
    Completed,
    Decide,
    Entry,
    EpochInput,
    Moved,
    Replace,
    Resolved,
    Rewind,
    Rewound,
    Start,
    Void,
    encode,
    head_of,
    key_of,
    position_of,
    record_key,
)
from .reader import read, read_behind_gap
from .store import put_behind
from .time_limits import ANSWER_SECONDS
from .view import NONE, LogView, check_next

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..contract.policy import CommitPolicy
    from ..contract.transaction import Committable
    from .run_writers import RunWriters
    from .store import LogStore
    from .view import CommitPermit

T = TypeVar("T")


class WriterToken(msgspec.Struct, frozen=True):
    """Token with which another process continues as the same writer (Spark commits in a process of its own)."""

    log: str
    writer_id: str
    start: int
    last: int


def check_owner(view: LogView, pipeline: str, store: LogStore) -> None:
    """Raise EpochConflictError if the log belongs to another pipeline, or was moved elsewhere."""
    if view.pipeline not in {"", pipeline}:
        raise EpochConflictError(
            f"the decision log in {store.describe()} belongs to pipeline {view.pipeline!r}: use that name, or a "
            "checkpoint (or store) of its own for this pipeline",
            pipeline=pipeline,
        )
    if view.moved:
        raise EpochConflictError(
            f"the decision log in {store.describe()} has ended here: a savepoint has moved the pipeline to "
            f"{view.moved}. Start it there; if only a savepoint is there, restore that one first",
            pipeline=pipeline,
        )


class LogWriter:
    """One writer of one pipeline's decision log, from its START until it is fenced.

    Args:
        store: Store that has the log.
        pipeline: Name of the pipeline.
        policy: Policy of the writer: how to handle losses, and how often and how long to try.
        run_writers: The run to which this writer belongs. It does not start if another run has started since: each
            would drive out the other. Without it, a writer starts in any case.
    """

    def __init__(
        self, store: LogStore, pipeline: str, policy: CommitPolicy, run_writers: RunWriters | None = None
    ) -> None:
        self.store = store
        self.pipeline = pipeline
        self.policy = policy
        self.token = WriterToken("", policy.token(), -1, -1)
        self.view = LogView()
        self._head = b""
        """First line of this writer's last entry."""
        self._run_writers = run_writers
        self._pending: tuple[int, bytes] | None = None
        self._barring: tuple[WriterToken, bytes] | None = None

    def start(self, tool: str = "", *, repairs: bool = False) -> LogView:
        """Become the newest writer: put START behind the tail, and return what the log says.

        Args:
            tool: Command of an operator that does this, and decides nothing.
            repairs: Make void what is below a gap, if that is known from what is behind it.

        Raises:
            LogDamagedError: The log has a gap; or, to repair, it has none, or one that cannot be explained.
            StoreError: The store did not give a definite answer.
            FencedError: Yet another writer started in between, or another run since this one started before.
            EpochConflictError: The log is another pipeline's, or goes on elsewhere.
        """
        again = self._run_writers if self._run_writers is not None and self._run_writers.since is not None else None
        # (2) START takes the slot behind the tail, which the next entry of every older writer would need.
        for attempt in count():
            self.view = read_behind_gap(self.store) if repairs else read(self.store)
            check_owner(self.view, self.pipeline, self.store)
            position = self.view.tail + 1
            if again is not None and (other := again.overtaken(self.view)):
                again.end(f"pipeline {self.pipeline}: {other}")
                raise self._fenced(other)
            log = self.view.log or self.policy.token()[:8]
            token = WriterToken(log, self.token.writer_id, position, position)
            self._note_writer(token)  # before the put: its answer may be lost
            floor = self.view.floor if repairs else 0
            data = encode(Start(**self._fields(token, position), tool=tool, floor=floor))
            if self._offer(key_of(position), data, behind=(self.view.tail, self.view.head)):
                break
            if not self.policy.puts.pause(attempt):
                raise FencedError(f"another writer started first, {attempt + 1} times in a row", pipeline=self.pipeline)
        self.token, self._head, self._pending, self._barring = token, head_of(data), None, None
        # (4) The put may have won a slot that had been pruned; only the tail shows whether this START counts.
        self._look_at_tail(position)
        if self.view.start != position:
            raise self._fenced(f"entry {self.view.start} is a later START")
        if self._run_writers is not None:
            self._run_writers.start = position
        return self.view

    @classmethod
    def resume(cls, store: LogStore, pipeline: str, policy: CommitPolicy, token: WriterToken) -> LogWriter:
        """Go on as the writer of `token`, in another process.

        Raises:
            FencedError: The token's last entry is no longer the tail.
        """
        writer = cls(store, pipeline, policy)
        writer.token = token
        writer.view = view = read(store)
        writer._head = view.head
        if WriterToken(view.log, view.writer_id, view.start, view.tail) != token:
            raise writer._fenced(f"the log's tail is entry {view.tail}, this writer's last was {token.last}")
        return writer

    def decide(
        self,
        epoch: int,
        committables: Sequence[Committable],
        *,
        sinks: Sequence[str],
        epoch_input: EpochInput,
        state: dict[str, Any] | None = None,
        follows: int | None = None,
        subtasks: int = 0,
        datasets: Mapping[str, str] | None = None,
        targets: Mapping[str, Any] | None = None,
    ) -> CommitPermit:
        """Make the decision durable.

        Raises:
            FencedError: A newer writer has started. Either no decision was made and none can be, or that writer has
                finished this one already.
            DecisionInDoubtError: The store did not answer; the decision may exist.
        """
        # (1) The epoch is judged by the view behind which the entry is put: a decision made since makes the put fail.
        check_next(self.view, epoch, follows)
        crash_point(Step.DECIDE_BEFORE)
        decision = Decide(
            **self._fields(),
            epoch=epoch,
            sinks=tuple(sinks),
            committables=tuple(committables),
            input=epoch_input,
            state=state or {},
            follows=follows,
            rewind=self.view.rewind,
            proofs=self.view.proofs,
            reached=dict(self.view.reached),
            own_epochs=True,
            subtasks=subtasks,
            datasets=dict(datasets or {}),
            targets=dict(targets or {}),
        )
        self._append(decision)
        crash_point(Step.DECIDE_AFTER)
        permit = self.view.permit()
        # (1) A permit exists only for the decision that the log shows, so nobody commits what merely was offered.
        if permit is None or permit.decision.position != decision.position:
            raise self._fenced(f"entry {self.view.start} is a later START, whose writer has finished this epoch")
        return permit

    def complete(self, epoch: int, claimed: Iterable[str] | None = None) -> None:
        """Record that every transaction of the epoch's decision has ended; then prune.

        Args:
            epoch: Number of the epoch.
            claimed: Sinks that own their names in their targets; None: all of the decision.

        Raises:
            FencedError: A newer writer has started (it finishes the decision itself).
            DecisionInDoubtError: The store did not answer.
        """
        # (Rule 2) Audit records are kept apart before the floor lets their entries be pruned.
        self._keep_records()
        crash_point(Step.COMPLETE_BEFORE)
        newest = self.view.newest
        floor = newest.position if newest is not None else self.view.floor
        owners = tuple(sorted(claimed)) if claimed is not None else None
        # (Rule 2) The floor is durable with COMPLETED, and entries are deleted only afterwards.
        self._append(Completed(**self._fields(), epoch=epoch, floor=floor, claimed=owners))
        crash_point(Step.COMPLETE_AFTER)
        self._prune(floor)

    def rewind(self, rewind: Rewound) -> None:
        """Record that the next decision is for `rewind.epoch` (NONE: for any), whatever was decided before."""
        self._append(Rewind(**self._fields(), rewind=rewind))

    def move(self, to: str) -> None:
        """End this log, because a copy of it continues elsewhere: every later START here is refused.

        Raises:
            FencedError: Another writer has started since this one: the copy would lack what that one decides.
        """
        self._append(Moved(**self._fields(), to=to))

    def void(self, epoch: int, proofs: Sequence[str], *, covered: bool = False) -> None:
        """Void the epoch's decision: the target proved that nothing was committed, or a rewind covers it."""
        self._append(Void(**self._fields(), epoch=epoch, proofs=tuple(proofs), covered=covered))

    def replace(self, lost: Sequence[Committable], committables: Sequence[Committable]) -> CommitPermit:
        """Have the decision that waits name other transactions instead of lost ones.

        Args:
            lost: Transactions that it names, each proven not committed.
            committables: Committables of the transactions that hold the same rows.

        Raises:
            LifecycleError: No decision waits.
            FencedError: A newer writer has started.
            DecisionInDoubtError: The store did not answer; the replacement may be durable.
        """
        waiting = self.view.undone
        if waiting is None:
            raise LifecycleError("no decision waits, so there is nothing to replace", pipeline=self.pipeline)
        names = tuple((c.sink, c.transaction) for c in lost)
        self._append(Replace(**self._fields(), epoch=waiting.epoch, lost=names, committables=tuple(committables)))
        permit = self.view.permit()
        if permit is None or permit.decision.start != self.token.start:
            raise self._fenced(f"entry {self.view.start} is a later START, whose writer has finished this epoch")
        return permit

    def resolve(self, epoch: int, transaction: str, *, action: str, who: str, why: str, sink: str = "") -> None:
        """Write the audit record of a transaction that was settled otherwise, or of a sink's target as a whole."""
        fields = {**self._fields(), "epoch": epoch, "transaction": transaction, "sink": sink}
        self._append(Resolved(**fields, action=action, who=who, why=why))

    def bar(self) -> None:
        """Put a START into the slot that this writer's next entry would take: no such entry can exist any more.

        Can be called again after a StoreError.

        Raises:
            FencedError: Something else is in that slot; ask the log again.
            StoreError: The store did not give a definite answer.
        """
        # (2) The slot of this writer's own next entry: once START is there, a put in doubt can no longer win.
        # (3) A repeated call offers the same bytes, for the first put may have happened.
        position = self.token.last + 1
        if self._barring is None or self._barring[0].start != position:
            token = WriterToken(self.token.log, self.policy.token(), position, position)
            self._note_writer(token)
            self._barring = token, encode(Start(**self._fields(token, position)))
        token, data = self._barring
        if not self._offer(key_of(position), data, behind=(self.token.last, self._head)):
            raise self._refused(position)
        self.token, self._head, self._pending, self._barring = (
            token,
            head_of(data),
            None,
            None,
        )  # the START took the slot of what was in doubt
        self._look_at_tail(position)

    def _note_writer(self, token: WriterToken) -> None:
        if self._run_writers is not None:
            self._run_writers.note(token.writer_id, self.view.tail)

    def scope(self, sink: str) -> Scope:
        """Return the owner of a sink's transactions under this log."""
        return Scope(self.pipeline, sink, self.token.log)

    def look(self) -> LogView:
        """Return the view of the log, also without becoming a writer.

        Raises:
            StoreError: The store did not answer.
            LogDamagedError: The store has lost this writer's last entry.
        """
        return self._until_definite(self._read)

    def still_newest(self) -> bool:
        """Return whether no other writer has started since (reads the tail); raises as `look`."""
        self.view = self._read()
        identity = (self.token.log, self.token.writer_id, self.token.start)
        return (self.view.log, self.view.writer_id, self.view.start) == identity

    def _keep_records(self) -> None:
        """Audit records outlive their entries. What is in a view counts; a void entry leaves none."""
        try:
            for entry in self.view.entries:
                if isinstance(entry, Resolved | Void | Replace):
                    self._offer(record_key(entry.position), encode(entry))
        except StoreError as error:
            raise DecisionInDoubtError(
                f"the audit record of lost transactions could not be kept ({text_of(error)}). The decision remains "
                "valid; a restart continues",
                pipeline=self.pipeline,
            ) from error

    def _append(self, entry: Entry) -> None:
        position, data = entry.position, encode(entry)
        # (3) What is in doubt may still take effect: offer the same bytes or nothing.
        if self._pending is not None and self._pending != (position, data):
            raise ProtocolError(
                f"the put of entry {self._pending[0]} is in doubt: nothing else may be offered; restart",
                pipeline=self.pipeline,
            )
        self._pending = (position, data)
        try:
            won = self._offer(key_of(position), data, behind=(self.token.last, self._head))
            refused = None if won else self._refused(position)
            if won:
                self._look_at_tail(position)
        except StoreError as error:
            raise DecisionInDoubtError(
                f"entry {position} of the decision log may or may not be written ({error}). Nothing was aborted; "
                "a restart finds out and finishes or replays the epoch",
                pipeline=self.pipeline,
            ) from error
        if refused is not None:
            # (3) Fenced is a definite answer: another entry has the slot, so nothing is in doubt any more.
            if isinstance(refused, FencedError):
                self._pending = None
            raise refused
        self._pending, self._head = None, head_of(data)
        self.token = msgspec.structs.replace(self.token, last=position)

    def _read(self) -> LogView:
        """Read the log, and believe nothing that is older than what this writer has written.

        With an older view, an epoch could be decided again as soon as the right server is back.
        """
        view = self._read_again_if_mine_is_missing()
        if self._lacks_mine(view):
            raise self._lost(self.token.last, view)
        return view

    def _read_again_if_mine_is_missing(self) -> LogView:
        # Keys are listed first. Before one is read, it may be pruned, and a late START be put there that counts for
        # nothing.
        view = read(self.store)
        return read(self.store) if self._lacks_mine(view) else view

    def _lacks_mine(self, view: LogView) -> bool:
        """Return whether this writer's last entry is missing above the floor, or another one is in its place."""
        last = self.token.last
        there = view.at(last)
        return view.tail < last or (there is not None and there.writer_id != self.token.writer_id)

    def _refused(self, position: int) -> OncewardError:
        """Return why the store took no entry: its place is taken, or the entry before it is not there."""
        if self._until_definite(lambda: self.store.get(key_of(position))) is not None:
            return self._fenced(f"entry {position} was written by another writer")
        view, last = self._until_definite(self._read_again_if_mine_is_missing), self.token.last
        if self._lacks_mine(view):
            return self._lost(last, view)
        if view.tail > last:
            return self._fenced(f"entry {last}, its last one, was pruned")
        raise StoreError(f"{self.store.describe()} had lost entry {last} for a while: was its server replaced?")

    def _lost(self, position: int, view: LogView) -> LogDamagedError:
        return LogDamagedError(
            f"the decision log in {self.store.describe()} has lost entry {position}, which this writer had written: "
            f"the newest is entry {view.tail}. Was a standby promoted that lagged behind, or a backup restored? "
            "Nothing was written behind it. Bring back the server that has the entry, or start the pipeline again: "
            "targets that remember what was committed refuse the older log",
            pipeline=self.pipeline,
        )

    def _offer(self, key: str, data: bytes, *, behind: tuple[int, bytes] = (NONE, b"")) -> bool:
        """Offer the same bytes until the answer is definite: whether they are in the slot.

        Args:
            key: Key of the slot.
            data: Bytes of the entry.
            behind: Position and first line of an entry that must be there. A standby that lags behind does not have it;
                what is put behind a gap, or behind another entry, does not belong to this log.
        """
        return self._until_definite(lambda: self._put(key, data, *behind))

    def _put(self, key: str, data: bytes, position: int, head: bytes) -> bool:
        crash_point(Step.LOG_PUT_BEFORE)
        # (1) The entry before must be there too, or a store that lost it would accept a second history.
        if position == NONE:
            won = self.store.put_if_absent(key, data)
        else:
            won = put_behind(self.store, key, data, key_of(position), head)
        crash_point(Step.LOG_PUT_AFTER)
        # (3) Compare whole bytes: an earlier offer of the same bytes may have won although its answer was lost.
        return won or self.store.get(key) == data

    def _look_at_tail(self, position: int) -> None:
        self.view = view = self.look()
        if view.tail < position:
            raise self._lost(position, view)
        # (4) Below the floor an entry is void: this writer had been fenced before the slot was pruned.
        if self.view.at(position) is None or self.view.log != self.token.log:
            raise self._fenced(f"entry {position} was put below the floor {self.view.floor}: it is void")

    def _until_definite(self, ask: Callable[[], T]) -> T:
        attempt, until = 0, self.policy.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return ask()
            except StoreError as error:
                if not error.retryable or not self.policy.puts.pause(attempt, until - self.policy.monotonic()):
                    raise
                attempt += 1

    def _prune(self, floor: int) -> None:
        """Delete what is below a durable floor, in ascending order; a failure only leaves more for the next time."""
        # (Rule 2) In ascending order, so that what is left after a crash has no gap.
        with suppress(StoreError):
            for key in self.store.list_keys():
                position = position_of(key)
                if position is not None and position < floor:
                    crash_point(Step.LOG_DELETE_BEFORE)
                    self.store.delete(key)
                    crash_point(Step.LOG_DELETE_AFTER)

    def _fields(self, token: WriterToken | None = None, position: int | None = None) -> dict[str, Any]:
        """Return the common fields of the next entry, or of a START under `token`."""
        token = token or self.token
        return {
            "pipeline": self.pipeline,
            "log": token.log,
            "position": token.last + 1 if position is None else position,
            "writer_id": token.writer_id,
            "start": token.start,
            "at": self.policy.now(),
        }

    def _fenced(self, why: str) -> FencedError:
        return FencedError(
            f"a newer writer of this pipeline has started, so this one stops: {why}. Run each pipeline once; if this "
            "is the newer one, stop the other and start again",
            pipeline=self.pipeline,
        )
