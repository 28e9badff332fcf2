"""A DirectSink where only two-phase sinks are driven (on Spark): it prepares nothing, and its commit has nothing to do.

Rows show as they are written; an attempt that fails leaves what it wrote, and its retry writes it again. So the sink's
own guarantee stays what it is. What the decision log adds: a micro-batch that is decided is not written again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceward.core.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, Committable, Observation

from .base import DirectSink, TwoPhaseCommitSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from onceward.core.names import Scope
    from onceward.core.sink import Guarantee
    from onceward.core.transaction import WriteContext

KIND: Final = "direct"


class Open(NamedTuple):
    """A writer, and for what."""

    context: WriteContext
    writer: Any


class DirectlyWritten(TwoPhaseCommitSink[Open]):
    """Drives a DirectSink or an IdempotentSink through the calls of a two-phase sink.

    Args:
        sink: The sink.
    """

    def __init__(self, sink: DirectSink[Any]) -> None:
        super().__init__(sink.name, select=sink.select, where=sink.where)
        self.sink = sink

    @property
    def guarantee(self) -> Guarantee:
        return self.sink.guarantee

    def validate(self, schema: pa.Schema) -> None:
        self.sink.validate(schema)

    def validate_complete_mode(self) -> None:
        self.sink.validate_complete_mode()

    def begin(self, context: WriteContext) -> Open:
        return Open(context, self.sink.open(context))

    def write(self, transaction: Open, batch: pa.RecordBatch) -> None:
        self.sink.write(transaction.writer, batch)

    def pre_commit(self, transaction: Open) -> Committable:
        """See that all of it is safe, and give the writer up."""
        self.sink.flush(transaction.writer)
        self.sink.close(transaction.writer)
        return transaction.context.committable(kind=KIND, transaction=str(transaction.context.transaction_name()))

    def discard(self, transaction: Open) -> None:
        """Give the writer up; what it wrote stays."""
        self.sink.close(transaction.writer)

    def commit(self, committable: Committable) -> CommitOutcome:  # noqa: ARG002 - nothing is left to do
        return CommitOutcome(CommitStatus.COMMITTED)

    def abort(self, committable: Committable) -> AbortOutcome:  # noqa: ARG002 - nothing can be done
        """There is no transaction to end; rows that were written stay."""
        return AbortOutcome(AbortStatus.ABORTED, "it is written directly: what was written stays")

    def lingering(self, scope: Scope) -> Iterable[Committable]:  # noqa: ARG002 - nothing waits
        return ()

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        return [Observation.COMMITTED for _ in committables]
