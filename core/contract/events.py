"""What a pipeline tells of itself: one record per start, epoch and checkpoint, and one a second of its operators.

Log lines, metrics and lineage are made of the same records, by observers; `log`, the first of them, is at the end. An
observer decides nothing: what it raises is logged once, and the epoch goes on.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..kit.times import duration
from .transaction import rows_by_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ..log import EpochInput
    from ..log.note_kinds import CheckpointRecord
    from .sink import Sink
    from .transaction import Committable, Written

_log = logging.getLogger("onceward.observers")
_coordinator = logging.getLogger("onceward.coordinator")
_spark = logging.getLogger("onceward.spark")
_engine = logging.getLogger("onceward.engine")
_sources = logging.getLogger("onceward.sources")


class Started(NamedTuple):
    """A run has put START, swept, and finished what was decided."""

    pipeline: str
    epoch: int | None
    """Newest decided epoch; None for a new log."""
    completed: float | None
    """Time of that epoch's completion, in seconds since 1970; None if the log does not say."""
    log: str
    store: str
    finished: Sequence[Committable]
    """Transactions that an earlier run had decided, and this start has committed."""
    aborted: Sequence[Committable]
    """Transactions that no decision names, and this start has aborted."""
    seconds: float
    guarantees: Mapping[str, str] = MappingProxyType({})
    """Guarantee of each sink: exactly-once, or a weaker one."""
    position: int | None = None
    """Position of its START in the log."""
    timeouts: Callable[[], Mapping[str, float]] = dict
    """Function that returns after how many seconds the targets of sinks end an open transaction; it may ask targets."""
    targets: Callable[[], Mapping[str, Any]] = dict
    """Function that returns the address that each sink writes to, without secrets."""


class EpochBegan(NamedTuple):
    """Transactions of a new epoch may be open from now on."""

    pipeline: str
    since: float
    """Seconds since 1970."""


class CommitWaits(NamedTuple):
    """Decided transactions could not be committed yet; they are asked for again."""

    pipeline: str
    epoch: int
    since: float
    """Time of the decision, in seconds since 1970."""
    waiting: Mapping[str, float | None]
    """Time at which the first transaction of each sink expires, in seconds since 1970; None: never, or not known."""
    done: Collection[str]
    """Sinks that have committed theirs."""


class Committed(NamedTuple):
    """A decision was carried out or voided, by the run that made it or by a later one."""

    pipeline: str
    epoch: int
    seconds: Mapping[str, float]
    """Seconds since the decision was taken up, for each sink that it names."""
    voided: bool = False


class LostRewritten(NamedTuple):
    """Lost transactions of a decision were written again, with the same rows."""

    pipeline: str
    epoch: int
    transactions: int


class Took(NamedTuple):
    """Seconds of an epoch."""

    epoch: float
    """Seconds since the first of its transactions may have begun."""
    decide: float
    commit: float
    """Seconds from the acknowledgements to COMPLETED, the decision included."""


class EpochCompleted(NamedTuple):
    """An epoch is committed everywhere, and COMPLETED is durable."""

    pipeline: str
    log: str
    epoch: int
    input: EpochInput
    committables: Sequence[Committable]
    sinks: Mapping[str, Sink]
    checkpoint: bool = False
    """True if it is a checkpoint of the embedded engine: these are also made where nothing is written."""
    written: Sequence[Written] = ()
    """Work of each subtask for each sink, as far as it is known."""
    took: Took | None = None
    """Seconds that the epoch took; None if an earlier run had decided it, and a start has finished it."""

    def rows(self) -> dict[str, int]:
        """Return the number of rows of each sink that took part."""
        return rows_by_sink(self.committables)

    def facts(self) -> dict[str, Any]:
        """Return the fields for log lines and notes."""
        rows, took = self.rows(), self.took
        return {
            "epoch": self.epoch,
            "rows": sum(rows.values()),
            "sinks": rows,
            "transactions": len(self.committables),
            "milliseconds": round(took.epoch * 1000) if took is not None else None,
            "commit_milliseconds": round(took.commit * 1000) if took is not None else None,
        }

    @property
    def is_empty_checkpoint(self) -> bool:
        """Whether it is a checkpoint with which nothing was committed."""
        return self.checkpoint and not self.committables


