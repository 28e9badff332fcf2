"""The format that reads from Kafka, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..read.any_source import LIMITS, BeforeLimits, SourceBatchReader
from ..read.kafka_offsets import FORMAT, KafkaStreamReader, batch_source, checked_source, stream_source
from ..read.schemas import spark_schema
from .formats import SinkFormat
from .lookup import connector_of_format

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from onceward.core.contract.connector import Connector


class KafkaFormat(SinkFormat):
    """`format("onceward-kafka")`: read from and write to Kafka, exactly once; `kafka.*`, `topic`, `name`."""

    format_name = FORMAT

    @classmethod
    def of_connector(cls) -> type[Connector]:
        return connector_of_format("kafka")

    def schema(self) -> StructType:
        return spark_schema(checked_source(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        source = stream_source(self.options)
        return (KafkaStreamReader if LIMITS else BeforeLimits)(source, source.max_offsets_per_trigger)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        source = batch_source(self.options)
        return SourceBatchReader(source, *source.range())
