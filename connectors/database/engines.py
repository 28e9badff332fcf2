"""Engines: one for each database in each process, and the transactions, queries and new tables that go through them.

Spark's Python workers are forked from a daemon and live on across batches. A child must not use a connection that its
parent opened, nor even close it: that would end the session on the parent's socket.
"""

from __future__ import annotations

import atexit
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable, ExecutableDDLElement

from onceward.core.errors import ConfigurationError, MissingExtraError, text_of
from onceward.core.kit.processwide import PerProcess

from .capabilities import load_part
from .dialect import MERGES
from .failures import translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .dialect import Dialect, RowDialect, ServerFacts, TwoPhase
    from .target import DatabaseAccess, DatabaseTarget, Url

_KEPT: Final = 4
"""Idle connections kept for each engine."""
_IDLE_SECONDS: Final = 300
"""Firewalls drop connections that were silent for longer than this."""
INNODB: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
SLOWEST: Final = 500
"""Rows per second below which writing or merging rows is taken for hanging."""
_EXTRAS: Final = {"psycopg": "postgres", "pgpq": "postgres", "pymysql": "mariadb"}


def _create(access: DatabaseAccess) -> sa.Engine:
    url, dialect = access.url, _dialect_of(access.url)
    try:
        engine = sa.create_engine(
            url.parsed,
            hide_parameters=True,
            pool_size=_KEPT,
            max_overflow=-1,
            pool_recycle=_IDLE_SECONDS,
            **dialect.engine_arguments(access),
        )
    except ImportError as error:
        raise _missing(url, error) from error
    except (exc.SQLAlchemyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"cannot use the url {url}: {url.redact(text_of(error))}") from None
    dialect.prepare_engine(engine, access)
    return engine


_engines: Final = PerProcess(_create)


def engine_of(target: DatabaseTarget) -> sa.Engine:
    """Return this process's engine for the target's database.

    Raises:
        ConfigurationError: The driver is not installed, or the URL has settings that it does not take.
    """
    return _engines.get(target.access)


def close_idle() -> None:
    """Close this process's idle connections."""
    for engine in _engines.drain():
        engine.dispose()


atexit.register(close_idle)


def dialect_for(target: DatabaseTarget) -> Dialect:
    """Return the dialect of the target's database."""
    return _dialect_of(target.url)


def row_dialect_for(target: DatabaseTarget) -> RowDialect:
    """Return the dialect of the target's database, which is one whose rows are inserted by statements."""
    return cast("RowDialect", dialect_for(target))


def two_phase_for(target: DatabaseTarget) -> TwoPhase:
    """Return the two-phase commands of the target's database.

    Raises:
        ConfigurationError: It has none.
    """
    commands = dialect_for(target).two_phase
    if commands is None:
        raise ConfigurationError(f"{target.url.capabilities.title} has no prepared transactions: use commit='staging'")
    return commands


def _dialect_of(url: Url) -> Dialect:
    try:
        dialect: Dialect = load_part(url.capabilities.dialect)()
    except ImportError as error:
        raise _missing(url, error) from error
    return dialect


def _missing(url: Url, error: ImportError) -> MissingExtraError:
    missing = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(missing, "sql")
    return MissingExtraError(f"{url} needs {missing or error}: pip install 'onceward[{extra}]'", name=error.name)


@contextmanager
def transaction(
    target: DatabaseTarget, what: str, *, more: float = 0.0, merges: bool = False, undone: bool = False
) -> Iterator[sa.Connection]:
    """Open a transaction that is committed at the end of the block; SQLAlchemy's errors are translated.

    Args:
        target: The database.
        what: The caller's step, for messages, as in "cannot merge".
        more: Seconds that the transaction may take beyond one wait for a lock and one for an answer.
        merges: Whether it writes into the target's table.
        undone: Roll the transaction back at the end of the block instead.
    """
    dialect, seconds = dialect_for(target), target.answer_within + target.lock_timeout + more
    with (
        translated(what, target),
        dialect.limited(seconds),
        engine_of(target).connect().execution_options(**{MERGES: merges}) as connection,
        dialect.confirmed(connection) as about_to_commit,
        connection.begin() as begun,
    ):
        dialect.open_transaction(connection, target.access)
        yield connection
        about_to_commit()
        if undone:
            begun.rollback()


@contextmanager
def reading(target: DatabaseTarget, what: str) -> Iterator[sa.Connection]:
    """Lend a connection for a few queries, each of which sees the newest state; SQLAlchemy's errors are translated."""
    with (
        translated(what, target),
        dialect_for(target).limited(target.answer_within),
        autocommitting(target) as connection,
    ):
        yield connection


def read_server(target: DatabaseTarget) -> ServerFacts:
    """Ask the server for the settings that matter."""
    with reading(target, "cannot read the server's settings") as connection:
        return dialect_for(target).read_server(connection)


def autocommitting(target: DatabaseTarget) -> sa.Connection:
    """Return a connection in which each statement is a transaction of its own, unless one is begun by command.

    On SQLite it is in a transaction that only reads.
    """
    return engine_of(target).connect().execution_options(**dialect_for(target).autocommit)


def create_tables(target: DatabaseTarget, tables: Sequence[sa.Table], what: str) -> None:
    """Create the tables of one schema that are missing, and on PostgreSQL the schema.

    PostgreSQL refuses CREATE … IF NOT EXISTS to a role that may not create, even if there is nothing to do.

    Args:
        target: The database.
        tables: Tables of the same schema.
        what: The caller's step, for messages, as in "cannot create the ledger tables".
    """
    with transaction(target, what) as connection:
        dialect_for(target).lock_creation(connection)
        inspector = sa.inspect(connection)
        if all(inspector.has_table(table.name, schema=table.schema) for table in tables):
            return
        statements = creation(target, tables)
        if isinstance(statements[0], CreateSchema) and inspector.has_schema(statements[0].element):
            del statements[0]
        for statement in statements:
            connection.execute(statement)


def creation(target: DatabaseTarget, tables: Sequence[sa.Table]) -> list[ExecutableDDLElement]:
    """Return statements that create tables of one schema; each does nothing if another process was faster."""
    statements: list[ExecutableDDLElement] = []
    if target.url.capabilities.default_schema and tables[0].schema is not None:
        statements.append(CreateSchema(tables[0].schema, if_not_exists=True))
    for table in tables:
        statements.append(CreateTable(table, if_not_exists=True))
        statements += [CreateIndex(index, if_not_exists=True) for index in table.indexes]
    return statements
