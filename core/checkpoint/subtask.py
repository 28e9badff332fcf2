"""Drive one sink through one epoch in one subtask: begin at the first row, write, pre-commit at the barrier.

The executor's half of the protocol, shared by Spark and the embedded engine. An epoch without rows opens nothing and
acknowledges "nothing written".
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ..errors import LifecycleError
from ..steps import Step, crash_point
from ..transaction import Written

if TYPE_CHECKING:
    import pyarrow as pa

    from ..sink import TwoPhaseCommit
    from ..transaction import Committable, WriteContext


class _State(StrEnum):
    NEW = "new"
    OPEN = "open"
    PREPARED = "prepared"
    DISCARDED = "discarded"


class SubtaskEpoch:
    """One attempt of one subtask at one epoch of one sink: new, open, then prepared or discarded."""

    def __init__(self, sink: TwoPhaseCommit[Any], context: WriteContext) -> None:
        self.sink = sink
        self.context = context
        self._transaction: Any = None
        self._state = _State.NEW
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
        self.sink.write(self._transaction, batch)
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
        committable = self.sink.pre_commit(self._transaction)
        self._check(committable)
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
        expected = (context.pipeline, context.sink, context.log, context.writer, context.epoch)
        got = (committable.pipeline, committable.sink, committable.log, committable.writer, committable.epoch)
        if got != expected:
            raise self._error(
                f"pre_commit of sink {context.sink} returned a committable of {got}; its context says {expected}"
            )

    def _error(self, why: str) -> LifecycleError:
        context = self.context
        return LifecycleError(why, pipeline=context.pipeline, sink=context.sink, epoch=context.epoch)
