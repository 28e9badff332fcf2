"""What an executor does with its partition of an epoch: write every sink, pre-commit, acknowledge.

One pass over a batch feeds every sink. Sinks without `select` and `where` share the batch as it is; as soon as one has
either, Spark computes a struct column for each sink, null where the row is not for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa

from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.dead_letters import SOURCE
from onceward.core.contract.transaction import Acknowledgement, WriteContext
from onceward.core.errors import ConfigurationError, SchemaError, text_of
from onceward.core.kit.arrays import number_array, repeated_text
from onceward.core.kit.json_logs import show_if_asked

from ..read.schemas import arrow_schema, in_utc
from ..session.kinds import plan_of
from .refused_rows import SOURCE_COLUMN, IsolatingPartition, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from onceward.sinks import Sink, TwoPhaseCommitSink

    from .refused_rows import Letters

ACK_COLUMN, STAGE_COLUMN, SIZE_COLUMN = "acknowledgement", "stage", "row_bytes"
ACK_SCHEMA = f"{ACK_COLUMN} string, {STAGE_COLUMN} int, {SIZE_COLUMN} double"


class TaskPlace(NamedTuple):
    """The place of a running task: partition, attempt, stage.

    The attempt counts within one attempt of its stage: a stage that is tried again, because an executor was lost with
    the shuffle files that the stage reads, begins at 0 again. Only the driver knows of it.
    """

    subtask: int
    attempt: int
    stage: int
    master: str | None
    """Spark's: a Python data source's driver-side processes are told nothing of the session (pyspark 4.2)."""


def place() -> TaskPlace:
    """Return partition, attempt and stage of the Spark task in which this code runs."""
    from pyspark import TaskContext  # noqa: PLC0415 - needs a Spark installation

    task = TaskContext.get()
    if task is None:
        return TaskPlace(0, 0, -1, None)
    return TaskPlace(task.partitionId(), task.attemptNumber(), task.stageId(), task.getLocalProperty("spark.master"))


def write_partition(
    sinks: Sequence[TwoPhaseCommitSink[Any]],
    contexts: Sequence[WriteContext],
    batches: Iterable[pa.RecordBatch],
    only: Sequence[frozenset[int] | None] | None = None,
    letters: Letters | None = None,
) -> Acknowledgement:
    """Write one partition into every sink; on any failure roll back the transactions that are not pre-committed.

    Args:
        sinks: Sinks of the pipeline, in the order of the contexts.
        contexts: Contexts of the transactions, one for each sink, with subtask and attempt still to be filled in.
        batches: Rows of the partition, in the columns that `project_sinks` made.
        only: Subtasks that write, for each sink (the others only compute); None for all.
        letters: Settings of the dead letters, to which refused rows go; None if such a row fails the epoch.
    """
    here = place()
    own_contexts = [msgspec.structs.replace(c, subtask=here.subtask, attempt=here.attempt) for c in contexts]
    # Also of sinks that do not write here: the decision needs an answer of each, if only that nothing is written.
    epochs = [SubtaskEpoch(sink, context) for sink, context in zip(sinks, own_contexts, strict=True)]
    shared = share_batches(sinks)
    writing = [
        (number, epoch)
        for number, epoch in enumerate(epochs)
        if only is None or (subtasks := only[number]) is None or here.subtask in subtasks
    ]
    try:
        if letters is not None:
            context = msgspec.structs.replace(letters.context, subtask=here.subtask, attempt=here.attempt)
            numbers = [number for number, _ in writing]
            part, source = (_whole, _source_of_whole) if shared else (_part_of, _source_of_part)
            isolating = IsolatingPartition(tuple(epochs), numbers, part, source, letters=letters, context=context)
            # After `isolating` has got its own tuple: dead letters stand here only to be rolled back with the others.
            epochs.append(isolating.letters)
            return isolating.write(map(in_utc, batches))
        for batch in map(in_utc, batches):
            for number, epoch in writing:
                epoch.write(batch if shared else _part(batch.column(number)))
        prepared = [epoch.pre_commit() for epoch in epochs]
    except BaseException as error:
        for epoch in epochs:
            try:
                epoch.discard()
            except Exception as besides:  # noqa: BLE001 - whatever one sink raises, the others are rolled back
                error.add_note(f"besides, sink {epoch.context.sink} did not roll back: {text_of(besides)}")
        raise
    return Acknowledgement(
        epoch=own_contexts[0].epoch,
        subtask=here.subtask,
        attempt=here.attempt,
        sinks=tuple(sink.name for sink in sinks),
        committables=tuple(committable for committable in prepared if committable is not None),
        retried=here.attempt > 0,
        written=tuple(epoch.written for epoch in epochs),
    )


def write_and_tell(
    sinks: Sequence[TwoPhaseCommitSink[Any]],
    contexts: Sequence[WriteContext],
    batches: Iterable[pa.RecordBatch],
    *,
    names: Sequence[str] | None = None,
    only: Sequence[frozenset[int] | None] | None = None,
    letters: Letters | None = None,
) -> Iterator[pa.RecordBatch]:
    """Write a partition, for `mapInArrow`; yield one row: acknowledgement, stage, size of a row.

    Args:
        sinks: Sinks of the pipeline, in the order of the contexts.
        contexts: Contexts of the transactions, one for each sink, with subtask and attempt still to be filled in.
        batches: Rows of the partition, in the columns that `project_sinks` made.
        names: The columns' names, if they come under others.
        only: Subtasks that write, as in `write_partition`.
        letters: Settings of the dead letters, as in `write_partition`.
    """
    show_if_asked()
    rows = size = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows, size
        for batch in batches:
            rows, size = rows + batch.num_rows, size + batch.nbytes
            yield batch if names is None else batch.rename_columns(names)

    ack = write_partition(sinks, contexts, counted(), only, letters)
    columns = {
        ACK_COLUMN: repeated_text(ack.to_json(), 1),
        # The driver asks Spark about this stage, because a task cannot know that its stage has run before.
        STAGE_COLUMN: number_array(np.array([place().stage], np.int32)),
        SIZE_COLUMN: number_array(np.array([size / rows])) if rows else pa.nulls(1, pa.float64()),
    }
    yield pa.RecordBatch.from_pydict(columns)


def project_sinks(frame: DataFrame, sinks: Sequence[Sink], *, source: bool = False) -> DataFrame:
    """Return the frame whose batches executors distribute to the sinks.

    Args:
        frame: The query's rows.
        sinks: Sinks that get the rows.
        source: True if the columns that say where each row came from are added, if the frame has them.
    """
    if share_batches(sinks):
        return frame
    from pyspark.sql import functions as sf  # noqa: PLC0415 - needs a Spark installation

    columns = []
    for number, sink in enumerate(sinks):
        row = sf.struct(*map(sf.expr, sink.select)) if sink.select is not None else sf.struct("*")
        if sink.where is not None:
            row = sf.when(sf.expr(sink.where), row.cast(_with_nulls(frame.select(row).schema[0].dataType)))
        columns.append(row.alias(f"sink_{number}"))
    if source and set(SOURCE) <= set(frame.columns):
        columns.append(sf.struct(*SOURCE).alias(SOURCE_COLUMN))
    return frame.select(*columns)


def _with_nulls(row: Any) -> StructType:
    """Return a struct's type with fields that may be null, as in rows that are not for the sink, see `_gathered`."""
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 - needs a Spark installation

    return StructType([StructField(field.name, field.dataType, metadata=field.metadata) for field in row])


