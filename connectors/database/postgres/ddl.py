"""Creating a target table from an Arrow schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from psycopg import sql

from onceward.core.errors import SchemaError

from .ledger import CREATION_LOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .connections import Connection
    from .tables import TableName

_SIMPLE: Final[dict[pa.DataType, str]] = {
    pa.int8(): "smallint",
    pa.uint8(): "smallint",
    pa.int16(): "smallint",
    pa.uint16(): "integer",
    pa.int32(): "integer",
    pa.uint32(): "bigint",
    pa.int64(): "bigint",
    pa.uint64(): "numeric(20,0)",
    pa.float16(): "real",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.large_string(): "text",
    pa.string_view(): "text",
    pa.binary(): "bytea",
    pa.large_binary(): "bytea",
    pa.binary_view(): "bytea",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.date64(): "date",
}
_EXTENSIONS: Final = {"arrow.uuid": "uuid", "arrow.json": "jsonb"}


def column_type(arrow: pa.DataType) -> str | None:
    """The PostgreSQL type, as SQL, that holds every value of an Arrow type; None if there is none."""
    if arrow in _SIMPLE:
        return _SIMPLE[arrow]
    if isinstance(arrow, pa.BaseExtensionType):
        return _EXTENSIONS.get(arrow.extension_name) or column_type(arrow.storage_type)
    if pa.types.is_dictionary(arrow):
        return column_type(arrow.value_type)
    if pa.types.is_decimal(arrow):
        scale = max(arrow.scale, 0)
        return f"numeric({arrow.precision + scale - arrow.scale},{scale})"
    if pa.types.is_timestamp(arrow):
        return "timestamp" if arrow.tz is None else "timestamptz"
    return _by_family(arrow)


def _by_family(arrow: pa.DataType) -> str | None:
    if pa.types.is_time(arrow):
        return "time"
    if pa.types.is_duration(arrow):
        return "interval"
    if pa.types.is_fixed_size_binary(arrow):
        return "bytea"
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        inner = column_type(arrow.value_type)
        return None if inner is None or inner.endswith("[]") else f"{inner}[]"
    return None


def table_definition(name: TableName, schema: pa.Schema, key: Sequence[str]) -> sql.Composed:
    """CREATE TABLE for a schema, with `key` as its primary key if there is one.

    Raises:
        SchemaError: A column's type has no counterpart; the message names the column.
    """
    types = {field.name: column_type(field.type) for field in schema}
    unfit = [f"column {field.name!r} ({field.type})" for field in schema if types[field.name] is None]
    if unfit:
        raise SchemaError(f"no PostgreSQL type for {', '.join(unfit)}; create table {name} yourself, or cast them")
    missing = [column for column in key if column not in types]
    if missing:
        raise SchemaError(f"key columns {missing} are not in the data for table {name}")
    parts: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(declared or "")) for column, declared in types.items()
    ]
    if key:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, key))))
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(name.identifier(), sql.SQL(", ").join(parts))


def create_table(connection: Connection, name: TableName, schema: pa.Schema, key: Sequence[str]) -> None:
    """Create a table (and its schema) unless it is there; any number of processes may do so at once."""
    definition = table_definition(name, schema, key)
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [CREATION_LOCK])
        if name.schema is not None and not _has_schema(connection, name.schema):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name.schema)))
        connection.execute(definition)


def _has_schema(connection: Connection, schema: str) -> bool:
    query = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s)"
    row = connection.execute(query, [schema]).fetchone()
    return row is not None and bool(row[0])
