"""Any ResettableSource as a Spark stream: FileSource, SequenceSource, or your own.

Spark keeps the positions: they are written to the checkpoint before a batch runs and handed back after a restart.
From pyspark 4.2 on Python sources are told a query's limits and the trigger availableNow.
"""

from __future__ import annotations

import logging
import pickle
import secrets
from typing import TYPE_CHECKING, Any, ClassVar

from onceward.core.contract.source import ResettableSource, read_split
from onceward.core.errors import ConfigurationError, OncewardError, SourceError, text_of
from onceward.core.kit.json_logs import show_if_asked
from onceward.core.kit.pieces import pieces
from onceward.core.kit.rows import cast
from onceward.core.kit.text_options import check_type
from onceward.core.run.source_watch import telling_of_wait

from ..session.spark_session import is_connect
from .data_sources import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition, need_available
from .schemas import arrow_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from onceward.core.contract.source import Split

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    LIMITS = True
except ImportError:  # before pyspark 4.2, where BeforeLimits asks for none of them
    ReadAllAvailable = ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow = type("NoLimits", (), {})  # type: ignore[misc, assignment]
    LIMITS = False

_log = logging.getLogger("onceward.spark")

FORMAT = "onceward-source"
_ROWS = "maxRows"
_registered: dict[str, ResettableSource] = {}
"""Sources that the sessions of this process know, by the names of their formats, until the process ends."""
Offsets = dict[str, Any]


def task_inputs(source: ResettableSource, start: Offsets, end: Offsets) -> list[InputPartition]:
    """Distribute the ranges between two positions over Spark tasks, in order."""
    tasks: list[list[Split]] = []
    rows = source.rows_per_task
    for split in source.splits(start, end):
        if rows >= source.rows_per_task:
            tasks.append([])
            rows = 0
        tasks[-1].append(split)
        rows += split.end - split.start
    return [InputPartition(splits) for splits in tasks]


class SourceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of a stream. The methods are documented in pyspark.

    Args:
        source: Source that is read.
        max_rows: Rows of one batch, about; None: as many as the source wants.
    """

    def __init__(self, source: ResettableSource, max_rows: int | None = None) -> None:
        self._source = source
        self._max_rows = source.rows_per_epoch if max_rows is None else max_rows
        self._target: Offsets | None = source.end() if source.bounded else None

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's names
        with self._telling_of_wait():
            offsets: Offsets = self._source.start()
        return offsets

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._max_rows is None else ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._source.end()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with self._telling_of_wait():
            offsets: Offsets = self._source.latest(start, rows, self._target)
        return offsets

    def _telling_of_wait(self) -> AbstractContextManager[None]:
        return telling_of_wait(type(self._source).__name__, self._source)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return task_inputs(self._source, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(self._source, partition)

    def commit(self, end: Offsets) -> None:
        """Publish positions, for queries whose sink does not; Spark calls it a batch late and not for the last one."""
        try:
            self._source.publish(end)
        except OncewardError as error:
            # Not raised, because nothing here reads what is published, and a later batch publishes again.
            _log.warning("positions could not be published: %s", error)


class BeforeLimits(SourceStreamReader):
    """A reader of a stream on pyspark 4.0 and 4.1, which asks for the next end without naming the last one.

    The first batch after a restart takes all there is, because nobody says where it begins until its tasks are planned.
    Only then can what was lost in the meantime be told.
    """

    _at: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802
        self._at = super().initialOffset()
        return self._at

    def latestOffset(self) -> Offsets:  # type: ignore[override]  # noqa: N802 - the older signature
        with self._telling_of_wait():
            if self._at is None:
                return dict(self._source.end())
            return dict(self._source.latest(self._at, self._max_rows, self._target))

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        if self._at is None:
            # Asked only for its check: what was lost can be told now that the batch's start is known.
            self._source.latest(start, None, end)
        self._at = end
        return super().partitions(start, end)


class SourceBatchReader(DataSourceReader):
    """A reader from one position to another, both looked up once."""

    def __init__(self, source: ResettableSource, start: Offsets, end: Offsets) -> None:
        self._source = source
        self._range = (start, end)

    def partitions(self) -> Sequence[InputPartition]:
        return task_inputs(self._source, *self._range)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(self._source, partition)


def batches_of(source: ResettableSource, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task, which has no ranges where there is nothing to read.

    The JVM takes a batch in one piece of memory, so none is larger than PIECE_BYTES, whatever the source's pieces are.
    """
    show_if_asked()
    schema = arrow_schema(spark_schema(source))
    for split in partition.value or ():
        for piece in read_split(source, split):
            yield from pieces(_as_spark_takes(piece.batch, schema))


