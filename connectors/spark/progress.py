"""Spark's progress beside onceward's: a StreamingQueryListener whose reports have the real number of output rows.

Spark says `numOutputRows: -1` for foreachBatch: it takes the number from a sink of its own data source interface only,
and overwrites what a function might have set. `DataFrame.observe` would count the rows that the plan produced, before
`where` of a sink, and again for each time that a stage runs again. The rows of the epoch's committed transactions are
what was written.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from onceward.core.events import EpochCompleted, Event, QueryProgressed, observe, tell

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_KEPT: Final = 100
"""Epochs and reports that are remembered: Spark keeps as many reports."""


class ProgressListener(StreamingQueryListener):
    """Listener for `spark.streams.addListener`: adds Spark's progress to the metrics, and output rows to the progress.

    Of queries that `exactly_once` made in this process; for the formats Spark counts the rows itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[tuple[str, int], tuple[str, dict[str, int]]] = {}
        self._newest: dict[str, dict[str, Any]] = {}
        observe(self._remember)

    def last_progress(self, query: str) -> dict[str, Any] | None:
        """Spark's newest report of a query, with the rows that were written.

        Args:
            query: The query's id (`query.id`).

        Returns:
            The report as JSON values. `sink.numOutputRows` is the number of rows that all sinks together have
            committed, `sink.onceward` has it for each sink. None if there was no report yet.
        """
        with self._lock:
            return self._newest.get(str(query))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Called by Spark after each micro-batch."""
        progress: dict[str, Any] = json.loads(event.progress.json)
        query = str(progress["id"])
        with self._lock:
            pipeline, rows = self._epochs.get((query, progress["batchId"]), ("", None))
            if rows is not None:
                progress["sink"] = {**progress.get("sink", {}), "numOutputRows": sum(rows.values()), "onceward": rows}
            self._newest.pop(query, None)
            self._newest[query] = progress
            _shorten(self._newest)
        tell(QueryProgressed(pipeline or progress.get("name") or query, progress))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing."""

    def _remember(self, event: Event) -> None:
        if isinstance(event, EpochCompleted):
            with self._lock:
                self._epochs[event.input.query, event.epoch] = event.pipeline, event.rows()
                _shorten(self._epochs)


def _shorten(kept: dict[Any, Any]) -> None:
    while len(kept) > _KEPT:
        del kept[next(iter(kept))]
