"""Creating a target table from an Arrow schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.schema import CreateSchema, CreateTable

from onceward.core.errors import SchemaError

from .engines import dialect_for, transaction

if TYPE_CHECKING:
    from .target import Target

_UNSIGNED: Final = {pa.uint8(): sa.SmallInteger, pa.uint16(): sa.Integer, pa.uint32(): sa.BigInteger}
_EXTENSIONS: Final[dict[str, sa.types.TypeEngine[Any]]] = {"arrow.uuid": sa.Uuid(), "arrow.json": postgresql.JSONB()}
_SINGLE: Final = 32
_KEY_CHARACTERS: Final = 255
"""MariaDB's keys need a length."""


def column_type(arrow: pa.DataType, backend: str, *, key: bool = False) -> sa.types.TypeEngine[Any] | None:
    """The type that holds every value of an Arrow type; None if there is none."""
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
    return _integer(arrow, backend) if pa.types.is_integer(arrow) else None


def _integer(arrow: pa.DataType, backend: str) -> sa.types.TypeEngine[Any] | None:
    if arrow == pa.uint64():
        return None if backend == "sqlite" else sa.Numeric(20, 0)
    if arrow in _UNSIGNED:
        return _UNSIGNED[arrow]()
    return {8: sa.SmallInteger(), 16: sa.SmallInteger(), 32: sa.Integer()}.get(arrow.bit_width, sa.BigInteger())


def _text_or_bytes(arrow: pa.DataType, backend: str, key: bool) -> sa.types.TypeEngine[Any] | None:
    server = backend in ("mysql", "mariadb")
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        if server:
            return mysql.VARCHAR(_KEY_CHARACTERS, collation="utf8mb4_bin") if key else mysql.LONGTEXT()
        return sa.Text()
    if pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow) or pa.types.is_binary_view(arrow):
        return mysql.LONGBLOB() if server else sa.LargeBinary()
    if pa.types.is_fixed_size_binary(arrow):
        return sa.BINARY(arrow.byte_width) if server else sa.LargeBinary()
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


def definition(target: Target, schema: pa.Schema) -> sa.Table:
    """The table for a schema, with `key` as its primary key if there is one.

    Raises:
        SchemaError: A column's type has no counterpart; the message names the column.
    """
    backend = target.url.backend
    if target.change:
        schema = schema.remove(schema.get_field_index(target.change))
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
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
    return sa.Table(target.table.table, sa.MetaData(), *columns, schema=target.table.schema, **options)


def create_table(target: Target, schema: pa.Schema) -> None:
    """Create the table, on PostgreSQL its schema, too, unless it is there; several processes may do so at once."""
    table = definition(target, schema)
    with transaction(target, f"cannot create table {target.table}") as connection:
        dialect_for(target).lock_creation(connection)
        named, inspector = target.table.schema, sa.inspect(connection)
        if target.url.backend == "postgresql" and named is not None and not inspector.has_schema(named):
            connection.execute(CreateSchema(named))
        if not inspector.has_table(table.name, schema=named):
            connection.execute(CreateTable(table, if_not_exists=True))
