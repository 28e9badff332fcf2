"""Do before a query starts what its first micro-batch would have to wait for.

Measured on two cores: a session's first micro-batch takes seconds longer than the next ones, for Spark loads the
classes of its planner and of its streaming engine, and starts Python processes, which import what the sinks need.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def warm_up(spark: SparkSession, sinks: Sequence[object]) -> None:
    """Run a micro-batch of one row, and bring the sinks' classes into the Python processes of the executors.

    It runs in a session of its own: `awaitAnyTermination` of the program's session would return at once, since a query
    has ended, and the program's listeners would hear of a query that it did not start.

    It fails nothing: what is wrong shows when the query starts.
    """

    def imports(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert sinks  # noqa: S101 - they were unpickled for this
        yield from batches

    def write(frame: DataFrame, _batch: int) -> None:
        frame.mapInArrow(imports, "value long").collect()

    with suppress(Exception), tempfile.TemporaryDirectory(prefix="onceward-warm-") as folder:
        rows: Any = spark.newSession().readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        query = rows.select("value").writeStream.foreachBatch(write).option("checkpointLocation", folder)
        query.trigger(once=True).start().awaitTermination()
