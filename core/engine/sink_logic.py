"""Writes to a sink: opens a transaction at the first row after a barrier, prepares it at the next.

A transaction's epoch is the number after the last barrier that this subtask has seen, so it is greater than any
decided epoch and at most that of the checkpoint which names it. What was prepared for a checkpoint that was given up
stays prepared and is acknowledged again with the next one: rows are committed by the first checkpoint that completes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..checkpoint.subtask import SubtaskEpoch
from .logic import Frozen, Logic, nothing_to_write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from threading import Lock

    import pyarrow as pa

    from ..transaction import Committable, WriteContext
    from .channels import Barrier


class _SinkLogic(Logic):
    def __init__(self, sink: Any, context: Callable[[int], WriteContext], epoch: int, lock: Lock) -> None:
        self._sink = sink
        self._context = context
        self._epoch = epoch
        self._lock = lock
        self._valid: pa.Schema | None = None
        self._project: Callable[[pa.RecordBatch], pa.RecordBatch] | None = sink.projection()

    def rows(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        if self._project is not None:
            batch = self._project(batch)
        if self._valid is None or not self._valid.equals(batch.schema):
            with self._lock:  # it may create what is missing in the target: one subtask at a time
                self._sink.validate(batch.schema)
            self._valid = batch.schema
        if batch.num_rows:
            self._write(batch)
        return []

    def _write(self, batch: pa.RecordBatch) -> None:
        raise NotImplementedError


class TwoPhaseLogic(_SinkLogic):
    """One subtask of a TwoPhaseCommitSink."""

    def __init__(self, sink: Any, context: Callable[[int], WriteContext], epoch: int, lock: Lock) -> None:
        super().__init__(sink, context, epoch, lock)
        self._writing: SubtaskEpoch | None = None
        self._prepared: dict[int, Committable] = {}
        """By the checkpoint at whose barrier it was prepared; not known to be decided."""

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._writing is None:
            self._writing = SubtaskEpoch(self._sink, self._context(self._epoch))
        self._writing.write(batch)

    def freeze(self, barrier: Barrier) -> Frozen:
        """Prepare; nothing for a savepoint that commits nothing."""
        if not barrier.kind.commits:
            return Frozen(nothing_to_write)
        if self._writing is not None:
            committable = self._writing.pre_commit()
            if committable is not None:
                self._prepared[barrier.checkpoint] = committable
        self._writing = None
        self._epoch = barrier.checkpoint + 1
        return Frozen(nothing_to_write, tuple(self._prepared.values()))

    def confirm(self, checkpoint: int) -> None:
        self._prepared = {later: c for later, c in self._prepared.items() if later > checkpoint}

    def close(self) -> None:
        if self._writing is not None:
            self._writing.discard()


class DirectLogic(_SinkLogic):
    """One subtask of a sink whose rows become visible as they are written."""

    _writer: Any = None

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = self._sink.open(self._context(self._epoch))
        self._sink.write(self._writer, batch)

    def freeze(self, barrier: Barrier) -> Frozen:  # noqa: ARG002 - any barrier
        """What came before the barrier must be in the target before the source's position is stored."""
        if self._writer is not None:
            self._sink.flush(self._writer)
        return Frozen(nothing_to_write)

    def close(self) -> None:
        if self._writer is not None:
            self._sink.close(self._writer)