def _as_spark_takes(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Cast a batch to the types that pyspark insists on: of several Arrow types for one of Spark's it takes one."""
    if batch.schema.equals(wanted) or batch.schema.names != wanted.names:  # pyspark refuses other names
        return batch
    return cast(
        batch,
        wanted,
        lambda given, error: SourceError(
            f"column {given.name}: {text_of(error)}. Spark reads {given.type} as {wanted.field(given.name).type} only: "
            "give the source a schema with another type (a FileSource takes schema=…)"
        ),
    )


class AnySource(DataSource):
    """Format behind `read_stream`: each source gets its own subclass under its own name.

    Spark carries the class with its source to its workers as it carries a function. An option could not do that: it
    would have to be unpickled, so anyone who may set options could run code, and a plan would show the source with its
    secrets.
    """

    format_name: ClassVar[str] = FORMAT
    source: ClassVar[ResettableSource]
    is_validated: ClassVar[bool] = True
    """True if the process that registered the format has validated the source; a client of Spark Connect may not reach
    it."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        unknown = sorted(name for name in options if name.lower() != _ROWS.lower())
        if unknown:
            raise ConfigurationError(f"format {self.format_name} has no options {unknown}: use read_stream(…)")

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format_name

    def schema(self) -> StructType:
        if not self.is_validated:
            self.source.validate()
        return spark_schema(self.source)

    def streamReader(self, schema: StructType) -> SourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        rows = self.options.get(_ROWS)
        return (SourceStreamReader if LIMITS else BeforeLimits)(self.source, int(rows) if rows else None)

    def reader(self, schema: StructType) -> SourceBatchReader:  # noqa: ARG002 - Spark's signature
        return SourceBatchReader(self.source, self.source.start(), self.source.end())


def read_stream(spark: SparkSession, source: ResettableSource, *, max_rows: int | None = None) -> DataFrame:
    """Read any resettable source as a streaming DataFrame; its positions are stored in the query's checkpoint.

    Args:
        spark: The session, with which the source is registered.
        source: The source. It must be picklable, and its class importable on the executors.
        max_rows: Approximate number of rows in one micro-batch; default: what the source says
            (`KafkaSource(max_offsets_per_trigger=…)`), else all that are available.

    Raises:
        ConfigurationError: It is not a ResettableSource, cannot be pickled, has a column of a type that Spark cannot
            read, or `max_rows` is not above 0; or pyspark is older than 4.0.
        SourceError: The source does not answer.
    """
    need_available("read_stream", "read with one of Spark's own sources (spark.readStream.format(…))")
    if not isinstance(source, ResettableSource):
        raise ConfigurationError(f"read_stream takes a ResettableSource, not {type(source).__name__}")
    check_type("max_rows", max_rows, int | None)
    if max_rows is not None and max_rows < 1:
        raise ConfigurationError(f"max_rows is {max_rows}: it must be above 0")
    reader: Any = spark.readStream.format(register_format(spark, source))
    if max_rows is not None:
        reader = reader.option(_ROWS, str(max_rows))
    frame: DataFrame = reader.load()
    return frame


def register_format(spark: SparkSession, source: ResettableSource) -> str:
    """Check a source, register a format that reads it, and return the format's name.

    Raises:
        ConfigurationError: The source cannot be pickled, or has a column of a type that Spark cannot read.
        SourceError: The source does not answer.
    """
    is_read_here = not is_connect(spark)  # or the server checks it, where it is read
    if is_read_here:
        source.validate()
        spark_schema(source)  # in the error of a Python data source it would be deep in Spark's own output
    name = f"{FORMAT}-{secrets.token_hex(8)}"
    try:
        members = {"format_name": name, "source": source, "is_validated": is_read_here}
        spark.dataSource.register(type("RegisteredSource", (AnySource,), members))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"{type(source).__name__} cannot be pickled for the executors: {text_of(error)}"
        ) from error
    # Remembered, because whoever completes an epoch publishes its position through the source itself.
    _registered[name] = source
    return name


def registered_source(name: str) -> ResettableSource | None:
    """Return the source behind a format that `registered` made; None for any other format."""
    return _registered.get(name)
