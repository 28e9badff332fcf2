"""What the databases differ in: how a connection is set up, what the server allows, two-phase commands, staging.

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
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from sqlalchemy.sql.dml import Insert

    from onceward.core.names import Scope, TransactionName
    from onceward.core.row_hash import RowHash

    from .target import DatabaseAccess, TableName

READ_ONLY: Final = "onceward_read_only"
"""Execution option of a transaction that only reads."""
MERGES: Final = "onceward_merges"
"""Execution option of a transaction that writes into the target's table, so that SQLite checks foreign keys in it."""
HOW_TO_STAGE: Final = "or use commit='staging'"


@dataclass(frozen=True)
class ServerFacts:
    """What matters of a server's set-up."""

    unusable: str = ""
    """Why nothing can be written here, and what to do; empty if it can."""
    max_prepared: int = 0
    """How many prepared transactions it allows; 0 for none."""
    why_none: str = ""
    """Why it prepares nothing, and how to change that."""
    warnings: tuple[str, ...] = ()
    """What weakens the guarantee."""


class TwoPhaseAnswer(Enum):
    """What the server said to the end of a prepared transaction."""

    DONE = "done"
    BUSY = "busy"
    """It is there and cannot be ended now: this answer proves nothing; ask again."""
    GONE = "gone"
    """It is no longer there, or never was: the ledger tells which."""


class TwoPhase(Protocol):
    """The commands of one database. Each takes a connection in autocommit mode that is in no transaction.

    A writer calls begin → (inserts) → prepare; any other process end.
    """

    def begin(
        self,
        connection: sa.Connection,
        access: DatabaseAccess,
        name: TransactionName,
        question: sa.Select[Any],
        of: Scope,
    ) -> Sequence[Any] | None:
        """Begin the transaction, which waits at most `lock_timeout` seconds for a lock, and ask a question in it.

        Args:
            connection: Of this transaction alone.
            access: With the lock timeout.
            name: The transaction's.
            question: With the fields of a scope as its parameters.
            of: The scope.

        Returns:
            The answer; None if a table is missing, and then the connection is good for nothing but closing.
        """

    def prepare(self, connection: sa.Connection, name: TransactionName, insert: Insert, row: dict[str, Any]) -> None:
        """Insert a last row, prepare, and release the connection.

        When this returns the transaction survives the server's crash, and other sessions can end it.
        """

    def end(self, connection: sa.Connection, command: str, name: TransactionName) -> tuple[TwoPhaseAnswer, str]:
        """COMMIT or ROLLBACK it by name; the answer, and the server's words."""

    def unconfirmed(self, connection: sa.Connection) -> str:
        """Commit something of one's own, so that all that was committed before is as durable as that.

        Returns:
            Why that is not known; empty if it is.
        """

    def waiting(self, connection: sa.Connection, pipeline: str, sink: str) -> list[TransactionName]:
        """Names of what is prepared in this database under exactly this pipeline's and sink's name."""

    def scopes(self, connection: sa.Connection) -> set[Scope]:
        """Under which of onceward's names something is prepared here, as far as identifiers tell names."""


class RowWriter(ABC):
    """Rows on their way into one table, inside of a transaction."""

    hash: RowHash | None = None
    """Of what was written, if that was asked for."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Send a batch."""

    def finish(self) -> None:  # noqa: B027
        """Wait until the server has all rows and has checked them."""

    def cancel(self) -> None:  # noqa: B027
        """Break off, which may fail the transaction."""


class Trial(NamedTuple):
    """Where rows are tried."""

    place: TableName
    has_keys: bool
    """Whether it has the table's unique keys; else upserts are tried as inserts."""


