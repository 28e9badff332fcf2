"""Sweep while a query is idle: Spark calls nobody then, and late attempts may still prepare.

An attempt that Spark has given up lives on, and may prepare after its epoch was swept. Until the next sweep it holds
locks in a database, and readers of a topic back. Between micro-batches, a thread sweeps as often as a pipeline with
epochs does (`CommitPolicy.sweep_every`).
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.core.checkpoint import Coordinator

_log = logging.getLogger("onceward.coordinator")


class IdleSweeper:
    """Sweeps for one query, never while an epoch is under way.

    Args:
        current: The coordinator of the query's run, if it has one.
        is_active: Whether the query is still running.
        every: Seconds between two looks.
    """

    def __init__(self, current: Callable[[], Coordinator | None], is_active: Callable[[], bool], every: float) -> None:
        self.epoch = threading.Lock()
        """Held while an epoch is under way."""
        self._current, self._is_active, self._every = current, is_active, every
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it is at work; ends with the query."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="onceward-idle-sweeper", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._every):
            with suppress(Exception):  # the session may have ended
                if self._is_active():
                    self._sweep()
                    continue
            return

    def _sweep(self) -> None:
        if not self.epoch.acquire(blocking=False):
            return  # its end sweeps if it is time
        try:
            coordinator = self._current()
            if coordinator is not None:
                coordinator.sweep_if_due()
        except Exception as error:  # noqa: BLE001 - the next epoch or start sweeps, and says what is wrong
            _log.warning("the sweep of an idle query failed and will be repeated: %s", error)
        finally:
            self.epoch.release()
