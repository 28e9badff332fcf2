"""Rows are prepared in a table of their own, and a commit moves them to their shelf and records that it did."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onceward.core.contract.names import NOTHING, Remembered, other_log, outdated_log, parse_transaction_name
from onceward.core.contract.row_hash import covers
from onceward.core.errors import ConfigurationError, RetryableSinkError, SchemaError
from onceward.sinks import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Ledger,
    Observation,
    RowHash,
    TwoPhaseCommitSink,
)

from .database import transaction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from onceward.core.contract.names import Progress, Scope
    from onceward.sinks import WriteContext

KIND = "shelf"


@dataclass
class Open:
    """Rows that are being written."""

    context: WriteContext
    name: str
    items: list[dict[str, Any]] = field(default_factory=list)
    hash: RowHash = field(default_factory=RowHash)


class ShelfSink(TwoPhaseCommitSink[Open]):
    """Put rows on a shelf, which must be there.

    Args:
        name: Name of the sink.
        file: The SQLite file.
        shelf: The shelf.
    """

    def __init__(self, name: str, file: str, shelf: str = "items") -> None:
        super().__init__(name)
        self.file, self.shelf = file, shelf

    def dataset(self) -> tuple[str, str]:
        """Return the file as the namespace, and the shelf."""
        return f"shelf://{self.file}", self.shelf

    def validate(self, schema: pa.Schema) -> None:
        """Refuse columns that a JSON text cannot give back, and a shelf that is missing or locked."""
        for column in schema:
            if not covers(column.type):
                raise SchemaError(f"column {column.name} has type {column.type}, which a shelf does not take")
        with transaction(self.file) as connection:
            found = connection.execute("SELECT locked FROM shelves WHERE name = ?", [self.shelf]).fetchone()
        if found is None:
            raise ConfigurationError(f"{self.file} has no shelf {self.shelf}: create it first")
        if found[0]:
            raise ConfigurationError(f"shelf {self.shelf} of {self.file} is locked: unlock it first")

    def begin(self, context: WriteContext) -> Open:
        """Collect rows under a new name."""
        return Open(context, str(context.transaction_name()))

    def write(self, transaction: Open, batch: pa.RecordBatch) -> None:
        """Collect a batch."""
        transaction.items += batch.to_pylist()
        transaction.hash.add(batch)

    def pre_commit(self, transaction: Open) -> Committable:
        """Store the rows durably where no reader looks."""
        prepare(self.file, self.shelf, transaction)
        return transaction.context.committable(
            kind=KIND,
            transaction=transaction.name,
            rows=len(transaction.items),
            proof=transaction.hash.proof(transaction.name),
        )

    def commit(self, committable: Committable) -> CommitOutcome:
        """Move prepared rows to their shelf."""
        name, scope = committable.transaction, committable.scope
        try:
            with transaction(self.file) as connection:
                if connection.execute("SELECT 1 FROM committed WHERE name = ?", [name]).fetchone():
                    return CommitOutcome(CommitStatus.ALREADY_COMMITTED)
                row = connection.execute("SELECT shelf, items FROM prepared WHERE name = ?", [name]).fetchone()
                if row is None:
                    return CommitOutcome(CommitStatus.UNKNOWN, f"{self.file} does not know it")
                items = [[row[0], name, item] for item in row[1].splitlines()]
                connection.executemany("INSERT INTO items VALUES (?, ?, ?)", items)
                connection.execute("DELETE FROM prepared WHERE name = ?", [name])
                connection.execute("INSERT INTO committed VALUES (?)", [name])
                connection.execute(
                    "UPDATE owners SET generation = ?, epoch = ? WHERE (pipeline, sink, log) = (?, ?, ?) AND "
                    "(generation, epoch) < (?, ?)",
                    [*(newest := [committable.generation, committable.epoch]), *scope, *newest],
                )
        except RetryableSinkError as error:
            return CommitOutcome(CommitStatus.RETRY_LATER, str(error))
        return CommitOutcome(CommitStatus.COMMITTED)

    def abort(self, committable: Committable) -> AbortOutcome:
        """Delete prepared rows."""
        name = [committable.transaction]
        try:
            with transaction(self.file) as connection:
                if connection.execute("SELECT 1 FROM committed WHERE name = ?", name).fetchone():
                    return AbortOutcome(AbortStatus.COMMITTED)
                connection.execute("DELETE FROM prepared WHERE name = ?", name)
        except RetryableSinkError as error:
            return AbortOutcome(AbortStatus.RETRY_LATER, str(error))
        return AbortOutcome(AbortStatus.ABORTED)

    def lingering(self, scope: Scope) -> Iterator[Committable]:
        """List prepared rows of these names."""
        for committable in prepared(self.file):
            if committable.scope.is_sink(scope.pipeline, scope.sink):
                yield committable

    def inspect_many(self, committables: Sequence[Committable]) -> list[Observation]:
        """Look them up."""
        with transaction(self.file) as connection:
            return [
                Observation.COMMITTED
                if connection.execute("SELECT 1 FROM committed WHERE name = ?", [one.transaction]).fetchone()
                else Observation.PREPARED
                if connection.execute("SELECT 1 FROM prepared WHERE name = ?", [one.transaction]).fetchone()
                else Observation.ABSENT
                for one in committables
            ]

    def ledger(self) -> Ledger:
        """Return what the file remembers."""
        return ShelfLedger(self.file)


class ShelfLedger(Ledger):
    """The owners of names, each with how far it had come, and what was committed.

    Args:
        file: The SQLite file.
    """

    def __init__(self, file: str) -> None:
        self.file = file

    def check_claim(self, scope: Scope, newest: Progress) -> Remembered:
        """Compare the log with the owner of the names."""
        where = f"{self.file}"
        with transaction(self.file) as connection:
            row = connection.execute(
                "SELECT log, generation, epoch FROM owners WHERE (pipeline, sink) = (?, ?)", scope[:2]
            ).fetchone()
        if row is None:
            return Remembered(False, NOTHING)
        progress = type(newest)(row[1], row[2])
        if row[0] != scope.log:
            raise other_log(scope, row[0], where)
        if progress > newest:
            raise outdated_log(scope, progress, newest, where)
        return Remembered(True, progress)

    def claim(self, scope: Scope) -> None:
        """Record the owner of the names."""
        with transaction(self.file) as connection:
            connection.execute("INSERT INTO owners VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", [*scope, *NOTHING])
            [owner] = connection.execute("SELECT log FROM owners WHERE (pipeline, sink) = (?, ?)", scope[:2]).fetchone()
        if owner != scope.log:
            raise other_log(scope, owner, self.file)

    def release(self, scope: Scope) -> None:
        """Forget other owners, and how far this one had come."""
        with transaction(self.file) as connection:
            connection.execute("DELETE FROM owners WHERE (pipeline, sink) = (?, ?) AND log <> ?", [*scope])
            connection.execute(
                "UPDATE owners SET generation = ?, epoch = ? WHERE (pipeline, sink) = (?, ?)", [*NOTHING, *scope[:2]]
            )


def prepare(file: str, shelf: str, rows: Open) -> None:
    """Store rows as prepared."""
    items = "\n".join(json.dumps(item, default=str) for item in rows.items)
    with transaction(file) as connection:
        connection.execute("INSERT INTO prepared VALUES (?, ?, ?, ?)", [rows.name, shelf, len(rows.items), items])


def prepared(file: str) -> Iterator[Committable]:
    """List all that is prepared, of any pipeline and sink."""
    with transaction(file) as connection:
        found = connection.execute("SELECT name, rows FROM prepared").fetchall()
    for text, rows in found:
        name = parse_transaction_name(text)
        if name is not None:
            yield Committable.named(KIND, name, rows=rows)
