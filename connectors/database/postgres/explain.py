"""What to do about an error that PostgreSQL gave a writer."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from onceward.core.errors import ConfigurationError, OncewardError, RetryableSinkError, SinkError

from .connections import borrowed
from .failures import LOCK_TIMEOUT, NOT_READY, OUT_OF_PREPARED, server_words, translate
from .listing import prepared_names

if TYPE_CHECKING:
    import psycopg

    from onceward.core.names import Scope
    from onceward.core.transaction import WriteContext

    from .target import Target

HOW_TO_ENABLE = (
    "set max_prepared_transactions in postgresql.conf (for example ALTER SYSTEM SET max_prepared_transactions = 64; "
    "at least twice the number of parallel subtasks) and restart the server, or use commit='staging'"
)


def explain(error: psycopg.Error, what: str, target: Target, context: WriteContext, gid: str) -> OncewardError:
    """Onceward's error for `error`, with advice where there is some."""
    place = f"{what} into table {target.table}"
    where = {"pipeline": context.pipeline, "sink": context.sink, "epoch": context.epoch, "transaction": gid}
    words = target.dsn.redact(server_words(error))
    if error.sqlstate == LOCK_TIMEOUT:
        return RetryableSinkError(f"{place}: {_blocked(target, context.scope)}: {words}", **where)  # type: ignore[arg-type]
    if what == "cannot prepare" and error.sqlstate == NOT_READY:
        return ConfigurationError(f"{place}: {words}: {HOW_TO_ENABLE}", **where)  # type: ignore[arg-type]
    if what == "cannot prepare" and error.sqlstate == OUT_OF_PREPARED:
        return RetryableSinkError(f"{place}: {words}. {_used_up(target, context.scope)}", **where)  # type: ignore[arg-type]
    return _plain(error, place, target, context, gid)


def _plain(error: psycopg.Error, place: str, target: Target, context: WriteContext, gid: str) -> SinkError:
    return translate(
        error, place, target.dsn, pipeline=context.pipeline, sink=context.sink, epoch=context.epoch, transaction=gid
    )


def _blocked(target: Target, scope: Scope) -> str:
    own = _prepared(target, scope)
    if not own:
        return f"another transaction held a lock for more than {target.lock_timeout:g} s (lock_timeout)"
    return (
        f"a lock was held for more than {target.lock_timeout:g} s (lock_timeout), probably by another attempt's "
        f"prepared transaction over the same keys ({', '.join(own[:3])}). It ends with its epoch's decision, or when "
        "the pipeline starts again and sweeps; this attempt must not end it. commit='staging' does not have this wait"
    )


def _used_up(target: Target, scope: Scope) -> str:
    own = _prepared(target, scope)
    return (
        f"{len(own)} of them are of this pipeline and sink. Raise max_prepared_transactions to at least twice the "
        "number of parallel subtasks, see in pg_prepared_xacts what lingers, or use commit='staging'"
    )


def _prepared(target: Target, scope: Scope) -> list[str]:
    with suppress(OncewardError), borrowed(target.dsn, "list what is prepared", answer_within=5.0) as connection:
        return [str(name) for name in prepared_names(connection, scope.pipeline, scope.sink)]
    return []
