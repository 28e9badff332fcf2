"""PostgreSQL: PREPARE TRANSACTION and COMMIT PREPARED by gid, through psycopg."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects.postgresql import insert

from onceward.core.errors import SqlError

from .dialect import HOW_TO_STAGE, Answer, ServerFacts, Trial, TwoPhase, no_unique_key
from .failures import code, words
from .tables import TableName
from .target import own_name
from .watch import guard, limited

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from sqlalchemy.sql.dml import Insert

    from onceward.core.names import TransactionName

    from .target import Target

_NO_SUCH_GID: Final = "42704"
_BUSY: Final = "55000"
_OTHER_DATABASE: Final = "0A000"
HOW_TO_ENABLE: Final = (
    "set max_prepared_transactions in postgresql.conf (for example ALTER SYSTEM SET max_prepared_transactions = 64; "
    f"at least twice the number of parallel subtasks) and restart the server, {HOW_TO_STAGE}"
)
_CONNECT_SECONDS: Final = 10
_FRESH: Final = "onceward_fresh"
_DEFAULTS: Final[dict[str, str | int]] = {
    "application_name": "onceward",
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq's own defaults wait two hours for a server that vanished from the network."""
_TRIAL: Final = TableName("pg_temp", "onceward_trial")
_CHANGES_ROWS: Final = sa.text(
    "SELECT relhasrules OR EXISTS (SELECT 1 FROM pg_catalog.pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal"
    " AND (tgtype & 7) = 7) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = relnamespace"
    " WHERE relname = CAST(:table AS text) AND nspname = coalesce(CAST(:schema AS text), nspname)"
    " AND (CAST(:schema AS text) IS NOT NULL OR pg_catalog.pg_table_is_visible(c.oid))"
)
"""Whether something may change rows before the table sees them: rules, or triggers BEFORE INSERT FOR EACH ROW (the
lowest bits of tgtype)."""
_PREPARED = sa.table(
    "pg_prepared_xacts", sa.column("gid"), sa.column("database"), sa.column("prepared"), schema="pg_catalog"
)


class GidTransactions:
    """See TwoPhase."""

    def begin(self, connection: sa.Connection, name: TransactionName, lock_timeout: float) -> None:  # noqa: ARG002
        """BEGIN; the gid comes at the end."""
        connection.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        _set_locally(connection, lock_timeout)

    def prepare(self, connection: sa.Connection, name: TransactionName) -> None:
        """PREPARE TRANSACTION."""
        session: Any = connection.connection.dbapi_connection
        if session.info.transaction_status.name != "INTRANS":
            raise SqlError("the transaction had failed before it could be prepared")  # the server would not say so
        connection.exec_driver_sql(f"PREPARE TRANSACTION {_literal(name)}")

    def hand_over(self, connection: sa.Connection) -> None:
        """The session has nothing more to do with what it prepared."""
        connection.close()

    def commit(self, connection: sa.Connection, name: TransactionName) -> tuple[Answer, str]:
        """COMMIT PREPARED."""
        return _end(connection, f"COMMIT PREPARED {_literal(name)}")

    def rollback(self, connection: sa.Connection, name: TransactionName) -> tuple[Answer, str]:
        """ROLLBACK PREPARED."""
        return _end(connection, f"ROLLBACK PREPARED {_literal(name)}")

    def waiting(self, connection: sa.Connection, pipeline: str, sink: str) -> list[TransactionName]:
        """The view shows all databases of the server."""
        gid = _PREPARED.c.gid
        query = sa.select(gid).where(_PREPARED.c.database == sa.func.current_database())
        rows = connection.execute(query.order_by(_PREPARED.c.prepared, gid)).scalars()
        names = [own_name(text, pipeline, sink) for text in rows]
        return [name for name in names if name is not None]


