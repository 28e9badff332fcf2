"""Every metric, once: what it is called, and which events change it.

Names follow OpenTelemetry's conventions (dots, a unit of its own, seconds). Prometheus' names are made of them as
OpenTelemetry's exporter makes them: underscores, the unit at the end, `_total` for counters. The terms are Flink's and
Kafka's where they have one. What has a moment is told as that moment, not as the time since: a process that hangs would
go on telling an old age (after "Instrumentation: timestamps, not time since", Prometheus).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from onceward.core.contract.events import (
    CheckpointEnded,
    Committed,
    CommitWaits,
    EpochAbandoned,
    EpochBegan,
    EpochCompleted,
    EpochFailed,
    EpochReplayed,
    Event,
    LostRewritten,
    OperatorsMeasured,
    QueryProgressed,
    Started,
    SubtaskUsage,
    wall_clock,
)
from onceward.core.kit import typed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class MetricKind(StrEnum):
    """The way in which a metric's values add up."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_UNITS: Final = {"s": "_seconds", "By": "_bytes"}
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of all histograms, in seconds."""
BEHIND: Final = "maxOffsetsBehindLatest"
"""Spark's name for the lag of the partition that is furthest behind, in the metrics of a Kafka source."""


_TOPICS: Final = 3
"""Number of topics of one source that a label names."""


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: Name in OpenTelemetry, of which that in Prometheus is made.
        kind: Kind of the metric, which says how its values add up.
        unit: Unit in UCUM: s, By, {row}.
        labels: Labels in addition to `pipeline`.
        help: Description for people.
    """

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    help: str

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Names of its labels."""
        return ("pipeline", *self.labels)

    @property
    def prometheus(self) -> str:
        """The metric's name in Prometheus."""
        total = "_total" if self.kind is MetricKind.COUNTER else ""
        return f"{self.name.replace('.', '_')}{_UNITS.get(self.unit, '')}{total}"


TABLE: Final[list[Metric]] = []
SUBTASK: Final = ("operator", "subtask")
"""Labels of what is measured in each subtask of the embedded engine."""


def _metric(name: str, kind: MetricKind, unit: str, help_: str, *labels: str) -> Metric:
    metric = Metric(f"onceward.{name}", kind, unit, labels, help_)
    TABLE.append(metric)
    return metric


