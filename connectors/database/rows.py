"""Writing rows by executemany, where a database takes no stream of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import sqlalchemy as sa

from onceward.core.errors import SchemaError

from .conversions import Conversion, conversion
from .plan import Column, check_same, match

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.sql.dml import Insert

    from .dialect import Dialect
    from .target import TableName

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
        for number, name in enumerate(self.schema.names):
            values[name] = sa.bindparam(parameter(number), type_=self.table.c[name].type)
        return values


def parameter(number: int) -> str:
    """Name of a column's parameter: columns' own names may hold anything."""
    return f"c{number}"


class InsertWriter:
    """INSERTs into one table, see RowWriter.

    Args:
        connection: In a transaction.
        plan: Made for the table.
    """

    def __init__(self, connection: sa.Connection, plan: Plan) -> None:
        self._connection = connection
        self._plan = plan
        self._statement = plan.insert()

    def write(self, batch: pa.RecordBatch) -> None:
        """Insert a batch's rows."""
        check_same(batch.schema, self._plan.schema)
        for rows in self._plan.pieces(batch):
            self._connection.execute(self._statement, rows)

    def finish(self) -> None:
        """Every answer has come already."""

    def cancel(self) -> None:
        """Nothing is under way."""


def make_plan(schema: pa.Schema, table: sa.Table, backend: str, key: Sequence[str] = ()) -> Plan:
    """Match every column of `schema` to one of `table`, see `match`."""
    columns = [_column(column, backend) for column in table.columns]
    conversions = match(schema, table.fullname, columns, lambda arrow, kind: conversion(arrow, kind, backend), key)
    required = {column.name for column in table.columns if not column.nullable and not _fills_nulls(column)}
    return Plan(schema, table, conversions, frozenset(required | set(key)))


def _column(column: sa.Column[Any], backend: str) -> Column:
    unwritable = "the column is generated; leave it out" if column.computed is not None else ""
    filled = _fills_itself(column, backend)
    return Column(column.name, column.type, _declared(column), not column.nullable, filled, unwritable)


def _declared(column: sa.Column[Any]) -> str:
    try:
        return str(column.type)
    except sa.exc.SQLAlchemyError:
        return type(column.type).__name__


def _fills_nulls(column: sa.Column[Any]) -> bool:
    """SQLite's INTEGER PRIMARY KEY and MariaDB's AUTO_INCREMENT make a number out of a null."""
    return column.primary_key and column.autoincrement is True


def _fills_itself(column: sa.Column[Any], backend: str) -> bool:
    if column.server_default is not None or column.computed is not None:
        return True
    # SQLite's INTEGER PRIMARY KEY is the number of the row
    rowid = backend == "sqlite" and column.primary_key and isinstance(column.type, sa.INTEGER)
    return column.autoincrement is True or rowid
