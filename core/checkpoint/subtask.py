"""Drive one sink through one epoch in one subtask: begin at the first row, write, pre-commit at the barrier.

The executor's half of the protocol, shared by Spark and the embedded engine. An epoch without rows opens nothing and
acknowledges "nothing written". Every row that any sink gets passes here, so here the rows are hashed as they are handed
over (handed_rows.py), whatever the sink makes of them.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from ..contract import validated as answers
from ..contract.handed_rows import Handed
from ..contract.sink import TwoPhaseCommitSink
from ..contract.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, Observation, Written
from ..errors import LifecycleError, OncewardError
from ..kit.crash_points import Step, crash_point
from ..kit.pieces import pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from ..contract.names import Scope
    from ..contract.sink import DirectSink, Guarantee
    from ..contract.transaction import Committable, WriteContext


class _State(StrEnum):
    NEW = "new"
    OPEN = "open"
    PREPARED = "prepared"
    DISCARDED = "discarded"


class SubtaskEpoch:
    """One attempt of one subtask at one epoch of one sink: new, open, then prepared or discarded."""

    def __init__(self, sink: TwoPhaseCommitSink[Any], context: WriteContext) -> None:
        self.sink = sink
        self.context = context
        self._transaction: Any = None
        self._state = _State.NEW
        ordered = context.subtask if sink.ordered else None
        self._handed = Handed(ordered) if context.heals and sink.proof else None
        self._rows, self._write_seconds, self._prepare_seconds = 0, 0.0, 0.0

    @property
    def written(self) -> Written:
        """How much was written, and how long it took."""
        return Written(self.context.sink, self._rows, self._write_seconds, self._prepare_seconds)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, opening the transaction at the first row."""
        if batch.num_rows == 0:
            return
        began = time.monotonic()
        if self._state is _State.NEW:
            crash_point(Step.BEGIN_BEFORE)
            self._transaction = self.sink.begin(self.context)
            self._state = _State.OPEN
            crash_point(Step.BEGIN_AFTER)
        self._require_open()
        crash_point(Step.WRITE_BEFORE)
        try:
            for piece in pieces(batch):  # so that no sink copies a whole batch of large rows
                with nullcontext() if self._handed is None else self._handed.add(piece):
                    answers.call_to_end(self.sink, "write", self._transaction, piece)
        except OncewardError as error:
            error.pipeline, error.sink = error.pipeline or self.context.pipeline, error.sink or self.context.sink
            if error.epoch is None:
                error.epoch = self.context.epoch
            raise
        crash_point(Step.WRITE_AFTER)
        self._rows += batch.num_rows
        self._write_seconds += time.monotonic() - began

    def pre_commit(self) -> Committable | None:
        """Prepare what was written; None if nothing was."""
        if self._state is _State.NEW:
            return None
        self._require_open()
        crash_point(Step.PRE_COMMIT_BEFORE)
        began = time.monotonic()
        committable = answers.checked_answer(self.sink, self.sink.pre_commit(self._transaction), self.context.epoch)
        # (Invariant 2) The decision will name what is checked here, so it must be of this epoch and writer.
        self._check(committable)
        if self._handed is not None:
            committable = msgspec.structs.replace(committable, handed=self._handed.hash or msgspec.UNSET)
        self._state = _State.PREPARED
        self._prepare_seconds = time.monotonic() - began
        crash_point(Step.PRE_COMMIT_AFTER)
        self.sink.warm_up(self.context)
        return committable

    def discard(self) -> None:
        """Roll back what was not pre-committed; a prepared transaction is left to the coordinator."""
        if self._state is _State.OPEN:
            self._state = _State.DISCARDED
            self.sink.discard(self._transaction)

    def _require_open(self) -> None:
        if self._state is not _State.OPEN:
            raise self._error(f"the transaction of subtask {self.context.subtask} is {self._state}, not open")

    def _check(self, committable: Committable) -> None:
        context = self.context
        expected = (context.pipeline, context.sink, context.log, context.generation, context.epoch)
        got = (committable.pipeline, committable.sink, committable.log, committable.generation, committable.epoch)
        if got != expected:
            raise self._error(
                f"pre_commit of sink {context.sink} returned a committable of {got}; its context says {expected}"
            )

    def _error(self, why: str) -> LifecycleError:
        context = self.context
        return LifecycleError(why, pipeline=context.pipeline, sink=context.sink, epoch=context.epoch)


@dataclass
class _Open:
    context: WriteContext
    writer: Any
    rows: int = 0
    closed: bool = False


class DirectlyWritten(TwoPhaseCommitSink[_Open]):
    """A direct sink, driven as a two-phase sink that prepares nothing and whose commit is empty.

    Rows become visible as they are written; an attempt that fails leaves what it wrote, and its retry writes it again.
    So the sink's own guarantee stays what it is. What the decision log adds: a micro-batch that is decided is not
    written again.

    Args:
        sink: Sink that is written directly.
    """

    proof = False
    """Its rows are visible whatever happens, so nothing of them is ever lost and compared."""

    def __init__(self, sink: DirectSink[Any]) -> None:
        super().__init__(sink.name, select=sink.select, where=sink.where)
        self.sink = sink

    @property
    def guarantee(self) -> Guarantee:
        return self.sink.guarantee

    def dataset(self) -> tuple[str, str] | None:
        return self.sink.dataset()

    def check_schema(self, schema: pa.Schema) -> None:
        self.sink.check_schema(schema)

    def validate(self, schema: pa.Schema) -> None:
        self.sink.validate(schema)

    def begin(self, context: WriteContext) -> _Open:
        return _Open(context, self.sink.open(context))

    def write(self, transaction: _Open, batch: pa.RecordBatch) -> None:
        answers.call_to_end(self.sink, "write", transaction.writer, batch)
        transaction.rows += batch.num_rows

    def pre_commit(self, transaction: _Open) -> Committable:
        answers.call_to_end(self.sink, "flush", transaction.writer)
        self.discard(transaction)
        name = str(transaction.context.transaction_name())
        return transaction.context.committable(kind="direct", transaction=name, rows=transaction.rows)

    def discard(self, transaction: _Open) -> None:
        if not transaction.closed:
            transaction.closed = True  # first: a close that fails is not repeated
            answers.call_to_end(self.sink, "close", transaction.writer)

    def commit(self, committable: Committable) -> CommitOutcome:  # noqa: ARG002 - nothing is left to do
        return CommitOutcome(CommitStatus.COMMITTED)

    def abort(self, committable: Committable) -> AbortOutcome:  # noqa: ARG002 - nothing can be done
        return AbortOutcome(AbortStatus.ABORTED, "the sink is written directly: rows that were written stay")

    def lingering(self, scope: Scope) -> Iterable[Committable]:  # noqa: ARG002 - nothing waits
        return ()

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        return [Observation.COMMITTED for _ in committables]
