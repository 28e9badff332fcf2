"""Target tables: their descriptions, which each process keeps for a while, checks of them, and their creation."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import sqlalchemy as sa

from onceward.core.errors import ConfigurationError, SchemaError, SinkError, text_of

from .column_matching import Plan, make_plan, without_change
from .dialect import no_such_table
from .engines import INNODB, create_tables, dialect_for, reading, row_dialect_for, transaction
from .target import TableName, unusable

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from .described_table import DescribedTable
    from .dialect import RowDialect
    from .target import DatabaseTarget, Url

_log = logging.getLogger("onceward.database")

_KEPT_SECONDS: Final = 60.0
"""Seconds for which a description is kept. Where a table's definition has a version, that is compared each time."""


class _Kept(NamedTuple):
    at: float
    """Time of the description, in seconds on the monotonic clock."""
    version: Hashable
    """See Dialect.table_version."""
    described: DescribedTable
    checked: set[tuple[str, ...]]
    """Keys by which this description was found usable; see check_usable."""


_known: dict[tuple[Url, TableName], _Kept] = {}


def describe(target: DatabaseTarget, name: TableName, connection: sa.Connection | None = None) -> DescribedTable | None:
    """Return the description of a table; None if there is no such table.

    Args:
        target: The database.
        name: The table's name.
        connection: The connection of a transaction that writes: the table stays as described until it ends. Default: a
            connection of its own.
    """
    kept = _kept(target, name, connection)
    return None if kept is None else kept.described


def _kept(target: DatabaseTarget, name: TableName, connection: sa.Connection | None) -> _Kept | None:
    kept = _known.get((target.url, name))
    if kept is not None and time.monotonic() - kept.at >= _KEPT_SECONDS:
        kept = None
    if kept is not None and kept.version is None:
        return kept
    held = connection is not None
    with reading(target, f"cannot read table {name}") if connection is None else nullcontext(connection) as own:
        version = dialect_for(target).table_version(own, name, held=held)
        if kept is not None and kept.version == version:
            return kept
        described = dialect_for(target).describe(own, name)
    if described is None:
        return None
    kept = _known[target.url, name] = _Kept(time.monotonic(), version, described, set())
    return kept


def forget_description(target: DatabaseTarget) -> None:
    """Forget the description of the target's table, so that it is read again."""
    _known.pop((target.url, target.table), None)


def existing(target: DatabaseTarget, schema: pa.Schema, connection: sa.Connection | None = None) -> DescribedTable:
    """Return the description of the target's table, which is created first if that was requested.

    Args:
        target: The database and the table.
        schema: The schema of the data.
        connection: See `describe`.

    Raises:
        SchemaError: There is no such table.
    """
    described = describe(target, target.table, connection)
    if described is None and target.create_table:
        create_table(target, schema)
        described = describe(target, target.table, connection)
    if described is None:
        raise no_such_table(target.table)
    return described


def plan_for(target: DatabaseTarget, schema: pa.Schema, connection: sa.Connection | None = None) -> Plan:
    """Return the plan to insert rows of `schema` into the target, whose table is created if that was requested.

    Args:
        target: The database and the table.
        schema: The schema of the data.
        connection: The connection of a transaction that writes: then the table is checked, too.

    Raises:
        SchemaError: There is no such table, or a column does not fit.
        ConfigurationError: The table can no longer be written exactly once.
    """
    plan = make_plan(schema, existing(target, schema, connection), row_dialect_for(target), target.key)
    if connection is not None:
        check_usable(target, target.table, target.key, connection)
    return plan


def check_usable(
    target: DatabaseTarget, name: TableName, key: Sequence[str], connection: sa.Connection
) -> DescribedTable:
    """Check that a table can be written exactly once, by this key if there is one, and return its description.

    What is found stays so until the connection's transaction ends. A description is checked once.

    Args:
        target: The database.
        name: The table.
        key: Columns of the key of an upsert.
        connection: The connection of a transaction that writes.

    Raises:
        SchemaError: The table is missing, or has no unique key over `key`, or others beside it.
        ConfigurationError: It is of a kind that cannot be written exactly once.
    """
    kept, dialect = _kept(target, name, connection), row_dialect_for(target)
    if kept is None:
        raise SchemaError(f"table {name} no longer exists")
    described = kept.described
    if tuple(key) in kept.checked:
        return described
    if described.kind != "table":
        raise ConfigurationError(f"{name} is {described.kind}: only a table can be written exactly once")
    if refused := dialect.lacks_transactions(connection, name):
        raise ConfigurationError(f"table {name} {refused}")
    if refused := dialect.refuses(connection, described):
        raise ConfigurationError(f"table {name} cannot be written exactly once: {refused}")
    if key and (refused := dialect.check_key(described.uniques or (), key)):
        raise SchemaError(f"table {name} cannot be upserted by {list(key)}: {refused}")
    kept.checked.add(tuple(key))
    return described


