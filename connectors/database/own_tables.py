"""Onceward's own tables in a target: their definitions, and their creation.

On PostgreSQL they have a schema of their own, `onceward` by default; elsewhere their names begin with `onceward_`.

Names are compared byte by byte everywhere: MariaDB's default collations would take `Orders` for `orders`.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable, ExecutableDDLElement

from onceward.core.errors import ConfigurationError, SinkError
from onceward.core.names import PIPELINE_LENGTH, SINK_LENGTH

from .engines import dialect_for, engine_of, reading, transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.sql.dml import Insert

    from onceward.core.names import TransactionName

    from .target import Target

_log = logging.getLogger("onceward.database")

_NAME: Final = 199
_LOG: Final = 32
_INNODB: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
_IN: Final = 500
"""Names in one IN list: SQLite allows as few as 999 parameters."""


def _text(length: int) -> sa.types.TypeEngine[str]:
    exact = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


def _whose() -> list[sa.Column[Any]]:
    return [
        sa.Column("pipeline", _text(PIPELINE_LENGTH), nullable=False),
        sa.Column("sink", _text(SINK_LENGTH), nullable=False),
        sa.Column("log", _text(_LOG), nullable=False),
        sa.Column("writer", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("subtask", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("row_count", sa.BigInteger, nullable=False),
    ]


@dataclass(frozen=True, eq=False)
class Tables:
    """Onceward's tables in one schema."""

    metadata: sa.MetaData
    ledger: sa.Table
    pipelines: sa.Table
    logs: sa.Table
    staged: sa.Table
    rows: sa.Table | None
    """Staged rows as Arrow batches; None where a staging table of their own takes them."""

    @property
    def pieces(self) -> sa.Table:
        """The table of staged Arrow batches."""
        assert self.rows is not None  # noqa: S101 - asked for only where there is one
        return self.rows


@functools.cache
def tables_in(schema: str | None, prefix: str) -> Tables:
    """The tables' definitions."""
    metadata = sa.MetaData(schema=schema)
    now = sa.func.current_timestamp()
    ledger = sa.Table(
        f"{prefix}ledger",
        metadata,
        sa.Column("name", _text(_NAME), primary_key=True),
        *_whose(),
        sa.Column("committed_at", sa.DateTime(timezone=True), nullable=False, server_default=now),
        sa.Column("rewound", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
        **_INNODB,
    )
    progress = (ledger.c.pipeline, ledger.c.sink, ledger.c.log, ledger.c.writer, ledger.c.epoch)
    sa.Index(f"{prefix}ledger_progress", *progress)
    pipelines = sa.Table(
        f"{prefix}pipelines",
        metadata,
        sa.Column("pipeline", _text(PIPELINE_LENGTH), primary_key=True),
        sa.Column("sink", _text(SINK_LENGTH), primary_key=True),
        sa.Column("log", _text(_LOG), nullable=False),
        **_INNODB,
    )
    logs = sa.Table(
        f"{prefix}logs",
        metadata,
        sa.Column("pipeline", _text(PIPELINE_LENGTH), primary_key=True),
        sa.Column("sink", _text(SINK_LENGTH), primary_key=True),
        sa.Column("log", _text(_LOG), primary_key=True),
        sa.Column("pruned", sa.BigInteger, nullable=False, server_default=sa.text("-1")),
        **_INNODB,
    )
    staged = sa.Table(
        f"{prefix}staged",
        metadata,
        sa.Column("name", _text(_NAME), primary_key=True),
        *_whose(),
        sa.Column("whole", sa.SmallInteger, nullable=False),
        sa.Column("stage", sa.String(64), nullable=False),
        sa.Column("movement", sa.Text, nullable=False),
        **_INNODB,
    )
    return Tables(metadata, ledger, pipelines, logs, staged, _pieces(metadata, prefix) if prefix else None)


def _pieces(metadata: sa.MetaData, prefix: str) -> sa.Table:
    data = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    return sa.Table(
        f"{prefix}staged_rows",
        metadata,
        sa.Column("name", _text(_NAME), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", data, nullable=False),
        **_INNODB,
    )


def tables_of(target: Target) -> Tables:
    """The tables that a target uses."""
    return tables_in(target.ledger_schema, "" if target.url.backend == "postgresql" else "onceward_")


@functools.cache
def insert_into(table: sa.Table) -> Insert:
    """An INSERT that lasts, and so is compiled once."""
    return table.insert()


def identity_row(name: TransactionName, rows: int) -> dict[str, Any]:
    """What `ledger` and `staged` keep of a transaction."""
    return {
        "name": str(name),
        **name.scope._asdict(),
        "writer": name.start,
        "epoch": name.epoch,
        "subtask": name.subtask,
        "attempt": name.attempt,
        "row_count": rows,
    }


def parts(names: Sequence[str]) -> list[Sequence[str]]:
    """Pieces small enough for one IN list."""
    return [names[start : start + _IN] for start in range(0, len(names), _IN)]


def exists(target: Target, connection: sa.Connection) -> bool:
    """Whether all tables are there."""
    inspector = sa.inspect(connection)
    return all(
        inspector.has_table(table.name, schema=table.schema) for table in tables_of(target).metadata.sorted_tables
    )


def ensure(target: Target) -> None:
    """Create the tables if they are missing; any number of processes may do so at once.

    Raises:
        ConfigurationError: The database refuses; the message says what an administrator can run.
    """
    with reading(target, "cannot look for the ledger tables") as connection:
        if exists(target, connection):
            return
    statements = _creation(target)
    try:
        with transaction(target, "cannot create the ledger tables") as connection:
            dialect_for(target).lock_creation(connection)
            for statement in statements:
                connection.execute(statement)
    except SinkError as error:
        if error.retryable:
            raise
        names = ", ".join(str(table) for table in tables_of(target).metadata.sorted_tables)
        dialect = engine_of(target).dialect
        sql = "; ".join(" ".join(str(statement.compile(dialect=dialect)).split()) for statement in statements)
        raise ConfigurationError(
            f"the ledger tables ({names}) are missing and this role may not create them: {error}. Let their owner run "
            "this, then GRANT SELECT, INSERT, UPDATE, DELETE on them (on PostgreSQL also USAGE, CREATE on the schema): "
            f"{sql}"
        ) from None
    _log.info("created the ledger tables in %s", target.url)


def _creation(target: Target) -> list[ExecutableDDLElement]:
    """Each statement passes where somebody else was quicker."""
    made: list[ExecutableDDLElement] = []
    if target.url.backend == "postgresql" and target.ledger_schema is not None:
        made.append(CreateSchema(target.ledger_schema, if_not_exists=True))
    for table in tables_of(target).metadata.sorted_tables:
        made.append(CreateTable(table, if_not_exists=True))
        made += [CreateIndex(index, if_not_exists=True) for index in table.indexes]
    return made