STARTS = _metric("starts", MetricKind.COUNTER, "{start}", "Starts of the pipeline; with a format, one for each epoch.")
GUARANTEE = _metric(
    "sink.guarantee",
    MetricKind.GAUGE,
    "{sink}",
    "1 for the guarantee that the sink gives, also with exactly_once: exactly-once, or a weaker one.",
    "sink",
    "guarantee",
)
COMPLETED = _metric("epochs.completed", MetricKind.COUNTER, "{epoch}", "Epochs that are committed in every sink.")
REPLAYED = _metric(
    "epochs.replayed", MetricKind.COUNTER, "{epoch}", "Completed epochs that Spark ran again: nothing was written."
)
FAILED = _metric(
    "epochs.failed",
    MetricKind.COUNTER,
    "{epoch}",
    "Epochs, or attempts of the embedded engine, that ended with an error.",
)
VOIDED = _metric(
    "epochs.voided",
    MetricKind.COUNTER,
    "{epoch}",
    "Decided epochs that are written again, because a target had lost its part and nothing was visible.",
)
REWRITTEN = _metric(
    "lost.transactions.rewritten",
    MetricKind.COUNTER,
    "{transaction}",
    "Decided transactions that a target had lost and that were written again, with the same rows.",
)
LAST_EPOCH = _metric("epoch.last", MetricKind.GAUGE, "", "Number of the newest completed epoch.")
LAST_COMPLETED = _metric(
    "epoch.last.completed.timestamp",
    MetricKind.GAUGE,
    "s",
    "When the newest epoch was completed, in seconds since 1970.",
)
ROWS = _metric("rows", MetricKind.COUNTER, "{row}", "Rows of completed epochs.", "sink")
TRANSACTIONS = _metric("transactions", MetricKind.COUNTER, "{transaction}", "Transactions of completed epochs.", "sink")
EPOCH = _metric("epoch.duration", MetricKind.HISTOGRAM, "s", "From an epoch's beginning until it is completed.")
WRITE = _metric("write.duration", MetricKind.HISTOGRAM, "s", "Writing an epoch's rows: the slowest subtask.", "sink")
PREPARE = _metric("prepare.duration", MetricKind.HISTOGRAM, "s", "Flush and prepare: the slowest subtask.", "sink")
DECIDE = _metric("decide.duration", MetricKind.HISTOGRAM, "s", "Making the decision durable.")
COMMIT = _metric(
    "commit.duration", MetricKind.HISTOGRAM, "s", "From the decision until the sink has committed it.", "sink"
)
RETRIES = _metric(
    "commit.retries",
    MetricKind.COUNTER,
    "{retry}",
    "Times that a commit was repeated, because it did not succeed.",
    "sink",
)
IN_DOUBT = _metric(
    "in_doubt.since.timestamp",
    MetricKind.GAUGE,
    "s",
    "Since when the oldest transaction that has not ended may be open, or, where its commit waits, since when it is "
    "decided, in seconds since 1970; 0: there is none.",
)
EXPIRY = _metric(
    "decided.expiry.timestamp",
    MetricKind.GAUGE,
    "s",
    "When the target aborts a decided transaction that could not be committed yet, in seconds since 1970; 0: no such "
    "transaction waits, or it never expires.",
    "sink",
)
LSO_LAG = _metric(
    "last_stable_offset.lag",
    MetricKind.GAUGE,
    "{record}",
    "Records of the sink's topic that read_committed readers cannot see yet: a transaction before them is open.",
    "sink",
)
CHECKPOINTS = _metric("checkpoints", MetricKind.COUNTER, "{checkpoint}", "Checkpoints that have ended.", "status")
CHECKPOINT = _metric(
    "checkpoint.duration", MetricKind.HISTOGRAM, "s", "From the trigger until the checkpoint is completed."
)
ALIGNMENT = _metric("checkpoint.alignment", MetricKind.HISTOGRAM, "s", "Alignment of barriers: the slowest task.")
SIZE = _metric("checkpoint.size", MetricKind.GAUGE, "By", "State of the newest completed checkpoint.")
OPERATOR_IN = _metric(
    "operator.rows.in", MetricKind.COUNTER, "{row}", "Rows that a subtask of the embedded engine has read.", *SUBTASK
)
OPERATOR_OUT = _metric(
    "operator.rows.out",
    MetricKind.COUNTER,
    "{row}",
    "Rows that a subtask of the embedded engine has passed on, once each, however many operators read them.",
    *SUBTASK,
)
OPERATOR_BUSY = _metric(
    "operator.busy", MetricKind.COUNTER, "s", "Time in which a subtask of the embedded engine worked.", *SUBTASK
)
OPERATOR_BLOCKED = _metric(
    "operator.blocked",
    MetricKind.COUNTER,
    "s",
    "Time in which a subtask of the embedded engine waited for the operators after it (backpressure).",
    *SUBTASK,
)
OPERATOR_TIMERS = _metric(
    "operator.timers", MetricKind.GAUGE, "{timer}", "Timers that are set in a subtask of the embedded engine.", *SUBTASK
)
SOURCE_LAG = _metric(
    "source.lag",
    MetricKind.GAUGE,
    "{row}",
    "Rows that a subtask of a source of the embedded engine has not read, of those that were there at its last look; "
    "for Kafka, offsets.",
    *SUBTASK,
)
SPARK_ROWS = _metric(
    "spark.input.rows", MetricKind.COUNTER, "{row}", "Input rows of micro-batches, as Spark counts them."
)
SPARK_BATCH = _metric("spark.batch.duration", MetricKind.HISTOGRAM, "s", "Spark's triggerExecution of micro-batches.")
SPARK_STATE = _metric("spark.state.rows", MetricKind.GAUGE, "{row}", "Rows in the query's state stores.")
SPARK_BEHIND = _metric(
    "spark.offsets.behind.latest",
    MetricKind.GAUGE,
    "{offset}",
    "Offsets between the end of the newest micro-batch and the end of the topic, in the Kafka partition that is "
    "furthest behind; `source` has the topics.",
    "source",
)


class MetricSample(NamedTuple):
    """A counter's increase, a gauge's new value, or a histogram's observation."""

    metric: Metric
    value: float
    labels: tuple[str, ...]


def samples(event: Event) -> Iterator[MetricSample]:  # noqa: C901 - one case for each kind of event
    """Yield the samples that an event changes."""
    one = (event.pipeline,)
    match event:
        case Started():
            yield from _started(event)
        case EpochBegan(_, since):
            yield MetricSample(IN_DOUBT, since, one)
        case EpochAbandoned():
            yield MetricSample(IN_DOUBT, 0, one)
        case CommitWaits():
            yield from _waits(event)
        case Committed():
            yield from _committed(event)
        case LostRewritten(_, _, transactions):
            yield MetricSample(REWRITTEN, transactions, one)
        case EpochCompleted():
            yield from _completed(event)
        case EpochReplayed():
            yield MetricSample(REPLAYED, 1, one)
        case EpochFailed():
            yield MetricSample(FAILED, 1, one)
        case CheckpointEnded():
            yield from _checkpoint(event)
        case OperatorsMeasured(pipeline, subtasks):
            yield from (sample for usage in subtasks for sample in _measured(pipeline, usage))
        case QueryProgressed(_, progress):
            yield from _progressed(one, progress)


