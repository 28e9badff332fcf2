"""The data sources `onceward-…`, one for each connector that has a sink, and `onceward` for any sink.

Importable with no extra installed: the sinks' own packages are imported where a sink is made. A query that reads
starts four Python processes, one after the other, which import this module: what only writes need is in format_writing.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.errors import AnalysisException

from onceward.core.contract.connector import connectors
from onceward.core.errors import ConfigurationError, text_of
from onceward.core.kit.extras import needing
from onceward.core.kit.text_options import comparable_option

from ..read.data_sources import DataSource, need_available

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from onceward.core.contract.connector import Connector
    from onceward.sinks import Sink, TwoPhaseCommitSink

    from .writers import BatchWriter, StreamWriter

_SINK: Final = "sink"


class SinkFormat(DataSource):
    """A format that writes into one sink.

    Attributes:
        format_name: Name of the format.
        connector: Connector whose sink the format writes into, see `of_connector`.
    """

    format_name: ClassVar[str]
    connector: ClassVar[type[Connector]]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format_name

    @classmethod
    def of_connector(cls) -> type[Connector]:
        """Return the connector whose sink it writes into; a format that also reads asks for it only here."""
        return cls.connector

    def sink_class(self) -> type[Sink]:
        """Import the class of the sink.

        Raises:
            ConfigurationError: Its extra is not installed.
        """
        connector = self.of_connector()
        with needing(connector.extra):
            return connector.sink_class()

    def make_sink(self, options: Mapping[str, str]) -> TwoPhaseCommitSink[Any]:
        """Make the sink that the format's own options describe.

        Raises:
            ConfigurationError: An option is wrong, or the sink's extra is not installed.
        """
        from .format_writing import two_phase  # noqa: PLC0415 - what reads needs none of it

        return two_phase(self.sink_class().from_options(options))

    def own_sink(self) -> TwoPhaseCommitSink[Any]:
        """Make the sink, which nobody has validated.

        Raises:
            ConfigurationError: An option is wrong, or the sink's extra is not installed.
        """
        from .format_writing import own_sink  # noqa: PLC0415

        return own_sink(self)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        from .format_writing import stream_writer  # noqa: PLC0415

        return stream_writer(self, schema, overwrite=overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from .format_writing import batch_writer  # noqa: PLC0415

        return batch_writer(self, schema, overwrite=overwrite)


class AnyFormat(SinkFormat):
    """`format("onceward")`: write through any sink. Option `sink` names its class, as `module:class`, or a connector.

    The other options are the arguments of the class (see Sink.from_options).
    """

    format_name = "onceward"

    def sink_class(self) -> type[Sink]:
        """Import what option `sink` names."""
        from .format_writing import is_sink_class  # noqa: PLC0415

        kinds = {kind.name: kind for kind in connectors().values() if kind.sink}
        reference = next((value for name, value in self.options.items() if comparable_option(name) == _SINK), "")
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
        if not is_sink_class(imported):
            raise ConfigurationError(f"option sink: {reference} is not a class of sinks")
        return imported

    def make_sink(self, options: Mapping[str, str]) -> TwoPhaseCommitSink[Any]:
        """Make the sink out of all options but `sink`."""
        return super().make_sink({name: value for name, value in options.items() if comparable_option(name) != _SINK})


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
    from ..write.executors import warn_of_python  # noqa: PLC0415 - what Spark's own processes import stays small

    need_available("register", "leave it out and write with exactly_once(df, sink), which needs no format")
    warn_of_python(spark)
    for kind in formats():
        try:
            spark.dataSource.register(kind)
        except AnalysisException as error:
            # pyspark 4.0 refuses what it has found by its module's name already
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
