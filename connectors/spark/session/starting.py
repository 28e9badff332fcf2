"""The start of a query that `exactly_once` has described: what Python does before Spark runs it, and what it refuses.

Describing a query changes nothing outside of this process. Targets are checked, and what is missing in them is created,
when `start` is called, in the caller's thread: so its errors are raised there, and not in a micro-batch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from onceward.core.errors import ConfigurationError
from onceward.core.kit.caller_warnings import warn
from onceward.core.log.store import EXPLAINING

from ..read.kafka_offsets import order_warning
from .query import ASYNC, CONTINUOUS, REFUSED, refusal_of
from .query_plan import ClassicPlan, analyzed_plan, handlers, read_plan, writer_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from .query_plan import QueryPlan


def refuse_other_targets(writer: Any) -> None:
    """Make a writer refuse every method that would set another target, and so remove onceward from the query."""

    def refuse(name: str, *_: Any, **__: Any) -> NoReturn:
        raise ConfigurationError(
            f"{name}(…) would replace what exactly_once has set up: the rows would reach none of its sinks. Give "
            "exactly_once all sinks, and call only trigger, outputMode, queryName, option and start on what it returns"
        )

    for name in ("format", "foreach", "foreachBatch", "toTable"):
        setattr(writer, name, partial(refuse, name))


def check_start_arguments(place: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Refuse arguments of `start` that name another target.

    Raises:
        ConfigurationError: There is one.
    """
    if place or not options.keys().isdisjoint({"path", "format", "partitionBy"}):
        raise ConfigurationError(
            "start(path, format, partitionBy) would replace what exactly_once has set up: give it outputMode=, "
            "queryName= and options only"
        )


def prepare_at_start(writer: Any, prepare: Callable[[], None], watch: Callable[[Any], None]) -> None:
    """Make a writer of a classic session prepare the query's targets when it is started, and have the query watched.

    Args:
        writer: DataStreamWriter of the query.
        prepare: Checks the targets, and creates what is missing in them.
        watch: Watches the query that has started.
    """
    # The class's own method: the writer's is replaced below, and would call itself.
    begin = type(writer).start

    def start(*place: Any, **options: Any) -> Any:
        check_start_arguments(place, options)
        if options.get("outputMode") is not None:  # so that `prepare` sees it, too
            writer.outputMode(options.pop("outputMode"))
        if not EXPLAINING.get():
            if writer in handlers:
                query = handlers[writer]
                outputs = {name: ClassicPlan(frame) for name, frame in query.outputs.frames.items()}
                warn_of_order(ClassicPlan(writer._df), query, outputs)  # noqa: SLF001 - no public way to ask
            prepare()
        query = begin(writer, **options)
        if not EXPLAINING.get():
            watch(query)
        return query

    writer.start = start


def warn_of_order(plan: QueryPlan, query: Any, outputs: Mapping[str, QueryPlan]) -> None:
    """Warn whoever starts a query that it may write the records of a key in another order than they had.

    Args:
        plan: Plan of the query's DataFrame.
        query: The query, with `sinks` and `settings`.
        outputs: Plans of what functions of Outputs make of a micro-batch, by name of the sink, where they are known.
    """

    def plans() -> Iterator[list[str]]:
        names = plan.node_names()
        for sink in query.sinks:
            yield [*names, *outputs[sink.name].node_names()] if sink.name in outputs else names

    if message := order_warning(plan.sources(), plans, query.settings["writers"]):
        warn(message)


def check_runs(writer: DataStreamWriter) -> str:
    """Refuse what Spark refuses in `start`, before anything else is done; return the output mode.

    Raises:
        AnalysisException: Spark does not run such a plan in this output mode.
        ConfigurationError: The query's name is taken, or its trigger or an option cannot be used here.
    """
    planned = read_plan(writer)
    df: Any = planned.df
    mode = REFUSED.get(planned.trigger)
    if planned.options.get("asyncprogresstrackingenabled", "").lower() == "true":
        mode = ASYNC
    if planned.trigger == "ContinuousTrigger":
        mode = CONTINUOUS
    if mode is not None:
        raise refusal_of(mode)
    if writer_field(writer, "partitioningColumns").isDefined():
        raise ConfigurationError("partitionBy(…) is not for exactly_once: leave it out; a sink may take partition_by=…")
    name = planned.options.get("queryname")
    if name is not None and any(query.name == name for query in df.sparkSession.streams.active):
        raise ConfigurationError(f"a query with the name {name} runs in this session: stop it, or take another name")
    if df.sparkSession.conf.get("spark.sql.streaming.unsupportedOperationCheck", "true").lower() == "true":
        checker = df.sparkSession._jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker  # noqa: SLF001
        plan, output_mode = analyzed_plan(df), writer_field(writer, "outputMode")
        checker.checkForStreaming(plan, output_mode)
        checker.checkStreamingQueryGlobalWatermarkLimit(plan, output_mode)
    return planned.output_mode
