"""The file: shelves, the items on them, items that are prepared, and what was committed."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from onceward.core.errors import RetryableSinkError, SinkError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TABLES = """
CREATE TABLE shelves (name TEXT PRIMARY KEY, locked INTEGER NOT NULL DEFAULT 0);
CREATE TABLE items (shelf TEXT NOT NULL, owner TEXT NOT NULL, item TEXT NOT NULL);
CREATE TABLE prepared (name TEXT PRIMARY KEY, shelf TEXT NOT NULL, rows INTEGER NOT NULL, items TEXT NOT NULL);
CREATE TABLE committed (name TEXT PRIMARY KEY);
CREATE TABLE owners (
    pipeline TEXT, sink TEXT, log TEXT NOT NULL, generation INTEGER NOT NULL, epoch INTEGER NOT NULL,
    PRIMARY KEY (pipeline, sink)
);
"""


def create(file: str, *shelves: str) -> None:
    """Make a new file with empty shelves."""
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(f"PRAGMA journal_mode = WAL; {_TABLES}")
        connection.executemany("INSERT INTO shelves (name) VALUES (?)", [[name] for name in shelves])
        connection.commit()


@contextmanager
def transaction(file: str) -> Iterator[sqlite3.Connection]:
    """Run the block in one transaction, which excludes all others, and commit it durably.

    Raises:
        RetryableSinkError: Another process holds the file.
        SinkError: There is no such file, or it is not one of shelves.
    """
    if not Path(file).is_file():
        raise SinkError(f"there is no file {file}")
    try:
        with closing(sqlite3.connect(file, timeout=10, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        kind = RetryableSinkError if "locked" in str(error) else SinkError
        raise kind(f"{file}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise SinkError(f"{file}: {error}") from error
