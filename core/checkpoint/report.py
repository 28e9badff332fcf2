"""What is told of a healthy run, in the log and beside the decision log: one line for each start and each epoch."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..log.notes import note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..log import LogStore, LogView
    from ..transaction import Committable

_log = logging.getLogger("onceward.coordinator")
NAMES = 50
"""How many transactions a note names at most."""


def about(committable: Committable) -> dict[str, Any]:
    """Fields of a record that is about one transaction."""
    names = ("pipeline", "sink", "epoch", "transaction", "rows")
    return {name: getattr(committable, name) for name in names}


def started(
    pipeline: str,
    view: LogView,
    store: LogStore,
    *,
    finished: Sequence[Committable],
    aborted: Sequence[Committable],
    seconds: float,
) -> None:
    """Log that a run has started.

    Args:
        pipeline: Its name.
        view: The decision log after START.
        store: Where the log is.
        finished: Transactions that an earlier run had decided, and this start has committed.
        aborted: Transactions that no decision names, and this start has aborted.
        seconds: How long it took.
    """
    epoch = view.decided if view.newest is not None else None
    fields: dict[str, Any] = {
        "pipeline": pipeline,
        "epoch": epoch,
        "log": view.log,
        "store": store.describe(),
        "finished": [c.transaction for c in finished],
        "aborted": [c.transaction for c in aborted],
        "milliseconds": round(seconds * 1000),
    }
    _log.info(
        "pipeline %s starts %s, decision log %s in %s: %s decided transactions committed, %s others aborted, %.0f ms",
        pipeline,
        "for the first time" if epoch is None else f"after epoch {epoch}",
        view.log,
        store.describe(),
        len(finished),
        len(aborted),
        seconds * 1000,
        extra=fields,
    )
    few = {"finished": fields["finished"][:NAMES], "aborted": fields["aborted"][:NAMES]}
    note(store, "start", {**fields, **few, "position": view.start})


def completed(
    pipeline: str,
    epoch: int,
    committables: Sequence[Committable],
    store: LogStore,
    *,
    seconds: float,
    commit_seconds: float,
) -> None:
    """Log that an epoch is committed everywhere.

    Args:
        pipeline: Whose.
        epoch: Its number.
        committables: All its transactions.
        store: Where the decision log is.
        seconds: Since it was admitted.
        commit_seconds: Of these, from the decision to COMPLETED.
    """
    rows = Counter[str]()
    for c in committables:
        rows[c.sink] += c.rows
    fields = {
        "pipeline": pipeline,
        "epoch": epoch,
        "rows": rows.total(),
        "sinks": dict(rows),
        "transactions": len(committables),
        "milliseconds": round(seconds * 1000),
        "commit_milliseconds": round(commit_seconds * 1000),
    }
    _log.info(
        "epoch %s of pipeline %s completed: %s in %s transactions, %.0f ms (commit %.0f ms)",
        epoch,
        pipeline,
        ", ".join(f"{sink} {n} rows" for sink, n in rows.items()) or "no rows",
        len(committables),
        seconds * 1000,
        commit_seconds * 1000,
        extra=fields,
    )
    note(store, "epoch", fields)
