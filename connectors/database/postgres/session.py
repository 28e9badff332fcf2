"""psycopg's own connection under SQLAlchemy's, for what SQLAlchemy cannot say: COPY, and several questions at once."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from sqlalchemy import exc
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

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
