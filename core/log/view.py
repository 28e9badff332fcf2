"""What the decision log says: a pure fold over its entries.

State after a restart is derived from this and from nothing a process remembers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from ..contract.names import NOTHING, Progress
from ..contract.proof import Proofs
from ..errors import EpochConflictError, LifecycleError, LogDamagedError
from .entries import Completed, Decide, Entry, EpochInput, Moved, Replace, Resolved, Rewind, Rewound, Start, Void
from .sink_progress import newest_commits, reached_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..contract.names import Reached
    from ..contract.transaction import Committable

NONE = -1
"""No position, or no epoch."""


@dataclass(frozen=True)
class LogView:
    """The log as one reader saw it at one instant.

    Attributes:
        pipeline: Name of the pipeline whose log it is; empty for an empty log.
        log: Identity of the log; empty for an empty log.
        tail: Position of the newest entry; NONE for an empty log.
        floor: Entries below it are void.
        writer_id: Identity of the newest START's writer.
        start: Position of the newest START, which may itself be pruned.
        decided: Newest decided epoch, the one that the next must follow; NONE if any epoch may come.
        completed: Newest epoch whose transactions have all ended.
        newest: The decision of `decided`, if it is still in the log.
        undone: The decision that is not completed, if there is one (a writer decides only after completing).
        taken_back: A decision that was not completed when a REWIND covered it: it will never be committed, and what is
            prepared of it must be ended before the next decision.
        skipped: Transactions that RESOLVED entries exempt from the undone decision.
        rewound: True if a REWIND is newer than any decision.
        awaited: The only epoch that a REWIND or a VOID lets be decided next; NONE if none of them said so.
        before: Input that the next decision's must go on from; None if that is not known.
        rewind: The newest rewind that was done, whether decisions have followed it or not.
        claimed: Sinks that have claimed their names for this log since the rewind.
        reached: The newest commit of each sink since the rewind, as its target must know it.
        finished: Progress of the completed decisions.
        moved: Location where the log goes on; empty if it does here.
        proofs: Proofs of what the completed decisions wrote.
        entries: Entries of the log from the floor up.
        head: First line of the newest entry's bytes; empty if this was not read from a store.
    """

    pipeline: str = ""
    log: str = ""
    tail: int = NONE
    floor: int = 0
    writer_id: str = ""
    start: int = NONE
    decided: int = NONE
    completed: int = NONE
    newest: Decide | None = None
    undone: Decide | None = None
    taken_back: Decide | None = None
    skipped: frozenset[str] = frozenset()
    rewound: bool = False
    awaited: int = NONE
    before: EpochInput | None = None
    rewind: Rewound | None = None
    claimed: frozenset[str] = frozenset()
    reached: Mapping[str, Reached] = field(default_factory=dict)
    finished: Progress = NOTHING
    moved: str = ""
    proofs: Proofs = field(default_factory=Proofs)
    entries: tuple[Entry, ...] = ()
    head: bytes = b""

    @property
    def progress(self) -> Progress:
        """Writer and epoch of the newest decision that stands."""
        return _progress(self.undone) if self.undone is not None else self.finished

    @property
    def decisions(self) -> list[tuple[Decide, Completed | None]]:
        """The decisions that are not void, oldest first, each with its COMPLETED."""
        pairs: list[tuple[Decide, Completed | None]] = []
        for entry in self.entries:
            if isinstance(entry, Decide):
                pairs.append((entry, None))
            elif isinstance(entry, Replace):
                pairs[-1:] = [(_replaced(decision, entry), None) for decision, _ in pairs[-1:]]
            elif isinstance(entry, Completed):
                pairs[-1:] = [(decision, entry) for decision, _ in pairs[-1:]]
            elif isinstance(entry, Void):
                del pairs[-1:]
        return pairs

    def permit(self) -> CommitPermit | None:
        """Return the permit for the decision that waits to be finished."""
        return CommitPermit(self) if self.undone is not None else None

    def named(self, committable: Committable) -> Committable | None:
        """Return the committable by which the newest decision names this transaction; None if it does not.

        While the decision waits, the name alone counts: it is not used again before COMPLETED, and a target's listing
        may know less of a handle than its writer did. Later the name may be in use again, so the handle counts too.
        """
        return self._named.get(self._key(committable))

    @cached_property
    def _named(self) -> dict[tuple[str, ...], Committable]:
        decided = self.newest.committables if self.newest is not None else ()
        return {self._key(c): c for c in decided}

    def _key(self, committable: Committable) -> tuple[str, ...]:
        return committable.identity() if self.undone is None else (committable.sink, committable.transaction)

    def at(self, position: int) -> Entry | None:
        """Return the entry at a position, if it is there and not void."""
        return next((entry for entry in self.entries if entry.position == position), None)


class CommitPermit:
    """Proof that an epoch's decision is durable (invariant 1): it is made of what was read out of the decision log.

    A function that commits takes one, so that no path commits without a decision.
    """

    __slots__ = ("decision",)

    def __init__(self, view: LogView) -> None:
        if view.undone is None:
            raise LifecycleError("a commit permit is made of a decision that waits in the decision log")
        self.decision = view.undone

    def committables(self, sink: str) -> tuple[Committable, ...]:
        """Return the committables that this permit allows to be committed in one sink."""
        return tuple(item for item in self.decision.committables if item.sink == sink)


def fold(entries: Iterable[Entry], floor: int = 0) -> LogView:
    """Read a log's entries, in order of position and none of them below the floor.

    Raises:
        LogDamagedError: The entries cannot have been written by the rules.
    """
    view, entries = LogView(floor=floor), tuple(entries)
    for entry in entries:
        if view.log and entry.log != view.log:
            raise LogDamagedError(
                f"entry {entry.position} belongs to another decision log ({entry.log}, not {view.log})"
            )
        # Every entry names its writer: the START itself may be pruned.
        view = replace(
            _step(view, entry), log=entry.log, tail=entry.position, writer_id=entry.writer_id, start=entry.start
        )
    return replace(view, pipeline=entries[0].pipeline if entries else "", entries=entries)


def _step(view: LogView, entry: Entry) -> LogView:  # noqa: PLR0911 - one for each kind of entry
    match entry:
        case Start():
            return view
        case Decide():
            return _decide(view, entry)
        # (Rule 3) The only proof that the transactions have ended.
        case Completed():
            return _complete(view, entry)
        case Rewind():
            before = max(entry.rewind.epoch - 1, NONE)
            return replace(
                view,
                decided=before,
                completed=before,
                newest=None,
                undone=None,
                taken_back=view.undone or view.taken_back,
                skipped=frozenset(),
                rewound=True,
                awaited=entry.rewind.epoch,
                before=None,
                rewind=entry.rewind,
                claimed=frozenset(),
                reached={},
            )
        # The decision is taken back with its proof; the same epoch comes next, from the same input (invariant 5).
        case Void():
            return _void(view, entry)
        case Replace():
            return _replace(view, entry)
        case Resolved() if entry.sink:
            reached = {sink: at for sink, at in view.reached.items() if sink != entry.sink}
            return replace(view, claimed=view.claimed - {entry.sink}, reached=reached)
        case Resolved():
            return _resolve(view, entry)
        # From here on every START in this log is refused: the copy owns the names.
        case Moved():
            return replace(view, moved=entry.to)


def _decide(view: LogView, entry: Decide) -> LogView:
    # (Rule 4) A writer decides only after COMPLETED, so two decisions that wait were never written by the rules.
    open_ = view.undone or view.taken_back
    if open_ is not None:
        raise LogDamagedError(
            f"entry {entry.position} decides epoch {entry.epoch} while epoch {open_.epoch} is not completed"
        )
    # (Invariant 9) A decision names no transaction of another pipeline or log.
    identity = (entry.pipeline, entry.log)
    strange = next((c.transaction for c in entry.committables if (c.pipeline, c.log) != identity), None)
    if strange is not None:
        raise LogDamagedError(f"entry {entry.position} decides {strange!r}, a transaction of another decision log")
    pruned = entry.follows is not None and view.decided == NONE  # the decision that it follows may be
    if not (pruned or may_follow(view, entry.epoch, entry.follows)):
        raise LogDamagedError(f"entry {entry.position} decides epoch {entry.epoch} after epoch {view.decided}")
    return replace(
        view,
        decided=entry.epoch,
        newest=entry,
        undone=entry,
        before=entry.input,
        skipped=frozenset(),
        rewound=False,
        awaited=NONE,
        rewind=entry.rewind,
        reached=reached_by(entry),
    )


def _resolve(view: LogView, entry: Resolved) -> LogView:
    """Note that a transaction is given up; the target of its sink need not have a completed epoch of it any more."""
    completed = view.newest.committables if view.newest is not None and view.undone is None else ()
    sinks = {c.sink for c in completed if c.transaction == entry.transaction}
    reached = {sink: at for sink, at in view.reached.items() if sink not in sinks}
    return replace(view, skipped=view.skipped | {entry.transaction}, reached=reached)


def _void(view: LogView, entry: Void) -> LogView:
    if entry.covered:
        return replace(view, taken_back=None)
    voided = view.undone.input if view.undone is not None else None
    return replace(
        view,
        decided=entry.epoch - 1,
        newest=None,
        undone=None,
        skipped=frozenset(),
        awaited=entry.epoch,
        before=EpochInput(query=voided.query, end=voided.start) if voided is not None else None,
    )


def _replace(view: LogView, entry: Replace) -> LogView:
    # Only a decision that waits can name other transactions: a completed one has been committed.
    if view.undone is None or view.undone.epoch != entry.epoch:
        raise LogDamagedError(
            f"entry {entry.position} replaces transactions of epoch {entry.epoch}, which does not wait to be completed"
        )
    decision = _replaced(view.undone, entry)
    return replace(view, newest=decision, undone=decision)


def _replaced(decision: Decide, entry: Replace) -> Decide:
    """Return the decision with the transactions that it names now, as if the replacing writer had made it.

    Targets remember the generation of the newest commit, which is that of the replacements.
    """
    lost = set(entry.lost)
    kept = [c for c in decision.committables if (c.sink, c.transaction) not in lost]
    return msgspec.structs.replace(decision, committables=(*kept, *entry.committables), start=entry.start)


def _complete(view: LogView, entry: Completed) -> LogView:
    if view.undone is not None and view.undone.epoch != entry.epoch:
        raise LogDamagedError(
            f"entry {entry.position} completes epoch {entry.epoch}, but epoch {view.undone.epoch} is the one decided"
        )
    done, floor = view.undone, max(view.floor, entry.floor)
    if done is None:
        return replace(view, completed=entry.epoch, floor=floor)
    claimed = view.claimed | set(done.sinks if entry.claimed is None else entry.claimed)
    before = done.proofs if done.proofs is not None else Proofs(whole=False)
    # (Rule H) What was given up does not count as reached: the target need not have it.
    committed = [c for c in done.committables if c.transaction not in view.skipped]
    proofs = before.plus([(c.epoch, c.sink, c.wrote()) for c in committed], done.input.start, done.input.end)
    return replace(
        view,
        completed=entry.epoch,
        undone=None,
        floor=floor,
        claimed=claimed,
        reached={**view.reached, **newest_commits(committed)},
        finished=_progress(done),
        proofs=proofs,
    )


def _progress(decision: Decide) -> Progress:
    return Progress(decision.start, decision.epoch)


def _next_epoch(view: LogView) -> int | None:
    """Return the only epoch that may be decided next; None if any may."""
    if view.awaited != NONE:
        return view.awaited
    return view.decided + 1 if view.decided != NONE else None


def may_follow(view: LogView, epoch: int, follows: int | None = None) -> bool:
    """Return whether the epoch may be decided next; with gaps if it names the one that it follows."""
    if follows is not None and view.awaited == NONE:
        return follows == view.decided < epoch
    return _next_epoch(view) in (None, epoch)


def check_next(view: LogView, epoch: int, follows: int | None = None) -> None:
    """Check that `epoch` may be decided next (log rules 4 and 5); with gaps if it names the one that it follows.

    Raises:
        EpochConflictError: A decision is still to be completed, or another epoch is next.
    """
    open_ = view.undone or view.taken_back
    if open_ is not None:
        raise EpochConflictError(
            f"epoch {open_.epoch} is decided and not completed; it must be finished first",
            pipeline=view.pipeline,
            epoch=epoch,
        )
    if not may_follow(view, epoch, follows):
        expected = _next_epoch(view) if follows is None else f"a later one that follows {view.decided}"
        raise EpochConflictError(
            f"the newest decided epoch is {view.decided}, so only epoch {expected} can be decided next. "
            "The checkpoint probably does not belong to this pipeline name. Use the checkpoint that does, give the "
            "pipeline another name, or go back on purpose with rewind='…'",
            pipeline=view.pipeline,
            epoch=epoch,
        )
