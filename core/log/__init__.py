"""The decision log: entries, stores, reading, and writing with fencing."""

from .entries import Completed, Decide, Entry, EpochInput, Moved, Replace, Resolved, Rewind, Rewound, Start, Void
from .reader import audit_records, read
from .run_writers import RunWriters
from .store import DirectoryStore, LogStore, MemoryStore, open_store
from .view import CommitPermit, LogView, fold
from .writer import LogWriter, WriterToken

__all__ = [
    "CommitPermit",
    "Completed",
    "Decide",
    "DirectoryStore",
    "Entry",
    "EpochInput",
    "LogStore",
    "LogView",
    "LogWriter",
    "MemoryStore",
    "Moved",
    "Replace",
    "Resolved",
    "Rewind",
    "Rewound",
    "RunWriters",
    "Start",
    "Void",
    "WriterToken",
    "audit_records",
    "fold",
    "open_store",
    "read",
]
