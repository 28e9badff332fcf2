"""Onceward's own tables in a target: their definitions, and their creation.

On PostgreSQL they have a schema of their own, `onceward` by default; elsewhere their names begin with `onceward_`.

Names are compared byte by byte: MariaDB's default collations would take `Orders` for `orders`.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from onceward.core.contract.names import PIPELINE_LENGTH, SINK_LENGTH
from onceward.core.errors import ConfigurationError, SinkError
from onceward.core.log.sql import BYTES, name_type

from .engines import INNODB, create_tables, creation, engine_of, reading, row_dialect_for, transaction
from .failures import may_pass
from .target import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.sql.dml import Insert

    from onceward.core.contract.names import TransactionName

    from .target import DatabaseTarget

_log = logging.getLogger("onceward.database")

T = TypeVar("T")
M = TypeVar("M")

_IN: Final = 500
"""Names in one IN list: SQLite allows as few as 999 parameters."""
_LENGTHS: Final = {"name": 199, "pipeline": PIPELINE_LENGTH, "sink": SINK_LENGTH, "log": 32}


@dataclass(frozen=True, eq=False)
class Tables:
    """Onceward's tables in one schema."""

    metadata: sa.MetaData
    ledger: sa.Table
    pipelines: sa.Table
    logs: sa.Table
    staged: sa.Table
    pieces: sa.Table
    """Staged rows as Arrow batches. Where staging tables take the rows, it is not in `metadata`, and is not created."""


