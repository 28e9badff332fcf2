"""The log lines of a healthy run: one when it starts, one for each epoch. Their facts are fields of the record, too."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..events import CheckpointEnded, EpochCompleted, EpochReplayed, Event, Started, Took, observe
from ..log.notes import note

if TYPE_CHECKING:
    from ..log import LogStore
    from ..transaction import Committable

_log = logging.getLogger("onceward.coordinator")
_spark = logging.getLogger("onceward.spark")
_engine = logging.getLogger("onceward.engine")
_NAMES = 50
"""How many transactions a note names at most."""


def about(committable: Committable) -> dict[str, Any]:
    """Fields of a record that is about one transaction."""
    names = ("pipeline", "sink", "epoch", "transaction", "rows")
    return {name: getattr(committable, name) for name in names}


def log(event: Event) -> None:
    """Log an event, if it has a line."""
    match event:
        case Started():
            _started(event)
        case EpochCompleted(took=Took() as took) if event.committables or not event.checkpoint:
            _completed(event, took)
        case EpochReplayed(pipeline, epoch):
            fields = {"pipeline": pipeline, "epoch": epoch}
            _spark.info("epoch %s is completed already: Spark runs it again, nothing is written", epoch, extra=fields)
        case CheckpointEnded(pipeline, record, bad):
            milliseconds = round(record.duration * 1000)
            fields = {"pipeline": pipeline, "epoch": record.checkpoint, "milliseconds": milliseconds}
            _engine.log(logging.WARNING if bad else logging.INFO, "pipeline %s: %s", pipeline, record, extra=fields)


observe(log)


def _started(event: Started) -> None:
    _log.info(
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


def _completed(event: EpochCompleted, took: Took) -> None:
    rows = event.rows()
    _log.info(
        "epoch %s of pipeline %s completed: %s in %s transactions, %.0f ms (commit %.0f ms)",
        event.epoch,
        event.pipeline,
        ", ".join(f"{sink} {n} rows" for sink, n in rows.items()) or "no rows",
        len(event.committables),
        took.epoch * 1000,
        took.commit * 1000,
        extra={
            "pipeline": event.pipeline,
            "epoch": event.epoch,
            "rows": sum(rows.values()),
            "sinks": rows,
            "transactions": len(event.committables),
            "milliseconds": round(took.epoch * 1000),
            "commit_milliseconds": round(took.commit * 1000),
        },
    )


def note_start(store: LogStore, event: Started, position: int) -> None:
    """Leave a note of a start beside the decision log; `position` is that of its START."""
    fields = {
        "position": position,
        "finished": [c.transaction for c in event.finished[:_NAMES]],
        "aborted": [c.transaction for c in event.aborted[:_NAMES]],
        "milliseconds": round(event.seconds * 1000),
    }
    note(store, "start", fields)


def note_epoch(store: LogStore, event: EpochCompleted) -> None:
    """Leave a note of a completed epoch beside the decision log."""
    if event.checkpoint and not event.committables:
        return
    rows = event.rows()
    fields = {
        "epoch": event.epoch,
        "rows": sum(rows.values()),
        "sinks": rows,
        "transactions": len(event.committables),
        "milliseconds": round(event.took.epoch * 1000) if event.took is not None else None,
        "commit_milliseconds": round(event.took.commit * 1000) if event.took is not None else None,
    }
    note(store, "epoch", fields)
