"""One attempt's rows, from the first one until they are durable and wait for their decision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from onceward.core.errors import ConfigurationError, OncewardError, RetryableSinkError

from . import ledger
from .dialect import RowDialect, no_such_table
from .engines import autocommitting, dialect_for, read_server, reading
from .failures import cause_of, code, translate
from .own_tables import tables_of
from .plan import InsertWriter
from .postgres.advice import LOCKS_ARE_USED_UP, REFUSES_PREPARE, USED_UP_ADVICE, refuses_prepare, used_up
from .tables import create_table, forget, plan_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from onceward.core.proof import Proof
    from onceward.core.transaction import Committable, WriteContext

    from .dialect import RowWriter, TwoPhase
    from .postgres.catalog import PgTable
    from .postgres.dialect import PostgreSql
    from .target import DatabaseTarget

SLOWEST: Final = 500
"""Rows per second below which writing or merging rows is taken for hanging."""
_LOCK_TIMEOUTS: Final = ("55P03", 1205)
_DISABLED: Final = "55000"
_NOT_SUPPORTED: Final = "0A000"
_USED_UP: Final = "53200"
_PREPARED_LIMIT: Final = "max_prepared_transactions"


class Writing(ABC):
    """What all ways of writing have in common."""

    def __init__(self, target: DatabaseTarget, context: WriteContext) -> None:
        self.target = target
        self.context = context
        self.name = context.transaction_name()
        self.rows = 0
        with self._explained("cannot begin"):
            self.open()

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        with self._explained("cannot write"):
            self.rows += self.send(batch)

    def pre_commit(self) -> Committable:
        with self._explained("cannot prepare"):
            return self.make_durable()

    @abstractmethod
    def open(self) -> None:
        """Begin; note first that this decision log writes here, unless another one owns the names."""

    @abstractmethod
    def send(self, batch: pa.RecordBatch) -> int:
        """Write a batch that has rows; how many of them are to be there."""

    @abstractmethod
    def make_durable(self) -> Committable:
        """End it so that it survives this process and waits for its decision."""

    @abstractmethod
    def discard(self) -> None:
        """Undo it; safe at any time, never raises."""

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """SQLAlchemy's errors in onceward's words, and after any error nothing left behind."""
        place = f"{what} into table {self.target.table}"
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            self.discard()
            forget(self.target)
            raise self._located(self.explain(translate(error, place, self.target), error, what)) from None
        except OncewardError as error:
            self.discard()
            raise self._located(error) from error.__cause__
        except BaseException:
            self.discard()
            raise

    def explain(self, error: OncewardError, cause: sa.exc.SQLAlchemyError, what: str) -> OncewardError:  # noqa: ARG002
        return error

    def _located(self, error: OncewardError) -> OncewardError:
        error.pipeline, error.sink, error.epoch = self.context.pipeline, self.context.sink, self.context.epoch
        error.transaction = str(self.name)
        return error


class HeldWriting(Writing):
    """An attempt whose transaction stays open, on a connection of its own, while rows arrive."""

    held: sa.Connection | None = None
    writer: RowWriter | None = None

    @property
    def connection(self) -> sa.Connection:
        if self.held is None:
            raise sa.exc.InvalidRequestError("the transaction is over")
        return self.held

    def open(self) -> None:
        found = self._begin()
        if found is None or not found.noted:
            self.discard()
            ledger.note(self.target, self.context.scope)
            self.name = self.context.transaction_name()  # the server may not have seen yet that the former one is over
            found = self._begin()
        if found is not None:
            found.refuse_others(self.context.scope)

    def _begin(self) -> ledger.Ownership | None:
        """Begin, and look whose the names are; None if there is no ledger."""
        target, scope = self.target, self.context.scope
        question = ledger.ownership_query(tables_of(target))
        with dialect_for(target).limited(target.answer_within):
            self.held = autocommitting(target)
            found = two_phase(target).begin(self.held, target.access, self.name, question, scope)
        return None if found is None else ledger.Ownership(*found)

    def send(self, batch: pa.RecordBatch) -> int:
        if self.writer is None:
            self.writer = self.open_writer(batch.schema)
        with self.limited(batch.num_rows):
            self.writer.write(batch)
        return int(batch.num_rows)

    def open_writer(self, schema: pa.Schema) -> RowWriter:
        """Open what takes the rows: by default, into the table itself."""
        dialect = dialect_for(self.target)
        if isinstance(dialect, RowDialect):
            return InsertWriter(self.connection, plan_for(self.target, schema), proof=self.target.proof)
        table = self.lock_and_read(dialect, schema)
        with self.limited():
            return dialect.writer(self.connection, table, schema, schema.names if self.target.proof else ())

    def lock_and_read(self, dialect: PostgreSql, schema: pa.Schema) -> PgTable:
        """The table; it is created first if that was asked for."""
        with self.limited():
            found = dialect.lock_and_read(self.connection, self.target.table)
        if found is None and self.target.create_table:
            self.discard()
            create_table(self.target, schema)
            self.open()
            with self.limited():
                found = dialect.lock_and_read(self.connection, self.target.table)
        if found is None:
            raise no_such_table(self.target.table)
        return found

    def finish_rows(self) -> None:
        if self.writer is not None:
            self.writer.finish()

    @property
    def proof(self) -> Proof | None:
        return None if self.writer is None or self.writer.hash is None else self.writer.hash.proof()

    def discard(self) -> None:
        """Close the connection, on which the server rolls back."""
        if self.held is None:
            return
        held, self.held = self.held, None
        if self.writer is not None:
            self.writer.cancel()
            self.writer = None
        with suppress(sa.exc.SQLAlchemyError, OSError):
            held.invalidate()
        with suppress(sa.exc.SQLAlchemyError, OSError):
            held.close()

    def limited(self, rows: int = 0) -> AbstractContextManager[object]:
        seconds = self.target.answer_within + self.target.lock_timeout + rows / SLOWEST
        return dialect_for(self.target).limited(seconds)

    def explain(self, error: OncewardError, cause: sa.exc.SQLAlchemyError, what: str) -> OncewardError:
        known = code(cause)
        if known in _LOCK_TIMEOUTS:
            own = self._own_prepared()
            another = _BY_ANOTHER_ATTEMPT.format(", ".join(own[:3])) if own else ""
            held = f"a lock was held for more than {self.target.lock_timeout:g} s (lock_timeout)"
            return RetryableSinkError(f"{error.message}: {held}{another}")
        if known == _USED_UP and (advice := self._raise_limit(used_up(cause_of(cause)))):
            return RetryableSinkError(f"{error.message}{advice}")
        if what != "cannot prepare":
            return error
        if known == _NOT_SUPPORTED and refuses_prepare(cause_of(cause)):
            return ConfigurationError(f"{error.message}. {REFUSES_PREPARE}")
        if known == _DISABLED and (why := self._why_none()):
            return ConfigurationError(f"{error.message}: {why}")
        return error

    def _raise_limit(self, setting: str) -> str:
        """Return how to raise the limit that PostgreSQL named, or how to need less; "" if it named none."""
        if setting == _PREPARED_LIMIT:
            return self._used_up()
        return LOCKS_ARE_USED_UP.format(setting) if setting else ""

    def _used_up(self) -> str:
        """Return what to do about a server that holds as many prepared transactions as it allows."""
        own, most = len(self._own_prepared()), 0
        with suppress(OncewardError):
            most = read_server(self.target).max_prepared
        return USED_UP_ADVICE.format(most=most or "only so many", own=own, half=max(most // 2, 1))

    def _why_none(self) -> str:
        """Return why the server prepares nothing; "" if it does, because a trigger's error may have the same code."""
        with suppress(OncewardError):
            return read_server(self.target).why_none
        return ""

    def _own_prepared(self) -> list[str]:
        scope = self.context.scope
        with suppress(OncewardError), reading(self.target, "cannot list what is prepared") as connection:
            return [str(name) for name in two_phase(self.target).waiting(connection, scope.pipeline, scope.sink)]
        return []


_BY_ANOTHER_ATTEMPT: Final = (
    ", probably by another attempt's prepared transaction over the same keys ({}). It ends with its epoch's decision, "
    "or when the pipeline starts again and sweeps; this attempt must not end it. commit='staging' does not have this "
    "wait"
)


def two_phase(target: DatabaseTarget) -> TwoPhase:
    """The database's two-phase commands.

    Raises:
        ConfigurationError: It has none.
    """
    commands = dialect_for(target).two_phase
    if commands is None:
        raise ConfigurationError(f"{dialect_for(target).title} has no prepared transactions: use commit='staging'")
    return commands
