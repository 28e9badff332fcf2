"""psycopg's errors in onceward's words: what may pass by itself, what will not, always with the SQLSTATE.

The classes of SQLSTATE are those of PostgreSQL's documentation, appendix "PostgreSQL Error Codes".
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psycopg

from onceward.core.errors import PostgresError, RetryableSinkError, SinkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .dsn import Dsn

UNDEFINED_OBJECT: Final = "42704"
"""COMMIT PREPARED and ROLLBACK PREPARED: no such gid."""
NOT_READY: Final = "55000"
"""The gid is busy; or prepared transactions are disabled."""
OTHER_DATABASE: Final = "0A000"
"""The gid belongs to another database of the server."""
LOCK_TIMEOUT: Final = "55P03"
OUT_OF_PREPARED: Final = "53200"
NO_PRIVILEGE: Final = "42501"
NO_TABLE: Final = "42P01"
NO_SCHEMA: Final = "3F000"
DUPLICATE_GID: Final = "42710"

_PASSING_CLASSES: Final = ("08", "40", "53", "57", "58")
"""Connection, transaction rollback, insufficient resources, operator intervention, system error."""
_PASSING_STATES: Final = frozenset({LOCK_TIMEOUT, "25006", "55006"})
"""Lock not available; read-only (a standby, until it is promoted); object in use."""


def may_pass(error: psycopg.Error) -> bool:
    """Whether the same statement may succeed later without anybody changing anything."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state[:2] in _PASSING_CLASSES or state in _PASSING_STATES


def translate(
    error: psycopg.Error,
    what: str,
    dsn: Dsn,
    *,
    pipeline: str | None = None,
    sink: str | None = None,
    epoch: int | None = None,
    transaction: str | None = None,
) -> SinkError:
    """Onceward's error for psycopg's: PostgresError, or RetryableSinkError if it may pass."""
    kind = RetryableSinkError if may_pass(error) else PostgresError
    return kind(
        f"{what}: {dsn.redact(server_words(error))}",
        pipeline=pipeline,
        sink=sink,
        epoch=epoch,
        transaction=transaction,
    )


def server_words(error: psycopg.Error) -> str:
    """What the server said, on one line, with its SQLSTATE."""
    if error.sqlstate is None:
        return " ".join(str(error).split()) or type(error).__name__
    diagnostic = error.diag
    parts = [diagnostic.message_primary or str(error)]
    parts += [f"{label}: {text}" for label, text in _more(diagnostic) if text]
    return f"{'. '.join(parts)} (SQLSTATE {error.sqlstate})"


def _more(diagnostic: psycopg.errors.Diagnostic) -> list[tuple[str, str | None]]:
    return [
        ("detail", diagnostic.message_detail),
        ("hint", diagnostic.message_hint),
        ("context", diagnostic.context),
    ]


@contextmanager
def translated(
    what: str,
    dsn: Dsn,
    *,
    pipeline: str | None = None,
    sink: str | None = None,
    epoch: int | None = None,
    transaction: str | None = None,
) -> Iterator[None]:
    """Raise onceward's errors instead of psycopg's inside the block."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, what, dsn, pipeline=pipeline, sink=sink, epoch=epoch, transaction=transaction) from error
