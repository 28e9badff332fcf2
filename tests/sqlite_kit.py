"""A database in a SQLite file, and what its sink writes there."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from onceward.connectors.database.sink import DatabaseSink, SqlAlchemySink
from onceward.core.contract.transaction import Committable, WriteContext

if TYPE_CHECKING:
    from pathlib import Path

LOG = "0123abcd"
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


class Database:
    """One file, and a look into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.run("CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT)")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement).fetchall()

    def rows(self, path: Path | None = None) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path or self.path)) as connection:
            return connection.execute("SELECT * FROM words ORDER BY id").fetchall()

    def sink(self, **settings: Any) -> SqlAlchemySink:
        return SqlAlchemySink("words", **{"url": self.url, "table": "words", **settings})


def context(epoch: int = 1, subtask: int = 0, **fields: Any) -> WriteContext:
    given = {"pipeline": "orders", "sink": "words", "log": LOG, "generation": 3, "attempt": 0, **fields}
    return WriteContext(epoch=epoch, subtask=subtask, **given)


def words(first: int, count: int = 3, word: str = "w") -> pa.RecordBatch:
    ids = list(range(first, first + count))
    return pa.record_batch([ids, [f"{word}{number}" for number in ids]], schema=SCHEMA)


def write(sink: DatabaseSink, where: WriteContext, *batches: pa.RecordBatch) -> Committable:
    transaction = sink.begin(where)
    for batch in batches:
        sink.write(transaction, batch)
    return sink.pre_commit(transaction)


def expected(first: int, count: int = 3, word: str = "w") -> list[tuple[int, str]]:
    return [(number, f"{word}{number}") for number in range(first, first + count)]
