"""The data sources `onceward-…`, one for each connector that has a sink, and `onceward` for any sink.

Importable with no extra installed: the sinks' own packages are imported where a sink is made.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from pyspark.errors import AnalysisException

from onceward.core.checkpoint.subtask import DirectlyWritten
from onceward.core.connector import connectors
from onceward.core.errors import ConfigurationError, OncewardError, text_of
from onceward.core.kit.extras import needing
from onceward.core.kit.options import option_names, plain
from onceward.sinks import DirectSink, TwoPhaseCommitSink

from .data_sources import DataSource, need_available
from .executors import warn_of_python
from .kafka import is_ours, publisher_from_options
from .options import COMMON, FormatOptions, check_complete_mode, noting_failed_start
from .query import ASYNC, refusal_of
from .task import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from onceward.core.connector import Connector
    from onceward.sinks import Sink

    from .writer import BatchWriter, StreamWriter

_SINK: Final = "sink"
_OF_STREAMS: Final = frozenset({"rewind", "adopt", "checkpointlocation"})
_OF_BATCHES: Final = frozenset({"runkey"})
_validated: set[str] = set()
"""What this driver process has validated already: it lives on across micro-batches."""


class SinkFormat(DataSource):
    """A format that writes into one sink.

    Attributes:
        format_name: Name of the format.
        connector: Whose sink it writes into.
    """

    format_name: ClassVar[str]
    connector: ClassVar[type[Connector]]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format_name

    def sink_class(self) -> type[Sink]:
        """Import the class of the sink.

        Raises:
            ConfigurationError: Its extra is not installed.
        """
        with needing(self.connector.extra):
            return self.connector.sink_class()

    def make_sink(self, options: Mapping[str, str]) -> TwoPhaseCommitSink[Any]:
        """Make the sink that the format's own options describe.

        Raises:
            ConfigurationError: An option is wrong, or the sink's extra is not installed.
        """
        sink = self.sink_class().from_options(options)
        return DirectlyWritten(sink) if isinstance(sink, DirectSink) else cast("TwoPhaseCommitSink[Any]", sink)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        tracking = self.options.get("asyncProgressTrackingEnabled", "false")
        if tracking.lower() == "true":
            raise refusal_of(ASYNC)
        with self._noting():
            sink = self._sink(schema)
            if overwrite:  # output mode complete
                check_complete_mode(sink)
        self._refuse_options(_OF_BATCHES, "streaming query", "a batch write")
        options, publisher = FormatOptions.parse(self.options), publisher_from_options(self.options)
        writer: StreamWriter = _writers().StreamWriter(sink, options, publisher)
        return writer

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise ConfigurationError(f"{self.name()} appends: use mode('append'), it cannot replace existing rows")
        if publisher_from_options(self.options) is not None:
            raise ConfigurationError("options offsets.… belong to a streaming query: a batch has no offsets")
        self._refuse_options(_OF_STREAMS, "batch write", "a streaming query")
        writer_: BatchWriter = _writers().BatchWriter(self._sink(schema), FormatOptions.parse(self.options))
        return writer_

    def _noting(self) -> AbstractContextManager[None]:
        """Note what is raised beside the query's decision log, if its options say where that is."""
        try:
            options = FormatOptions.parse(self.options)
        except OncewardError:
            return nullcontext()
        return noting_failed_start(options.store, options.checkpoint, options.pipeline)

    def _refuse_options(self, others: frozenset[str], here: str, there: str) -> None:
        """Refuse the options of the other way of writing, which would have no effect."""
        if wrong := sorted(option for option in self.options if plain(option) in others):
            raise ConfigurationError(
                f"a {here} takes no option {' or '.join(wrong)}, which belongs to {there}: leave it out"
            )

    def own_sink(self) -> TwoPhaseCommitSink[Any]:
        """Make the sink, which nobody has validated.

        Raises:
            ConfigurationError: An option is wrong, or the sink's extra is not installed.
        """
        return self.make_sink(self._own_options())

    def _own_options(self) -> dict[str, str]:
        return {key: value for key, value in self.options.items() if self._is_own(plain(key)) and not is_ours(key)}

    def _is_own(self, option: str) -> bool:
        """Return whether the sink gets an option: Spark itself gives `path` to every format."""
        if option == "path":
            sink = self.sink_class()
            return option in map(plain, option_names(sink, aliases=sink.option_aliases))
        return option not in COMMON or option == "name"

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


class AnyFormat(SinkFormat):
    """`format("onceward")`: write through any sink. Option `sink` names its class, as `module:class`, or a connector.

    The other options are the arguments of the class (see Sink.from_options).
    """

    format_name = "onceward"

    def sink_class(self) -> type[Sink]:
        """Import what option `sink` names."""
        kinds = {kind.name: kind for kind in connectors().values() if kind.sink}
        reference = next((value for name, value in self.options.items() if plain(name) == _SINK), "")
        if reference in kinds:
            with needing(kinds[reference].extra):
                return kinds[reference].sink_class()
        module, _, name = reference.partition(":")
        if not module or not name.isidentifier():
            raise ConfigurationError(f"format onceward needs option sink: module:class, or one of {', '.join(kinds)}")
        try:
            imported = getattr(import_module(module), name)
        except Exception as error:
            raise ConfigurationError(f"option sink: cannot import {reference}: {text_of(error)}") from error
        if not (isinstance(imported, type) and issubclass(imported, TwoPhaseCommitSink | DirectSink)):
            raise ConfigurationError(f"option sink: {reference} is not a class of sinks")
        return imported

    def make_sink(self, options: Mapping[str, str]) -> TwoPhaseCommitSink[Any]:
        """Make the sink out of all options but `sink`."""
        return super().make_sink({name: value for name, value in options.items() if plain(name) != _SINK})


@cache
def format_of(connector: type[Connector]) -> type[SinkFormat]:
    """Return the format that reads and writes a kind of system: `onceward-` and the connector's name."""
    if connector.spark_format:
        module, _, name = connector.spark_format.partition(":")
        kind: type[SinkFormat] = getattr(import_module(module), name)
        return kind
    members = {"format_name": f"onceward-{connector.name}", "connector": connector, "__module__": __name__}
    return type(f"{connector.name.title()}Format", (SinkFormat,), members)


def formats() -> list[type[SinkFormat]]:
    """Return the formats of all connectors that have a sink, and the one for any sink."""
    return [*(format_of(kind) for kind in connectors().values() if kind.sink), AnyFormat]


def register(spark: SparkSession) -> None:
    """Register the formats with a session; Spark also finds them by the names of the `pyspark_onceward_*` modules.

    Raises:
        ConfigurationError: pyspark is older than 4.0.
    """
    need_available("register", "leave it out and write with exactly_once(df, sink), which needs no format")
    warn_of_python(spark)
    for kind in formats():
        try:
            spark.dataSource.register(kind)
        except AnalysisException as error:
            # pyspark 4.0 refuses what it has found by its module's name already
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
