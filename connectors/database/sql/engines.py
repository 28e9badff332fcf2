"""Engines: one per process and database, used again; never across a fork.

Spark's Python workers are forked from a daemon and live on across batches. A connection that a parent opened must
not be used, nor even closed, by a child: closing would say goodbye on the parent's socket.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

from onceward.core.errors import ConfigurationError

from .dialect import READ_ONLY, Dialect
from .failures import translated
from .mariadb import MariaDb
from .postgresql import PostgreSql
from .sqlite import Sqlite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .target import Target

_KEPT: Final = 4
"""Idle connections kept for each engine."""
_IDLE_SECONDS: Final = 300
"""Firewalls drop connections that were silent for longer than this."""
_EXTRAS: Final = {"psycopg": "postgres", "pymysql": "mariadb"}


class _Engines:
    """The engines of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.open: dict[tuple[Any, ...], sa.Engine] = {}


_engines = _Engines()
_inherited: list[_Engines] = []
"""Engines of parent processes: kept from the garbage collector, never touched."""


def engine_of(target: Target) -> sa.Engine:
    """This process's engine for the target's database.

    Raises:
        ConfigurationError: The driver is not installed, or the URL has settings that it does not take.
    """
    global _engines  # noqa: PLW0603 - one set per process is the point of it
    if _engines.pid != os.getpid():
        _inherited.append(_engines)
        _engines = _Engines()
    key = (target.url.secret_text(), target.lock_timeout, target.answer_within)
    with _engines.lock:
        if key not in _engines.open:
            _engines.open[key] = _create(target)
        return _engines.open[key]


def close_idle() -> None:
    """Close this process's idle connections."""
    if _engines.pid == os.getpid():
        with _engines.lock:
            for engine in _engines.open.values():
                engine.dispose()
            _engines.open.clear()


atexit.register(close_idle)


def _create(target: Target) -> sa.Engine:
    dialect = _dialect_of(target.url.backend)
    try:
        engine = sa.create_engine(
            target.url.parsed,
            hide_parameters=True,
            pool_size=_KEPT,
            max_overflow=-1,
            pool_recycle=_IDLE_SECONDS,
            **dialect.engine_arguments(target),
        )
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        raise ConfigurationError(
            f"{target.url} needs {missing or error}: pip install 'onceward[{_EXTRAS.get(missing, 'sql')}]'"
        ) from error
    except (exc.SQLAlchemyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"cannot use the url {target.url}: {target.url.redact(str(error))}") from None
    dialect.prepare_engine(engine, target)
    return engine


def dialect_for(target: Target) -> Dialect:
    """How the target's database is spoken to."""
    return _dialect_of(target.url.backend)


@contextmanager
def transaction(target: Target, what: str, *, more: float = 0.0) -> Iterator[sa.Connection]:
    """A connection in a transaction, committed at the end; errors become onceward's.

    Args:
        target: Where.
        what: For messages: what the caller is about to do.
        more: Seconds that it may take beyond waiting once for a lock and once for an answer.
    """
    dialect, seconds = dialect_for(target), target.answer_within + target.lock_timeout + more
    with (
        translated(what, target),
        dialect.limited(seconds),
        engine_of(target).connect() as connection,
        connection.begin(),
    ):
        dialect.open_transaction(connection, target)
        yield connection


@contextmanager
def reading(target: Target, what: str) -> Iterator[sa.Connection]:
    """A connection for a few questions, each answered from the newest state; errors become onceward's."""
    with (
        translated(what, target),
        dialect_for(target).limited(target.answer_within),
        autocommitting(target) as connection,
    ):
        yield connection


@contextmanager
def autocommitting(target: Target) -> Iterator[sa.Connection]:
    """A connection in which each statement is its own transaction, unless one is begun by command."""
    with engine_of(target).connect() as connection:
        yield connection.execution_options(**autocommit_options(target))


def autocommit_options(target: Target) -> dict[str, Any]:
    """Execution options of such a connection. SQLite's are those of one transaction that only reads."""
    return {READ_ONLY: True} if target.url.backend == "sqlite" else {"isolation_level": "AUTOCOMMIT"}


def _dialect_of(backend: str) -> Dialect:
    """The dialect of a URL's backend name (see url.DRIVERS)."""
    kinds: dict[str, type[Dialect]] = {
        "postgresql": PostgreSql,
        "mariadb": MariaDb,
        "mysql": MariaDb,
        "sqlite": Sqlite,
    }
    return kinds[backend]()
