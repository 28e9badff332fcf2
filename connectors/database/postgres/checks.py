"""What is checked of a PostgreSQL table on the driver before anything is written."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from onceward.core.errors import ConfigurationError, SchemaError

from ..dialect import no_unique_key
from ..settings import CommitPath
from .catalog import ORDINARY, PARTITIONED, read_checks, read_table, read_unique_key
from .changes import without_change
from .copy import plan_copy
from .session import session
from .stage import TURNS, create_stage, stage_name

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa

    from ..target import Target
    from .catalog import Table
    from .session import Session

_log = logging.getLogger("onceward.database")

_PRIVILEGES: Final = """
SELECT privilege FROM unnest(%(wanted)s::text[]) AS t(privilege)
WHERE NOT has_table_privilege(%(oid)s::oid, privilege)
  AND NOT coalesce(has_any_column_privilege(%(oid)s::oid, nullif(privilege, 'DELETE')), false)
"""
_DEFERRED: Final = """
SELECT conname::text FROM pg_catalog.pg_constraint WHERE conrelid = %(oid)s AND condeferred ORDER BY conname
"""


def check_table(connection: sa.Connection, target: Target, sink: str, schema: pa.Schema, path: CommitPath) -> None:
    """See that `schema` fits, that the role may write, that a key is unique; create staging tables if need be.

    Raises:
        SchemaError: Something of the table or its columns does not fit.
        ConfigurationError: The table is of a kind that cannot be written, or privileges are missing.
    """
    with session(connection) as lent:
        table = read_table(lent, target.table)
        if table is None:
            raise SchemaError(f"table {target.table} does not exist; create it, or set create_table=True")
        _check_kind(table, target)
        schema = without_change(schema, target.change)
        plan_copy(schema, table)
        check_key(schema, target.key)
        _check_privileges(lent, target, table)
        if target.key and read_unique_key(lent, target.table.quoted, target.key) is None:
            why = f"{no_unique_key(target.key)}; a DEFERRABLE one is none, and spoils others"
            raise SchemaError(f"table {target.table} cannot be upserted by {list(target.key)}: {why}")
        _note_deferred(lent, table, path)
        checks = read_checks(lent, table)
    if path is CommitPath.STAGING:
        for turn in range(TURNS):
            create_stage(connection, target, stage_name(target, sink, table, checks, turn), table, checks)


def check_key(schema: pa.Schema, key: tuple[str, ...]) -> None:
    """Raise SchemaError unless every key column is in the data."""
    missing = [column for column in key if column not in schema.names]
    if missing:
        raise SchemaError(f"key columns {missing} are not in the data, which has {schema.names}")


def _check_kind(table: Table, target: Target) -> None:
    if table.kind not in (ORDINARY, PARTITIONED):
        raise ConfigurationError(f"{target.table} is {table.kind_text}: only a table can be written exactly once")
    if table.persistence == "t":
        raise ConfigurationError(f"{target.table} is a temporary table, which no other session sees")
    if table.persistence == "u":
        _log.warning("table %s is unlogged: a crash of the server empties it", target.table)


def _check_privileges(connection: Session, target: Target, table: Table) -> None:
    wanted = ["INSERT", "SELECT", "UPDATE"] if target.key else ["INSERT"]
    wanted += ["DELETE"] if target.change else []
    rows = connection.execute(_PRIVILEGES, {"oid": table.oid, "wanted": wanted}).fetchall()
    if rows:
        missing = ", ".join(row[0] for row in rows)
        raise ConfigurationError(f"the role may not {missing} on table {target.table}: GRANT {missing} ON it")


def _note_deferred(connection: Session, table: Table, path: CommitPath) -> None:
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