@functools.cache
def _tables_in(schema: str | None, prefix: str) -> Tables:
    metadata = sa.MetaData(schema=schema)

    def table(name: str, *columns: sa.Column[Any], kept: bool = True) -> sa.Table:
        return sa.Table(prefix + name, metadata if kept else sa.MetaData(schema=schema), *columns, **INNODB)

    ledger = table(
        "ledger",
        *_transaction_columns(),
        sa.Column(
            "committed_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.current_timestamp()
        ),
        sa.Column("rewound", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
    )
    progress = (ledger.c.pipeline, ledger.c.sink, ledger.c.log, ledger.c.writer, ledger.c.epoch)
    sa.Index(f"{prefix}ledger_progress", *progress)
    pipelines = table("pipelines", *_text_columns("pipeline", "sink", primary_key=True), *_text_columns("log"))
    logs = table(
        "logs",
        *_text_columns("pipeline", "sink", "log", primary_key=True),
        sa.Column("pruned", sa.BigInteger, nullable=False, server_default=sa.text("-1")),
    )
    staged = table(
        "staged",
        *_transaction_columns(),
        sa.Column("whole", sa.SmallInteger, nullable=False),
        sa.Column("stage", sa.String(64), nullable=False),
        sa.Column("movement", sa.Text, nullable=False),
    )
    pieces = table(
        "staged_rows",
        *_text_columns("name", primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", BYTES, nullable=False),
        kept=bool(prefix),
    )
    return Tables(metadata, ledger, pipelines, logs, staged, pieces)


def _text_columns(*names: str, primary_key: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, name_type(_LENGTHS[name]), primary_key=primary_key, nullable=False) for name in names]


def _transaction_columns() -> list[sa.Column[Any]]:
    return [
        *_text_columns("name", primary_key=True),
        *_text_columns("pipeline", "sink", "log"),
        sa.Column("writer", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("subtask", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("row_count", sa.BigInteger, nullable=False),
    ]


def tables_of(target: DatabaseTarget) -> Tables:
    """Return onceward's tables in a target."""
    return _tables_in(target.ledger_schema, "" if target.url.capabilities.default_schema else "onceward_")


@functools.cache
def insert_into(table: sa.Table) -> Insert:
    """Return an INSERT that is kept, so that it is compiled once."""
    return table.insert()


def identity_row(name: TransactionName, rows: int) -> dict[str, Any]:
    """Return the columns of a transaction that `ledger` and `staged` have in common."""
    return {
        "name": str(name),
        **name.scope._asdict(),
        "writer": name.start,
        "epoch": name.epoch,
        "subtask": name.subtask,
        "attempt": name.attempt,
        "row_count": rows,
    }


def staged_handle(row_count: int, stage: str, movement: str) -> dict[str, str]:
    """Return the handle of staged rows: a digest by which a decision log knows the row of `staged` that it decided."""
    return {"sha256": hashlib.sha256(f"{row_count} {stage}\n{movement}".encode()).hexdigest()}


def split_for_in(names: Sequence[str]) -> list[Sequence[str]]:
    """Split names into parts that are small enough for one IN list."""
    return [names[start : start + _IN] for start in range(0, len(names), _IN)]


def delete_named(connection: sa.Connection, table: sa.Table, names: Sequence[str]) -> None:
    """Delete the rows of transactions from one of the tables."""
    for some in split_for_in(names):
        connection.execute(table.delete().where(table.c.name.in_(some)))


def exists(target: DatabaseTarget, connection: sa.Connection) -> bool:
    """Return whether all tables are there."""
    inspector, tables = sa.inspect(connection), tables_of(target).metadata.sorted_tables
    return all(inspector.has_table(table.name, schema=table.schema) for table in tables)


def ask_own_tables(target: DatabaseTarget, connection: sa.Connection, question: Callable[[], T], missing: M) -> T | M:
    """Return the answer to a query of the tables, or `missing` if they are not there.

    To look for the tables first would take a statement for each of them, in every epoch. `connection` must not be in a
    transaction that a failed statement would end.
    """
    try:
        return question()
    except exc.DBAPIError as error:
        if may_pass(error) or exists(target, connection):
            raise
        return missing


def check_own(target: DatabaseTarget) -> None:
    """Check that the tables, if they are there, have transactions, and that this role may do with them what sinks do.

    Each right is asked for by a statement that finds no rows.

    Raises:
        ConfigurationError: A right is missing, or a table's storage engine has no transactions.
    """
    tables, nothing = tables_of(target).metadata.sorted_tables, sa.false()
    with reading(target, "cannot look at the ledger tables") as connection:
        if not exists(target, connection):
            return
        for table in tables:
            name = TableName(table.schema, table.name)
            if refused := row_dialect_for(target).lacks_transactions(connection, name):
                raise ConfigurationError(f"onceward's own table {table} {refused}")
    try:
        with transaction(target, "cannot try the ledger tables") as connection:
            for table in tables:
                columns = list(table.columns)
                none = sa.select(*columns).where(nothing)
                connection.execute(none.with_for_update())
                connection.execute(table.insert().from_select(columns, none))
                connection.execute(table.update().where(nothing).values({columns[0]: columns[0]}))
                connection.execute(table.delete().where(nothing))
    except SinkError as error:
        if error.retryable:
            raise
        raise ConfigurationError(
            f"{error.message}: GRANT SELECT, INSERT, UPDATE, DELETE on onceward's own tables "
            f"({', '.join(map(str, tables))})"
        ) from None


def ensure(target: DatabaseTarget) -> None:
    """Create the tables if they are missing; any number of processes may do so concurrently.

    Raises:
        ConfigurationError: The database refuses; the message says what an administrator can run.
    """
    with reading(target, "cannot look for the ledger tables") as connection:
        if exists(target, connection):
            return
    tables = tables_of(target).metadata.sorted_tables
    try:
        create_tables(target, tables, "cannot create the ledger tables")
    except SinkError as error:
        if error.retryable:
            raise
        dialect = engine_of(target).dialect
        sql = "; ".join(
            " ".join(str(statement.compile(dialect=dialect)).split()) for statement in creation(target, tables)
        )
        raise ConfigurationError(
            f"the ledger tables ({', '.join(map(str, tables))}) are missing and this role may not create them: "
            f"{error}. Let their owner run this, then GRANT SELECT, INSERT, UPDATE, DELETE on them (on PostgreSQL also "
            f"USAGE, CREATE on the schema): {sql}"
        ) from None
    _log.info("created the ledger tables in %s", target.url)