class Dialect(ABC):
    """How one database is spoken to: its connections, its settings, its two-phase commands, and its tables."""

    title: str
    """For messages."""
    two_phase: TwoPhase | None = None
    """None where the database has no prepared transactions."""
    lock_timeout_code: str | int | None = None
    """Code of the error after a wait for a lock, as failures.code returns it; None if no held transaction waits."""
    asks_with_lock = False
    """Whether a look into the ledger must wait for transactions that are just ending."""
    tells_names = True
    """Whether a prepared transaction's identifier contains the names of its pipeline and sink."""
    trial_needs = ""
    """What a role must be allowed for a trial; empty if writing needs no less."""

    @abstractmethod
    def engine_arguments(self, access: DatabaseAccess) -> dict[str, Any]:
        """Arguments for create_engine."""

    @abstractmethod
    def prepare_engine(self, engine: sa.Engine, access: DatabaseAccess) -> None:
        """Install what each new connection needs."""

    def open_transaction(self, connection: sa.Connection, access: DatabaseAccess) -> None:  # noqa: B027
        """Apply settings to the transaction just begun; by default none."""

    def confirmed(self, connection: sa.Connection) -> AbstractContextManager[Callable[[], object]]:  # noqa: ARG002
        """Open a block around a transaction; what it gives is to be called just before the commit.

        At its end, it raises RetryableSinkError if the server warned that a standby may lack what it has committed.
        """
        return nullcontext(int)

    def confirm(self, connection: sa.Connection) -> None:  # noqa: B027
        """Write something of one's own, so that the commit waits until a standby has all that was committed before."""

    def lock_creation(self, connection: sa.Connection) -> None:  # noqa: B027
        """Let nobody else create tables until the transaction ends, if CREATE … IF NOT EXISTS alone is not enough."""

    def limited(self, seconds: float) -> AbstractContextManager[object]:  # noqa: ARG002
        """Open a block in which connections fail when the time is over, if their driver would wait for ever."""
        return nullcontext()

    @abstractmethod
    def read_server(self, connection: sa.Connection) -> ServerFacts:
        """Ask the server."""

    def behind(self, connection: sa.Connection) -> str:  # noqa: ARG002
        """Why this server may lag behind another one; empty if it does not."""
        return ""

    def schema_version(self, connection: sa.Connection, schema: str | None) -> int | None:  # noqa: ARG002
        """A number that changes with any table of the schema; None if the database has none that is quickly read."""
        return None

    def column_name(self, reflected: str) -> str:
        """Return a column's name from that which SQLAlchemy has read."""
        return reflected

    def read_uniques(self, connection: sa.Connection, table: sa.Table) -> Sequence[frozenset[str]]:  # noqa: ARG002
        """Return the columns of each unique key that upserts by statement need; empty where they are not needed."""
        return ()

    @abstractmethod
    def trial(self, connection: sa.Connection, table: sa.TableClause) -> AbstractContextManager[Trial]:
        """Where the block may write rows to see whether `table` would take them; at its end they are forgotten.

        It never refuses what the table would take: where a trigger may change rows first, it has the types alone.
        Nobody else may see them, wait for them, or be waited for on their account, longer than the transaction that
        the connection is in.
        """


class RowDialect(Dialect):
    """A database whose rows are inserted by statements, and staged as Arrow batches."""

    @abstractmethod
    def upsert(self, table: sa.TableClause, values: dict[str, Any], key: Sequence[str]) -> Insert:
        """Insert these columns, or update them in the row that has this key."""

    def longest_value(self, connection: sa.Connection) -> int:  # noqa: ARG002
        """Return how many bytes of binary data the server takes in one statement, at least."""
        return 1 << 29

    def read_uniques(self, connection: sa.Connection, table: sa.Table) -> list[frozenset[str]]:
        """Return the columns of each unique key that is checked at each statement, those with a condition left out."""
        inspector = sa.inspect(connection)
        found: list[list[Any]] = [inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]]
        found += [u["column_names"] for u in inspector.get_unique_constraints(table.name, schema=table.schema)]
        for index in inspector.get_indexes(table.name, schema=table.schema):
            conditional = any(key.endswith("_where") for key in index.get("dialect_options", {}))
            if index["unique"] and not conditional:
                found.append(index["column_names"])
        sets = {frozenset(columns) for columns in found if columns and None not in columns}
        return sorted(sets, key=sorted)

    def refuses(self, connection: sa.Connection, table: sa.Table) -> str:  # noqa: ARG002
        """Return why what happens at an insert into the table is not exactly once; empty if it is."""
        return ""

    def check_key(self, uniques: Sequence[frozenset[str]], key: Sequence[str]) -> str:
        """Why an upsert by this key of a table with these unique keys is not sound; empty if it is."""
        return "" if frozenset(key) in uniques else no_unique_key(key)


def no_such_table(table: TableName) -> SchemaError:
    """The error for a table that is missing."""
    return SchemaError(f"table {table} does not exist; create it, or set create_table=True (option createTable)")


def no_unique_key(key: Sequence[str]) -> str:
    """The refusal of an upsert without a unique key."""
    return f"it has no primary key or unique index over exactly {list(key)}, which an upsert needs"
