"""Delete entries that nobody reads any more.

Only what is below a durable floor goes, in ascending order (PROTOCOL, decision log, addition 2). Audit records stay for
ever: they say which data were given up (invariant 8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import StoreError
from ..steps import Step, reach
from .entries import Entry, Resolved, position_of
from .reader import entry_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .store import LogStore


def prune(store: LogStore, floor: int, known: Mapping[int, Entry], records: set[int]) -> None:
    """Delete what is below the floor; a failure only leaves more for the next time.

    Args:
        store: Of the log.
        floor: A durable one.
        known: Entries that need not be read again, by position.
        records: Positions of audit records; those that are met are added.
    """
    try:
        for key in store.list_keys():
            position = position_of(key)
            if position is None or position >= floor or position in records:
                continue
            if isinstance(known.get(position) or entry_at(store, position), Resolved):
                records.add(position)
                continue
            reach(Step.LOG_DELETE_BEFORE)
            store.delete(key)
            reach(Step.LOG_DELETE_AFTER)
    except StoreError:
        return
