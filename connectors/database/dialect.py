"""The contract of a dialect: connections of one database, its settings, its two-phase commands, trials of rows.

SQLAlchemy's own begin_twophase is not used: closing its connection rolls back what was just prepared, its ids on
MariaDB have no branch qualifier (so too few bytes), and its listing shows other databases' transactions too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import sqlalchemy as sa

from onceward.core.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from sqlalchemy.sql.dml import Insert

    from onceward.core.contract.names import Scope, TransactionName
    from onceward.core.contract.row_hash import RowHash

    from .target import DatabaseAccess, TableName

READ_ONLY: Final = "onceward_read_only"
"""Execution option of a transaction that only reads."""
MERGES: Final = "onceward_merges"
"""Execution option of a transaction that writes into the target's table, so that SQLite checks foreign keys in it."""
HOW_TO_STAGE: Final = "or use commit='staging'"


@dataclass(frozen=True)
class ServerFacts:
    """The settings of a server that matter to a sink."""

    unusable: str = ""
    """Why nothing can be written here, and what to do; empty if it can."""
    max_prepared: int = 0
    """How many prepared transactions it allows; 0 for none."""
    why_none: str = ""
    """Why it prepares nothing, and how to change that."""
    warnings: tuple[str, ...] = ()
    """Settings that weaken the guarantee."""


class TwoPhaseAnswer(Enum):
    """A server's answer to the end of a prepared transaction."""

    DONE = "done"
    BUSY = "busy"
    """The transaction is there and cannot be ended now. This answer proves nothing: ask again."""
    GONE = "gone"
    """The transaction is no longer there, or never was; the ledger tells which."""


class TwoPhase(Protocol):
    """The two-phase commands of one database. Each takes a connection in autocommit mode that is in no transaction.

    A writer calls `begin`, inserts rows, and calls `prepare`; any other process calls `end`.
    """

    def begin(
        self,
        connection: sa.Connection,
        access: DatabaseAccess,
        name: TransactionName,
        question: sa.Select[Any],
        of: Scope,
    ) -> Sequence[Any] | None:
        """Begin the transaction, whose statements wait at most `lock_timeout` seconds for a lock, and ask a question.

        Args:
            connection: A connection that nothing else uses.
            access: How the database is reached, with the lock timeout.
            name: The transaction's name.
            question: A query whose parameters are the fields of a scope.
            of: The scope.

        Returns:
            The answer's row; None if a table is missing, and then the connection can only be closed.
        """

    def prepare(self, connection: sa.Connection, name: TransactionName, insert: Insert, row: dict[str, Any]) -> None:
        """Insert a last row, prepare the transaction, and release the connection.

        When this returns, the transaction survives a crash of the server, and other sessions can end it.
        """

    def end(self, connection: sa.Connection, command: str, name: TransactionName) -> tuple[TwoPhaseAnswer, str]:
        """Send COMMIT or ROLLBACK for a prepared transaction, and return the answer and the server's words."""

    def unconfirmed(self, connection: sa.Connection) -> str:
        """Commit a transaction of its own, which proves that everything committed before it is as durable.

        Returns:
            Why the server could not confirm that; empty if it did.
        """

    def waiting(self, connection: sa.Connection, pipeline: str, sink: str) -> list[TransactionName]:
        """Return the transactions that are prepared in this database under exactly these names."""

    def scopes(self, connection: sa.Connection) -> set[Scope]:
        """Return the scopes of all prepared transactions of onceward here, if identifiers contain the names."""


class RowWriter(ABC):
    """Writer of rows into one table, inside a transaction that its caller has opened."""

    hash: RowHash | None = None
    """Hash of the rows that were written, if it was requested."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Send a batch of rows."""

    def finish(self) -> None:  # noqa: B027
        """Wait until the server has all rows and has checked them."""

    def cancel(self) -> None:  # noqa: B027
        """Stop writing, which may fail the transaction."""


class Trial(NamedTuple):
    """A table like the target, into which rows are inserted to see whether the database refuses them."""

    place: TableName
    has_keys: bool
    """Whether it has the unique keys of the real table; if not, upserts are tried as inserts."""


