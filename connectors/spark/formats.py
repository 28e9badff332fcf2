"""The data sources `onceward-kafka`, `onceward-postgres`, `onceward-sql`, `onceward-files`, `-http` and `-redis`.

Importable with no extra installed: the sinks' own packages are imported where a sink is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource

from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import plain

from .any_source import LIMITS, BeforeLimits, SourceBatchReader, spark_schema
from .kafka import (
    FORMAT,
    KafkaStreamReader,
    batch_source,
    checked_source,
    is_ours,
    publisher_from_options,
    stream_source,
)
from .options import COMMON, FormatOptions
from .query import ASYNC, refused
from .task import arrow_schema, warn_of_python

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from onceward.sinks import TwoPhaseCommitSink

    from .writer import BatchWriter, StreamWriter

_OF_STREAMS: Final = frozenset({"rewind", "adopt", "checkpointlocation"})
_OF_BATCHES: Final = frozenset({"runkey"})
_validated: set[str] = set()
"""What this driver process has validated already: it lives on across micro-batches."""


class SinkFormat(DataSource):
    """A format that writes into one sink.

    Attributes:
        format_name: Name of the format.
        sink_class: Name of the sink's class in onceward; it has `from_options`.
        own_too: Options that every format has, and that the sink gets as well.
    """

    format_name: ClassVar[str]
    sink_class: ClassVar[str]
    own_too: ClassVar[frozenset[str]] = frozenset({"name"})

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return cls.format_name

    def make_sink(self, options: Mapping[str, str]) -> TwoPhaseCommitSink[Any]:
        """The sink that the format's own options describe.

        Raises:
            ConfigurationError: An option is wrong, or the sink's extra is not installed.
        """
        import onceward  # noqa: PLC0415 - the sinks come with extras

        sink: TwoPhaseCommitSink[Any] = getattr(onceward, self.sink_class).from_options(options)
        return sink

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        tracking = self.options.get("asyncProgressTrackingEnabled", "false")
        if tracking.lower() == "true":
            raise refused(ASYNC)
        sink = self._sink(schema)
        if overwrite:  # output mode complete
            sink.validate_complete_mode()
        self._refuse_options(_OF_BATCHES, "streaming query", "a batch write")
        options, publisher = FormatOptions.parse(self.options), publisher_from_options(self.options)
        made: StreamWriter = _writers().StreamWriter(sink, options, publisher)
        return made

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise ConfigurationError(f"{self.name()} appends: use mode('append'), it cannot replace existing rows")
        if publisher_from_options(self.options) is not None:
            raise ConfigurationError("options offsets.kafka.… belong to a streaming query: a batch has no offsets")
        self._refuse_options(_OF_STREAMS, "batch write", "a streaming query")
        made: BatchWriter = _writers().BatchWriter(self._sink(schema), FormatOptions.parse(self.options))
        return made

    def _refuse_options(self, others: frozenset[str], here: str, there: str) -> None:
        """Refuse the options of the other way of writing, which would have no effect."""
        if wrong := sorted(option for option in self.options if plain(option) in others):
            raise ConfigurationError(
                f"a {here} takes no option {' or '.join(wrong)}, which belongs to {there}: leave it out"
            )

    def own_sink(self) -> TwoPhaseCommitSink[Any]:
        """The sink, which nobody has validated.

        Raises:
            ConfigurationError: An option is wrong, or the sink's extra is not installed.
        """
        return self.make_sink(self._own_options())

    def _own_options(self) -> dict[str, str]:
        common = COMMON - self.own_too
        return {key: value for key, value in self.options.items() if plain(key) not in common and not is_ours(key)}

    def _sink(self, schema: StructType) -> TwoPhaseCommitSink[Any]:
        sink = self.own_sink()
        key = f"{schema.json()} {sorted(self._own_options().items())}"
        if key not in _validated:
            sink.validate(arrow_schema(schema))
            _validated.add(key)
        return sink


def _writers() -> Any:
    try:
        from . import writer  # noqa: PLC0415 - not on every pyspark
    except ImportError as error:
        raise ConfigurationError(
            "writing through a format needs pyspark 4.1 or newer (DataSourceStreamArrowWriter); on 4.0 use "
            "exactly_once(df, sink), which writes the same"
        ) from error
    return writer


class KafkaFormat(SinkFormat):
    """`format("onceward-kafka")`: read from and write to Kafka, exactly once; `kafka.*`, `topic`, `name`."""

    format_name = FORMAT
    sink_class = "KafkaSink"

    def schema(self) -> StructType:
        return spark_schema(checked_source(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        source = stream_source(self.options)
        return (KafkaStreamReader if LIMITS else BeforeLimits)(source, source.max_offsets_per_trigger)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        source = batch_source(self.options)
        return SourceBatchReader(source, *source.range())


class PostgresFormat(SinkFormat):
    """`format("onceward-postgres")`: write to PostgreSQL; `dsn`, `dbtable`, `mode`, `key` (docs/postgres.md)."""

    format_name = "onceward-postgres"
    sink_class = "PostgresSink"


class SqlFormat(SinkFormat):
    """`format("onceward-sql")`: write through SQLAlchemy; `url`, `dbtable`, `key` (docs/sqlalchemy.md)."""

    format_name = "onceward-sql"
    sink_class = "SqlAlchemySink"


class FilesFormat(SinkFormat):
    """`format("onceward-files")`: write files into a folder; `path`, `fileFormat`, `partitionBy` (docs/files.md)."""

    format_name = "onceward-files"
    sink_class = "FileSink"
    own_too = frozenset({"name", "path"})


class HttpFormat(SinkFormat):
    """`format("onceward-http")`: send to an HTTP server; `url`, `directory`, `header.*` (docs/http.md)."""

    format_name = "onceward-http"
    sink_class = "HttpSink"


class RedisFormat(SinkFormat):
    """`format("onceward-redis")`: write to Redis or Valkey; `url`, `key`, `form`, `directory` (docs/redis.md)."""

    format_name = "onceward-redis"
    sink_class = "RedisSink"


FORMATS = (KafkaFormat, PostgresFormat, SqlFormat, FilesFormat, HttpFormat, RedisFormat)


def register(spark: SparkSession) -> None:
    """Register the formats with a session; Spark also finds them by the names of the `pyspark_onceward_*` modules."""
    warn_of_python(spark)
    for kind in FORMATS:
        try:
            spark.dataSource.register(kind)
        except AnalysisException as error:
            # pyspark 4.0 refuses what it has found by its module's name already
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