def _progressed(one: tuple[str], progress: Mapping[str, Any]) -> Iterator[MetricSample]:
    yield MetricSample(SPARK_ROWS, progress.get("numInputRows") or 0, one)
    yield MetricSample(SPARK_BATCH, progress.get("durationMs", {}).get("triggerExecution", 0) / 1000, one)
    yield MetricSample(SPARK_STATE, sum(o.get("numRowsTotal", 0) for o in progress.get("stateOperators", [])), one)
    behind: dict[str, int] = {}
    for source in progress.get("sources", ()):
        metrics = source.get("metrics") or {}
        if BEHIND in metrics:
            topics = _topics(source)  # of two sources with the same topics, the one that is further behind
            behind[topics] = max(behind.get(topics, 0), int(metrics[BEHIND]))
    yield from (MetricSample(SPARK_BEHIND, most, (*one, topics)) for topics, most in behind.items())


def _topics(source: Mapping[str, Any]) -> str:
    """Return the names of the topics that a source of a query reads; the first ones of many."""
    offsets = source.get("endOffset")
    if isinstance(offsets, str):
        try:
            offsets = typed.decode(offsets, Any)
        except msgspec.DecodeError:
            offsets = None
    names = sorted(map(str, offsets)) if isinstance(offsets, dict) else []
    return ", ".join([*names[:_TOPICS], *(["…"] if len(names) > _TOPICS else [])])


def _measured(pipeline: str, usage: SubtaskUsage) -> Iterator[MetricSample]:
    labels = (pipeline, usage.operator, str(usage.subtask))
    yield MetricSample(OPERATOR_IN, usage.rows_in, labels)
    yield MetricSample(OPERATOR_OUT, usage.rows_out, labels)
    yield MetricSample(OPERATOR_BUSY, usage.busy, labels)
    yield MetricSample(OPERATOR_BLOCKED, usage.blocked, labels)
    if usage.timers is not None:
        yield MetricSample(OPERATOR_TIMERS, usage.timers, labels)
    if usage.lag is not None:
        yield MetricSample(SOURCE_LAG, usage.lag, labels)


def _started(event: Started) -> Iterator[MetricSample]:
    one = (event.pipeline,)
    yield MetricSample(STARTS, 1, one)
    for sink, guarantee in event.guarantees.items():
        yield MetricSample(GUARANTEE, 1, (event.pipeline, sink, guarantee))
    yield MetricSample(IN_DOUBT, 0, one)
    for counter in (
        COMPLETED,
        REPLAYED,
        FAILED,
        VOIDED,
        REWRITTEN,
    ):  # the first increase of a counter that is not there is not seen
        yield MetricSample(counter, 0, one)
    if event.epoch is not None and event.completed is not None:  # a pipeline that dies at each start grows old, too
        yield MetricSample(LAST_EPOCH, event.epoch, one)
        yield MetricSample(LAST_COMPLETED, event.completed, one)


def _waits(event: CommitWaits) -> Iterator[MetricSample]:
    yield MetricSample(IN_DOUBT, event.since, (event.pipeline,))
    for sink, expiry in event.waiting.items():
        yield MetricSample(RETRIES, 1, (event.pipeline, sink))
        yield MetricSample(EXPIRY, expiry or 0, (event.pipeline, sink))
    for sink in event.done:
        yield MetricSample(EXPIRY, 0, (event.pipeline, sink))


def _committed(event: Committed) -> Iterator[MetricSample]:
    if event.voided:
        yield MetricSample(VOIDED, 1, (event.pipeline,))
    for sink, took in event.seconds.items():
        yield MetricSample(EXPIRY, 0, (event.pipeline, sink))
        yield MetricSample(RETRIES, 0, (event.pipeline, sink))
        if not event.voided:
            yield MetricSample(COMMIT, took, (event.pipeline, sink))


def _checkpoint(event: CheckpointEnded) -> Iterator[MetricSample]:
    one, record = (event.pipeline,), event.record
    yield MetricSample(CHECKPOINTS, 1, (event.pipeline, record.status))
    if record.status == "completed":
        yield MetricSample(CHECKPOINT, record.duration, one)
        yield MetricSample(ALIGNMENT, max((task.alignment for task in record.tasks), default=0.0), one)
        yield MetricSample(SIZE, sum(task.state for task in record.tasks), one)


def _completed(event: EpochCompleted) -> Iterator[MetricSample]:
    pipeline, one = event.pipeline, (event.pipeline,)
    yield MetricSample(COMPLETED, 1, one)
    yield MetricSample(LAST_EPOCH, event.epoch, one)
    yield MetricSample(LAST_COMPLETED, wall_clock(), one)
    if event.took is not None:
        yield MetricSample(EPOCH, event.took.epoch, one)
        yield MetricSample(DECIDE, event.took.decide, one)
    if not event.checkpoint:  # the next rows of the embedded engine are being written already
        yield MetricSample(IN_DOUBT, 0, one)
    for sink, rows in event.rows().items():
        yield MetricSample(ROWS, rows, (pipeline, sink))
    for sink in event.sinks:
        yield MetricSample(TRANSACTIONS, sum(c.sink == sink for c in event.committables), (pipeline, sink))
    for sink in sorted({written.sink for written in event.written}):
        own = [written for written in event.written if written.sink == sink]
        yield MetricSample(WRITE, max(written.write for written in own), (pipeline, sink))
        yield MetricSample(PREPARE, max(written.prepare for written in own), (pipeline, sink))
