"""What an executor does with its partition of an epoch: write every sink, pre-commit, acknowledge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.transaction import Acknowledgement, WriteContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from onceward.sinks.base import TwoPhaseCommitSink

    from .projection import Projection

ACK_COLUMN, STAGE_COLUMN = "acknowledgement", "stage"
ACK_SCHEMA = f"{ACK_COLUMN} string, {STAGE_COLUMN} int"


def write_partition(
    sinks: Sequence[TwoPhaseCommitSink[Any]],
    contexts: Sequence[WriteContext],
    projection: Projection,
    batches: Iterable[pa.RecordBatch],
    *,
    retried: bool,
) -> Acknowledgement:
    """Write one partition into every sink; on any failure roll back what was not pre-committed."""
    epochs = [SubtaskEpoch(sink, context) for sink, context in zip(sinks, contexts, strict=True)]
    try:
        for batch in batches:
            for epoch, part in zip(epochs, projection.split(batch), strict=True):
                epoch.write(part)
        prepared = [epoch.pre_commit() for epoch in epochs]
    except BaseException as error:
        for epoch in epochs:
            try:
                epoch.discard()
            except Exception as besides:  # noqa: BLE001 - whatever one sink raises, the others are rolled back
                error.add_note(f"besides, sink {epoch.context.sink} did not roll back: {besides}")
        raise
    first = contexts[0]
    return Acknowledgement(
        epoch=first.epoch,
        subtask=first.subtask,
        attempt=first.attempt,
        sinks=tuple(sink.name for sink in sinks),
        committables=tuple(committable for committable in prepared if committable is not None),
        retried=retried,
    )


class EpochTask:
    """The function that `mapInArrow` runs on each partition; yields one row: acknowledgement, and stage.

    Args:
        sinks: The pipeline's sinks.
        contexts: One context per sink, with subtask and attempt still to be filled in.
        projection: How the batch's columns reach the sinks.
    """

    def __init__(
        self,
        sinks: Sequence[TwoPhaseCommitSink[Any]],
        contexts: Sequence[WriteContext],
        projection: Projection,
    ) -> None:
        self.sinks = list(sinks)
        self.contexts = list(contexts)
        self.projection = projection

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the partition."""
        subtask, attempt = where_am_i()
        mine = [msgspec.structs.replace(c, subtask=subtask, attempt=attempt) for c in self.contexts]
        ack = write_partition(self.sinks, mine, self.projection, batches, retried=attempt > 0)
        stage = pa.array([stage_id()], pa.int32())
        yield pa.RecordBatch.from_pydict({ACK_COLUMN: pa.array([ack.to_json()]), STAGE_COLUMN: stage})


def where_am_i() -> tuple[int, int]:
    """Partition and attempt number of the running task.

    The attempt counts within one attempt of its stage: a stage that is tried again, because an executor was lost with
    the shuffle files that the stage reads, begins at 0 again. Only the driver knows of it.
    """
    from pyspark import TaskContext  # noqa: PLC0415 - needs a Spark installation

    context = TaskContext.get()
    if context is None:
        return 0, 0
    return context.partitionId(), context.attemptNumber()


def stage_id() -> int:
    """Stage of the running task; -1 outside Spark."""
    from pyspark import TaskContext  # noqa: PLC0415 - needs a Spark installation

    context = TaskContext.get()
    return context.stageId() if context is not None else -1
