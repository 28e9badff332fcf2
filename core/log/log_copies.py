"""Copies of a decision log, with which a pipeline goes on at another place.

A copy is consistent if it is made under a START of the one who copies, which is still the newest afterwards: nothing
can be decided between the last entry and the end of the copying. MOVED then ends the old log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigurationError, EpochConflictError
from .entries import Moved, key_of, position_of, position_of_record
from .reader import read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .store import LogStore
    from .view import LogView


def entries_of(store: LogStore, view: LogView) -> Iterable[tuple[str, bytes]]:
    """Read what a copy of the log needs, by keys, oldest first: its valid entries less MOVED, and all audit records.

    Raises:
        EpochConflictError: An entry is gone, so a writer is at work.
        StoreError: The store did not answer.
    """
    keys = {key_of(entry.position) for entry in view.entries if not isinstance(entry, Moved)}
    keys |= {key for key in store.list_keys() if position_of(key) is None and position_of_record(key) is not None}
    for key in sorted(keys):
        data = store.get(key)
        if data is None:
            raise EpochConflictError(
                f"entry {key} of the decision log in {store.describe()} disappeared: the pipeline is running. Stop it, "
                "and wait until its process has ended; then repeat this"
            )
        yield key, data


def put_entries(store: LogStore, entries: Iterable[tuple[str, bytes]], place: str) -> None:
    """Put a copy of a log into a store; entries that are there already are left as they are.

    Args:
        store: Store of the copy.
        entries: Entries of the log, as `entries_of` reads them.
        place: Location of the store, for messages.

    Raises:
        ConfigurationError: The store holds another log.
        StoreError: The store did not answer, or the copy cannot be read.
    """
    for key, data in entries:
        if not store.put_if_absent(key, data) and store.get(key) != data:
            raise ConfigurationError(f"{place} holds other entries of a decision log: give a new or an empty folder")
    read(store)
