"""The guarantee of a streaming query of Spark, from its plan and its writer's settings."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from onceward.core.checkpoint.subtask import DirectlyWritten
from onceward.core.contract.findings import Finding, failed, ok, skipped, warning
from onceward.core.contract.sink import Guarantee
from onceward.core.engine.graph import of_source
from onceward.core.errors import ConfigurationError, OncewardError
from onceward.core.log.store import local_folder
from onceward.core.operations.description import Described, part_finding, sink_findings, store_url
from onceward.core.run.pipeline_log import check_store_outlives_driver, local_path

from .formats.formats import formats
from .read.any_source import registered_source
from .read.kafka_offsets import stream_source
from .session.kinds import plan_of
from .session.options import FormatOptions, check_complete_mode
from .session.query_plan import Cause, read_plan, unstable, unstable_for, unstable_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from .session.query_plan import PlannedQuery, StreamingSource, Unstable

_UNSTABLE: Final = "non-deterministic"
_FILES: Final = ("avro", "csv", "json", "orc", "parquet", "text", "xml", "binaryfile")
_AGAIN: Final = "replayed identically from the offsets in the checkpoint"
_LOST: Final = "a batch that is replayed after a restart lacks its rows, because the source keeps them in memory"
_SOURCES: Final = {
    **dict.fromkeys(_FILES, f"{_AGAIN}, as long as files are not overwritten"),
    "rate": f"{_AGAIN}: its rows are determined by the time of its first start, which is in the checkpoint",
    "rate-micro-batch": _AGAIN,
}
_ADVICE: Final = {
    Cause.RANDOM: "compute it from the record, for example xxhash64(topic, partition, offset)",
    Cause.DECLARED: "compute it from the record alone",
    Cause.CLOCK: "use current_timestamp() in the query itself, before exactly_once: there Spark pins it to the batch",
    Cause.PLACE: "use columns of the record, for example topic, partition and offset",
    Cause.ORDER: "use a function that does not depend on the order: min, max, sum, or max_by with a unique order",
}
_READ: Final = ("subscribe", "subscribepattern", "assign", "path", "topic")
"""Options that say what a source reads."""
_OTHER_FORMATS: Final = {
    **dict.fromkeys(_FILES, "exactly-once for readers that know the folder's _spark_metadata, as Spark does"),
    "kafka": "at-least-once: after a failure a batch is written again",
    "foreach": "at-least-once: after a failure a batch is written again, unless the function recognizes it",
    "foreachbatch": "at-least-once: after a failure the function gets the batch again, and must recognize it",
}


def described_query(writer: Any) -> Described:
    """Describe a query by its writer's settings and its plan.

    Raises:
        ConfigurationError: The writer's format has wrong options.
    """
    query = read_plan(writer)
    one = Described(name=query.options.get("queryname", "query"), checkpoint=query.checkpoint)
    _read_sinks(query, one)
    one.name = one.pipeline or one.name
    one.findings = [
        *_sources(query, one),
        *_unstable(query, one.sinks),
        *sink_findings(one.sinks, one.policy, heals=True),
        *([] if one.sinks else [_other_sink(query.format)]),
        *_mode(query, one.sinks),
        *_checkpoint(query, one),
    ]
    return one


def _read_sinks(query: PlannedQuery, one: Described) -> None:
    kind = next((kind for kind in formats() if kind.format_name == query.format), None)
    if query.handler is not None:
        handler = query.handler
        one.sinks, one.policy, one.pipeline = list(handler.all_sinks), handler.policy, handler.settings["pipeline"]
        store = handler.settings["store"]
        one.store = _in_checkpoint(one.checkpoint) if store is None else store_url(store)
    elif kind is not None:
        own_options = {
            name: text for name, text in query.options.items() if not name.startswith("asyncprogresstracking")
        }
        options = FormatOptions.parse(own_options)
        one.sinks, one.policy = [kind(own_options).own_sink()], options.policy()
        one.pipeline, store = options.settings["pipeline"], options.settings["store"]
        one.store = _in_checkpoint(options.checkpoint) if store is None else store_url(store)


def _in_checkpoint(checkpoint: str | None) -> str | None:
    """Return the location as a store's URL: a local folder as its path, as Hadoop does not percent-encode URLs."""
    return checkpoint and (local_path(checkpoint) or checkpoint)


