"""What a query does between its epochs: Spark calls nobody then.

An attempt that Spark has given up lives on, and may prepare after its epoch was swept. Until the next sweep it holds
locks in a database, and readers of a topic back. So a thread sweeps as often as a pipeline with epochs does
(`CommitPolicy.sweep_every`). It also looks whether a newer driver asks for the pipeline (core/handover.py).
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from onceward.core.errors import StoreError
from onceward.core.handover import LOOK_SECONDS, Predecessor, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.core.checkpoint import Coordinator

_log = logging.getLogger("onceward.coordinator")


class BetweenEpochs:
    """Sweeps for one run of a query, and hands it over, never while an epoch is under way.

    Args:
        current: The coordinator of the run, if it has one.
        is_active: Whether the run has not ended.
        every: Seconds between two sweeps.
        stop: Ends the run when a newer driver has started; None if nothing here can end it.
        await_stop: Waits in Spark's thread for that end; it raises what Spark expects then.
    """

    def __init__(
        self,
        *,
        current: Callable[[], Coordinator | None],
        is_active: Callable[[], bool],
        every: float,
        stop: Callable[[], object] | None = None,
        await_stop: Callable[[], NoReturn] | None = None,
    ) -> None:
        self._epoch = threading.Lock()
        """Held while an epoch is under way."""
        self._handed_over: Coordinator | None = None
        """Writer of the run that was handed over; a later run of the same function has another one."""
        self._current, self._is_active, self._every = current, is_active, every
        self._stop, self._await_stop = stop, await_stop
        self._thread: threading.Thread | None = None
        self._successor: Predecessor | None = None

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Run an epoch in the block, if the run has not been handed over; if it has, wait for its end."""
        with self._epoch:
            handed_over = self._handed_over is not None and self._current() is self._handed_over
            if handed_over and self._await_stop is not None:
                self._await_stop()
            yield

    def start(self) -> None:
        """Begin, unless it is at work; ends with the run."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="onceward-between-epochs", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause, swept = threading.Event(), time.monotonic()
        while not pause.wait(min(self._every, LOOK_SECONDS)):
            with suppress(Exception):  # the session may have ended
                if not self._is_active():
                    return
                if self._hand_over():
                    return
                if time.monotonic() - swept >= self._every:
                    swept = time.monotonic()
                    self._sweep()
                continue
            return

    def _sweep(self) -> None:
        if not self._epoch.acquire(blocking=False):
            return  # its end sweeps if it is time
        try:
            coordinator = self._current()
            if coordinator is not None:
                coordinator.sweep_if_due()
        except Exception as error:  # noqa: BLE001 - the next epoch or start sweeps, and says what is wrong
            _log.warning("the sweep of an idle query failed and will be repeated: %s", error)
        finally:
            self._epoch.release()

    def _hand_over(self) -> bool:
        """Hand the query over if a newer driver asks for it; return whether it has."""
        coordinator = self._current()
        if coordinator is None or self._stop is None:
            return False
        start = coordinator.writer.token.start
        if self._successor is None or self._successor.start != start:
            self._successor = Predecessor(coordinator.writer.store, start)
        try:
            if not self._successor.is_asked():
                return False
        except StoreError as error:
            _log.debug("cannot look whether another driver asks for the pipeline: %s", error)
            return False
        with self._epoch:
            if self._current() is not coordinator or not run(self._successor.hand_over()):
                return False
            self._handed_over = coordinator
        _log.info("pipeline %s runs in another driver now: this query ends", coordinator.pipeline)
        # No daemon: a program that waits for the query alone must not end before the other driver has been told.
        threading.Thread(target=self._end, args=(self._successor,), name="onceward-handover", daemon=False).start()
        return True

    def _end(self, successor: Predecessor) -> None:
        assert self._stop is not None  # noqa: S101 - or nothing would have been handed over
        try:
            self._stop()
        finally:
            successor.say_ended()
