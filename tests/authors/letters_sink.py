"""An author's sink on a write-ahead log: letters in a mailbox (SQLite), which knows the letters that it has."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from onceward import WriteAheadLogSink
from onceward.errors import RetryableSinkError
from onceward.sinks import Delivery

TABLES = """
CREATE TABLE IF NOT EXISTS letters (id TEXT, rows TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS once ON letters (id);
"""


class LettersSink(WriteAheadLogSink):
    """Each delivery is a letter under its identity, and a letter that is there is not put there again."""

    remembers = True

    def __init__(self, name: str, folder: str | Path, mailbox: str) -> None:
        super().__init__(name, folder, rows_per_send=3)
        self.mailbox = mailbox

    def send(self, rows: pa.RecordBatch, delivery: Delivery) -> None:
        letter = json.dumps(rows.to_pylist())
        try:
            with closing(sqlite3.connect(self.mailbox, timeout=5)) as connection, connection:
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("INSERT OR IGNORE INTO letters VALUES (?, ?)", [str(delivery), letter])
        except sqlite3.Error as error:
            raise RetryableSinkError(f"{self.mailbox}: {error}") from error
