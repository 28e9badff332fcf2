"""Audit records: what was given up, and on whose word (invariant 8).

RESOLVED and VOID are entries of the log like any other and are pruned with their epoch. Before an epoch is completed
they are copied to keys beside the entries, which are never pruned. What is copied is in a view of the log, so it
counts: an entry below the floor (PROTOCOL, decision log, addition 2) is in no view and leaves no record.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .entries import Resolved, Void, decode, key_of

if TYPE_CHECKING:
    from .store import LogStore

_KEY = re.compile("R([0-9]{19})")


def record_key(position: int) -> str:
    """Key of the record of an entry: as long as an entry's, and no number."""
    return f"R{key_of(position)[1:]}"


def audit_records(store: LogStore) -> list[Resolved | Void]:
    """All records, oldest first.

    Raises:
        StoreError: The store did not answer.
        LogDamagedError: A record is damaged.
    """
    found = {key: int(match[1]) for key in store.list_keys() if (match := _KEY.fullmatch(key))}
    entries = (decode(store.get(key) or b"", position) for key, position in found.items())
    return [entry for entry in entries if isinstance(entry, Resolved | Void)]
