"""What a pipeline tells of itself: one record per start, epoch and checkpoint.

Log lines, metrics and lineage are made of the same records, by observers. An observer decides nothing: what it raises
is logged once, and the epoch goes on.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from .engine.events import CheckpointRecord
    from .log import EpochInput
    from .sink import Sink
    from .transaction import Committable, Written

_log = logging.getLogger("onceward.observers")


class Started(NamedTuple):
    """A run has put START, swept, and finished what was decided."""

    pipeline: str
    epoch: int | None
    """Newest decided epoch; None for a new log."""
    completed: float | None
    """When it was completed, in seconds since 1970; None if the log does not say."""
    log: str
    store: str
    finished: Sequence[Committable]
    """What an earlier run had decided, and this start has committed."""
    aborted: Sequence[Committable]
    """What no decision names, and this start has aborted."""
    seconds: float


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
    """When they were decided, in seconds since 1970."""
    waiting: Mapping[str, float | None]
    """By sink: when the first of them expires, in seconds since 1970; None: never, or not known."""
    done: Collection[str]
    """Sinks that have committed theirs."""


class Committed(NamedTuple):
    """A decision was carried out or voided, by the run that made it or by a later one."""

    pipeline: str
    epoch: int
    seconds: Mapping[str, float]
    """By sink that the decision names, since it was taken up."""
    voided: bool = False


class Took(NamedTuple):
    """Seconds of an epoch."""

    epoch: float
    """Since the first of its transactions may have begun."""
    decide: float
    commit: float
    """From the acknowledgements to COMPLETED, the decision included."""


class EpochCompleted(NamedTuple):
    """An epoch is committed everywhere, and COMPLETED is durable."""

    pipeline: str
    log: str
    epoch: int
    input: EpochInput
    committables: Sequence[Committable]
    sinks: Mapping[str, Sink]
    checkpoint: bool = False
    """Whether it is a checkpoint of the embedded engine: these are also made where nothing is written."""
    written: Sequence[Written] = ()
    """What each subtask did for each sink, as far as it is known."""
    took: Took | None = None
    """None if an earlier run had decided it, and a start has finished it."""

    def rows(self) -> dict[str, int]:
        """Rows of each sink that took any part."""
        counted: dict[str, int] = {}
        for committable in self.committables:
            counted[committable.sink] = counted.get(committable.sink, 0) + committable.rows
        return counted


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
    error: str


class CheckpointEnded(NamedTuple):
    """A checkpoint of the embedded engine ended, or did not begin."""

    pipeline: str
    record: CheckpointRecord
    bad: bool


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
    | EpochCompleted
    | EpochAbandoned
    | EpochReplayed
    | EpochFailed
    | CheckpointEnded
    | QueryProgressed
)
Observer: TypeAlias = "Callable[[Event], None]"

_observers: Final[list[Observer]] = []
_complained: Final[list[Observer]] = []


def observe(observer: Observer) -> None:
    """Have `observer` called with each event of this process's pipelines, on the pipeline's own thread.

    Args:
        observer: Function. It should return within microseconds, for the epoch waits for it. What it raises is logged
            as a warning, the first time only.
    """
    if observer not in _observers:
        _observers.append(observer)


def forget(observer: Observer) -> None:
    """Call an observer no more."""
    if observer in _observers:
        _observers.remove(observer)


def tell(event: Event) -> None:
    """Tell all observers; nothing that they do fails the epoch."""
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
    """Seconds since 1970, for people and monitoring only."""
    return time.time() - seconds_ago


def moment(at: str) -> float | None:
    """Seconds since 1970 of an entry's time, which is written for people; None if it is none."""
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return None
