"""psycopg's own connection under SQLAlchemy's, for what SQLAlchemy cannot say: COPY, several questions at once.

And a time limit for its answers, because libpq waits for ever: a lost answer is an error then, and not a hang. A limit
may begin before there is a connection: whoever makes or lends one to this thread hands its socket over with `guard`,
before the first question is asked on it. So what SQLAlchemy asks by itself has its limit, too.
"""

from __future__ import annotations

import functools
import math
import os
import sched
import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from sqlalchemy import exc
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from onceward.core.kit.processwide import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa
    from sqlalchemy.sql.dml import Insert

DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
"""A commit answers when it is safe, whatever the role's default says."""
_DIALECT: Final[Any] = PGDialect_psycopg()  # type: ignore[no-untyped-call]
Session: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"


@contextmanager
def session(connection: sa.Connection) -> Iterator[Session]:
    """The driver's connection; its errors are raised as SQLAlchemy's."""
    lent: Any = connection.connection.driver_connection
    try:
        yield lent
    except psycopg.Error as error:
        if lent.closed and not connection.invalidated:
            connection.invalidate(error)
        raise exc.DBAPIError.instance(
            None, None, error, psycopg.Error, connection_invalidated=lent.closed, dialect=connection.dialect
        ) from error


@functools.lru_cache(maxsize=64)
def compiled(statement: sa.Select[Any] | Insert, columns: tuple[str, ...] | None = None) -> bytes:
    """A statement of SQLAlchemy's as psycopg takes it, with named parameters. Kept: call it with lasting statements.

    Args:
        statement: Any.
        columns: Of an INSERT: those that are given.
    """
    return str(statement.compile(dialect=_DIALECT, column_keys=columns)).encode()


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


class _Watchdog:
    """One thread that ends limits when their time is over: a thread for each would cost more than a small epoch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._limits = sched.scheduler(time.monotonic)
        self._wakes_at = math.inf
        threading.Thread(target=self._run, name="onceward-database-watchdog", daemon=True).start()

    def watch(self, limit: Limit, seconds: float) -> sched.Event:
        """End the limit after so long; the thread is woken only if it would sleep for longer."""
        with self._changed:
            event = self._limits.enter(seconds, 0, limit.end)
            if event.time < self._wakes_at:
                self._wakes_at = event.time
                self._changed.notify()
        return event

    def forget(self, event: sched.Event) -> None:
        with suppress(ValueError):  # it is over
            self._limits.cancel(event)

    def _run(self) -> None:
        while True:
            with self._changed:
                left = self._limits.run(blocking=False)
                self._wakes_at = math.inf if left is None else time.monotonic() + left
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
    limit, watchdog = Limit(), _watchdog.get(None)
    if fileno is not None:
        limit.guard(fileno)
    _limits.entered.append(limit)
    event = watchdog.watch(limit, seconds)
    try:
        yield limit
    finally:
        _limits.entered.remove(limit)
        limit.lift()
        watchdog.forget(event)


def guard(fileno: Callable[[], int]) -> Limit | None:
    """Hand a connection's socket to the limit that this thread is in; None if it is in none."""
    if not _limits.entered:
        return None
    _limits.entered[-1].guard(fileno)
    return _limits.entered[-1]
