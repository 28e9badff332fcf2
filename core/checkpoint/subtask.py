"""Drive one sink through one epoch in one subtask: begin at the first row, write, pre-commit at the barrier.

The executor's half of the protocol, shared by Spark and the embedded engine. An epoch without rows opens nothing and
acknowledges "nothing written".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import LifecycleError
from ..steps import Step, crash_point
from ..transaction.lifecycle import Lifecycle, TransactionState

if TYPE_CHECKING:
    import pyarrow as pa

    from ..sink import TwoPhaseCommit
    from ..transaction import Committable, WriteContext


class SubtaskEpoch:
    """One attempt of one subtask at one epoch of one sink."""

    def __init__(self, sink: TwoPhaseCommit[Any], context: WriteContext) -> None:
        self.sink = sink
        self.context = context
        self._transaction: Any = None
        self._life = Lifecycle(f"{context.pipeline}/{context.sink} epoch {context.epoch} subtask {context.subtask}")

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, opening the transaction at the first row."""
        if batch.num_rows == 0:
            return
        if self._life.state is TransactionState.NEW:
            crash_point(Step.BEGIN_BEFORE)
            self._transaction = self.sink.begin(self.context)
            self._life.enter(TransactionState.OPEN)
            crash_point(Step.BEGIN_AFTER)
        self._life.require(TransactionState.OPEN)
        crash_point(Step.WRITE_BEFORE)
        self.sink.write(self._transaction, batch)
        crash_point(Step.WRITE_AFTER)

    def pre_commit(self) -> Committable | None:
        """Prepare what was written; None if nothing was."""
        if self._life.state is TransactionState.NEW:
            return None
        self._life.require(TransactionState.OPEN)
        crash_point(Step.PRE_COMMIT_BEFORE)
        committable = self.sink.pre_commit(self._transaction)
        self._check(committable)
        self._life.enter(TransactionState.PREPARED)
        crash_point(Step.PRE_COMMIT_AFTER)
        self.sink.warm_up(self.context)
        return committable

    def discard(self) -> None:
        """Roll back what was not pre-committed; a prepared transaction is left to the coordinator."""
        if self._life.state is TransactionState.OPEN:
            self._life.enter(TransactionState.ABORTED)
            self.sink.discard(self._transaction)

    def _check(self, committable: Committable) -> None:
        context = self.context
        expected = (context.pipeline, context.sink, context.log, context.writer, context.epoch)
        got = (committable.pipeline, committable.sink, committable.log, committable.writer, committable.epoch)
        if got != expected:
            raise LifecycleError(
                f"pre_commit of sink {context.sink} returned a committable of {got}; its context says {expected}",
                pipeline=context.pipeline,
                sink=context.sink,
                epoch=context.epoch,
            )
