"""Matching a batch's columns to a table's, by name, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from onceward.core.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

C = TypeVar("C")


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: Any
    """As the dialect's conversions know it."""
    declared: str
    """The type in words, as SQL spells it, for example `numeric(10,2)`."""
    not_null: bool = False
    has_default: bool = False
    """A default, an identity or a generation expression fills it if it is not written."""
    unwritable: str = ""
    """Why it cannot be written; empty if it can."""
    collation: str = ""
    """As SQL spells it, if it is not the type's own."""


class Unfit(Exception):  # noqa: N818 - it is an answer, caught by the plan, never shown as it is
    """The types do not fit; the text says why and what to do."""


def match(
    schema: pa.Schema,
    table: str,
    columns: Sequence[Column],
    conversion: Callable[[pa.DataType, Any], C],
    key: Sequence[str] = (),
) -> tuple[C, ...]:
    """A conversion for every column of `schema`, in its order.

    Args:
        schema: Of the data.
        table: Its name, for messages.
        columns: The table's.
        conversion: From an Arrow type and a Column's; raises Unfit.
        key: Columns that must be in the data.

    Raises:
        SchemaError: An unknown column, one given twice, a type that does not fit, or a not-null column that is
            missing; the message names the column and both types, and lists all such columns.
    """
    by_name = {column.name: column for column in columns}
    _check_names(schema, table, by_name)
    problems: list[str] = []
    conversions: list[C] = []
    for field in schema:
        column = by_name[field.name]
        why: object = column.unwritable
        try:
            conversions.append(conversion(field.type, column.type))
        except Unfit as unfit:
            why = why or unfit
        if why:
            problems.append(f"column {field.name!r}: {field.type} does not fit into {column.declared}: {why}")
    missing = [name for name in key if name not in schema.names]
    if missing:
        problems.append(f"key columns {missing} are not in the data, which has {schema.names}")
    _refuse(table, problems)
    return tuple(conversions)


def _check_names(schema: pa.Schema, table: str, columns: dict[str, Column]) -> None:
    names = list(schema.names)
    if not names:
        raise SchemaError(f"nothing to write into table {table}: the data has no columns")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"columns {twice} are given more than once for table {table}")
    problems = [
        f"column {field.name!r} ({field.type}) is not in the table{_similar(field.name, columns)}"
        for field in schema
        if field.name not in columns
    ]
    problems += [
        f"column {column.name!r} ({column.declared}) is not null, has no default, and is missing in the data"
        for column in columns.values()
        if column.not_null and not column.has_default and column.name not in names
    ]
    _refuse(table, problems)


def _refuse(table: str, problems: list[str]) -> None:
    if problems:
        raise SchemaError(f"the data does not fit into table {table}. " + ". ".join(problems))


def _similar(name: str, columns: dict[str, Column]) -> str:
    similar = [column for column in columns if column.lower() == name.lower()]
    return f" (it has {similar[0]!r}: names must match in case)" if similar else ""


def check_same(schema: pa.Schema, first: pa.Schema) -> None:
    """Raise SchemaError unless a later batch has the columns of the first one."""
    if schema.names != first.names or schema.types != first.types:
        raise SchemaError(f"a batch has schema {schema} after others with {first}")