def collect_rows(frame: DataFrame) -> pa.Table:
    """Collect a frame's rows, whose columns have different names."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    batches = cast("Any", frame)._collect_as_arrow()  # noqa: SLF001 - pyspark 3.5 has no public way
    return pa.Table.from_batches(batches) if batches else arrow_schema(frame.schema).empty_table()


def with_plain_names(frame: DataFrame) -> tuple[DataFrame, Sequence[str] | None]:
    """Return the frame for `mapInArrow`, which looks columns up by name, and the names if it renamed them."""
    names = frame.columns
    # In a name that is looked up, a dot or a backtick is syntax, and by default its case does not count.
    if len({name.lower() for name in names}) == len(names) and not any(set(name) & {".", "`"} for name in names):
        return frame, None
    return frame.toDF(*(f"column_{number}" for number in range(len(names)))), names


def share_batches(sinks: Sequence[Sink]) -> bool:
    """Return whether all sinks get the query's rows as they are."""
    return all(sink.select is None and sink.where is None for sink in sinks)


def _part(column: Any) -> pa.RecordBatch:
    array: pa.StructArray = column
    if array.null_count:
        array = array.filter(array.is_valid())
    return pa.RecordBatch.from_struct_array(array)


def _whole(batch: pa.RecordBatch, _number: int) -> pa.RecordBatch:
    return batch


def _source_of_whole(batch: pa.RecordBatch, _number: int) -> pa.RecordBatch | None:
    return source_of(batch, None)


def _part_of(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    return _part(batch.column(number))


def _source_of_part(batch: pa.RecordBatch, number: int) -> pa.RecordBatch | None:
    return source_of(batch, batch.column(number))


_MISSING_GROUP_BY: Final = "[MISSING_GROUP_BY]"


def schema_for(frame: DataFrame, sink: Sink) -> pa.Schema:
    """Return the Arrow schema of a sink's rows.

    Raises:
        SchemaError: Spark cannot compute `select` or `where`.
        ConfigurationError: They are not computed row by row.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - needs a Spark installation

    if share_batches([sink]):
        return arrow_schema(frame.schema)
    try:
        chosen = project_sinks(frame, [sink])
        kind: Any = chosen.schema[0].dataType
    except AnalysisException as error:
        why = text_of(error).strip().splitlines()[0].partition(" SQLSTATE")[0]
        if _MISSING_GROUP_BY in why:  # Spark's advice is to add GROUP BY, which is impossible here
            raise _not_row_by_row(sink) from None
        raise SchemaError(f"Spark cannot compute its select or where: {why}", sink=sink.name) from None
    # An aggregate or a window would be computed for each micro-batch by itself, or drop and multiply other sinks' rows.
    if plan_of(chosen).node_names() != ["Project", *plan_of(frame).node_names()]:
        raise _not_row_by_row(sink)
    return arrow_schema(kind)


def _not_row_by_row(sink: Sink) -> ConfigurationError:
    return ConfigurationError(
        "select and where are computed row by row: aggregates, window functions, time windows and functions such as "
        "explode belong in the query",
        sink=sink.name,
    )
