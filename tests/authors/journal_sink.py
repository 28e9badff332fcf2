"""An author's direct sink: rows are appended to a table of an SQLite file, and repeated after a failure."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pyarrow as pa

from onceward import DirectSink, WriteContext
from onceward.errors import RetryableSinkError

SINK = "JournalSink"
TABLES = "CREATE TABLE IF NOT EXISTS totals (at INTEGER PRIMARY KEY, n INTEGER, text TEXT);"


@contextmanager
def errors(path: str) -> Iterator[None]:
    """Say that a fault of the file may pass."""
    try:
        yield
    except sqlite3.Error as error:
        raise RetryableSinkError(f"{path}: {error}") from error


class JournalSink(DirectSink[list[tuple[int, str]]]):
    """Rows wait in a list until the end of the epoch."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        self.path = path

    def open(self, context: WriteContext) -> list[tuple[int, str]]:  # noqa: ARG002 - signature
        return []

    def write(self, writer: list[tuple[int, str]], batch: pa.RecordBatch) -> None:
        writer += [(row["n"], row["text"]) for row in batch.to_pylist()]

    def flush(self, writer: list[tuple[int, str]]) -> None:
        with errors(self.path), closing(sqlite3.connect(self.path, timeout=10)) as connection, connection:
            connection.executemany("INSERT INTO totals (n, text) VALUES (?, ?)", writer)