def _sources(query: PlannedQuery, one: Described) -> list[Finding]:
    """Report each source; those of one kind are told apart by what they read, or else by their order."""
    sources = plan_of(query.df).sources()
    findings = [_source(source, one, query.df.sparkSession) for source in sources]
    names = Counter(finding.where for finding in findings)
    read = [_read(source) for source in sources]
    titles = [
        f"{finding.where} {what}" if what else finding.where for finding, what in zip(findings, read, strict=True)
    ]
    same = Counter(titles)
    numbered = [f"{title} #{at}" if same[title] > 1 else title for at, title in enumerate(titles, 1)]
    return [
        finding.of(title) if names[finding.where] > 1 else finding
        for finding, title in zip(findings, numbered, strict=True)
    ]


def _read(source: StreamingSource) -> str:
    """Return what a source reads; empty if nobody says so."""
    source_object = registered_source(source.format)
    if source_object is not None:
        return source_object.reads
    return next((source.options[name] for name in _READ if name in source.options), "")


def _source(source: StreamingSource, one: Described, session: SparkSession) -> Finding:
    name = source.format.rpartition(".")[2]
    source_object = registered_source(source.format)
    if name == "onceward-kafka":
        source_object = stream_source(source.options)
    if source_object is not None:
        one.sources.append(source_object)
        name = type(source_object).__name__
        if source_object.leaves_out:
            return _loses(name)
        return part_finding("source", of_source(name, source_object), name, _AGAIN)
    return _built_in(source, name, session)


def _built_in(source: StreamingSource, name: str, session: SparkSession) -> Finding:
    """Report a source that comes with Spark."""
    if name == "kafka":
        return _spark_kafka(source)
    if name in ("socket", "textSocket", "memory", "MemoryStream"):
        advice = "use Kafka or files; a socket is for experiments"
        return warning("source", f"at-most-once: {_LOST}", advice, name, Guarantee.AT_MOST_ONCE)
    if name.lower() in _FILES and (ignored := _ignored(source, session)):
        weakness = f"at-most-once: {ignored} is true, so files that cannot be read are left out"
        return warning("source", weakness, f"leave {ignored} at false", name, Guarantee.AT_MOST_ONCE)
    if name.lower() in _SOURCES:
        return ok("source", _SOURCES[name.lower()], name)
    return skipped("source", "not known here. It must deliver the same rows when a batch is replayed", name)


def _ignored(source: StreamingSource, session: SparkSession) -> str | None:
    """Return the setting by which missing or damaged files are left out; None if none is set."""
    for name in ("ignoreMissingFiles", "ignoreCorruptFiles"):
        setting = f"spark.sql.files.{name}"
        value = source.options.get(name.lower())
        if (value if value is not None else session.conf.get(setting, "false") or "").lower() == "true":
            return name if value is not None else setting
    return None


def _spark_kafka(source: StreamingSource) -> Finding:
    if source.options.get("failondataloss", "true").lower() == "false":
        return _loses("kafka")
    if source.options.get("kafka.isolation.level") != "read_committed":
        weakness = "at-least-once: Spark's Kafka source reads uncommitted records, unless it is configured otherwise"
        return warning(
            "source",
            f"{weakness}; those of a producer's aborted transaction are processed, and a replay may differ",
            "option('kafka.isolation.level', 'read_committed')",
            "kafka",
            Guarantee.AT_LEAST_ONCE,
        )
    return ok("source", _AGAIN, "kafka")


def _loses(name: str) -> Finding:
    weakness = "at-most-once: failOnDataLoss is false, so records that Kafka has deleted are left out"
    return warning("source", weakness, "leave failOnDataLoss at true", name, Guarantee.AT_MOST_ONCE)


