"""Target tables: their descriptions, which each process keeps for a while, checks of them, and their creation."""

from __future__ import annotations

import logging
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import mysql, postgresql

from onceward.core.errors import ConfigurationError, SchemaError, SinkError, text_of

from .column_matching import Plan, make_plan, without_change
from .conversions import is_binary, is_text
from .dialect import no_such_table
from .engines import (
    INNODB,
    create,
    dialect_for,
    reading,
    row_dialect_for,
    storage_engine,
    transaction,
    without_transactions,
)
from .target import TableName, unusable

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from .dialect import RowDialect
    from .target import DatabaseTarget, Url

_log = logging.getLogger("onceward.database")

_KEPT_SECONDS: Final = 60.0
"""Seconds for which a description is kept. Where a table's definition has a version, that is compared each time."""
_UNSIGNED: Final = {pa.uint8(): sa.SmallInteger, pa.uint16(): sa.Integer, pa.uint32(): sa.BigInteger}
_INTEGERS: Final = {8: sa.SmallInteger, 16: sa.SmallInteger, 32: sa.Integer, 64: sa.BigInteger}
_EXTENSIONS: Final[dict[str, sa.types.TypeEngine[Any]]] = {"arrow.uuid": sa.Uuid(), "arrow.json": postgresql.JSONB()}
_SINGLE: Final = 32
_KEY_CHARACTERS: Final = 255
"""Length of a text in a key on MariaDB, which needs one."""


@dataclass(frozen=True)
class DescribedTable:
    """A table as the server describes it: columns, keys and kind."""

    table: sa.Table
    uniques: tuple[frozenset[str], ...]
    """Columns of the primary key and of each unique key, as Dialect.read_uniques returns them."""
    kind: str
    """`table`, or another kind of relation."""
    engine: str
    """MariaDB's storage engine; empty elsewhere."""
    refers: tuple[str, ...] = ()
    """Names of the tables to which its foreign keys refer, without their schemas."""
    has_triggers: bool = False
    """The table has triggers that a plan does not go through, see Dialect.has_triggers."""

    def layout(self, column: str) -> tuple[Any, ...]:
        """Return all of a column that decides how its values are written."""
        c = self.table.columns[column]
        return repr(c.type), getattr(c.type, "collation", None), c.nullable


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
        described = _read(target, own, name)
    if described is None:
        return None
    kept = _known[target.url, name] = _Kept(time.monotonic(), version, described, set())
    return kept


def forget(target: DatabaseTarget) -> None:
    """Forget the description of the target's table, so that it is read again."""
    _known.pop((target.url, target.table), None)


def _read(target: DatabaseTarget, connection: sa.Connection, name: TableName) -> DescribedTable | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exc.SAWarning)  # of types unknown to SQLAlchemy, which the plan refuses
        inspector, dialect = sa.inspect(connection), dialect_for(target)

        def rename(_: object, __: object, column: Any) -> None:
            column["name"] = dialect.column_name(column["name"])

        try:
            table = sa.Table(
                name.table,
                sa.MetaData(),
                schema=name.schema,
                autoload_with=connection,
                resolve_fks=False,
                listeners=[("column_reflect", rename)],
            )
        except exc.NoSuchTableError:
            return None
        dialect.complete(connection, table)
        if name.table in inspector.get_view_names(schema=name.schema):
            return DescribedTable(table, (), "a view", "")
        engine = storage_engine(inspector, name.table, name.schema)
        uniques = dialect.read_uniques(connection, table)
        refers = tuple(key["referred_table"] for key in inspector.get_foreign_keys(name.table, schema=name.schema))
        has_triggers = dialect.has_triggers(connection, table)
        return DescribedTable(table, tuple(uniques), "table", engine, refers, has_triggers)


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
    plan = make_plan(schema, existing(target, schema, connection).table, target.url.backend, target.key)
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
    if refused := without_transactions(described.engine):
        raise ConfigurationError(f"table {name} {refused}")
    if refused := dialect.refuses(connection, described.table):
        raise ConfigurationError(f"table {name} cannot be written exactly once: {refused}")
    if key and (refused := dialect.check_key(described.uniques, key)):
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
    dialect = dialect_for(target)
    if not target.tries_rows or not dialect.trial_needs:
        return
    try:
        with transaction(target, "cannot try rows") as connection, dialect.trial(connection, table):
            pass
    except SinkError as error:
        if error.retryable:
            raise
        raise ConfigurationError(
            f"staged rows are tried first, which needs {dialect.trial_needs}: {text_of(error)}"
        ) from None