class EpochAbandoned(NamedTuple):
    """An epoch that failed can no longer be decided, and its transactions are aborted."""

    pipeline: str


class EpochReplayed(NamedTuple):
    """Spark runs an epoch again that is completed: nothing is written."""

    pipeline: str
    epoch: int


class EpochFailed(NamedTuple):
    """An epoch, or an attempt of the embedded engine, ended with an error."""

    pipeline: str
    epoch: int | None
    """Number of the epoch; None for an attempt of the embedded engine, for a query that fails outside of its epochs, or
    if it is not known."""
    error: str
    """Description of the error, in one line."""
    again: bool = False
    """True if the driver tries again by itself, and has said so."""


class SourceWaits(NamedTuple):
    """The system behind a source has not answered for a while, and no epoch is completed meanwhile."""

    pipeline: str
    source: str
    """Kind of the source, and what it reads."""
    seconds: float
    """Seconds since the source last answered."""
    why: str
    system: Mapping[str, Any] = MappingProxyType({})
    """Address of what it reads, without secrets."""


class SourceAnswers(NamedTuple):
    """The system behind a source answers again."""

    pipeline: str
    source: str
    seconds: float
    """Seconds for which the source did not answer."""
    system: Mapping[str, Any] = MappingProxyType({})
    """Address of what it reads, without secrets."""


class CheckpointEnded(NamedTuple):
    """A checkpoint of the embedded engine ended, or did not begin."""

    pipeline: str
    record: CheckpointRecord
    bad: bool


class SubtaskUsage(NamedTuple):
    """The work of one subtask of the embedded engine."""

    operator: str
    subtask: int
    rows_in: int = 0
    rows_out: int = 0
    busy: float = 0.0
    """Seconds in which it worked."""
    blocked: float = 0.0
    """Seconds in which it waited for room in its outputs (backpressure)."""
    timers: int | None = None
    """Number of timers that are set; None where there can be none."""
    lag: int | None = None
    """Rows, or numbers of rows, that its source has seen and not read; None if it is no resettable source."""

    def since(self, before: SubtaskUsage) -> SubtaskUsage:
        """Return the counts since an earlier state; timers and lag are the current ones."""
        return self._replace(
            rows_in=self.rows_in - before.rows_in,
            rows_out=self.rows_out - before.rows_out,
            busy=max(0.0, self.busy - before.busy),
            blocked=max(0.0, self.blocked - before.blocked),
        )


class OperatorsMeasured(NamedTuple):
    """The work of the embedded engine's subtasks since the last event of this kind."""

    pipeline: str
    subtasks: Sequence[SubtaskUsage]


class QueryProgressed(NamedTuple):
    """Spark has reported a micro-batch."""

    pipeline: str
    """The query's name, or its id."""
    progress: Mapping[str, Any]
    """Spark's StreamingQueryProgress as JSON values."""


Event: TypeAlias = (
    Started
    | EpochBegan
    | CommitWaits
    | Committed
    | LostRewritten
    | EpochCompleted
    | EpochAbandoned
    | EpochReplayed
    | EpochFailed
    | SourceWaits
    | SourceAnswers
    | CheckpointEnded
    | OperatorsMeasured
    | QueryProgressed
)
Observer: TypeAlias = "Callable[[Event], None]"

_observers: Final[list[Observer]] = []
_complained: Final[list[Observer]] = []


def observe(observer: Observer) -> None:
    """Call `observer` with each event of this process's pipelines, on the pipeline's own thread.

    Args:
        observer: Function. It should return within microseconds, for the epoch waits for it. What it raises is logged
            as a warning, the first time only.
    """
    if observer not in _observers:
        _observers.append(observer)


