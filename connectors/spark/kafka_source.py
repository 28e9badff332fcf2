"""The readers of `format("onceward-kafka")`: a KafkaSource out of the options of Spark's own Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

from .kafka_source_options import batch_source, stream_source
from .read_limits import LIMITS
from .source_reader import BeforeLimits, SourceBatchReader, SourceStreamReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onceward.connectors.kafka.source import KafkaSource

    from .source_reader import Offsets


class KafkaStreamReader(SourceStreamReader):
    """Reads a stream, and tells where everything ended when a batch was planned, for the query's progress."""

    _source: KafkaSource

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - Spark's name
        """What the newest look at the brokers said."""
        return self._source.newest


def stream_reader(options: Mapping[str, str]) -> SourceStreamReader:
    """The reader of a streaming query."""
    source = stream_source(options)
    return (KafkaStreamReader if LIMITS else BeforeLimits)(source, source.max_offsets_per_trigger)


def batch_reader(options: Mapping[str, str]) -> SourceBatchReader:
    """The reader of a batch query: from `startingOffsets` to `endingOffsets`."""
    source = batch_source(options)
    return SourceBatchReader(source, *source.range())


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
