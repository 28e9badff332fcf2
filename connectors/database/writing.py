"""One attempt to write rows, from the first one until they are durable and wait for their decision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from onceward.core.contract.transaction import Committable
from onceward.core.errors import OncewardError, RetryableSinkError

from . import ledger_tables
from .engines import SLOWEST, autocommitting, dialect_for, reading, two_phase_for
from .failures import as_sqlalchemys, code, translate
from .own_tables import identity_row, insert_into, tables_of
from .tables import forget_description
from .target import PREPARED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from onceward.core.contract.proof import Proof
    from onceward.core.contract.transaction import WriteContext

    from .dialect import RowWriter
    from .target import DatabaseTarget

_BY_ANOTHER_ATTEMPT: Final = (
    ", probably by another attempt's prepared transaction over the same keys ({}). It ends with its epoch's decision, "
    "or when the pipeline starts again and sweeps; this attempt must not end it. commit='staging' does not have this "
    "wait"
)


class WritingStatus(StrEnum):
    """How far an attempt has come. It leaves OPEN once, for one of the others."""

    OPEN = "open"
    DURABLE = "durable"
    """Its rows wait for their decision, and only a commit or an abort ends them."""
    DISCARDED = "discarded"


class Writing(ABC):
    """One attempt to write a subtask's rows of an epoch.

    Args:
        target: Where the rows go.
        context: The epoch, the subtask and the attempt.

    Raises:
        SinkError: The database refuses, or another decision log owns the names.
    """

    status = WritingStatus.OPEN

    def __init__(self, target: DatabaseTarget, context: WriteContext) -> None:
        self.target = target
        self.context = context
        self.name = context.transaction_name()
        self.rows = 0
        with self._explained("cannot begin"):
            self.open()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.status}, {self.rows} rows>"

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        with self._explained("cannot write"):
            self.rows += self.send(batch)

    def pre_commit(self) -> Committable:
        with self._explained("cannot prepare"):
            committable = self.make_durable()
        self.status = WritingStatus.DURABLE
        return committable

    def discard(self) -> None:
        """Undo the attempt unless it is durable. Safe at any time, and never raises."""
        if self.status is WritingStatus.OPEN:
            self.status = WritingStatus.DISCARDED
            self.undo()

    @abstractmethod
    def open(self) -> None:
        """Begin the attempt; note first that this decision log writes here, unless another one owns the names."""

    @abstractmethod
    def send(self, batch: pa.RecordBatch) -> int:
        """Write a batch that has rows, and return how many of them the table will have."""

    @abstractmethod
    def make_durable(self) -> Committable:
        """End the attempt in such a way that its rows survive this process, and wait for their decision."""

    @abstractmethod
    def undo(self) -> None:
        """Remove everything that the attempt has written so far. Never raises."""

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Translate SQLAlchemy's errors inside the block, and discard the attempt after any error."""
        place = f"{what} into table {self.target.table}"
        try:
            with as_sqlalchemys():
                yield
        except sa.exc.SQLAlchemyError as error:
            self.discard()
            forget_description(self.target)
            raise self._located(self.explain(translate(error, place, self.target), error, what)) from None
        except OncewardError as error:
            self.discard()
            raise self._located(error) from error.__cause__
        except BaseException:
            self.discard()
            raise

    def explain(self, error: OncewardError, cause: sa.exc.SQLAlchemyError, what: str) -> OncewardError:  # noqa: ARG002
        """Return the error to raise instead, with advice that fits its cause.

        Args:
            error: The translated error.
            cause: The error of SQLAlchemy.
            what: The step that failed, as in "cannot prepare".
        """
        return error

    def _located(self, error: OncewardError) -> OncewardError:
        error.pipeline, error.sink, error.epoch = self.context.pipeline, self.context.sink, self.context.epoch
        error.transaction = str(self.name)
        return error


class HeldWriting(Writing):
    """An attempt whose transaction stays open while rows arrive, on a connection of its own, and then is prepared."""

    held: sa.Connection | None = None
    writer: RowWriter | None = None

    @property
    def connection(self) -> sa.Connection:
        if self.held is None:
            raise sa.exc.InvalidRequestError("the transaction is over")
        return self.held

    def open(self) -> None:
        ownership = self._begin()
        if ownership is None or not ownership.noted:
            self.undo()
            ledger_tables.note_writer(self.target, self.context.scope)
            self.name = self.context.transaction_name()  # the server may not have seen yet that the former one is over
            ownership = self._begin()
        if ownership is not None:
            ownership.refuse_others(self.context.scope)

    def _begin(self) -> ledger_tables.Ownership | None:
        """Begin the transaction, and return who owns the names; None if there is no ledger."""
        target, scope = self.target, self.context.scope
        question = ledger_tables.ownership_query(tables_of(target))
        with dialect_for(target).limited(target.answer_within):
            self.held = autocommitting(target)
            ownership = two_phase_for(target).begin(self.held, target.access, self.name, question, scope)
        return None if ownership is None else ledger_tables.Ownership(*ownership)

    def send(self, batch: pa.RecordBatch) -> int:
        if self.writer is None:
            self.writer = self.open_writer(batch.schema)
        with self.limited(batch.num_rows):
            self.writer.write(batch)
        return int(batch.num_rows)

    @abstractmethod
    def open_writer(self, schema: pa.Schema) -> RowWriter:
        """Return the writer of the rows. It is called at the first batch."""

    def make_durable(self) -> Committable:
        # The ledger row is in the transaction that is prepared, so it is visible if and only if the rows are.
        insert = insert_into(tables_of(self.target).ledger)
        with self.limited(self.rows):  # deferred constraints are checked here, row by row
            self.finish_rows()
            row = identity_row(self.name, self.rows)
            two_phase_for(self.target).prepare(self.connection, self.name, insert, row)
            self.held = None
        return Committable.named(PREPARED, self.name, rows=self.rows, proof=self.proof)

    def finish_rows(self) -> None:
        if self.writer is not None:
            self.writer.finish()

    @property
    def proof(self) -> Proof | None:
        return None if self.writer is None or self.writer.hash is None else self.writer.hash.proof()

    def undo(self) -> None:
        """Close the connection, so that the server rolls back."""
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

    def explain(self, error: OncewardError, cause: sa.exc.SQLAlchemyError, what: str) -> OncewardError:  # noqa: ARG002
        timeout = self.target.url.capabilities.lock_timeout_code
        if timeout is None or code(cause) != timeout or not error.retryable:  # a trigger may choose the same code
            return error
        own = self.own_prepared()
        another = _BY_ANOTHER_ATTEMPT.format(", ".join(own[:3])) if own else ""
        held = f"a lock was held for more than {self.target.lock_timeout:g} s (lock_timeout)"
        return RetryableSinkError(f"{error.message}: {held}{another}")

    def own_prepared(self) -> list[str]:
        """Return the names of this sink's prepared transactions; none if the server does not answer."""
        scope = self.context.scope
        with suppress(OncewardError), reading(self.target, "cannot list what is prepared") as connection:
            return [str(name) for name in two_phase_for(self.target).waiting(connection, scope.pipeline, scope.sink)]
        return []
