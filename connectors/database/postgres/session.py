"""psycopg's own connection under SQLAlchemy's, for what SQLAlchemy cannot say: COPY, several questions at once.

And a time limit for its answers, also for those to SQLAlchemy's own questions: a lost one is an error, and not a hang.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import psycopg
from sqlalchemy import exc
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa
    from psycopg.abc import PQGen
    from sqlalchemy.sql.dml import Insert

DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
"""A commit answers when it is safe, whatever the role's default says."""
_DIALECT: Final[Any] = PGDialect_psycopg()  # type: ignore[no-untyped-call]
T = TypeVar("T")
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


class _Limit(threading.local):
    """Until when this thread waits for answers, in seconds on the monotonic clock."""

    until: float = math.inf


_limit = _Limit()


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """A block in which this thread waits for answers for so many seconds in all; of several the innermost counts."""
    before, _limit.until = _limit.until, time.monotonic() + seconds
    try:
        yield
    finally:
        _limit.until = before


class Answering(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed when the time for its answers is over; libpq would wait for ever.

    All that psycopg asks goes through `wait`, which wakes every tenth of a second, even if nothing came.
    """

    def wait(self, gen: PQGen[T], *more: Any, **options: Any) -> T:
        return super().wait(self._in_time(gen), *more, **options)

    def _in_time(self, gen: PQGen[T]) -> PQGen[T]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if time.monotonic() > _limit.until:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the server did not answer in time; the connection is closed")
                wanted = gen.send(ready)
        except StopIteration as done:
            answer: T = done.value
            return answer