def _unstable(query: PlannedQuery, sinks: Sequence[Any]) -> list[Finding]:
    every = [("query", one) for one in unstable(query.df)]
    for sink in sinks:
        target = sink.sink if isinstance(sink, DirectlyWritten) else sink
        output = query.handler.outputs.frames.get(sink.name) if query.handler is not None else None
        of_output = unstable_output(output) if output is not None else []
        in_sink = unstable_for(query.df if output is None else output, target)
        every += [(f"sink {sink.name}", one) for one in (*of_output, *in_sink)]
    functions = sorted({one.expression for _, one in every if one.cause is Cause.PYTHON})
    again = any(sink.guarantee is not Guarantee.EXACTLY_ONCE for sink in sinks)
    again = again if sinks else _other_sink(query.format).guarantee is not None
    findings = [_unstable_finding(one, where, again=again) for where, one in every if one.cause is not Cause.PYTHON]
    if functions:
        text = f"Python functions cannot be analyzed, and are assumed to be deterministic: {', '.join(functions)}. "
        findings.append(skipped(_UNSTABLE, f"{text}Declare others with asNondeterministic()", "query"))
    return findings or [ok(_UNSTABLE, "every expression has the same value when a batch is computed again")]


def _unstable_finding(one: Unstable, where: str, *, again: bool) -> Finding:
    text, left = f"{one.expression}: {one.cause}", None
    if again:
        text += ". The rows of a failed attempt stay in the target in addition to those of the next one, which differ"
        left = Guarantee.AT_LEAST_ONCE
    elif one.kept:
        text += (
            ". State depends on it: a batch that is replayed after its decision is not written again, but its state is "
            "computed again, and goes on from other values than those that were written"
        )
        left = Guarantee.AT_LEAST_ONCE if one.cause in (Cause.RANDOM, Cause.CLOCK, Cause.DECLARED) else None
    else:
        text += ". Each record still takes effect once: rows of a failed attempt never become visible"
    return warning(_UNSTABLE, text, _ADVICE[one.cause], where, left)


def _other_sink(name: str) -> Finding:
    text = _OTHER_FORMATS.get(name, "not a sink of onceward")
    if text.startswith("exactly"):
        return ok("sink", text, name)
    advice = "write through exactly_once(…), or a format of onceward"
    return warning("sink", text, advice, name, Guarantee.AT_LEAST_ONCE)


def _mode(query: PlannedQuery, sinks: Sequence[Any]) -> list[Finding]:
    findings = []
    of_format = bool(sinks) and query.handler is None
    if query.options.get("asyncprogresstrackingenabled", "").lower() == "true" and sinks:
        advice = "remove the option: offsets must be logged before a batch is written"
        findings.append(failed("progress", "asyncProgressTrackingEnabled: refused at the start", advice))
    if query.trigger in ("RealTimeTrigger", "ContinuousTrigger") and sinks:
        text = f"{query.trigger}: refused at the start"
        findings.append(failed("trigger", text, "use processingTime or availableNow"))
    if of_format and query.output_mode == "update":
        text = "update: Spark refuses it for formats in Python"
        findings.append(failed("output mode", text, "use exactly_once(…), which can write it"))
    elif query.output_mode == "complete":
        findings += [_complete(sink) for sink in sinks]
    return findings or [ok("output mode", query.output_mode)]


def _complete(sink: Any) -> Finding:
    try:
        check_complete_mode(sink)
    except OncewardError as error:
        return failed("output mode", error.message, "use append or update", sink.name)
    return ok("output mode", "complete", sink.name)


def _checkpoint(query: PlannedQuery, one: Described) -> list[Finding]:
    name = []
    if one.sinks and one.pipeline is None:
        text = (
            "none: the query's id is used instead, so a deleted checkpoint is not noticed, and rows are written again"
        )
        name = [warning("pipeline name", text, "give option('pipeline', …)")]
    if query.checkpoint is None:
        if one.sinks:
            text = "none: Spark makes a temporary one, and onceward refuses the query's first epoch"
            return [*name, failed("checkpoint", text, "give checkpoint=…")]
        text = "none: Spark makes a temporary one, so a restarted driver reads its input again"
        return [warning("checkpoint", text, "give checkpoint=…", guarantee=Guarantee.AT_LEAST_ONCE)]
    folder = local_folder(one.store) if one.store is not None else None
    if one.sinks and folder is not None and not folder[1]:
        try:
            check_store_outlives_driver(str(one.store), query.df.sparkSession.sparkContext.master)
        except ConfigurationError as error:
            return [*name, failed("decision log", error.message, "set store=…")]
    return name
