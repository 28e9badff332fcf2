"""What a query does between its epochs: Spark calls nobody then.

An attempt that Spark has given up lives on, and may prepare after its epoch was swept. Until the next sweep it holds
locks in a database, and readers of a topic back. So a thread sweeps as often as a pipeline with epochs does
(`CommitPolicy.sweep_every`). It also looks whether a newer driver asks for the pipeline (core/run/handover.py), from
the start of the query on and during its epochs, too.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from onceward.core.errors import StoreError
from onceward.core.run.handover import LOOK_SECONDS, Predecessor, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.core.checkpoint import Coordinator
    from onceward.core.log import LogStore

_log = logging.getLogger("onceward.coordinator")


class BetweenEpochs:
    """Sweeps for one run of a query, and hands it over, never while an epoch is under way.

    Args:
        pipeline: Name of the pipeline.
        current: The coordinator of the run, if it has one.
        store: Store of the decision log, if there is one yet.
        started: Position of the newest START that the run has put; None before that.
        is_active: Function that returns True until the run has ended.
        every: Seconds between two sweeps.
        stop: Ends the run when a newer driver has started; None if nothing here can end it.
        await_stop: Waits in Spark's thread for that end; it raises what Spark expects then.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        current: Callable[[], Coordinator | None],
        store: Callable[[], LogStore | None],
        started: Callable[[], int | None],
        is_active: Callable[[], bool],
        every: float,
        stop: Callable[[], object] | None = None,
        await_stop: Callable[[], NoReturn] | None = None,
    ) -> None:
        self._epoch = threading.Lock()
        """Held while an epoch is under way."""
        self._handed_over = False
        self._pipeline, self._store, self._started = pipeline, store, started
        self._current, self._is_active, self._every = current, is_active, every
        self._stop, self._await_stop = stop, await_stop
        self._thread: threading.Thread | None = None
        self._successor: Predecessor | None = None
        self._found: int | None = None
        """-1 if the run has begun without a decision log."""

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Run an epoch in the block, if the run has not been handed over; if it has, wait for its end."""
        with self._epoch:
            if self._handed_over and self._await_stop is not None:
                self._await_stop()
            yield

    def start(self) -> None:
        """Begin, unless it is at work; ends with the run."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="onceward-between-epochs", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause, swept = threading.Event(), time.monotonic()
        while True:
            with suppress(Exception):  # the session may have ended
                if not self._is_active():
                    break
                if self._hand_over():
                    return
                if time.monotonic() - swept >= self._every:
                    swept = time.monotonic()
                    self._sweep()
                pause.wait(min(self._every, LOOK_SECONDS))
                continue
            break
        if self._successor is not None:
            self._successor.say_ended()  # it has failed, or was stopped: nobody need wait for it

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
        if self._stop is None:
            return False
        successor = self._asked()
        while successor is not None and not self._epoch.acquire(timeout=LOOK_SECONDS):
            if not self._is_active():
                return False
            successor = self._asked()  # again: the first epoch puts a START, for which it is asked anew
        if successor is None:
            return False
        try:
            if self._started() not in {None, successor.start} or not run(successor.hand_over()):
                return False
            self._handed_over = True
        finally:
            self._epoch.release()
        _log.info("pipeline %s runs in another driver now: this query ends", self._pipeline)
        # No daemon: a program that waits for the query alone must not end before the other driver has been told.
        threading.Thread(target=self._end, args=(successor,), name="onceward-handover", daemon=False).start()
        return True

    def _asked(self) -> Predecessor | None:
        """Return the conversation with a newer driver if one asks, after telling it that this one has heard."""
        store, start = self._store(), self._started()
        if store is None:
            self._found = -1
            return None
        try:
            if self._successor is None:
                self._successor = Predecessor(store, self._found if start is None else start)
            self._successor.answer_for(start)
            return self._successor if self._successor.is_asked() else None
        except StoreError as error:
            _log.debug("cannot look whether another driver asks for the pipeline: %s", error)
            return None

    def _end(self, successor: Predecessor) -> None:
        assert self._stop is not None  # noqa: S101 - or nothing would have been handed over
        try:
            self._stop()
        finally:
            successor.say_ended()
