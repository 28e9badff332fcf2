"""Any ResettableSource as a Spark stream: FileSource, SequenceSource, or your own."""

from __future__ import annotations

import pickle
import secrets
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource

from onceward.core.errors import ConfigurationError
from onceward.core.source import ResettableSource

from .source_reader import SourceBatchReader, SourceStreamReader, reader_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "onceward-source"
_ROWS = "maxRows"


class AnySource(DataSource):
    """Format behind `read_stream`: each source gets its own subclass under its own name.

    Spark carries the class with its source to its workers as it carries a function. An option could not do that: it
    would have to be unpickled, so anyone who may set options could run code, and a plan would show the source with its
    secrets.
    """

    format_name: ClassVar[str] = FORMAT
    source: ClassVar[ResettableSource]

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        unknown = sorted(name for name in options if name.lower() != _ROWS.lower())
        if unknown:
            raise ConfigurationError(f"format {self.format_name} has no options {unknown}: use read_stream(…)")

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return cls.format_name

    def schema(self) -> StructType:
        """The source's schema, in Spark's types."""
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - imports pyarrow

        schema: StructType = from_arrow_schema(self.source.schema)
        return schema

    def streamReader(self, schema: StructType) -> SourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        """A stream reader."""
        rows = self.options.get(_ROWS)
        return reader_of(self.source, int(rows) if rows else None)

    def reader(self, schema: StructType) -> SourceBatchReader:  # noqa: ARG002 - Spark's signature
        """A batch reader of all available rows."""
        return SourceBatchReader(self.source, self.source.start(), self.source.end())


def read_stream(spark: SparkSession, source: ResettableSource, *, max_rows: int | None = None) -> DataFrame:
    """Read any resettable source as a streaming DataFrame; its positions are stored in the query's checkpoint.

    Args:
        spark: The session. It keeps the source.
        source: Picklable; its class must be importable on the executors.
        max_rows: Approximate number of rows in one micro-batch; default: all that are available.

    Raises:
        ConfigurationError: It is not a ResettableSource, cannot be pickled, or `max_rows` is not above 0.
        SourceError: The source does not answer.
    """
    if not isinstance(source, ResettableSource):
        raise ConfigurationError(f"read_stream takes a ResettableSource, not {type(source).__name__}")
    if max_rows is not None and max_rows < 1:
        raise ConfigurationError(f"max_rows is {max_rows}: it must be above 0")
    source.validate()
    reader: Any = spark.readStream.format(registered(spark, source))
    if max_rows is not None:
        reader = reader.option(_ROWS, str(max_rows))
    frame: DataFrame = reader.load()
    return frame


def registered(spark: SparkSession, source: ResettableSource) -> str:
    """Register a format that reads the source, and return its name.

    Raises:
        ConfigurationError: The source cannot be pickled.
    """
    name = f"{FORMAT}-{secrets.token_hex(8)}"
    kind = type("RegisteredSource", (AnySource,), {"format_name": name, "source": source})
    try:
        spark.dataSource.register(kind)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(f"{type(source).__name__} cannot be pickled for the executors: {error}") from error
    return name
