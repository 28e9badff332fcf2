"""The open transaction of one attempt: what prepared and staged writing have in common.

The order inside: BEGIN with a lock_timeout, seeing that no other log owns the names → lock the table against ALTER and
read its columns → COPY, kept open over the batches → whatever makes it durable (subclass).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from onceward.core.errors import OncewardError, SchemaError

from .catalog import read_table
from .changes import without_change
from .connections import acquire, connect, give_back
from .ddl import create_table
from .explain import explain
from .failures import NO_SCHEMA, NO_TABLE
from .ledger import Ownership
from .target import new_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from onceward.core.transaction import Committable, WriteContext

    from .catalog import Table
    from .connections import Connection
    from .copy_writer import CopyWriter
    from .target import Target


class Writing(ABC):
    """One attempt's transaction, from BEGIN until it is durable and waits for its decision."""

    def __init__(self, target: Target, context: WriteContext) -> None:
        self.target = target
        self.context = context
        self.name = new_name(context)
        self.copy: CopyWriter | None = None
        self._held: Connection | None = None
        with self.explained("cannot begin"):
            self._held = self._open()

    @property
    def connection(self) -> Connection:
        """The connection that holds the transaction."""
        if self._held is None:
            raise psycopg.InterfaceError("the transaction is over")
        return self._held

    def write(self, batch: pa.RecordBatch) -> None:
        """Send one batch into the transaction."""
        if batch.num_rows == 0:
            return
        with self.explained("cannot write"):
            if self.copy is None:
                self.copy = self.open_copy(batch.schema)
            self.send(batch)

    def pre_commit(self) -> Committable:
        """Make it durable, undecided; the connection is free again."""
        with self.explained("cannot prepare"):
            if self.copy is not None:
                self.copy.finish()
            committable = self.make_durable(self.copy.rows if self.copy is not None else 0)
        connection, self._held = self.connection, None
        give_back(self.target.dsn, connection)
        return committable

    def discard(self) -> None:
        """Close the connection, on which the server rolls back; safe at any time."""
        if self._held is not None:
            held, self._held = self._held, None
            if self.copy is not None and not held.closed:
                with suppress(psycopg.Error, OSError):
                    self.copy.cancel()
            with suppress(psycopg.Error, OSError):
                held.close()

    @abstractmethod
    def open_copy(self, schema: pa.Schema) -> CopyWriter:
        """Check `schema` against the table and open the COPY."""

    @abstractmethod
    def make_durable(self, rows: int) -> Committable:
        """End the transaction so that it survives this process and waits for its decision."""

    def send(self, batch: pa.RecordBatch) -> None:
        """Write one batch to the open COPY."""
        assert self.copy is not None  # noqa: S101 - write opened it
        self.copy.write(batch)

    def lock_and_read(self, schema: pa.Schema) -> Table:
        """Read the target's columns, and see that they stay; create the table first, if that was asked for.

        The lock is the one that inserting takes anyway, and the only one that INSERT rights allow on every version.
        """
        try:
            return self._lock_and_read()
        except psycopg.Error as error:
            if error.sqlstate not in (NO_TABLE, NO_SCHEMA):
                raise
        if not self.target.create_table:
            raise SchemaError(f"table {self.target.table} does not exist; create it, or set create_table=True")
        self.connection.execute("ROLLBACK")
        schema = without_change(schema, self.target.change)
        create_table(self.connection, self.target.table, schema, self.target.key)
        self._begin(self.connection)
        return self._lock_and_read()

    def _lock_and_read(self) -> Table:
        lock = sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(self.target.table.identifier())
        with self.connection.pipeline():
            self.connection.execute(lock)
            table = read_table(self.connection, self.target.table)
        if table is None:
            raise SchemaError(f"table {self.target.table} does not exist")
        return table

    def _open(self) -> Connection:
        """A connection in a fresh transaction; a stale idle connection is replaced once."""
        connection, used = acquire(self.target.dsn)
        try:
            return self._begin(connection)
        except psycopg.OperationalError:
            connection.close()
            if not used:
                raise
        except BaseException:
            connection.close()
            raise
        return self._begin(connect(self.target.dsn))

    def _begin(self, connection: Connection) -> Connection:
        """Begin, unless another log owns the names; note first that this one writes here, if that is not noted."""
        ledger, scope = self.target.ledger, self.context.scope
        ownership = self._begin_and_look(connection)
        if ownership is None or not ownership.noted:
            connection.execute("ROLLBACK")
            ledger.note(connection, scope)
            ownership = self._begin_and_look(connection)
        if ownership is not None:
            ledger.refuse_others(scope, ownership)
        return connection

    def _begin_and_look(self, connection: Connection) -> Ownership | None:
        """In one round trip; None if there is no ledger."""
        milliseconds = max(1, round(self.target.lock_timeout * 1000))
        try:
            with connection.pipeline():
                connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                # A COPY stays open for as long as the rows take to arrive: that is not a slow statement.
                connection.execute(
                    "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', '0', true)",
                    [str(milliseconds)],
                )
                found = connection.execute(*self.target.ledger.ownership_query(self.context.scope))
        except psycopg.Error as error:
            if error.sqlstate in (NO_TABLE, NO_SCHEMA):
                return None
            raise
        return Ownership(*found.fetchall()[0])

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Psycopg's errors in onceward's words, and after any error no open transaction left behind."""
        try:
            yield
        except psycopg.Error as error:
            self.discard()
            raise explain(error, what, self.target, self.context, str(self.name)) from error
        except OncewardError as error:
            self.discard()
            error.pipeline, error.sink = self.context.pipeline, self.context.sink
            error.epoch = self.context.epoch
            raise
        except BaseException:
            self.discard()
            raise