def tries_in_table(target: DatabaseTarget) -> bool:
    """Return whether rows to be staged are tried in the table itself, see DatabaseTarget.tried_beside.

    Tables count as the same whatever their schemas are: a trial in a table like the target refuses no good row.
    """
    if target.tried_beside is None:
        return False
    described = describe(target, target.table)
    refers = set() if described is None else {name.casefold() for name in described.refers}
    return not refers & {name.table.casefold() for name in target.tried_beside}


def check_trial(target: DatabaseTarget, table: sa.TableClause) -> None:
    """Check that rows can be tried before they are staged.

    Raises:
        ConfigurationError: The role lacks a right that this needs.
    """
    needs = target.url.capabilities.trial_needs
    if not target.tries_rows or not needs:
        return
    try:
        with transaction(target, "cannot try rows") as connection, dialect_for(target).trial(connection, table):
            pass
    except SinkError as error:
        if error.retryable:
            raise
        raise ConfigurationError(f"staged rows are tried first, which needs {needs}: {text_of(error)}") from None


def check_described(target: DatabaseTarget, dialect: RowDialect, schema: pa.Schema | None) -> DescribedTable:
    """Check that rows of `schema` can be inserted into the table; create the table if that was requested.

    Args:
        target: The database and the table.
        dialect: Its dialect.
        schema: The schema of the data; None to check only what does not depend on it.

    Raises:
        SchemaError: The table is missing, or a column or the key does not fit.
        ConfigurationError: The table is of a kind that cannot be written exactly once, or a right is missing.
    """
    forget_description(target)
    described = describe(target, target.table) if schema is None else existing(target, schema)
    if described is None:
        raise no_such_table(target.table)
    if schema is None:
        schema = _some_columns(described, target.key)
        plan = Plan(schema, described, (), frozenset(), {})
    else:
        plan = make_plan(schema, described, dialect, target.key)
    with transaction(target, "cannot validate", merges=True) as connection:
        described = check_usable(target, target.table, target.key, connection)
        dialect.check_planned(connection, plan.insert(dialect, target.key))
    for name in target.key:
        collation = described.column(name).collation
        if collation and not collation.endswith("_bin"):
            _log.warning(
                "table %s compares column %s by %s: of texts that it takes for equal, one row is kept",
                *(target.table, name, collation),
            )
    return described


def _some_columns(described: DescribedTable, key: Sequence[str]) -> pa.Schema:
    """Return the key and one more column, as a schema of which only the names count."""
    others = [c.name for c in described.columns if c.name not in key and not c.unwritable]
    return pa.schema([(name, pa.null()) for name in (*key, *others[:1])])


def create_table(target: DatabaseTarget, schema: pa.Schema) -> None:
    """Create the table, and on PostgreSQL its schema, unless it is there. Several processes may do so concurrently."""
    create_tables(target, [definition(target, schema)], f"cannot create table {target.table}")


def definition(target: DatabaseTarget, schema: pa.Schema) -> sa.Table:
    """Return the definition of a table for rows of `schema`, with `key` as its primary key if there is one.

    Raises:
        SchemaError: A column's type has no counterpart; the message names the column.
    """
    schema = without_change(schema, target.change)
    refused = [f"column {name!r} {why}" for name in schema.names if (why := unusable(name, target.url.capabilities))]
    if refused:
        raise SchemaError(f"table {target.table} cannot be created: {', '.join(refused)}. Rename it in the data")
    of = dialect_for(target).types
    types = {field.name: of.column_type(field.type, key=field.name in target.key) for field in schema}
    unfit = [f"column {field.name!r} ({field.type})" for field in schema if types[field.name] is None]
    if unfit:
        raise SchemaError(
            f"no {target.url.capabilities.title} type for {', '.join(unfit)}; "
            f"create table {target.table} yourself, or cast them"
        )
    missing = [column for column in target.key if column not in types]
    if missing:
        raise SchemaError(f"key columns {missing} are not in the data for table {target.table}")
    columns = [
        sa.Column(name, kind, primary_key=name in target.key, autoincrement=False, nullable=name not in target.key)
        for name, kind in types.items()
    ]
    options = {**INNODB, "mysql_default_charset": "utf8mb4", "mariadb_default_charset": "utf8mb4"}
    return sa.Table(target.table.table, sa.MetaData(), *columns, schema=target.table.schema, **options)
