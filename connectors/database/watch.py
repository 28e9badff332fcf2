"""A time limit for answers, where the driver has none: a lost answer is an error then, and not a hang.

A limit may begin before there is a connection: whoever makes or lends one to this thread hands its socket over with
`guard`, before the first question is asked on it. So what SQLAlchemy asks by itself has its limit, too.
"""

from __future__ import annotations

import heapq
import itertools
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from onceward.core.kit.processwide import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST: Final = 1000
"""Limits in the watchdog's list, before those that were lifted are cleared out of it."""


class Limit:
    """Shuts a socket down when its time is over, which wakes whoever waits for an answer on it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fileno: Callable[[], int] | None = None
        self.lifted = False
        self.passed = False

    def guard(self, fileno: Callable[[], int]) -> None:
        """From now on this socket, and no other one; at once if the time is over.

        Args:
            fileno: Gives the socket's file descriptor; raises if it is closed.
        """
        with self._lock:
            self._fileno = fileno
            if self.passed:
                self._cut()

    def end(self) -> None:
        """The time is over."""
        with self._lock:
            if not self.lifted:
                self.passed = True
                self._cut()

    def lift(self) -> None:
        """All answers came: when this returns, nothing is cut any more."""
        with self._lock:
            self.lifted = True

    def _cut(self) -> None:
        # A closed connection raises the driver's own error here.
        if self._fileno is not None:
            with suppress(Exception), socket.socket(fileno=os.dup(self._fileno())) as link:
                link.shutdown(socket.SHUT_RDWR)


class _Watchdog:
    """One thread that ends limits when their time is over: a thread for each would cost more than a small epoch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._limits: list[tuple[float, int, Limit]] = []
        self._numbers = itertools.count()
        threading.Thread(target=self._run, name="onceward-database-watchdog", daemon=True).start()

    def watch(self, limit: Limit, seconds: float) -> None:
        """End the limit after so long."""
        with self._changed:
            if len(self._limits) > _MOST:
                self._limits = [entry for entry in self._limits if not entry[2].lifted]
                heapq.heapify(self._limits)
            entry = (time.monotonic() + seconds, next(self._numbers), limit)
            heapq.heappush(self._limits, entry)
            if self._limits[0] is entry:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            self._wait().end()

    def _wait(self) -> Limit:
        """The next limit whose time is over."""
        with self._changed:
            while True:
                left = self._limits[0][0] - time.monotonic() if self._limits else None
                if left is not None and (left <= 0 or self._limits[0][2].lifted):
                    return heapq.heappop(self._limits)[2]
                self._changed.wait(left)


_watchdog: Final = PerProcess[None, _Watchdog](lambda _: _Watchdog())


class _Limits(threading.local):
    """The limits that this thread is in, the innermost one last."""

    def __init__(self) -> None:
        self.entered: list[Limit] = []


_limits = _Limits()


@contextmanager
def limited(seconds: float, fileno: Callable[[], int] | None = None) -> Iterator[Limit]:
    """A block that has so many seconds for all its answers.

    Args:
        seconds: For the whole block.
        fileno: Of the socket that answers, if it is known yet; see Limit.guard.
    """
    limit = Limit()
    if fileno is not None:
        limit.guard(fileno)
    _limits.entered.append(limit)
    _watchdog.get(None).watch(limit, seconds)
    try:
        yield limit
    finally:
        _limits.entered.remove(limit)
        limit.lift()


def guard(fileno: Callable[[], int]) -> Limit | None:
    """Hand a connection's socket to the limit that this thread is in; None if it is in none."""
    if not _limits.entered:
        return None
    _limits.entered[-1].guard(fileno)
    return _limits.entered[-1]
