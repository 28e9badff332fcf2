"""Connections: a few idle ones per process, used again; never across a fork; no answer awaited for ever.

Spark's Python workers are forked from a daemon and live on across batches. A connection that a parent opened must
not be used, nor even closed, by a child: closing would say goodbye on the parent's socket.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from onceward.core.errors import RetryableSinkError

from .failures import translate, translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .dsn import Dsn

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_KEPT: Final = 4
"""Idle connections kept for each connection string."""
_IDLE_SECONDS: Final = 300.0
"""Firewalls drop connections that were silent for longer than this."""


class _Pool:
    """The idle connections of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.idle: dict[str, list[tuple[Connection, float]]] = {}


_pool = _Pool()
_inherited: list[_Pool] = []
"""Pools of parent processes: kept from the garbage collector, never touched."""


def _own_pool() -> _Pool:
    global _pool  # noqa: PLW0603 - one pool per process is the point of it
    if _pool.pid != os.getpid():
        _inherited.append(_pool)
        _pool = _Pool()
    return _pool


def connect(dsn: Dsn) -> Connection:
    """A new connection in autocommit mode, without server-side prepared statements.

    Those survive changes of a table badly ("cached plan must not change result type") and break behind poolers.

    Raises:
        RetryableSinkError: The server does not answer or takes no connections at the moment.
        PostgresError: It refuses this one.
    """
    with translated(f"cannot connect to PostgreSQL ({dsn})", dsn):
        return psycopg.connect(**dsn.parameters(), autocommit=True, prepare_threshold=None)


def acquire(dsn: Dsn) -> tuple[Connection, bool]:
    """An idle or new connection for the caller alone, and whether it had been used before."""
    pool = _own_pool()
    with pool.lock:
        idle = pool.idle.get(dsn.secret_text(), [])
        while idle:
            connection, since = idle.pop()
            if time.monotonic() - since < _IDLE_SECONDS and _silent(connection):
                return connection, True
            connection.close()
    return connect(dsn), False


def give_back(dsn: Dsn, connection: Connection) -> None:
    """Keep a connection for the next caller if it is in no transaction; else close it, which rolls back."""
    pool = _own_pool()
    if not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE:
        with pool.lock:
            idle = pool.idle.setdefault(dsn.secret_text(), [])
            if len(idle) < _KEPT:
                idle.append((connection, time.monotonic()))
                return
    connection.close()


def close_idle() -> None:
    """Close this process's idle connections."""
    pool = _own_pool()
    with pool.lock:
        for idle in pool.idle.values():
            for connection, _ in idle:
                connection.close()
        pool.idle.clear()


atexit.register(close_idle)


def _silent(connection: Connection) -> bool:
    """Whether nothing came unasked: a server that shuts down says so, or closes the socket."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
    return not poll.poll(0)


@contextmanager
def borrowed(dsn: Dsn, what: str, *, answer_within: float) -> Iterator[Connection]:
    """A connection for a few short statements; psycopg's errors become onceward's.

    Args:
        dsn: Where to.
        what: For messages: what the caller is about to do.
        answer_within: Seconds after which the connection is cut, so that a lost answer is an error and not a hang.
    """
    connection, _ = acquire(dsn)
    watch = _Watch(connection, answer_within)
    try:
        yield connection
    except psycopg.Error as error:
        if watch.cut:
            raise RetryableSinkError(f"{what}: no answer within {answer_within:g} seconds") from error
        raise translate(error, what, dsn) from error
    finally:
        watch.stop()
        give_back(dsn, connection)


class _Watch:
    """Cuts a connection when its time is over, which wakes the thread that waits for the answer."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        self.cut = False
        self._connection = connection
        self._lock = threading.Lock()
        self._over = False
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        with self._lock:
            self._over = True
        self._timer.cancel()

    def _fire(self) -> None:
        with self._lock:
            if self._over or self._connection.closed:
                return
            self.cut = True
            with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as link:
                link.shutdown(socket.SHUT_RDWR)
