"""What is checked on the driver before anything is written."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import sqlalchemy as sa

from onceward.core.errors import ConfigurationError, SchemaError

from .ddl import create_table
from .engines import dialect_for, reading
from .reflection import describe
from .settings import CommitPath
from .trial import check_trial
from .writing import plan_for

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


def path_without_server(requested: CommitPath, target: Target) -> CommitPath | None:
    """How rows wait, as far as settings alone say it; None if the server has to be asked.

    Raises:
        ConfigurationError: What was requested is impossible.
    """
    if requested is CommitPath.PREPARED and target.key:
        raise ConfigurationError(
            "an upsert cannot wait as a prepared transaction: it would block every other writer of its keys, a retry "
            "of itself included; use commit='staging' (or 'auto')"
        )
    if dialect_for(target).two_phase is None:
        if requested is CommitPath.PREPARED:
            raise ConfigurationError(f"{dialect_for(target).title} has no prepared transactions: use commit='staging'")
        return CommitPath.STAGING
    if requested is CommitPath.AUTO:
        return CommitPath.STAGING if target.key else None
    return requested


def choose_path(requested: CommitPath, target: Target, facts: ServerFacts) -> tuple[CommitPath, str]:
    """How rows wait, and why.

    Raises:
        ConfigurationError: What was requested is impossible.
    """
    known = path_without_server(requested, target)
    if known is CommitPath.PREPARED and not facts.max_prepared:
        raise ConfigurationError(f"this server cannot prepare transactions: {facts.why_none}")
    if known is not None:
        return known, "asked for" if requested is known else "upserts and databases without two-phase commit are staged"
    if facts.max_prepared:
        return CommitPath.PREPARED, "the server allows it"
    return CommitPath.STAGING, facts.why_none


def check_server(facts: ServerFacts, target: Target, parallelism: int | None, path: CommitPath) -> None:
    """Raise ConfigurationError if this server cannot keep the promise; warn where it weakens it."""
    if facts.unusable:
        raise ConfigurationError(f"cannot write through {target.url}: {facts.unusable}")
    for warning in facts.warnings:
        _log.warning("%s: %s", target.url, warning)
    if path is CommitPath.PREPARED and parallelism is not None and facts.max_prepared < 2 * parallelism:
        _log.warning(
            "the server allows %s prepared transactions for %s parallel subtasks (max_prepared_transactions): a "
            "retried epoch may need twice as many as there are subtasks, and other users of the server share them",
            facts.max_prepared,
            parallelism,
        )


def check_table(target: Target, sink: str, schema: pa.Schema, path: CommitPath) -> None:
    """See that `schema` fits and that a key is unique; create the table if that was asked for.

    Raises:
        SchemaError: Something of the table or its columns does not fit.
        ConfigurationError: The table is of a kind that cannot be written exactly once, or rights are missing.
    """
    bulk = dialect_for(target).bulk
    table: sa.TableClause
    if bulk is None:
        table = _check_described(target, schema)
    else:
        if target.create_table:
            create_table(target, schema)
        with reading(target, "cannot validate") as connection:
            bulk.check_table(connection, target, sink, schema, path)
        table = sa.table(target.table.table, schema=target.table.schema)
    if path is CommitPath.STAGING and target.tries_rows:
        check_trial(target, table)


def _check_described(target: Target, schema: pa.Schema) -> sa.Table:
    describe(target, target.table, fresh=True)
    plan_for(target, schema)
    described = describe(target, target.table)
    if described is None:
        raise SchemaError(f"table {target.table} was dropped just now")
    if described.kind != "table":
        raise ConfigurationError(f"{target.table} is {described.kind}: only a table can be written exactly once")
    if described.engine.lower() not in _TRANSACTIONAL:
        raise ConfigurationError(
            f"table {target.table} has the storage engine {described.engine}, which has no transactions: "
            f"ALTER TABLE … ENGINE=InnoDB"
        )
    refused = dialect_for(target).check_key(described.uniques, target.key) if target.key else ""
    if refused:
        raise SchemaError(f"table {target.table} cannot be upserted by {list(target.key)}: {refused}")
    return described.table
