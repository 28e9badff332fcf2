"""Read a decision log, and its audit records, out of its store.

Readers ignore whatever is below the newest COMPLETED entry's floor: a writer that slept through the pruning may have
put something into a hole there (log rule 2). From the floor to the tail there is no gap; one that is seen comes from
entries that were written or pruned while the keys were listed, so the listing is repeated. It is repeated for an entry
that cannot be right, too, if the log has changed meanwhile: it may be such a void one, in a slot that was pruned after
it had been listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import LogDamagedError
from .entries import Completed, Entry, Replace, Resolved, Void, decode, key_of, position_of, position_of_record
from .view import LogView, fold

if TYPE_CHECKING:
    from .store import LogStore

_LISTINGS = 20


def read(store: LogStore) -> LogView:
    """What the log says now.

    Raises:
        StoreError: The store did not answer.
        LogDamagedError: An entry is damaged or missing.
    """
    problem = ""
    for _ in range(_LISTINGS):
        positions = _positions(store)
        try:
            entries, problem = _from_tail(store, positions)
            if not problem:
                return fold(entries, entries[0].position if entries else 0)
        except LogDamagedError as damage:
            if _positions(store) == positions:
                raise
            problem = damage.message
    raise LogDamagedError(f"the decision log in {store.describe()} has a gap: {problem}")


def audit_records(store: LogStore) -> list[Resolved | Void | Replace]:
    """What was given up, and on whose word (invariant 8), oldest first.

    RESOLVED, VOID and REPLACE are entries of the log like any other and are pruned with their epoch. Before an epoch is
    completed its writer copies them to keys beside the entries, which are never pruned.

    Raises:
        StoreError: The store did not answer.
        LogDamagedError: A record is damaged.
    """
    keys = [(key, position) for key in store.list_keys() if (position := position_of_record(key)) is not None]
    entries = (decode(store.get(key) or b"", position) for key, position in keys)
    return [entry for entry in entries if isinstance(entry, Resolved | Void | Replace)]


def _positions(store: LogStore) -> list[int]:
    return sorted(p for p in map(position_of, store.list_keys()) if p is not None)


def _from_tail(store: LogStore, positions: list[int]) -> tuple[list[Entry], str]:
    """Entries from the floor up, or what is wrong with the listing."""
    entries: list[Entry] = []
    floor = None
    for position in reversed(positions):
        if floor is not None and position < floor:
            break
        if entries and position != entries[-1].position - 1:
            break
        data = store.get(key_of(position))
        if data is None:
            return [], f"entry {position} was listed and is gone"
        entry = decode(data, position)
        if floor is None and isinstance(entry, Completed):
            floor = entry.floor
        entries.append(entry)
    lowest = entries[-1].position if entries else 0
    if lowest > (floor or 0):
        return [], f"entry {lowest - 1} is missing and not below the floor {floor or 0}"
    return entries[::-1], ""
