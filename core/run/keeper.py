"""The thread of a run beside its epochs, when nobody calls its driver.

Some of what is due then must be done at once: a newer driver that asks for the pipeline takes one that does not answer
for dead. The rest may wait long for somebody's system, and so it is done by another thread, one after another.
"""

from __future__ import annotations

import atexit
import threading
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakMethod

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class StoppedError(Exception):
    """The run was stopped while it waited to begin an epoch. That is no failure."""


class Keeper:
    """Looks after one run until it has ended.

    A program that ends with its run may end before the thread has looked, so the end of the process looks once more.

    Args:
        name: Name of the threads.
        is_active: Function that returns True until the run has ended.
        look: Function for each look; it does not wait for long.
        duties: Functions that may wait for other systems, each with the seconds between two calls.
        ended: Function that is called once, when the run has ended.
        every: Seconds between two looks.
    """

    def __init__(
        self,
        name: str,
        *,
        is_active: Callable[[], bool],
        look: Callable[[], object],
        duties: Sequence[tuple[float, Callable[[], object]]] = (),
        ended: Callable[[], object] = lambda: None,
        every: float,
    ) -> None:
        self._name, self._is_active, self._look, self._ended = name, is_active, look, ended
        self._duties, self._every = tuple(duties), min([every, *(seconds for seconds, _ in duties)])
        self._thread: threading.Thread | None = None
        self._worker: threading.Thread | None = None
        self._due: list[float] = []
        self._once = threading.Lock()
        self._over = threading.Event()
        last = WeakMethod(self.look_once)
        atexit.register(lambda: method() if (method := last()) is not None else None)

    def start(self) -> None:
        """Begin, unless it is at work."""
        if self._thread is None or not self._thread.is_alive():
            self._due = [monotonic() + seconds for seconds, _ in self._duties]
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def end(self, timeout: float) -> None:
        """End without the run's end, and wait `timeout` seconds at most until the thread has ended."""
        self._over.set()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(timeout)

    def look_once(self) -> bool:
        """Return whether the run goes on; if it has ended, say so once."""
        with self._once:
            if self._thread is None:
                return False
            with suppress(Exception):  # who is asked may have ended, too
                if self._is_active():
                    return True
            with suppress(Exception):
                self._ended()
            self._thread = None
        return False

    def _run(self) -> None:
        while self.look_once():
            self._look()
            self._begin_duties()
            if self._over.wait(self._every):
                return

    def _begin_duties(self) -> None:
        now = monotonic()
        due = [number for number, at in enumerate(self._due) if at <= now]
        if not due or (self._worker is not None and self._worker.is_alive()):
            return

        def work() -> None:
            for number in due:
                seconds, duty = self._duties[number]
                duty()
                self._due[number] = monotonic() + seconds

        self._worker = threading.Thread(target=work, name=f"{self._name}-duties", daemon=True)
        self._worker.start()
