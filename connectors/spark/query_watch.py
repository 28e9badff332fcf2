"""Watch a streaming query between its epochs, when Spark calls nobody.

Two things happen there that neither the log of the driver nor the notes beside the decision log would show: a source
whose system does not answer (core/run/source_watch.py), and a failure outside of an epoch, as that of a source in the
end. A thread looks every second whether the query is still running. A program that ends with its query may end before the
thread has looked, so the end of the process looks once more.
"""

from __future__ import annotations

import atexit
import threading
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final
from weakref import WeakMethod

from onceward.core.run.source_watch import LOOK_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

ACTIVE_SECONDS: Final = 1.0
"""Pause between two looks at whether the query is running."""


class QueryWatch:
    """Watches one run of a query.

    Args:
        is_active: Function that returns True while the run is still active.
        look: Asks its sources.
        ended: Called once, when it is no longer running.
    """

    def __init__(self, is_active: Callable[[], bool], look: Callable[[], object], ended: Callable[[], object]) -> None:
        self._is_active, self._look, self._ended = is_active, look, ended
        self._thread: threading.Thread | None = None
        self._once = threading.Lock()
        last = WeakMethod(self.look_once)
        atexit.register(lambda: method() if (method := last()) is not None else None)

    def start(self) -> None:
        """Begin, unless it is at work; ends with the query."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="onceward-query-watch", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause, due = threading.Event(), monotonic() + LOOK_SECONDS
        while self.look_once() and not pause.wait(ACTIVE_SECONDS):
            if monotonic() >= due:
                self._look()
                due = monotonic() + LOOK_SECONDS

    def look_once(self) -> bool:
        """Return whether the query is running; if it has ended, say so once."""
        with self._once, suppress(Exception):  # the session may have ended
            if self._thread is None:
                return False
            if self._is_active():
                return True
            self._thread = None
            self._ended()
        return False
