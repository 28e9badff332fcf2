"""An author's idempotent sink: the newest text of each number, in an SQLite file."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from onceward import IdempotentSink, WriteContext
from onceward.errors import RetryableSinkError

SINK = "TotalsSink"
TABLES = "CREATE TABLE IF NOT EXISTS totals (at INTEGER PRIMARY KEY, n INTEGER UNIQUE, text TEXT);"


@contextmanager
def errors(path: str) -> Iterator[None]:
    """Say that a fault of the file may pass."""
    try:
        yield
    except sqlite3.Error as error:
        raise RetryableSinkError(f"{path}: {error}") from error


class TotalsSink(IdempotentSink[sqlite3.Connection]):
    """An upsert by number."""

    def __init__(self, name: str, path: str, *, select: list[str] | None = None, where: str | None = None) -> None:
        super().__init__(name, select=select, where=where)
        self.path = path

    def open(self, context: WriteContext) -> sqlite3.Connection:  # noqa: ARG002 - signature
        with errors(self.path):
            return sqlite3.connect(self.path, timeout=10, isolation_level=None, check_same_thread=False)

    def write(self, writer: sqlite3.Connection, batch: pa.RecordBatch) -> None:
        upsert = "INSERT INTO totals (n, text) VALUES (?, ?) ON CONFLICT (n) DO UPDATE SET text = excluded.text"
        with errors(self.path):
            if not writer.in_transaction:
                writer.execute("BEGIN IMMEDIATE")
            writer.executemany(upsert, [(row["n"], row["text"]) for row in batch.to_pylist()])
            writer.execute("COMMIT")

    def flush(self, writer: sqlite3.Connection) -> None:
        """Return at once: each write is committed."""

    def close(self, writer: sqlite3.Connection) -> None:
        writer.close()
