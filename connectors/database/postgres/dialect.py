"""PostgreSQL, through psycopg: connections, what the server allows, PREPARE TRANSACTION and COMMIT PREPARED by gid."""

from __future__ import annotations

import math
import select
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import event, exc

from onceward.core.contract.names import parse_transaction_name
from onceward.core.errors import PostgresError, RetryableSinkError

from ..dialect import HOW_TO_STAGE, Dialect, ServerFacts, Trial, TwoPhase, TwoPhaseAnswer
from ..failures import code, words
from ..target import TableName, own_name
from .catalog import TRIGGERS, read_references, read_table
from .checks import check_postgres_server
from .connection import (
    CONFIRM,
    DURABLE,
    LOCK_CREATION,
    Answering,
    collected_warnings,
    compiled,
    limited,
    session,
)
from .conversions import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from sqlalchemy.sql.dml import Insert

    from onceward.core.contract.findings import Finding
    from onceward.core.contract.names import Scope, TransactionName

    from ..described_table import DescribedTable
    from ..target import DatabaseAccess

NO_SUCH_TABLE: Final = ("42P01", "3F000")
"""SQLSTATEs of a table, or its schema, that does not exist."""
_NO_SUCH_GID: Final = "42704"
_BUSY: Final = "55000"
_OTHER_DATABASE: Final = "0A000"
HOW_TO_ENABLE: Final = (
    "set max_prepared_transactions in postgresql.conf (for example ALTER SYSTEM SET max_prepared_transactions = 64; "
    f"at least twice the number of partitions that an epoch writes) and restart the server, {HOW_TO_STAGE}"
)
_CONNECT_SECONDS: Final = 10
_FRESH: Final = "onceward_fresh"
_DEFAULTS: Final[dict[str, str]] = {
    "application_name": "onceward",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Settings of libpq, whose own defaults wait two hours for a server that has vanished from the network."""
_LIMITS: Final = (
    "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', '0', true),"
    " set_config('idle_in_transaction_session_timeout', '0', true), set_config('row_security', 'off', true),"
    " CASE WHEN current_setting('transaction_timeout', true) <> ''"
    " THEN set_config('transaction_timeout', '0', true) END"
)
"""Sets parameters of one transaction, whatever the defaults of role, database and server are: an epoch may last longer
than an interactive transaction should, and a row-level policy must be an error, because it would silently hide rows
from a delete. PostgreSQL 17 and later have transaction_timeout."""
_SERVER: Final = sa.text(
    "SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',"
    " CAST(current_setting('max_prepared_transactions') AS int), current_setting('fsync') = 'on'"
)
_TRIAL: Final = TableName("pg_temp", "onceward_trial")
_CHANGES_ROWS: Final = sa.text(
    f"SELECT relhasrules OR {TRIGGERS} FROM pg_catalog.pg_class AS c"  # noqa: S608 - made of constants
    " WHERE oid = pg_catalog.to_regclass(:table)"
)
"""Query: may rules or triggers change rows before the table gets them?"""
_PREPARED = sa.table(
    "pg_prepared_xacts", sa.column("gid"), sa.column("database"), sa.column("prepared"), schema="pg_catalog"
)


class GidTransactions:
    """PostgreSQL's prepared transactions, by gid."""

    def begin(
        self,
        connection: sa.Connection,
        access: DatabaseAccess,
        name: TransactionName,  # noqa: ARG002 - the gid comes at the end
        question: sa.Select[Any],
        of: Scope,
    ) -> Sequence[Any] | None:
        # All in one round trip.
        try:
            with session(connection) as lent:
                with lent.pipeline():
                    lent.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                    # A COPY stays open for as long as the rows take to arrive: that is not a slow statement.
                    lent.execute(_LIMITS, [_milliseconds(access)])
                    result = lent.execute(compiled(question), of._asdict())
                return result.fetchone()
        except exc.DBAPIError as error:
            if code(error) not in NO_SUCH_TABLE:
                raise
            return None

    def prepare(self, connection: sa.Connection, name: TransactionName, insert: Insert, row: dict[str, Any]) -> None:
        # In one round trip.
        with session(connection) as lent:
            with lent.pipeline():
                lent.execute(compiled(insert, tuple(row)), row)
                answer = lent.execute(f"PREPARE TRANSACTION '{name}'".encode())
            if answer.statusmessage != "PREPARE TRANSACTION":
                status = answer.statusmessage
                raise PostgresError(f"PREPARE TRANSACTION answered {status!r}: the transaction had failed")
        connection.close()  # the session has nothing more to do with what it prepared

    def end(self, connection: sa.Connection, command: str, name: TransactionName) -> tuple[TwoPhaseAnswer, str]:
        try:
            with collected_warnings(connection) as warnings:
                connection.exec_driver_sql(f"{command} PREPARED '{name}'")
        except exc.DBAPIError as error:
            state = code(error)
            if state == _OTHER_DATABASE:
                raise PostgresError(f"{words(error)}: the connection must name the database that prepared it") from None
            if state not in (_NO_SUCH_GID, _BUSY):
                raise
            return (TwoPhaseAnswer.BUSY if state == _BUSY else TwoPhaseAnswer.GONE), words(error)
        if warnings:  # such as: the wait for the synchronous standby was cut short. Visible is not replicated
            return TwoPhaseAnswer.BUSY, f"done here, with a warning: {'; '.join(warnings)}"
        return TwoPhaseAnswer.DONE, ""

    def unconfirmed(self, connection: sa.Connection) -> str:
        with collected_warnings(connection) as warnings:
            connection.exec_driver_sql(CONFIRM)
        return "; ".join(warnings)

    def waiting(self, connection: sa.Connection, pipeline: str, sink: str) -> list[TransactionName]:
        names = [own_name(gid, pipeline, sink) for gid in self._gids(connection)]
        return [name for name in names if name is not None]

    def scopes(self, connection: sa.Connection) -> set[Scope]:
        names = [parse_transaction_name(gid) for gid in self._gids(connection)]
        return {name.scope for name in names if name is not None}

    def _gids(self, connection: sa.Connection) -> list[str]:
        gid = _PREPARED.c.gid
        query = sa.select(gid).where(_PREPARED.c.database == sa.func.current_database())
        return list(connection.scalars(query.order_by(_PREPARED.c.prepared, gid)))


class PostgreSql(Dialect):
    """PostgreSQL, through psycopg."""

    types = TYPES
    two_phase: TwoPhase | None = GidTransactions()

    def engine_arguments(self, access: DatabaseAccess) -> dict[str, Any]:
        """Return arguments with defaults for settings that the URL does not give.

        Two settings cannot be chosen: the encoding, because Arrow's text is UTF-8, and is sent as it is; and statements
        that the server prepares, because they fail when a table changes, and behind poolers.
        """
        options = access.url.libpq()
        settings = {
            **_DEFAULTS,
            "connect_timeout": min(_CONNECT_SECONDS, math.ceil(access.answer_within)),
            **({"target_session_attrs": "primary"} if "," in str(options.get("host", "")) else {}),
            **options,
            "client_encoding": "UTF8",
            "prepare_threshold": None,
        }
        return {"isolation_level": "READ COMMITTED", "creator": partial(Answering.connect, **settings)}

    def prepare_engine(self, engine: sa.Engine, access: DatabaseAccess) -> None:  # noqa: ARG002 - signature
        event.listen(engine, "connect", _mark_new)
        event.listen(engine, "checkout", _check_lent)

    def open_transaction(self, connection: sa.Connection, access: DatabaseAccess) -> None:
        """Set the lock timeout, and have the commit answer when it is durable, whatever the role's default is."""
        with session(connection) as lent, lent.pipeline():
            lent.execute(_LIMITS, [_milliseconds(access)])
            lent.execute(DURABLE)

    @contextmanager
    def confirmed(self, connection: sa.Connection) -> Iterator[Callable[[], object]]:
        with collected_warnings(connection) as warnings:
            yield warnings.clear
        if warnings:  # such as: the wait for the synchronous standby was cut short. Visible is not replicated
            raise RetryableSinkError(f"committed here, but not confirmed: {'; '.join(warnings)}")

    def confirm(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql(CONFIRM)

    def lock_creation(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql(LOCK_CREATION)

    def limited(self, seconds: float) -> AbstractContextManager[object]:
        return limited(seconds)

    def read_server(self, connection: sa.Connection) -> ServerFacts:
        standby, read_only, most, synced = connection.execute(_SERVER).one()
        unusable = ""
        if standby:
            unusable = "the server is a standby: name the primary"
        elif read_only:
            unusable = "transactions are read-only here: see default_transaction_read_only"
        why = "" if most else f"the server's max_prepared_transactions is 0: {HOW_TO_ENABLE}"
        unsafe = ("the server runs with fsync=off: a crash of its machine may lose committed data",)
        return ServerFacts(unusable, most, why, () if synced else unsafe)

    def check_server(self, connection: sa.Connection, facts: ServerFacts, schema: str) -> Iterable[Finding]:
        return check_postgres_server(connection, facts, schema)

    def behind(self, connection: sa.Connection) -> str:
        standby = connection.scalar(sa.select(sa.func.pg_is_in_recovery()))
        return "the server is a standby, whose ledger may lag" if standby else ""

    def describe(self, connection: sa.Connection, name: TableName) -> DescribedTable | None:
        with session(connection) as lent:
            table = read_table(lent, name)
            return None if table is None else replace(table, refers=read_references(lent, table))

    @contextmanager
    def trial(self, connection: sa.Connection, table: sa.TableClause) -> Iterator[Trial]:
        """Open a block with a temporary table that has the types, defaults, checks and indexes, but no foreign keys.

        It is dropped at the end of the transaction, and not of the block: constraints may be deferred until then.
        """
        model = TableName(table.schema, table.name).quoted
        changed = bool(connection.scalar(_CHANGES_ROWS, {"table": model}))
        like = f"(LIKE {model} INCLUDING ALL EXCLUDING STATISTICS) ON COMMIT DROP"
        bare = f"ON COMMIT DROP AS SELECT * FROM {model} WITH NO DATA"  # noqa: S608 - a quoted name
        with session(connection) as lent:
            lent.execute(f"CREATE TEMPORARY TABLE {_TRIAL.table} {bare if changed else like}".encode())
        yield Trial(_TRIAL, has_keys=not changed)


def _mark_new(_: object, record: Any) -> None:
    record.info[_FRESH] = True


def _check_lent(lent: Any, record: Any, _: object) -> None:
    """Refuse a connection that its server has ended: it sends a message when it shuts down, or closes the socket."""
    if record.info.pop(_FRESH, False):
        return
    if lent.closed or not _silent(lent.fileno()):
        raise exc.InvalidatePoolError  # SQLAlchemy makes a new one


def _silent(fileno: int) -> bool:
    poll = select.poll()
    poll.register(fileno, select.POLLIN | select.POLLHUP | select.POLLERR)
    return not poll.poll(0)


def _milliseconds(access: DatabaseAccess) -> str:
    return str(max(1, round(access.lock_timeout * 1000)))
