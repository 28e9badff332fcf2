"""A time limit for answers, where the driver has none: a lost answer is an error then, and not a hang.

A limit may begin before there is a connection: whoever makes or lends one to this thread hands its socket over with
`guard`, before the first question is asked on it. So what SQLAlchemy asks by itself has its limit, too.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Limit:
    """Shuts a socket down when its time is over, which wakes whoever waits for an answer on it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fileno: Callable[[], int] | None = None
        self._lifted = False
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
            if not self._lifted:
                self.passed = True
                self._cut()

    def lift(self) -> None:
        """All answers came: when this returns, nothing is cut any more."""
        with self._lock:
            self._lifted = True

    def _cut(self) -> None:
        # A closed connection raises the driver's own error here.
        if self._fileno is not None:
            with suppress(Exception), socket.socket(fileno=os.dup(self._fileno())) as link:
                link.shutdown(socket.SHUT_RDWR)


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
    timer = threading.Timer(seconds, limit.end)
    timer.daemon = True
    _limits.entered.append(limit)
    timer.start()
    try:
        yield limit
    finally:
        _limits.entered.remove(limit)
        limit.lift()
        timer.cancel()


def guard(fileno: Callable[[], int]) -> Limit | None:
    """Hand a connection's socket to the limit that this thread is in; None if it is in none."""
    if not _limits.entered:
        return None
    _limits.entered[-1].guard(fileno)
    return _limits.entered[-1]