class Dialect(ABC):
    """All that differs between databases: connections, settings, two-phase commands, tables."""

    title: str
    """The database's name, for messages."""
    two_phase: TwoPhase | None = None
    """Its two-phase commands; None if it has no prepared transactions."""
    lock_timeout_code: str | int | None = None
    """Code of the error that ends a wait for a lock, as failures.code returns it; None if no transaction stays open."""
    asks_with_lock = False
    """Whether a query of the ledger must wait for transactions that are just ending."""
    tells_names = True
    """Whether a prepared transaction's identifier contains the names of its pipeline and sink."""
    locks_rows = True
    """Whether transactions that write into one table wait for each other row by row, and so may deadlock."""
    trial_needs = ""
    """Rights that a trial needs beyond those for writing; empty if there are none."""

    @abstractmethod
    def engine_arguments(self, access: DatabaseAccess) -> dict[str, Any]:
        """Return the arguments for SQLAlchemy's create_engine."""

    @abstractmethod
    def prepare_engine(self, engine: sa.Engine, access: DatabaseAccess) -> None:
        """Install event handlers that set up each new connection."""

    def open_transaction(self, connection: sa.Connection, access: DatabaseAccess) -> None:  # noqa: B027
        """Apply settings to the transaction that has just begun. The default does nothing."""

    def confirmed(self, connection: sa.Connection) -> AbstractContextManager[Callable[[], object]]:  # noqa: ARG002
        """Open a block around a transaction; call the function that it returns right before the commit.

        The end of the block raises RetryableSinkError if the server warned that a standby may lack the commit.
        """
        return nullcontext(int)

    def confirm(self, connection: sa.Connection) -> None:  # noqa: B027
        """Write a record, so that the commit waits until a standby has everything that was committed before."""

    def lock_creation(self, connection: sa.Connection) -> None:  # noqa: B027
        """Lock out others that create tables until the transaction ends, if CREATE … IF NOT EXISTS is not enough."""

    def limited(self, seconds: float) -> AbstractContextManager[object]:  # noqa: ARG002
        """Open a block in which connections fail after this time, if their driver would wait forever."""
        return nullcontext()

    @abstractmethod
    def read_server(self, connection: sa.Connection) -> ServerFacts:
        """Ask the server for the settings that matter."""

    def behind(self, connection: sa.Connection) -> str:  # noqa: ARG002
        """Return why this server may lag behind another one; empty if it does not."""
        return ""

    def table_version(self, connection: sa.Connection, name: TableName, *, held: bool) -> Hashable:  # noqa: ARG002
        """Return a value that changes with the definition of a table; None if there is none that is quick to read.

        Args:
            connection: Any connection.
            name: The table.
            held: Whether the definition must stay so until the connection's transaction ends.
        """
        return None

    def column_name(self, reflected: str) -> str:
        """Return the real name of a column from the name that SQLAlchemy has read."""
        return reflected

    def read_uniques(self, connection: sa.Connection, table: sa.Table) -> Sequence[frozenset[str]]:  # noqa: ARG002
        """Return the columns of each unique key, for checks of upserts; empty if they come from the catalog."""
        return ()

    def complete(self, connection: sa.Connection, table: sa.Table) -> None:  # noqa: B027
        """Add to a reflected table what SQLAlchemy does not read of its columns."""

    def has_triggers(self, connection: sa.Connection, table: sa.Table) -> bool:  # noqa: ARG002
        """Return whether the table has triggers that a statement's plan does not go through."""
        return False

    @abstractmethod
    def trial(self, connection: sa.Connection, table: sa.TableClause) -> AbstractContextManager[Trial]:
        """Open a block in which rows can be written to see whether `table` would take them; its end removes them.

        The place never refuses rows that the table would take: if a trigger may change rows first, it has the column
        types alone. Nobody else sees the rows, or waits for them longer than the connection's transaction lasts.
        """


class RowDialect(Dialect):
    """A database whose rows are inserted by statements, and staged as Arrow batches."""

    @abstractmethod
    def upsert(self, table: sa.TableClause, values: dict[str, Any], key: Sequence[str]) -> Insert:
        """Return a statement that inserts these columns, or updates them in the row that has this key."""

    def longest_value(self, connection: sa.Connection) -> int:  # noqa: ARG002
        """Return a number of bytes of binary data that the server certainly takes in one statement."""
        return 1 << 29

    def read_uniques(self, connection: sa.Connection, table: sa.Table) -> list[frozenset[str]]:
        """Return the columns of each unique key that every statement checks, except keys with a condition."""
        inspector = sa.inspect(connection)
        keys: list[list[Any]] = [inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]]
        keys += [u["column_names"] for u in inspector.get_unique_constraints(table.name, schema=table.schema)]
        for index in inspector.get_indexes(table.name, schema=table.schema):
            conditional = any(key.endswith("_where") for key in index.get("dialect_options", {}))
            if index["unique"] and not conditional:
                keys.append(index["column_names"])
        sets = {frozenset(columns) for columns in keys if columns and None not in columns}
        return sorted(sets, key=sorted)

    def refuses(self, connection: sa.Connection, table: sa.Table) -> str:  # noqa: ARG002
        """Return why an insert into the table has effects that are not exactly once; empty if it has none."""
        return ""

    def lacks_numbers(self, connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: int) -> str:  # noqa: ARG002
        """Return why the table cannot number so many rows, whose data has these columns; empty if it can."""
        return ""

    def unwaiting(self, connection: sa.Connection, access: DatabaseAccess) -> AbstractContextManager[object]:  # noqa: ARG002
        """Open a block in which the connection's statements fail at once where they would wait for a lock."""
        return nullcontext()

    def check_planned(self, connection: sa.Connection, statement: Insert) -> None:
        """Have the server plan an INSERT of rows: by this it checks rights, keys and names, and writes nothing."""
        compiled: Any = statement.compile(dialect=connection.dialect)
        names = compiled.positiontup if compiled.positional else compiled.params
        nulls = dict.fromkeys(names)
        parameters = tuple(nulls.values()) if compiled.positional else nulls
        connection.exec_driver_sql(f"EXPLAIN {compiled}", parameters).close()

    def check_key(self, uniques: Sequence[frozenset[str]], key: Sequence[str]) -> str:
        """Return why a table with these unique keys cannot be upserted by this key; empty if it can."""
        return "" if frozenset(key) in uniques else no_unique_key(key)


def no_such_table(table: TableName) -> SchemaError:
    """Return the error for a table that is missing."""
    return SchemaError(f"table {table} does not exist; create it, or set create_table=True (option createTable)")


def no_unique_key(key: Sequence[str]) -> str:
    """Return why a table without a unique key over these columns cannot be upserted."""
    return f"it has no primary key or unique index over exactly {list(key)}, which an upsert needs"
