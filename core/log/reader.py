"""Read a decision log, and its audit records, out of its store.

Readers ignore whatever is below the newest COMPLETED entry's floor: a writer that slept through the pruning may have
put something into a hole there (log rule 2). From the floor to the tail there is no gap; one that is seen comes from
entries that were written or pruned while the keys were listed, so the listing is repeated. It is repeated for an entry
that cannot be right, too, if the log has changed meanwhile: it may be such a void one, in a slot that was pruned after
it had been listed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import LogDamagedError
from .entries import (
    Completed,
    Decide,
    Entry,
    Replace,
    Resolved,
    Start,
    Void,
    decode_entry,
    head_of,
    key_of,
    position_of,
    position_of_record,
)
from .view import LogView, fold

if TYPE_CHECKING:
    from .store import LogStore

_LISTINGS = 20


def read(store: LogStore) -> LogView:
    """Read the log as it is now.

    Raises:
        StoreError: The store did not answer.
        LogDamagedError: An entry is damaged or missing.
    """
    problem = ""
    for _ in range(_LISTINGS):
        positions = _positions(store)
        try:
            entries, head, problem = _from_tail(store, positions)
            if not problem:
                return replace(fold(entries, entries[0].position if entries else 0), head=head)
        except LogDamagedError as damage:
            # Damage counts only if the log stood still: a void entry may have been read in a slot pruned meanwhile.
            if _positions(store) == positions:
                raise
            problem = damage.message
    raise LogDamagedError(
        f"the decision log in {store.describe()} has a gap: {problem}. Did its server fail over? `onceward repair-log` "
        "says whether the entries that are left suffice"
    )


def read_behind_gap(store: LogStore) -> LogView:
    """Read the log behind a gap, if its entries there say all that counts; an empty view for an empty log.

    A store's server that failed over may have lost the newest entries, and a writer that was at work may have put its
    next one behind them. If that is a decision, nothing is unknown: it was made after the epoch before it had been
    completed, and it holds what outlives pruning: the input, the progress of each sink, the proofs and the rewind.

    Raises:
        StoreError: The store did not answer.
        LogDamagedError: There is no gap, or what is behind it does not say enough.
    """
    for _ in range(_LISTINGS):
        positions = _positions(store)
        entries, head, floor, problem = _without_gap(store, positions)
        if not problem and _positions(store) == positions:
            break
    else:
        raise LogDamagedError(f"the decision log in {store.describe()} keeps changing: stop the pipeline first")
    if not entries:
        return LogView()
    lowest = entries[0].position
    if lowest <= floor:
        raise LogDamagedError(f"the decision log in {store.describe()} has no gap: there is nothing to repair")
    if not isinstance(entries[0], Decide):
        kind = type(entries[0]).__name__.upper()
        raise LogDamagedError(
            f"the decision log in {store.describe()} has a gap below entry {lowest}, and that entry ({kind}) does not "
            "say what was decided before it. Bring back the server or the copy that has the missing entries. If there "
            "is none, give the pipeline a new store, and go back on purpose with rewind='why'"
        )
    return replace(fold(entries, lowest), head=head)


def audit_records(store: LogStore) -> list[Resolved | Void | Replace]:
    """Return the records of transactions that were given up, with who decided it (invariant 8), oldest first.

    RESOLVED, VOID and REPLACE are entries of the log like any other and are pruned with their epoch. Before an epoch is
    completed its writer copies them to keys beside the entries, which are never pruned.

    Raises:
        StoreError: The store did not answer.
        LogDamagedError: A record is damaged.
    """
    keys = [(key, position) for key in store.list_keys() if (position := position_of_record(key)) is not None]
    entries = (decode_entry(store.get(key) or b"", position) for key, position in keys)
    return [entry for entry in entries if isinstance(entry, Resolved | Void | Replace)]


def _positions(store: LogStore) -> list[int]:
    return sorted(p for p in map(position_of, store.list_keys()) if p is not None)


def _from_tail(store: LogStore, positions: list[int]) -> tuple[list[Entry], bytes, str]:
    """Return the entries from the floor up, the first line of the newest, and what is wrong with the listing."""
    entries, head, floor, problem = _without_gap(store, positions)
    lowest = entries[0].position if entries else 0
    if not problem and lowest > floor:
        return [], b"", f"entry {lowest - 1} is missing and not below the floor {floor}"
    return entries, head, problem


def _without_gap(store: LogStore, positions: list[int]) -> tuple[list[Entry], bytes, int, str]:
    """Return the entries from the floor, or from the newest gap, up; with the floor. The rest is as in `_from_tail`."""
    entries: list[Entry] = []
    floor, head = None, b""
    for position in reversed(positions):
        # (Rule 2) Void, whatever is there: a writer that slept may have filled a slot that was pruned.
        if floor is not None and position < floor:
            break
        if entries and position != entries[-1].position - 1:
            break
        data = store.get(key_of(position))
        # Pruned between the listing and this read: list again.
        if data is None:
            return [], b"", 0, f"entry {position} was listed and is gone"
        entry = decode_entry(data, position)
        if floor is None and (isinstance(entry, Completed) or (isinstance(entry, Start) and entry.floor)):
            floor = entry.floor
        head = head or head_of(data)
        entries.append(entry)
    return entries[::-1], head, floor or 0, ""
