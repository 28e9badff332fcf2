"""Matching a batch's columns to a table's, by name, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pgpq
import pyarrow as pa

from onceward.core.errors import SchemaError

from .conversions import Conversion, Unfit, conversion

if TYPE_CHECKING:
    from .catalog import Column, Table


@dataclass(frozen=True)
class CopyPlan:
    """For each column of the arriving schema, in its order, how it is sent."""

    schema: pa.Schema
    conversions: tuple[Conversion, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names, in order."""
        return tuple(self.schema.names)

    def wire_schema(self) -> pa.Schema:
        """What pgpq is given."""
        pairs = zip(self.schema.names, self.conversions, strict=True)
        return pa.schema([pa.field(name, step.wire) for name, step in pairs])

    def encoder(self) -> Any:
        """A fresh encoder: one for each COPY."""
        schema = self.wire_schema()
        builders = {field.name: step.builder(field) for field, step in zip(schema, self.conversions, strict=True)}
        return pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, builders)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as pgpq takes it.

        Raises:
            SchemaError: A value cannot be converted; the message names the column.
        """
        columns = []
        for name, array, step in zip(self.schema.names, batch.columns, self.conversions, strict=True):
            try:
                columns.append(step.convert(array))
            except (pa.ArrowInvalid, ValueError) as error:
                raise SchemaError(f"column {name!r}: {error}; the epoch's rows are not written") from error
        return pa.RecordBatch.from_arrays(columns, schema=self.wire_schema())


def plan_copy(schema: pa.Schema, table: Table) -> CopyPlan:
    """Match every column of `schema` to one of `table`.

    Raises:
        SchemaError: An unknown column, one given twice, a type that does not fit, or a not-null column that is
            missing; the message names the column and both types, and lists all such columns.
    """
    where = f"{table.schema}.{table.name}"
    _check_names(schema, table, where)
    problems: list[str] = []
    conversions: list[Conversion] = []
    for field in schema:
        column = table.column(field.name)
        assert column is not None  # noqa: S101 - checked above
        try:
            conversions.append(_conversion(field, column))
        except Unfit as why:
            problems.append(f"column {field.name!r}: {field.type} does not fit into {column.declared}: {why}")
    if problems:
        raise SchemaError(f"the data does not fit into table {where}. " + ". ".join(problems))
    return CopyPlan(schema, tuple(conversions))


def _conversion(field: pa.Field, column: Column) -> Conversion:
    if column.generated:
        raise Unfit("the column is generated; leave it out")
    return conversion(field.type, column.type)


def _check_names(schema: pa.Schema, table: Table, where: str) -> None:
    names = list(schema.names)
    if not names:
        raise SchemaError(f"nothing to write into table {where}: the data has no columns")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"columns {twice} are given more than once for table {where}")
    problems = [
        f"column {field.name!r} ({field.type}) is not in the table{_similar(field.name, table)}"
        for field in schema
        if table.column(field.name) is None
    ]
    problems += [
        f"column {column.name!r} ({column.declared}) is not null, has no default, and is missing in the data"
        for column in table.columns
        if column.not_null and not column.has_default and not column.generated and column.name not in names
    ]
    if problems:
        raise SchemaError(f"the data does not fit into table {where}. " + ". ".join(problems))


def _similar(name: str, table: Table) -> str:
    similar = [column.name for column in table.columns if column.name.lower() == name.lower()]
    return f" (it has {similar[0]!r}: names must match in case)" if similar else ""