def tell(event: Event) -> None:
    """Call all observers; an error in one of them does not fail the epoch."""
    for observer in tuple(_observers):
        try:
            observer(event)
        except Exception as error:  # noqa: BLE001 - an exporter's
            if observer not in _complained:
                _complained.append(observer)
                _log.warning(
                    "%s cannot take %s of pipeline %s, and further errors of it are not logged: %s: %s",
                    getattr(observer, "__qualname__", type(observer).__name__),
                    type(event).__name__,
                    event.pipeline,
                    type(error).__name__,
                    error,
                    extra={"pipeline": event.pipeline},
                )


def wall_clock(seconds_ago: float = 0.0) -> float:
    """Return the seconds since 1970, for people and monitoring only."""
    return time.time() - seconds_ago


def moment(at: str) -> float | None:
    """Parse an entry's time, which is written for people; return seconds since 1970, or None if it is none."""
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return None


def about(committable: Committable) -> dict[str, Any]:
    """Return the fields of a log record that is about one transaction."""
    names = ("pipeline", "sink", "epoch", "transaction", "rows")
    return {name: getattr(committable, name) for name in names}


def log(event: Event) -> None:
    """Log an event, if it has a line."""
    match event:
        case Started():
            _log_start(event)
        case EpochCompleted() if event.took is not None and not event.is_empty_checkpoint:
            facts = event.facts()
            _coordinator.info(
                "epoch %s of pipeline %s completed: %s in %s transactions, %s ms (commit %s ms)",
                event.epoch,
                event.pipeline,
                ", ".join(f"{sink} {n} rows" for sink, n in facts["sinks"].items()) or "no rows",
                facts["transactions"],
                facts["milliseconds"],
                facts["commit_milliseconds"],
                extra={"pipeline": event.pipeline, **facts},
            )
        case EpochReplayed(pipeline, epoch):
            fields = {"pipeline": pipeline, "epoch": epoch}
            _spark.info("epoch %s is completed already: Spark runs it again, nothing is written", epoch, extra=fields)
        case EpochFailed(pipeline, epoch, error, again=False):
            fields = {"pipeline": pipeline, "epoch": epoch}
            if epoch is None:
                _coordinator.error("pipeline %s failed: %s", pipeline, error, extra=fields)
            else:
                _spark.error("epoch %s of pipeline %s failed: %s", epoch, pipeline, error, extra=fields)
        case SourceWaits(pipeline, source, seconds, why, _):
            fields = {"pipeline": pipeline, "source": source, "seconds": round(seconds)}
            text = "source %s of pipeline %s has not answered for %s: %s"
            _sources.warning(text, source, pipeline, duration(seconds), why, extra=fields)
        case SourceAnswers(pipeline, source, seconds, _):
            fields = {"pipeline": pipeline, "source": source, "seconds": round(seconds)}
            _sources.warning(
                "source %s of pipeline %s answers again, after %s", source, pipeline, duration(seconds), extra=fields
            )
        case CheckpointEnded(pipeline, record, bad):
            milliseconds = round(record.duration * 1000)
            fields = {"pipeline": pipeline, "epoch": record.checkpoint, "milliseconds": milliseconds}
            _engine.log(logging.WARNING if bad else logging.INFO, "pipeline %s: %s", pipeline, record, extra=fields)


def _log_start(event: Started) -> None:
    _coordinator.info(
        "pipeline %s starts %s, decision log %s in %s: %s decided transactions committed, %s others aborted, %.0f ms",
        event.pipeline,
        "for the first time" if event.epoch is None else f"after epoch {event.epoch}",
        event.log,
        event.store,
        len(event.finished),
        len(event.aborted),
        event.seconds * 1000,
        extra={
            "pipeline": event.pipeline,
            "epoch": event.epoch,
            "log": event.log,
            "store": event.store,
            "finished": [c.transaction for c in event.finished],
            "aborted": [c.transaction for c in event.aborted],
            "milliseconds": round(event.seconds * 1000),
        },
    )


observe(log)
