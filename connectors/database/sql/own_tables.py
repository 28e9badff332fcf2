"""Onceward's own tables in a target, `onceward_…`: their definitions, and their creation.

Names are compared byte by byte everywhere: MariaDB's default collations would take `Orders` for `orders`.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from onceward.core.errors import ConfigurationError, SinkError
from onceward.core.names import PIPELINE_LENGTH, SINK_LENGTH

from .engines import reading, transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.core.names import TransactionName

    from .target import Target

_log = logging.getLogger("onceward.sql")

_NAME: Final = 199
_LOG: Final = 32
_CREATION_ATTEMPTS: Final = 10
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


@dataclass(frozen=True)
class Tables:
    """Onceward's tables in one schema."""

    metadata: sa.MetaData
    ledger: sa.Table
    pipelines: sa.Table
    logs: sa.Table
    staged: sa.Table
    rows: sa.Table


@functools.cache
def tables_in(schema: str | None) -> Tables:
    """The tables' definitions."""
    metadata = sa.MetaData(schema=schema)
    now = sa.func.current_timestamp()
    ledger = sa.Table(
        "onceward_ledger",
        metadata,
        sa.Column("name", _text(_NAME), primary_key=True),
        *_whose(),
        sa.Column("committed_at", sa.DateTime(timezone=True), nullable=False, server_default=now),
        sa.Column("rewound", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
        **_INNODB,
    )
    progress = (ledger.c.pipeline, ledger.c.sink, ledger.c.log, ledger.c.writer, ledger.c.epoch)
    sa.Index("onceward_ledger_progress", *progress)
    pipelines = sa.Table(
        "onceward_pipelines",
        metadata,
        sa.Column("pipeline", _text(PIPELINE_LENGTH), primary_key=True),
        sa.Column("sink", _text(SINK_LENGTH), primary_key=True),
        sa.Column("log", _text(_LOG), nullable=False),
        **_INNODB,
    )
    logs = sa.Table(
        "onceward_logs",
        metadata,
        sa.Column("pipeline", _text(PIPELINE_LENGTH), primary_key=True),
        sa.Column("sink", _text(SINK_LENGTH), primary_key=True),
        sa.Column("log", _text(_LOG), primary_key=True),
        sa.Column("pruned", sa.BigInteger, nullable=False, server_default=sa.text("-1")),
        **_INNODB,
    )
    staged = sa.Table(
        "onceward_staged",
        metadata,
        sa.Column("name", _text(_NAME), primary_key=True),
        *_whose(),
        sa.Column("whole", sa.SmallInteger, nullable=False),
        sa.Column("target", sa.String(600), nullable=False),
        sa.Column("key_columns", sa.Text, nullable=False),
        **_INNODB,
    )
    data = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    rows = sa.Table(
        "onceward_staged_rows",
        metadata,
        sa.Column("name", _text(_NAME), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", data, nullable=False),
        **_INNODB,
    )
    return Tables(metadata, ledger, pipelines, logs, staged, rows)


def tables_of(target: Target) -> Tables:
    """The tables that a target uses."""
    return tables_in(target.ledger_schema)


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
        ConfigurationError: The database refuses; the message says which tables are needed.
    """
    try:
        _create_missing(target)
    except SinkError as error:
        if error.retryable:
            raise
        names = ", ".join(str(table) for table in tables_of(target).metadata.sorted_tables)
        raise ConfigurationError(f"the ledger tables ({names}) are missing and cannot be made: {error}") from None


@retry(
    retry=retry_if_exception_type(SinkError),
    stop=stop_after_attempt(_CREATION_ATTEMPTS),
    wait=wait_random(0.01, 0.1),
    reraise=True,
)
def _create_missing(target: Target) -> None:
    """Several at once get in each other's way, table by table: who failed looks again."""
    with reading(target, "cannot look for the ledger tables") as connection:
        if exists(target, connection):
            return
    with transaction(target, "cannot create the ledger tables") as connection:
        tables_of(target).metadata.create_all(connection)
    _log.info("created the ledger tables in %s", target.url)
