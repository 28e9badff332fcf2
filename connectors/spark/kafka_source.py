"""The readers of `format("onceward-kafka")`: a KafkaSource, as Spark's Python data sources want it.

Spark keeps the positions: they are written to the checkpoint before a batch runs and handed back after a restart.
From pyspark 4.2 on Python sources are told a query's limits and the trigger availableNow.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ...core.errors import OncewardError
from .kafka_source_options import batch_source, stream_source
from .read_limits import LIMITS, ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from ...sources.base import Split
    from ...sources.kafka import KafkaSource

_log = logging.getLogger("onceward.spark")

Offsets = dict[str, Any]


class KafkaRange(InputPartition):
    """One Spark task: a range of one Kafka partition."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream.

    Args:
        source: What is read.
    """

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._target: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        offsets: Offsets = self._source.start()
        return offsets

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What maxOffsetsPerTrigger says."""
        limit = self._source.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember where everything ends now."""
        self._target = self._source.end()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        """Where the next batch ends."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        offsets: Offsets = self._source.latest(start, rows, self._target)
        return offsets

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - Spark's name
        """Where everything ended when the batch was planned, for the query's progress."""
        return self._source.newest

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        return [KafkaRange(split) for split in self._source.splits(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range; called in the tasks."""
        return _batches(self._source, partition)

    def commit(self, end: Offsets) -> None:
        """Publish offsets, for queries whose sink does not; Spark calls it a batch late and not for the last one."""
        try:
            self._source.publish(end)
        except OncewardError as error:
            _log.warning("offsets could not be published to consumer group %s: %s", self._source.group, error)


class KafkaStreamReaderBeforeLimits(KafkaStreamReader):
    """Reads a stream on pyspark 4.0 and 4.1, which asks for the next end without saying where the last one was.

    The first batch after a restart takes all there is: only then it is not known where it begins.
    """

    def __init__(self, source: KafkaSource) -> None:
        super().__init__(source)
        self._at: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        self._at = super().initialOffset()
        return self._at

    def latestOffset(self) -> Offsets:  # type: ignore[override]  # noqa: N802 - the older signature
        """Where the next batch ends."""
        if self._at is None:
            return dict(self._source.end())
        return super().latestOffset(self._at, self.getDefaultReadLimit())

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        self._at = end
        return super().partitions(start, end)


class KafkaBatchReader(DataSourceReader):
    """Reads from `startingOffsets` to `endingOffsets`, both looked up once.

    Args:
        source: What is read.
    """

    def __init__(self, source: KafkaSource) -> None:
        self._source = source

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return [KafkaRange(split) for split in self._source.splits(*self._source.range())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range; called in the tasks."""
        return _batches(self._source, partition)


def _batches(source: KafkaSource, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, KafkaRange):
        for piece in source.read(partition.split):
            yield piece.batch


def stream_reader(options: Mapping[str, str]) -> KafkaStreamReader:
    """The reader of a streaming query."""
    kind = KafkaStreamReader if LIMITS else KafkaStreamReaderBeforeLimits
    return kind(stream_source(options))


def batch_reader(options: Mapping[str, str]) -> KafkaBatchReader:
    """The reader of a batch query."""
    return KafkaBatchReader(batch_source(options))


def spark_schema(*, include_headers: bool) -> StructType:
    """Columns of Spark's own Kafka source ("Structured Streaming + Kafka Integration Guide")."""
    plain = {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        "timestampType": IntegerType(),
    }
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    columns = [StructField(name, kind) for name, kind in plain.items()]
    return StructType([*columns, StructField("headers", ArrayType(header))] if include_headers else columns)
