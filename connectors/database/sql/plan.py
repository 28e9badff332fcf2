"""Matching a batch's columns to a table's, by name, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from onceward.core.errors import SchemaError

from .conversions import Conversion, Unfit, conversion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.sql.dml import Insert

    from .dialect import Dialect
    from .tables import TableName

_ROWS_AT_ONCE: Final = 5_000


@dataclass(frozen=True)
class Plan:
    """For each column of the arriving schema, in its order, how it is written."""

    schema: pa.Schema
    table: sa.Table
    conversions: tuple[Conversion, ...]
    required: frozenset[str]
    """Columns in which no null may be: those that are not null, and the key's."""

    def check(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The batch's columns, converted and checked.

        Raises:
            SchemaError: A value does not fit; the message names the column.
        """
        arrays = []
        for name, array, step in zip(self.schema.names, batch.columns, self.conversions, strict=True):
            if array.null_count and name in self.required:
                raise SchemaError(f"column {name!r} has nulls, and it must have none; the epoch's rows are not written")
            try:
                arrays.append(step.prepare(array))
            except (ValueError, pa.ArrowException) as error:
                raise SchemaError(f"column {name!r}: {error}; the epoch's rows are not written") from error
        return arrays

    def pieces(self, batch: pa.RecordBatch) -> Iterator[list[dict[str, Any]]]:
        """The batch's rows, so many at once as one call of the driver should take."""
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield self.rows(batch.slice(start, _ROWS_AT_ONCE))

    def rows(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """The batch as parameters of `insert` and `upsert`."""
        pairs = zip(self.conversions, self.check(batch), strict=True)
        columns = [step.python(array) for step, array in pairs]
        names = [parameter(number) for number in range(len(columns))]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def insert(self, into: TableName | None = None) -> Insert:
        """INSERT of one row, into the table or another one of its columns.

        A row that the table refuses is an error, even if an SQLite table's definition says ON CONFLICT IGNORE.
        """
        return sa.insert(self._into(into)).values(self._values()).prefix_with("OR ABORT", dialect="sqlite")

    def upsert(self, dialect: Dialect, key: Sequence[str], into: TableName | None = None) -> Insert:
        """Insert one row, or update the one that has its key."""
        return dialect.upsert(self._into(into), self._values(), key).prefix_with("OR ABORT", dialect="sqlite")

    def _into(self, other: TableName | None) -> sa.TableClause:
        """The table by its names only: no defaults of SQLAlchemy's, and nothing to return."""
        columns = [sa.column(name, self.table.c[name].type) for name in self.schema.names]
        schema, table = (self.table.schema, self.table.name) if other is None else other
        return sa.table(table, *columns, schema=schema)

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for number, (name, step) in enumerate(zip(self.schema.names, self.conversions, strict=True)):
            kind = self.table.c[name].type
            if step.text_cast:
                values[name] = sa.cast(sa.bindparam(parameter(number), type_=sa.Text()), kind)
            else:
                values[name] = sa.bindparam(parameter(number), type_=kind)
        return values


def parameter(number: int) -> str:
    """Name of a column's parameter: columns' own names may hold anything."""
    return f"c{number}"


def make_plan(schema: pa.Schema, table: sa.Table, backend: str, key: Sequence[str] = ()) -> Plan:
    """Match every column of `schema` to one of `table`.

    Raises:
        SchemaError: An unknown column, one given twice, a type that does not fit, or a not-null column that is
            missing; the message names the column and both types, and lists all such columns.
    """
    _check_names(schema, table, backend)
    problems: list[str] = []
    conversions: list[Conversion] = []
    for field in schema:
        column = table.c[field.name]
        try:
            conversions.append(_conversion(field, column, backend))
        except Unfit as why:
            problems.append(f"column {field.name!r}: {field.type} does not fit into {declared(column)}: {why}")
    missing = [name for name in key if name not in schema.names]
    if missing:
        problems.append(f"key columns {missing} are not in the data, which has {schema.names}")
    if problems:
        raise SchemaError(f"the data does not fit into table {table.fullname}. " + ". ".join(problems))
    required = {column.name for column in table.columns if not column.nullable and not _fills_nulls(column, backend)}
    return Plan(schema, table, tuple(conversions), frozenset(required | set(key)))


def declared(column: sa.Column[Any]) -> str:
    """The column's type in words."""
    try:
        return str(column.type)
    except sa.exc.SQLAlchemyError:
        return type(column.type).__name__


def _conversion(field: pa.Field, column: sa.Column[Any], backend: str) -> Conversion:
    if column.computed is not None:
        raise Unfit("the column is generated; leave it out")
    if column.identity is not None and column.identity.always:
        raise Unfit("the column is GENERATED ALWAYS AS IDENTITY; leave it out")
    if isinstance(column.type, postgresql.DOMAIN):
        raise Unfit("it is a domain, and SQLAlchemy does not tell its length or precision: PostgresSink takes it")
    return conversion(field.type, column.type, backend)


def _fills_nulls(column: sa.Column[Any], backend: str) -> bool:
    """SQLite's INTEGER PRIMARY KEY and MariaDB's AUTO_INCREMENT make a number out of a null; PostgreSQL never does."""
    return backend != "postgresql" and column.primary_key and column.autoincrement is True


def _check_names(schema: pa.Schema, table: sa.Table, backend: str) -> None:
    names = list(schema.names)
    if not names:
        raise SchemaError(f"nothing to write into table {table.fullname}: the data has no columns")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"columns {twice} are given more than once for table {table.fullname}")
    problems = [
        f"column {field.name!r} ({field.type}) is not in the table{_similar(field.name, table)}"
        for field in schema
        if field.name not in table.c
    ]
    problems += [
        f"column {column.name!r} ({declared(column)}) is not null, has no default, and is missing in the data"
        for column in table.columns
        if not column.nullable and not _fills_itself(column, backend) and column.name not in names
    ]
    if problems:
        raise SchemaError(f"the data does not fit into table {table.fullname}. " + ". ".join(problems))


def _fills_itself(column: sa.Column[Any], backend: str) -> bool:
    if column.server_default is not None or column.computed is not None or column.identity is not None:
        return True
    # SQLite's INTEGER PRIMARY KEY is the number of the row
    rowid = backend == "sqlite" and column.primary_key and isinstance(column.type, sa.INTEGER)
    return column.autoincrement is True or rowid


def _similar(name: str, table: sa.Table) -> str:
    similar = [column.name for column in table.columns if column.name.lower() == name.lower()]
    return f" (it has {similar[0]!r}: names must match in case)" if similar else ""
