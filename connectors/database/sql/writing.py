"""One attempt's rows, from the first one until they are durable and wait for their decision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from onceward.core.errors import OncewardError, SchemaError
from onceward.core.transaction import AbortOutcome, AbortStatus

from . import ledger
from .ddl import create_table
from .failures import translate
from .plan import Plan, make_plan
from .reflection import describe, forget

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from onceward.core.transaction import Committable, WriteContext

    from .target import Target

SLOWEST: Final = 500
"""Rows per second below which writing rows is taken for hanging."""
NO_ANSWER = AbortOutcome(AbortStatus.RETRY_LATER, "no answer")


class Writing(ABC):
    """What prepared and staged writing have in common."""

    def __init__(self, target: Target, context: WriteContext) -> None:
        self.target = target
        self.context = context
        self.name = context.transaction_name()
        self.rows = 0
        self._plan: Plan | None = None
        with self.explained("cannot begin"):
            ledger.note(self.target, self.context.scope)
            self.open()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take one batch."""
        if batch.num_rows == 0:
            return
        with self.explained("cannot write"):
            if self._plan is None or self._plan.schema != batch.schema:
                self._plan = plan_for(self.target, batch.schema)
            self.send(batch, self._plan)
            self.rows += batch.num_rows

    def pre_commit(self) -> Committable:
        """Make it durable, undecided."""
        with self.explained("cannot prepare"):
            return self.make_durable()

    @abstractmethod
    def open(self) -> None:
        """Begin."""

    @abstractmethod
    def send(self, batch: pa.RecordBatch, plan: Plan) -> None:
        """Write a batch that has rows."""

    @abstractmethod
    def make_durable(self) -> Committable:
        """End it so that it survives this process and waits for its decision."""

    @abstractmethod
    def discard(self) -> None:
        """Undo it; safe at any time, never raises."""

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """SQLAlchemy's errors in onceward's words, and after any error nothing left behind."""
        place = f"{what} into table {self.target.table}"
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            self.discard()
            forget(self.target, self.target.table)
            raise self._located(self.explain(translate(error, place, self.target), error)) from None
        except OncewardError as error:
            self.discard()
            raise self._located(error) from error.__cause__
        except BaseException:
            self.discard()
            raise

    def explain(self, error: OncewardError, cause: sa.exc.SQLAlchemyError) -> OncewardError:  # noqa: ARG002
        """The error with advice, where there is some."""
        return error

    def _located(self, error: OncewardError) -> OncewardError:
        error.pipeline, error.sink, error.epoch = self.context.pipeline, self.context.sink, self.context.epoch
        return error


def plan_for(target: Target, schema: pa.Schema) -> Plan:
    """How rows of `schema` are written into the target; creates the table first, if that was asked for.

    Raises:
        SchemaError: There is no such table, or a column does not fit.
    """
    described = describe(target, target.table)
    if described is None and target.create_table:
        create_table(target, schema)
        described = describe(target, target.table)
    if described is None:
        raise SchemaError(f"table {target.table} does not exist; create it, or set create_table=True")
    return make_plan(schema, described.table, target.url.backend, target.key)
