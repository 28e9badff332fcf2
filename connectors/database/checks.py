"""What is checked on the driver before anything is written."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import sqlalchemy as sa

from onceward.core.errors import ConfigurationError, SchemaError, SinkError

from .dialect import RowDialect
from .engines import dialect_for, reading, transaction
from .own_tables import tables_of
from .plan import make_plan
from .tables import create_table, existing, forget
from .target import CommitPath

if TYPE_CHECKING:
    import pyarrow as pa

    from .dialect import ServerFacts
    from .target import Target

_log = logging.getLogger("onceward.database")
_TRANSACTIONAL = ("", "innodb")


def read_server(target: Target) -> ServerFacts:
    """Ask the server."""
    with reading(target, "cannot read the server's settings") as connection:
        return dialect_for(target).read_server(connection)


def choose_path(requested: CommitPath, target: Target, facts: ServerFacts | None = None) -> CommitPath:
    """How rows wait.

    Args:
        requested: By the user.
        target: Where they go.
        facts: Of the server, if it was asked; else the answer is AUTO where settings alone do not say it.

    Raises:
        ConfigurationError: What was requested is impossible.
    """
    dialect = dialect_for(target)
    if requested is CommitPath.PREPARED:
        if target.key:
            raise ConfigurationError(
                "an upsert cannot wait as a prepared transaction: it would block every other writer of its keys, a "
                "retry of itself included; use commit='staging' (or 'auto')"
            )
        if dialect.two_phase is None:
            raise ConfigurationError(f"{dialect.title} has no prepared transactions: use commit='staging'")
        if facts is not None and not facts.max_prepared:
            raise ConfigurationError(f"this server cannot prepare transactions: {facts.why_none}")
        return requested
    if requested is CommitPath.STAGING or target.key or dialect.two_phase is None:
        return CommitPath.STAGING
    if facts is None:
        return CommitPath.AUTO
    return CommitPath.PREPARED if facts.max_prepared else CommitPath.STAGING


def check_server(facts: ServerFacts, target: Target) -> None:
    """Raise ConfigurationError if this server cannot keep the promise; warn where it weakens it."""
    if facts.unusable:
        raise ConfigurationError(f"cannot write through {target.url}: {facts.unusable}")
    for warning in facts.warnings:
        _log.warning("%s: %s", target.url, warning)


def check_table(target: Target, sink: str, schema: pa.Schema, path: CommitPath) -> None:
    """See that `schema` fits, that a key is unique, that rows can be tried; create the table if that was asked for.

    Raises:
        SchemaError: Something of the table or its columns does not fit.
        ConfigurationError: The table is of a kind that cannot be written exactly once, or rights are missing.
    """
    dialect = dialect_for(target)
    table: sa.TableClause = sa.table(target.table.table, schema=target.table.schema)
    if isinstance(dialect, RowDialect):
        table = _check_described(target, dialect, schema)
    else:
        if target.create_table:
            create_table(target, schema)
        with reading(target, "cannot validate") as connection:
            own = [table.name for table in tables_of(target).metadata.sorted_tables]
            dialect.check_own_tables(connection, target.ledger_schema or "", own)
            dialect.check_table(connection, target, sink, schema, path)
    if path is not CommitPath.STAGING or not target.tries_rows or not dialect.trial_needs:
        return
    try:
        with transaction(target, "cannot try rows") as connection, dialect.trial(connection, table):
            pass
    except SinkError as error:
        if error.retryable:
            raise
        raise ConfigurationError(f"staged rows are tried first, which needs {dialect.trial_needs}: {error}") from None


def _check_described(target: Target, dialect: RowDialect, schema: pa.Schema) -> sa.Table:
    forget(target)
    described = existing(target, schema)
    make_plan(schema, described.table, target.url.backend, target.key)
    if described.kind != "table":
        raise ConfigurationError(f"{target.table} is {described.kind}: only a table can be written exactly once")
    if described.engine.lower() not in _TRANSACTIONAL:
        raise ConfigurationError(
            f"table {target.table} has the storage engine {described.engine}, which has no transactions: "
            f"ALTER TABLE … ENGINE=InnoDB"
        )
    refused = dialect.check_key(described.uniques, target.key) if target.key else ""
    if refused:
        raise SchemaError(f"table {target.table} cannot be upserted by {list(target.key)}: {refused}")
    return described.table
