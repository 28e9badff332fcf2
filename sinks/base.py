"""Base classes of sinks, to subclass.

A sink is a plain picklable object that holds configuration only; connections are opened where they are used. Which
method is called when, and what each must guarantee, is said once: in onceward.core.sink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceward.core.names import check_sink_name
from onceward.core.sink import Direct, Guarantee, Named, TwoPhaseCommit, Txn
from onceward.core.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, Committable, Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from onceward.core.names import Scope
    from onceward.core.transaction import WriteContext


class Sink(Named):
    """Base class of every sink: where an epoch's data goes.

    Args:
        name: Unique in its pipeline; part of every transaction's name, so it must not change between runs.
        select: SQL expressions that make this sink's columns out of the pipeline's (default: all columns).
        where: SQL condition; this sink gets only rows for which it is true (default: all rows).
    """

    def __init__(self, name: str, *, select: Sequence[str] | None = None, where: str | None = None) -> None:
        self.name = check_sink_name(name)
        self.select = list(select) if select is not None else None
        self.where = where

    def projection(self) -> Callable[[pa.RecordBatch], pa.RecordBatch] | None:
        """`select` and `where` in DuckDB's SQL.

        Raises:
            ConfigurationError: DuckDB is not installed, or something is no expression over a single row.
        """
        if self.select is None and self.where is None:
            return None
        from .projection import Projection  # noqa: PLC0415 - for whoever needs it

        return Projection(self.name, self.select, self.where)

    def validate(self, schema: pa.Schema) -> None:
        """Check settings, target and `schema` on the driver, before anything is written.

        Raises:
            ConfigurationError: A setting or the target's setup makes the guarantee impossible.
            SchemaError: A column does not fit; the message names it.
        """

    def validate_complete_mode(self) -> None:
        """Refuse Spark's output mode complete (each epoch brings the whole result again), unless the sink supports it.

        Raises:
            ConfigurationError: The target would show rows of earlier epochs beside those of the newest.
        """


class TwoPhaseCommitSink(Sink, TwoPhaseCommit[Txn]):
    """A sink whose target can prepare a transaction that outlives the process which wrote it."""

    @property
    def guarantee(self) -> Guarantee:
        """Exactly once, unless a subclass says otherwise."""
        return Guarantee.EXACTLY_ONCE


class DirectSink(Sink, Direct[Txn]):
    """A sink whose rows become visible as they are written, and again after a failure.

    The type parameter is that of its writer: a connection, a file.
    """

    @property
    def guarantee(self) -> Guarantee:
        """At least once: after a failure, what came after the newest checkpoint is written again."""
        return Guarantee.AT_LEAST_ONCE


class IdempotentSink(DirectSink[Txn]):
    """A sink in which writing the same rows again changes nothing, by key or by a marker kept with the data.

    After a failure its target shows older values for a while, until the rows since the newest checkpoint are written
    again; the final state is right.
    """

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EFFECTIVELY_ONCE


@dataclass
class _Open:
    context: WriteContext
    writer: Any
    rows: int = 0


class DirectlyWritten(TwoPhaseCommitSink[_Open]):
    """A direct sink where only two-phase sinks are driven (on Spark): it prepares nothing, and its commit is empty.

    Rows become visible as they are written; an attempt that fails leaves what it wrote, and its retry writes it again.
    So the sink's own guarantee stays what it is. What the decision log adds: a micro-batch that is decided is not
    written again.

    Args:
        sink: The sink.
    """

    def __init__(self, sink: DirectSink[Any]) -> None:
        super().__init__(sink.name, select=sink.select, where=sink.where)
        self.sink = sink

    @property
    def guarantee(self) -> Guarantee:
        return self.sink.guarantee

    def dataset(self) -> tuple[str, str] | None:
        return self.sink.dataset()

    def validate(self, schema: pa.Schema) -> None:
        self.sink.validate(schema)

    def validate_complete_mode(self) -> None:
        self.sink.validate_complete_mode()

    def begin(self, context: WriteContext) -> _Open:
        return _Open(context, self.sink.open(context))

    def write(self, transaction: _Open, batch: pa.RecordBatch) -> None:
        self.sink.write(transaction.writer, batch)
        transaction.rows += batch.num_rows

    def pre_commit(self, transaction: _Open) -> Committable:
        self.sink.flush(transaction.writer)
        self.sink.close(transaction.writer)
        name = str(transaction.context.transaction_name())
        return transaction.context.committable(kind="direct", transaction=name, rows=transaction.rows)

    def discard(self, transaction: _Open) -> None:
        self.sink.close(transaction.writer)

    def commit(self, committable: Committable) -> CommitOutcome:  # noqa: ARG002 - nothing is left to do
        return CommitOutcome(CommitStatus.COMMITTED)

    def abort(self, committable: Committable) -> AbortOutcome:  # noqa: ARG002 - nothing can be done
        return AbortOutcome(AbortStatus.ABORTED, "the sink is written directly: rows that were written stay")

    def lingering(self, scope: Scope) -> Iterable[Committable]:  # noqa: ARG002 - nothing waits
        return ()

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        return [Observation.COMMITTED for _ in committables]
