"""What is checked on the driver before anything is written."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from onceward.core.errors import ConfigurationError, SchemaError

from ..modes import CommitPath
from .catalog import ORDINARY, PARTITIONED, read_checks, read_table, read_unique_key
from .changes import without_change
from .ddl import create_table
from .explain import HOW_TO_ENABLE
from .plan import plan_copy
from .staging import TURNS, check_key, create_stage, stage_name

if TYPE_CHECKING:
    import pyarrow as pa

    from .catalog import Table
    from .connections import Connection
    from .target import Target

_log = logging.getLogger("onceward.postgres")


@dataclass(frozen=True)
class ServerFacts:
    """What matters of a server's set-up."""

    standby: bool
    read_only: bool
    max_prepared: int
    fsync: bool


_SERVER: Final = """
SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
       current_setting('max_prepared_transactions')::int, current_setting('fsync') = 'on'
"""
_PRIVILEGES: Final = """
SELECT privilege FROM unnest(%(wanted)s::text[]) AS t(privilege)
WHERE NOT has_table_privilege(%(oid)s::oid, privilege)
  AND NOT coalesce(has_any_column_privilege(%(oid)s::oid, nullif(privilege, 'DELETE')), false)
"""
_DEFERRED: Final = """
SELECT conname::text FROM pg_catalog.pg_constraint WHERE conrelid = %(oid)s AND condeferred ORDER BY conname
"""


def read_server(connection: Connection) -> ServerFacts:
    """Ask the server."""
    row = connection.execute(_SERVER).fetchone()
    assert row is not None  # noqa: S101 - the query always gives one row
    return ServerFacts(*row)


def choose_path(requested: CommitPath, target: Target, max_prepared: int) -> tuple[CommitPath, str]:
    """How rows wait, and why.

    Raises:
        ConfigurationError: What was requested is impossible.
    """
    if requested is CommitPath.STAGING:
        return CommitPath.STAGING, "asked for"
    if target.key:
        if requested is CommitPath.PREPARED:
            raise ConfigurationError(
                "an upsert cannot wait as a prepared transaction: it would block every other writer of its keys, a "
                "retry of itself included; use commit='staging' (or 'auto')"
            )
        return CommitPath.STAGING, "upserts held prepared would block retries over the same keys"
    if max_prepared > 0:
        return CommitPath.PREPARED, "asked for" if requested is CommitPath.PREPARED else "the server allows it"
    if requested is CommitPath.PREPARED:
        raise ConfigurationError(f"the server's max_prepared_transactions is 0: {HOW_TO_ENABLE}")
    return CommitPath.STAGING, f"the server's max_prepared_transactions is 0; to prepare instead, {HOW_TO_ENABLE}"


def check_server(facts: ServerFacts, target: Target, parallelism: int | None, path: CommitPath) -> None:
    """Raise ConfigurationError if this server cannot keep the promise; warn where it weakens it."""
    if facts.standby:
        raise ConfigurationError(f"the server ({target.dsn}) is a standby: name the primary in the dsn")
    if facts.read_only:
        raise ConfigurationError(f"transactions are read-only here ({target.dsn}): see default_transaction_read_only")
    if not facts.fsync:
        _log.warning("the server runs with fsync=off: a crash of its machine may lose committed data")
    if path is CommitPath.PREPARED and parallelism is not None and facts.max_prepared < 2 * parallelism:
        _log.warning(
            "max_prepared_transactions is %s for %s parallel subtasks: a retried epoch may need twice as many as there "
            "are subtasks, and other users of the server share them",
            facts.max_prepared,
            parallelism,
        )


def check_table(connection: Connection, target: Target, sink: str, schema: pa.Schema, path: CommitPath) -> None:
    """See that `schema` fits, that the role may write, that a key is unique; create table and stage if need be.

    Raises:
        SchemaError: Something of the table or its columns does not fit.
        ConfigurationError: The table is of a kind that cannot be written, or privileges are missing.
    """
    schema = without_change(schema, target.change)
    table = read_table(connection, target.table)
    if table is None and target.create_table:
        create_table(connection, target.table, schema, target.key)
        table = read_table(connection, target.table)
    if table is None:
        raise SchemaError(f"table {target.table} does not exist; create it, or set create_table=True")
    _check_kind(table, target)
    plan_copy(schema, table)
    check_key(schema, target.key)
    _check_privileges(connection, target, table)
    if target.key and read_unique_key(connection, str(target.table), target.key) is None:
        raise SchemaError(
            f"table {target.table} has no primary key or unique index over exactly {list(target.key)} (immediate, "
            "without WHERE), which an upsert needs"
        )
    _note_deferred(connection, table, path)
    if path is CommitPath.STAGING:
        checks = read_checks(connection, table)
        for turn in range(TURNS):
            create_stage(connection, target, stage_name(target, sink, table, checks, turn), table, checks)


def _check_kind(table: Table, target: Target) -> None:
    if table.kind not in (ORDINARY, PARTITIONED):
        raise ConfigurationError(f"{target.table} is {table.kind_text}: only a table can be written exactly once")
    if table.persistence == "t":
        raise ConfigurationError(f"{target.table} is a temporary table, which no other session sees")
    if table.persistence == "u":
        _log.warning("table %s is unlogged: a crash of the server empties it", target.table)


def _check_privileges(connection: Connection, target: Target, table: Table) -> None:
    wanted = ["INSERT", "SELECT", "UPDATE"] if target.key else ["INSERT"]
    wanted += ["DELETE"] if target.change else []
    rows = connection.execute(_PRIVILEGES, {"oid": table.oid, "wanted": wanted}).fetchall()
    if rows:
        missing = ", ".join(row[0] for row in rows)
        raise ConfigurationError(f"the role may not {missing} on table {target.table}: GRANT {missing} ON it")


def _note_deferred(connection: Connection, table: Table, path: CommitPath) -> None:
    names = [row[0] for row in connection.execute(_DEFERRED, {"oid": table.oid}).fetchall()]
    if not names:
        return
    if path is CommitPath.PREPARED:
        _log.info("deferred constraints %s are checked when an epoch is prepared, and fail the epoch there", names)
    else:
        _log.warning(
            "constraints %s of %s.%s are checked only when an epoch's decided rows are merged: rows that break them "
            "stop the pipeline then (commit='prepared' finds out before the decision)",
            names,
            table.schema,
            table.name,
        )
