"""One pass over a batch feeds every sink: each sink's `select` and `where`, computed by Spark as one struct column.

Sinks without either share the batch as it is; as soon as one sink has a `where`, or several sinks differ, every sink
gets a struct column of its own, null where the row is not for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from onceward.sinks.base import Sink


class Projection:
    """How the batch's columns reach the sinks; picklable, travels to the executors.

    Args:
        sinks: In the order in which `batches_for` is asked.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        plain = [sink for sink in sinks if sink.select is None and sink.where is None]
        self.shared = len(plain) == len(sinks)
        self._count = len(sinks)

    def of(self, frame: DataFrame, sinks: Sequence[Sink]) -> DataFrame:
        """The frame that executors get."""
        if self.shared:
            return frame
        return frame.select(*[_struct(sink).alias(_column(i)) for i, sink in enumerate(sinks)])

    def split(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Each sink's part of a batch, in the order of the sinks."""
        if self.shared:
            return [batch] * self._count
        return [_part(batch.column(i)) for i in range(self._count)]


def schema_for(frame: DataFrame, sink: Sink) -> pa.Schema:
    """Arrow schema of what a sink gets."""
    selected = frame.selectExpr(*sink.select) if sink.select is not None else frame
    return arrow_schema(selected.schema)


def _column(index: int) -> str:
    return f"sink_{index}"


def _struct(sink: Sink) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - needs a Spark installation

    row = sf.struct(*[sf.expr(text) for text in sink.select]) if sink.select is not None else sf.struct("*")
    return sf.when(sf.expr(sink.where), row) if sink.where is not None else row


def _part(column: Any) -> pa.RecordBatch:
    array: pa.StructArray = column
    if array.null_count:
        array = array.filter(array.is_valid())
    return pa.RecordBatch.from_struct_array(array)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema that batches of a DataFrame have; a timestamp is in UTC here, in batches in the session's zone.

    pyspark 4.2 wants the zone said, and fails an assertion without it; before, there was no such argument.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - imports pyarrow

    try:
        found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        found = to_arrow_schema(schema)
    return found