def check_described(target: DatabaseTarget, dialect: RowDialect, schema: pa.Schema | None) -> sa.Table:
    """Check that rows of `schema` can be inserted into the table; create the table if that was requested.

    Args:
        target: The database and the table.
        dialect: Its dialect.
        schema: The schema of the data; None to check only what does not depend on it.

    Raises:
        SchemaError: The table is missing, or a column or the key does not fit.
        ConfigurationError: The table is of a kind that cannot be written exactly once, or a right is missing.
    """
    forget(target)
    described = describe(target, target.table) if schema is None else existing(target, schema)
    if described is None:
        raise no_such_table(target.table)
    if schema is None:
        schema = _some_columns(described, target.key)
        plan = Plan(schema, described.table, (), frozenset(), {})
    else:
        plan = make_plan(schema, described.table, target.url.backend, target.key)
    with transaction(target, "cannot validate", merges=True) as connection:
        described = check_usable(target, target.table, target.key, connection)
        dialect.check_planned(connection, plan.insert(dialect, target.key))
    for name in target.key:
        collation = getattr(described.table.columns[name].type, "collation", None)
        if collation and not collation.endswith("_bin"):
            _log.warning(
                "table %s compares column %s by %s: of texts that it takes for equal, one row is kept",
                *(target.table, name, collation),
            )
    return described.table


def _some_columns(described: DescribedTable, key: Sequence[str]) -> pa.Schema:
    """Return the key and one more column, as a schema of which only the names count."""
    others = [c.name for c in described.table.columns if c.name not in key and c.computed is None]
    return pa.schema([(name, pa.null()) for name in (*key, *others[:1])])


def create_table(target: DatabaseTarget, schema: pa.Schema) -> None:
    """Create the table, and on PostgreSQL its schema, unless it is there. Several processes may do so concurrently."""
    create(target, [definition(target, schema)], f"cannot create table {target.table}")


def definition(target: DatabaseTarget, schema: pa.Schema) -> sa.Table:
    """Return the definition of a table for rows of `schema`, with `key` as its primary key if there is one.

    Raises:
        SchemaError: A column's type has no counterpart; the message names the column.
    """
    backend = target.url.backend
    schema = without_change(schema, target.change)
    refused = [f"column {name!r} {why}" for name in schema.names if (why := unusable(name, backend))]
    if refused:
        raise SchemaError(f"table {target.table} cannot be created: {', '.join(refused)}. Rename it in the data")
    types = {field.name: column_type(field.type, backend, key=field.name in target.key) for field in schema}
    unfit = [f"column {field.name!r} ({field.type})" for field in schema if types[field.name] is None]
    if unfit:
        raise SchemaError(
            f"no {dialect_for(target).title} type for {', '.join(unfit)}; "
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


def column_type(arrow: pa.DataType, backend: str, *, key: bool = False) -> sa.types.TypeEngine[Any] | None:
    """Return the SQL type that holds every value of an Arrow type; None if there is none."""
    if isinstance(arrow, pa.BaseExtensionType):
        own = _EXTENSIONS.get(arrow.extension_name) if backend == "postgresql" else None
        return own or column_type(arrow.storage_type, backend, key=key)
    if pa.types.is_dictionary(arrow):
        return column_type(arrow.value_type, backend, key=key)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        element = column_type(arrow.value_type, backend)
        if backend != "postgresql" or element is None or isinstance(element, sa.ARRAY):
            return None
        return postgresql.ARRAY(element)
    return _number(arrow, backend) or _text_or_bytes(arrow, backend, key) or _time(arrow, backend)


def _number(arrow: pa.DataType, backend: str) -> sa.types.TypeEngine[Any] | None:
    if pa.types.is_floating(arrow):
        return sa.REAL() if backend == "postgresql" and arrow.bit_width <= _SINGLE else sa.Double()
    if pa.types.is_boolean(arrow):
        return sa.Boolean()
    if pa.types.is_decimal(arrow) and backend != "sqlite":
        return sa.Numeric(arrow.precision + max(-arrow.scale, 0), max(arrow.scale, 0))
    if arrow == pa.uint64():
        return None if backend == "sqlite" else sa.Numeric(20, 0)
    if pa.types.is_integer(arrow):
        return _UNSIGNED.get(arrow, _INTEGERS[arrow.bit_width])()
    return None


def _text_or_bytes(arrow: pa.DataType, backend: str, key: bool) -> sa.types.TypeEngine[Any] | None:
    server = backend in ("mysql", "mariadb")
    if is_text(arrow):
        if server:
            return mysql.VARCHAR(_KEY_CHARACTERS, collation="utf8mb4_nopad_bin") if key else mysql.LONGTEXT()
        return sa.Text()
    if pa.types.is_fixed_size_binary(arrow) and server:
        return sa.BINARY(arrow.byte_width)
    if is_binary(arrow):
        return mysql.LONGBLOB() if server else sa.LargeBinary()
    return None


def _time(arrow: pa.DataType, backend: str) -> sa.types.TypeEngine[Any] | None:
    server = backend in ("mysql", "mariadb")
    if pa.types.is_date(arrow):
        return sa.Date()
    if pa.types.is_timestamp(arrow):
        if server:
            return mysql.TIMESTAMP(fsp=6) if arrow.tz is not None else mysql.DATETIME(fsp=6)
        return sa.DateTime(timezone=arrow.tz is not None)
    if pa.types.is_time(arrow):
        return mysql.TIME(fsp=6) if server else sa.Time()
    if pa.types.is_duration(arrow):
        return postgresql.INTERVAL() if backend == "postgresql" else None
    return None
