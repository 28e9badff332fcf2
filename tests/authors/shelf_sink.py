"""An author's two-phase sink: rows as JSON in a table of an SQLite file, with a ledger beside them."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from onceward import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    TwoPhaseCommitSink,
    WriteContext,
)
from onceward.errors import RetryableSinkError, SchemaError
from onceward.sinks import (
    NOTHING,
    Ledger,
    Observation,
    Progress,
    Remembered,
    RowHash,
    Scope,
    other_log,
    outdated_log,
    parse_transaction_name,
)

TABLES = """
CREATE TABLE IF NOT EXISTS shelf (id INTEGER PRIMARY KEY, item TEXT);
CREATE TABLE IF NOT EXISTS staged (name TEXT, at INTEGER, item TEXT, PRIMARY KEY (name, at));
CREATE TABLE IF NOT EXISTS prepared (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS aborted (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS committed (
    name TEXT PRIMARY KEY, pipeline TEXT, sink TEXT, log TEXT, generation INTEGER, epoch INTEGER,
    released INTEGER DEFAULT 0
);
CREATE TABLE IF NOT EXISTS claims (pipeline TEXT, sink TEXT, log TEXT, PRIMARY KEY (pipeline, sink));
"""
KINDS = (pa.int64(), pa.string(), pa.bool_(), pa.list_(pa.string()))


@contextmanager
def transaction(path: str) -> Iterator[sqlite3.Connection]:
    """One transaction that holds the only right to write; a fault of the file may pass."""
    try:
        with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise RetryableSinkError(f"{path}: {error}") from error


@dataclass
class Writing:
    """What is being written."""

    context: WriteContext
    name: str
    items: list[str] = field(default_factory=list)
    hash: RowHash = field(default_factory=RowHash)


class ShelfSink(TwoPhaseCommitSink[Writing]):
    """Prepared: rows in the table `staged`. Committed: moved to the table `shelf`, in one transaction with a proof."""

    def __init__(self, name: str, path: str, *, select: list[str] | None = None, where: str | None = None) -> None:
        super().__init__(name, select=select, where=where)
        self.path = path

    def validate(self, schema: pa.Schema) -> None:
        for column in schema:
            if column.type not in KINDS:
                raise SchemaError(f"column {column.name}: the shelf takes no {column.type}")

    def begin(self, context: WriteContext) -> Writing:
        return Writing(context, str(context.transaction_name()))

    def write(self, transaction: Writing, batch: pa.RecordBatch) -> None:
        items = [json.dumps(row) for row in batch.to_pylist()]
        transaction.items += items
        transaction.hash.add(pa.RecordBatch.from_pydict({"item": items}))

    def pre_commit(self, writing: Writing) -> Committable:  # type: ignore[override]
        with transaction(self.path) as connection:
            rows = [(writing.name, at, item) for at, item in enumerate(writing.items)]
            connection.executemany("INSERT INTO staged VALUES (?, ?, ?)", rows)
            connection.execute("INSERT INTO prepared VALUES (?)", [writing.name])
        return writing.context.committable(
            kind="shelf", transaction=writing.name, rows=len(writing.items), proof=writing.hash.proof()
        )

    def commit(self, committable: Committable) -> CommitOutcome:
        name = committable.transaction
        with transaction(self.path) as connection:
            state = self.state(connection, name)
            if state is Observation.COMMITTED:
                return CommitOutcome(CommitStatus.ALREADY_COMMITTED)
            if state is Observation.ABORTED:
                return CommitOutcome(CommitStatus.LOST)
            if state is not Observation.PREPARED:
                return CommitOutcome(CommitStatus.UNKNOWN)
            staged = connection.execute("SELECT count(*) FROM staged WHERE name = ?", [name]).fetchone()[0]
            if staged != committable.rows:
                return CommitOutcome(CommitStatus.UNKNOWN, f"{staged} of {committable.rows} rows are left")
            connection.execute("INSERT INTO shelf (item) SELECT item FROM staged WHERE name = ? ORDER BY at", [name])
            connection.execute(
                "INSERT INTO committed (name, pipeline, sink, log, generation, epoch) VALUES (?, ?, ?, ?, ?, ?)",
                [name, *committable.scope, committable.generation, committable.epoch],
            )
            self.clear(connection, name)
        return CommitOutcome(CommitStatus.COMMITTED)

    def abort(self, committable: Committable) -> AbortOutcome:
        name = committable.transaction
        with transaction(self.path) as connection:
            state = self.state(connection, name)
            if state is Observation.COMMITTED:
                return AbortOutcome(AbortStatus.COMMITTED)
            self.clear(connection, name)
            connection.execute("INSERT OR IGNORE INTO aborted VALUES (?)", [name])
        return AbortOutcome(AbortStatus.ABORTED)

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        with transaction(self.path) as connection:
            return [self.state(connection, one.transaction) for one in committables]

    def lingering(self, scope: Scope) -> list[Committable]:
        return [one for one in self.prepared() if (one.pipeline, one.sink) == (scope.pipeline, scope.sink)]

    def lingering_elsewhere(self, pipeline: str, log: str) -> list[Committable]:
        return [one for one in self.prepared() if (one.pipeline, one.log) == (pipeline, log)]

    def prepared(self) -> list[Committable]:
        """List all that is prepared, by whoever."""
        with transaction(self.path) as connection:
            names = [parse_transaction_name(name) for (name,) in connection.execute("SELECT name FROM prepared")]
        return [Committable.named("shelf", name) for name in names if name is not None]

    def state(self, connection: sqlite3.Connection, name: str) -> Observation:
        """Return what the file shows of a transaction."""
        tables = {"committed": Observation.COMMITTED, "prepared": Observation.PREPARED, "aborted": Observation.ABORTED}
        for table, state in tables.items():
            if connection.execute(f"SELECT 1 FROM {table} WHERE name = ?", [name]).fetchone():
                return state
        return Observation.UNKNOWN

    def clear(self, connection: sqlite3.Connection, name: str) -> None:
        """Delete what was prepared."""
        connection.execute("DELETE FROM staged WHERE name = ?", [name])
        connection.execute("DELETE FROM prepared WHERE name = ?", [name])

    def ledger(self) -> "ShelfLedger":
        return ShelfLedger(self.path)


class ShelfLedger(Ledger):
    """Which log owns the names, and how far it had come."""

    def __init__(self, path: str) -> None:
        self.path = path

    def check_claim(self, scope: Scope, newest: Progress) -> Remembered | None:
        with transaction(self.path) as connection:
            owner = self.owner(connection, scope)
            known = self.known(connection, scope)
        if owner not in (None, scope.log):
            raise other_log(scope, str(owner), self.path)
        if known > newest:
            raise outdated_log(scope, known, newest, self.path)
        return Remembered(owned=owner == scope.log, progress=known)

    def claim(self, scope: Scope) -> None:
        with transaction(self.path) as connection:
            connection.execute("INSERT OR IGNORE INTO claims VALUES (?, ?, ?)", scope)
            owner = self.owner(connection, scope)
        if owner != scope.log:
            raise other_log(scope, str(owner), self.path)

    def release(self, scope: Scope) -> None:
        with transaction(self.path) as connection:
            connection.execute("DELETE FROM claims WHERE pipeline = ? AND sink = ? AND log <> ?", scope)
            connection.execute("UPDATE committed SET released = 1 WHERE pipeline = ? AND sink = ?", scope[:2])

    def completed(self, scope: Scope, epoch: int) -> None:
        with transaction(self.path) as connection:
            known = self.known(connection, scope)
            connection.execute(
                "DELETE FROM committed WHERE pipeline = ? AND sink = ? AND log = ? AND epoch < ?",
                [*scope, min(epoch, known.epoch)],
            )

    def forget(self, scope: Scope) -> None:
        with transaction(self.path) as connection:
            connection.execute("DELETE FROM claims WHERE pipeline = ? AND sink = ? AND log = ?", scope)

    def owner(self, connection: sqlite3.Connection, scope: Scope) -> str | None:
        """Return the log that owns the names."""
        found = connection.execute("SELECT log FROM claims WHERE pipeline = ? AND sink = ?", scope[:2]).fetchone()
        return found[0] if found else None

    def known(self, connection: sqlite3.Connection, scope: Scope) -> Progress:
        """Return the newest commit of the log since its last rewind."""
        found = connection.execute(
            "SELECT generation, epoch FROM committed WHERE pipeline = ? AND sink = ? AND log = ? AND released = 0",
            scope,
        ).fetchall()
        return max((Progress(*row) for row in found), default=NOTHING)
