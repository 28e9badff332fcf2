"""The contract of a dialect: connections of one database, its settings, its two-phase commands, trials of rows.

SQLAlchemy's own begin_twophase is not used: closing its connection rolls back what was just prepared, its ids on
MariaDB have no branch qualifier (so too few bytes), and its listing shows other databases' transactions too.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy import exc

from onceward.core.contract.findings import failed, ok, warning
from onceward.core.errors import SchemaError

from .described_table import GENERATED, Column, DescribedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from sqlalchemy.engine.interfaces import ReflectedColumn
    from sqlalchemy.sql.dml import Insert

    from onceward.core.contract.findings import Finding
    from onceward.core.contract.names import Scope, TransactionName
    from onceward.core.contract.row_hash import RowHash

    from .column_types import ColumnTypes, SqlType
    from .conversions import Conversion
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
    """The behavior of a database: connections, settings, two-phase commands, tables. capabilities.py has the rest."""

    types: ClassVar[ColumnTypes]
    """The types of columns."""
    two_phase: TwoPhase | None = None
    """Its two-phase commands; None if it has no prepared transactions."""
    autocommit: ClassVar[Mapping[str, Any]] = {"isolation_level": "AUTOCOMMIT"}
    """Execution options of a connection whose statements are transactions of their own, or that only reads."""

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

    def check_server(self, connection: sa.Connection, facts: ServerFacts, schema: str) -> Iterable[Finding]:  # noqa: ARG002
        """Report on the server and its settings.

        Args:
            connection: Any connection.
            facts: The settings, as `read_server` has returned them.
            schema: The schema of onceward's own tables, in which the role needs rights.
        """
        yield from (warning("durability", text, "turn it on") for text in facts.warnings)
        if facts.unusable:
            yield failed("database", facts.unusable, "name the primary")
        else:
            yield ok("database", "it answers, and rows can be written")

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

    @abstractmethod
    def describe(self, connection: sa.Connection, name: TableName) -> DescribedTable | None:
        """Read the description of a table; None if there is no such table."""

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

    def key_conversion(self, step: Conversion, column: Column) -> Conversion:  # noqa: ARG002
        """Return the conversion of a column of a key, which refuses values that a key does not tell from others."""
        return step

    def longest_value(self, connection: sa.Connection) -> int:  # noqa: ARG002
        """Return a number of bytes of binary data that the server certainly takes in one statement."""
        return 1 << 29

    def reflect(self, connection: sa.Connection, name: TableName) -> DescribedTable | None:
        """Read the description of a table, without its keys, as SQLAlchemy sees it; None if there is no such table."""
        inspector, where = sa.inspect(connection), (name.table, name.schema)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", exc.SAWarning)  # of types unknown to SQLAlchemy, which the plan refuses
            try:
                reflected = inspector.get_columns(*where)
            except exc.NoSuchTableError:
                return None
            if name.table in inspector.get_view_names(schema=name.schema):
                return DescribedTable(*name, tuple(self._column(column, ()) for column in reflected), "a view")
            key = inspector.get_pk_constraint(*where)["constrained_columns"]
            refers = tuple(foreign["referred_table"] for foreign in inspector.get_foreign_keys(*where))
        return DescribedTable(*name, tuple(self._column(column, key) for column in reflected), refers=refers)

    def _column(self, reflected: ReflectedColumn, key: Sequence[str]) -> Column:
        kind, name = reflected["type"], reflected["name"]
        try:
            declared = str(kind)
        except exc.SQLAlchemyError:
            declared = type(kind).__name__
        computed, numbered = reflected.get("computed"), reflected.get("autoincrement") is True
        is_row = [name] == list(key) and self.is_row_number(kind)
        return Column(
            self.column_name(name),
            kind,
            declared,
            not_null=not (numbered and name in key) and (is_row or not reflected["nullable"]),
            has_default=reflected.get("default") is not None or computed is not None or numbered or is_row,
            unwritable="" if computed is None else GENERATED,
            collation=getattr(kind, "collation", None) or "",
            is_numbered=numbered,
        )

    def column_name(self, reflected: str) -> str:
        """Return the real name of a column from the name that SQLAlchemy has read."""
        return reflected

    def is_row_number(self, kind: SqlType) -> bool:  # noqa: ARG002
        """Return whether a primary key of one column of this type is the number of the row, if it is null."""
        return False

    def lacks_transactions(self, connection: sa.Connection, name: TableName) -> str:  # noqa: ARG002
        """Return why a table cannot be written in transactions; empty if it can."""
        return ""

    def refuses(self, connection: sa.Connection, table: DescribedTable) -> str:  # noqa: ARG002
        """Return why an insert into the table has effects that are not exactly once; empty if it has none."""
        return ""

    def lacks_numbers(self, connection: sa.Connection, table: DescribedTable, columns: Sequence[str], rows: int) -> str:  # noqa: ARG002
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
