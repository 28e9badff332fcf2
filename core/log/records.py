"""Audit records: what was given up, and on whose word (invariant 8).

RESOLVED is an entry of the log like any other and is pruned with its epoch. Before its epoch is completed it is copied
to a key beside the entries, which is never pruned. Only a writer that is still the newest gets that far, with entries
that count, so a void one (PROTOCOL, decision log, addition 2) leaves no record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .entries import Resolved, decode, key_of

if TYPE_CHECKING:
    from .store import LogStore

_MARK = "R"


def record_key(position: int) -> str:
    """Key of the record of a RESOLVED entry: as long as an entry's, and no number."""
    return _MARK + key_of(position)[1:]


def audit_records(store: LogStore) -> list[Resolved]:
    """All records, oldest first.

    Raises:
        StoreError: The store did not answer.
        LogDamagedError: A record is damaged.
    """
    records = []
    for key in store.list_keys():
        data = store.get(key) if key.startswith(_MARK) else None
        entry = decode(data, int(key.removeprefix(_MARK))) if data is not None else None
        if isinstance(entry, Resolved):
            records.append(entry)
    return records
