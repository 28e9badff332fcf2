"""Writing through a format: its sink, the checks of its options, and the writer that Spark calls."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast

from onceward.core.checkpoint.subtask import DirectlyWritten
from onceward.core.contract.pipeline_settings import BATCH, STREAM
from onceward.core.contract.sink import DirectSink, Sink, TwoPhaseCommitSink
from onceward.core.errors import ConfigurationError, OncewardError
from onceward.core.kit.driver_settings import Driver, option_of, refusal
from onceward.core.kit.text_options import comparable_option, option_names
from onceward.core.run.pipeline_log import noting_failed_start

from ..read.kafka_offsets import is_ours, publisher_from_options
from ..read.schemas import arrow_schema
from ..session.options import COMMON, FormatOptions, check_complete_mode
from ..session.query import ASYNC, reason, refusal_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql.types import StructType

    from .writers import BatchWriter, StreamWriter


class Writable(Protocol):
    """What a format says of the sink that it writes into (formats.SinkFormat)."""

    @property
    def options(self) -> Mapping[str, str]: ...
    @classmethod
    def name(cls) -> str: ...
    def sink_class(self) -> type[Sink]: ...
    def make_sink(self, options: Mapping[str, str]) -> TwoPhaseCommitSink[Any]: ...


def is_sink_class(found: object) -> TypeGuard[type[Sink]]:
    """Return whether this is a class of sinks that a format can write into."""
    return isinstance(found, type) and issubclass(found, TwoPhaseCommitSink | DirectSink)


def two_phase(sink: Sink) -> TwoPhaseCommitSink[Any]:
    """Return the sink with the calls of two-phase commit."""
    return DirectlyWritten(sink) if isinstance(sink, DirectSink) else cast("TwoPhaseCommitSink[Any]", sink)


def own_sink(format_: Writable) -> TwoPhaseCommitSink[Any]:
    """Make a format's sink, which nobody has validated.

    Raises:
        ConfigurationError: An option is wrong, or the sink's extra is not installed.
    """
    return format_.make_sink(_own_options(format_))


def stream_writer(format_: Writable, schema: StructType, *, overwrite: bool) -> StreamWriter:
    """Make the writer of a streaming query.

    Args:
        format_: Format that writes.
        schema: Schema of the rows.
        overwrite: True if the query has output mode complete.

    Raises:
        ConfigurationError: An option is wrong, or the query cannot be written exactly once; the message says why.
    """
    tracking = format_.options.get("asyncProgressTrackingEnabled", "false")
    if tracking.lower() == "true":
        raise refusal_of(ASYNC)
    _refuse_options(format_, STREAM)
    with _noting(format_):
        sink, columns = own_sink(format_), arrow_schema(schema)
        if overwrite:
            check_complete_mode(sink)
    options, publisher = FormatOptions.parse(format_.options), publisher_from_options(format_.options)
    writer: StreamWriter = _writers().StreamWriter(sink, options, publisher, schema=columns)
    return writer


def batch_writer(format_: Writable, schema: StructType, *, overwrite: bool) -> BatchWriter:
    """Make the writer of a batch.

    Args:
        format_: Format that writes.
        schema: Schema of the rows.
        overwrite: True if the batch is to replace existing rows.

    Raises:
        ConfigurationError: An option is wrong, or existing rows are to be replaced.
    """
    if overwrite:
        raise ConfigurationError(f"{format_.name()} appends: use mode('append'), it cannot replace existing rows")
    if publisher_from_options(format_.options) is not None:
        raise ConfigurationError("options offsets.… belong to a streaming query: a batch has no offsets")
    _refuse_options(format_, BATCH)
    sink = own_sink(format_)
    sink.validate(arrow_schema(schema))
    writer: BatchWriter = _writers().BatchWriter(sink, FormatOptions.parse(format_.options))
    return writer


def _noting(format_: Writable) -> AbstractContextManager[None]:
    """Note what is raised beside the query's decision log, if its options say where that is."""
    try:
        options = FormatOptions.parse(format_.options)
    except OncewardError:
        # The caller reads the same options and raises what is wrong with them.
        return nullcontext()
    return noting_failed_start(options.settings["store"], options.checkpoint, options.settings["pipeline"], reason)


def _refuse_options(format_: Writable, driver: str) -> None:
    """Refuse what other drivers take and has no effect here, unless it is an option of the sink."""
    reasons = {comparable_option(option_of(name)): refusal(driver, name) for name in Driver.known}
    wrong: dict[str, list[str]] = {}
    for option in sorted(format_.options):
        why = reasons.get(comparable_option(option))
        if why and (comparable_option(option) in COMMON or not _has(format_, option)):
            wrong.setdefault(why, []).append(option)
    for why, options in wrong.items():
        raise ConfigurationError(f"a {driver} takes no option {' or '.join(options)}, which {why}")


def _own_options(format_: Writable) -> dict[str, str]:
    options = format_.options.items()
    return {key: value for key, value in options if _is_own(format_, comparable_option(key)) and not is_ours(key)}


def _is_own(format_: Writable, option: str) -> bool:
    """Return whether the sink gets an option: Spark itself gives `path` to every format."""
    return _has(format_, option) if option == "path" else option not in COMMON or option == "name"


def _has(format_: Writable, option: str) -> bool:
    sink = format_.sink_class()
    return comparable_option(option) in map(comparable_option, option_names(sink, aliases=sink.option_aliases))


def _writers() -> Any:
    try:
        from . import writers  # noqa: PLC0415 - not on every pyspark
    except ImportError as error:
        raise ConfigurationError(
            "writing through a format needs pyspark 4.1 or newer (DataSourceStreamArrowWriter); on 4.0 use "
            "exactly_once(df, sink), which writes the same"
        ) from error
    return writers
