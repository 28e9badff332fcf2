"""The decision log: entries, stores, reading, and writing with fencing."""

from .clock import WriterClock, wall_clock_text
from .directory import DirectoryStore
from .entries import Completed, Decide, Entry, EpochInput, Resolved, Rewind, Rewound, Start, Void
from .opening import open_store
from .permit import CommitPermit
from .reader import read
from .store import LogStore
from .view import LogView, fold
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
    "Resolved",
    "Rewind",
    "Rewound",
    "Start",
    "Void",
    "WriterClock",
    "WriterToken",
    "fold",
    "open_store",
    "read",
    "wall_clock_text",
]
