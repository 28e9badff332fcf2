"""How rows reach the tables of one kind of database: the strategy of a sink, and how it notes staged rows.

A sink has two ways to commit (prepared transactions, and staged rows that are merged), and there are two kinds of
databases: those whose rows are inserted by statements, and PostgreSQL, which takes a stream of rows. A `Loader` is what
one kind does for both ways. prepared.py and merging.py commit and abort whatever a loader's writings have made durable.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import msgspec

from onceward.core.errors import SqlError, text_of
from onceward.core.kit import typed
from onceward.core.kit.sealed import UNREADABLE

from .target import TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    import sqlalchemy as sa

    from onceward.core.contract.transaction import WriteContext

    from .target import CommitPath, DatabaseTarget
    from .writing import Writing


class Movement(msgspec.Struct, frozen=True):
    """A note beside staged rows: where they go, and how. It becomes SQL, so every field is checked when it is read.

    One statement moves the rows of one epoch whose movements differ in their ids alone.
    """

    target: TableName
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    id: int = 0
    """Marks the attempt's rows in a staging table."""
    sha256: str = ""
    """SHA-256 of the pieces; empty if the rows are in a staging table, or if an earlier version staged them."""

    def noted(self) -> str:
        """Return the note as JSON.

        It is ASCII, because a server's default character set need not have all characters of its tables' names.
        """
        return json.dumps(msgspec.to_builtins(self))


class ChangedError(SqlError):
    """The staged rows are not those that were decided."""


def read_movement(row: Any) -> Movement:
    """Return the movement that a row of `staged` holds.

    Raises:
        ChangedError: The text is not a movement.
    """
    try:
        return typed.decode(row.movement, Movement)
    except UNREADABLE as error:
        raise ChangedError(
            f"cannot read how {row.name} is to be moved: {text_of(error)}. Somebody changed its staged row"
        ) from error


class Loader(ABC):
    """How rows reach the tables of one kind of database.

    On the driver, `check_table` comes first. A subtask begins one writing for each epoch. To commit staged rows,
    merging.py calls `move` and then `remove` with the same rows of the table `staged`, in one transaction; to abort
    them, `remove` alone. Both may be called by any process.

    Args:
        target: Where the sink writes.
    """

    def __init__(self, target: DatabaseTarget) -> None:
        self.target = target

    @abstractmethod
    def check_table(self, sink: str, schema: pa.Schema | None, path: CommitPath, own: Sequence[str]) -> sa.TableClause:
        """Check that the table takes rows of `schema` exactly once, and create it if that was requested.

        Args:
            sink: The sink's name.
            schema: The schema of the data; None to check only what does not depend on it, and to create nothing.
            path: How rows will wait for their decision.
            own: Names of onceward's own tables.

        Returns:
            The table, for a trial of rows.

        Raises:
            SchemaError: The table is missing, or a column or the key does not fit.
            ConfigurationError: The table is of a kind that cannot be written exactly once, or rights are missing.
        """

    @abstractmethod
    def begin_prepared(self, context: WriteContext) -> Writing:
        """Begin to write rows into the table itself, in a transaction that ends as a prepared one."""

    @abstractmethod
    def begin_staged(self, context: WriteContext) -> Writing:
        """Begin to write rows beside the table, where they wait for the merge."""

    @abstractmethod
    def move(self, connection: sa.Connection, staged: Sequence[Any]) -> None:
        """Copy staged rows into their table, in the order of `staged`; of rows with the same key, the last one wins.

        Args:
            connection: In the transaction that merges.
            staged: Rows of the table `staged`, which are locked.

        Raises:
            ChangedError: The rows are not those that were decided.
        """

    @abstractmethod
    def remove(self, connection: sa.Connection, staged: Sequence[Any]) -> None:
        """Delete the data of staged transactions, whose entries in the table `staged` are deleted already.

        Args:
            connection: In the transaction that merges or aborts.
            staged: Those entries.
        """