class PostgreSql:
    """See Dialect."""

    title = "PostgreSQL"
    two_phase: TwoPhase | None = GidTransactions()
    asks_with_lock = False

    def engine_arguments(self, target: Target) -> dict[str, Any]:
        """The user's settings win; server-side prepared statements break when a table changes and behind poolers."""
        seconds = min(_CONNECT_SECONDS, math.ceil(target.answer_within))
        settings = {**_DEFAULTS, "connect_timeout": seconds}
        given = {key: value for key, value in settings.items() if key not in target.url.parsed.query}
        arguments = {**given, "prepare_threshold": None, "client_encoding": "utf8"}
        return {"isolation_level": "READ COMMITTED", "connect_args": arguments}

    def prepare_engine(self, engine: sa.Engine, target: Target) -> None:  # noqa: ARG002 - signature
        """Hands each connection to its time limit before the first question is asked on it."""
        event.listen(engine, "connect", _guard_new, insert=True)

        @event.listens_for(engine, "checkout")
        def lend(session: Any, record: Any, _: object) -> None:
            _guard_lent(engine, session, record)

    def open_transaction(self, connection: sa.Connection, target: Target) -> None:
        """A lock timeout; and a commit that answers when it is safe, whatever the role's default says."""
        _set_locally(connection, target.lock_timeout)
        setting = sa.func.current_setting("synchronous_commit")
        connection.execute(sa.select(sa.func.set_config("synchronous_commit", "on", True)).where(setting == "off"))

    def limited(self, seconds: float, connection: sa.Connection | None = None) -> AbstractContextManager[object]:
        """Libpq waits for ever: its socket is shut down from outside."""
        if connection is None:
            return limited(seconds)
        session: Any = connection.connection.dbapi_connection
        return limited(seconds, session.fileno)

    def read_server(self, connection: sa.Connection) -> ServerFacts:
        """Standby, read-only, max_prepared_transactions, fsync."""
        setting = sa.func.current_setting
        read_only = connection.scalar(sa.select(setting("transaction_read_only")))
        most = int(connection.scalar(sa.select(setting("max_prepared_transactions"))) or 0)
        synced = connection.scalar(sa.select(setting("fsync")))
        unusable = ""
        if connection.scalar(sa.select(sa.func.pg_is_in_recovery())):
            unusable = "the server is a standby: name the primary in the url"
        elif read_only == "on":
            unusable = "transactions are read-only here: see default_transaction_read_only"
        why = "" if most else f"the server's max_prepared_transactions is 0: {HOW_TO_ENABLE}"
        unsafe = ("the server runs with fsync=off: a crash of its machine may lose committed data",)
        return ServerFacts(unusable, most, why, () if synced == "on" else unsafe)

    def behind(self, connection: sa.Connection) -> str:
        """Whether it is a standby."""
        standby = connection.scalar(sa.select(sa.func.pg_is_in_recovery()))
        return "the server is a standby, whose ledger may lag" if standby else ""

    def upsert(self, table: sa.TableClause, values: dict[str, Any], key: Sequence[str]) -> Insert:
        """INSERT … ON CONFLICT DO UPDATE."""
        statement = insert(table).values(values)
        others = {name: statement.excluded[name] for name in values if name not in key}
        if not others:
            return statement.on_conflict_do_nothing(index_elements=list(key))
        return statement.on_conflict_do_update(index_elements=list(key), set_=others)

    @contextmanager
    def trial(self, connection: sa.Connection, table: sa.Table) -> Iterator[Trial]:
        """A temporary table with its types, defaults, checks and indexes; no keys of other tables.

        It goes at the end of the transaction, and not before: constraints may be deferred until then.
        """
        model = connection.dialect.identifier_preparer.format_table(table)
        changed = bool(connection.scalar(_CHANGES_ROWS, {"table": table.name, "schema": table.schema}))
        like = f"(LIKE {model} INCLUDING ALL EXCLUDING STATISTICS) ON COMMIT DROP"
        bare = f"ON COMMIT DROP AS SELECT * FROM {model} WITH NO DATA"  # noqa: S608 - a quoted name
        connection.exec_driver_sql(f"CREATE TEMPORARY TABLE {_TRIAL.table} {bare if changed else like}")
        yield Trial(_TRIAL, has_keys=not changed)

    trial_needs = "TEMPORARY on the database and SELECT on the table"

    def check_key(self, uniques: Sequence[frozenset[str]], key: Sequence[str]) -> str:
        """Any unique key of exactly these columns."""
        return "" if frozenset(key) in uniques else f"{no_unique_key(key)}; a DEFERRABLE one is none, and spoils others"


def _guard_new(session: Any, record: Any) -> None:
    """Before SQLAlchemy asks for the version and settings of a server that it meets for the first time."""
    guard(session.fileno)
    record.info[_FRESH] = True


def _guard_lent(engine: sa.Engine, session: Any, record: Any) -> None:
    """See whether a connection from the pool still answers; this is pool_pre_ping, with a time limit."""
    limit = guard(session.fileno)
    if record.info.pop(_FRESH, False):
        return
    try:
        answers = engine.dialect.do_ping(session)
    except engine.dialect.loaded_dbapi.Error:
        answers = False
    if limit is not None and limit.passed:
        raise exc.TimeoutError("the server did not answer in time")
    if not answers:
        raise exc.InvalidatePoolError  # SQLAlchemy makes a new one


def _literal(name: TransactionName) -> str:
    text = str(name)
    return f"'{text}'"


def _set_locally(connection: sa.Connection, lock_timeout: float) -> None:
    milliseconds = str(max(1, round(lock_timeout * 1000)))
    set_config = sa.func.set_config
    connection.execute(
        sa.select(set_config("lock_timeout", milliseconds, True), set_config("statement_timeout", "0", True))
    )


def _end(connection: sa.Connection, statement: str) -> tuple[Answer, str]:
    try:
        connection.exec_driver_sql(statement)
    except exc.DBAPIError as error:
        state = code(error)
        if state == _OTHER_DATABASE:
            raise SqlError(f"{words(error)}: the url must name the database that prepared it") from None
        if state not in (_NO_SUCH_GID, _BUSY):
            raise
        return (Answer.BUSY if state == _BUSY else Answer.GONE), words(error)
    return Answer.DONE, ""
