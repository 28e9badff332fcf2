"""Any ResettableSource as a stream of Spark: one of your own, FileSource, SequenceSource."""

from __future__ import annotations

import base64
import pickle
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource

from ...core.errors import ConfigurationError
from ...sources.base import ResettableSource
from .source_reader import SourceBatchReader, SourceStreamReader, reader_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "onceward-source"


class AnySource(DataSource):
    """The format behind `read_stream`; its option `source` is the pickled object, made there."""

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The source's, as Spark's types."""
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - imports pyarrow

        schema: StructType = from_arrow_schema(self._source().schema)
        return schema

    def streamReader(self, schema: StructType) -> SourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        """A stream reader."""
        rows = self.options.get("maxRows")
        return reader_of(self._source(), int(rows) if rows else None)

    def reader(self, schema: StructType) -> SourceBatchReader:  # noqa: ARG002 - Spark's signature
        """A batch reader of all there is."""
        source = self._source()
        return SourceBatchReader(source, source.start(), source.end())

    def _source(self) -> ResettableSource:
        if "source" not in self.options:
            raise ConfigurationError(f"format {FORMAT} is used through read_stream(spark, source)")
        source: ResettableSource = pickle.loads(base64.b64decode(self.options["source"]))  # noqa: S301 - by read_stream
        return source


def read_stream(spark: SparkSession, source: ResettableSource, *, max_rows: int | None = None) -> DataFrame:
    """A streaming DataFrame of any resettable source; its positions are stored in the query's checkpoint.

    Args:
        spark: The session.
        source: Picklable; its class must be importable on the executors.
        max_rows: Rows of one micro-batch, about; default: all there is.

    Raises:
        ConfigurationError: It is no ResettableSource, cannot be pickled, or `max_rows` is not above 0.
        SourceError: The source does not answer.
    """
    if not isinstance(source, ResettableSource):
        raise ConfigurationError(f"read_stream takes a ResettableSource, not {type(source).__name__}")
    if max_rows is not None and max_rows < 1:
        raise ConfigurationError(f"max_rows is {max_rows}: it must be above 0")
    source.validate()
    try:
        pickled = base64.b64encode(pickle.dumps(source)).decode()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(f"{type(source).__name__} cannot be pickled for the executors: {error}") from error
    try:
        spark.dataSource.register(AnySource)
    except AnalysisException as error:
        # pyspark 4.0 refuses what is there already
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    reader: Any = spark.readStream.format(FORMAT).option("source", pickled)
    if max_rows is not None:
        reader = reader.option("maxRows", str(max_rows))
    frame: DataFrame = reader.load()
    return frame
