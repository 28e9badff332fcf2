"""Matches a batch's columns to a table's, by name, before anything is written, and makes rows for executemany.

A change column is not a column of the table: it marks the rows of an upsert that delete. Its values are those of the
usual change feeds: Debezium's `op` (c, u, r, d), Delta Lake's `_change_type` (insert, update_preimage,
update_postimage, delete) and Flink's RowKind (+I, -U, +U, -D). Rows that show the state before an update are ignored,
because the row after it says everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from onceward.core.contract.row_hash import RowHash
from onceward.core.errors import SchemaError, refusing_rows, text_of
from onceward.core.kit.pieces import pieces
from onceward.core.kit.rows import has_nulls, without_dictionary

from .conversions import Conversion, UnfitError, as_read_back, is_text
from .dialect import RowWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from sqlalchemy.sql.dml import Insert

    from .column_types import SqlType
    from .described_table import Column, DescribedTable
    from .dialect import RowDialect
    from .target import TableName

C = TypeVar("C")

_ROWS_AT_ONCE: Final = 5_000
_UPSERTS: Final = ("insert", "update", "upsert", "update_postimage", "c", "u", "r", "+i", "+u")
_DELETES: Final = ("delete", "d", "-d")
_IGNORED: Final = ("update_preimage", "-u")
_CHANGES: Final = (*_UPSERTS, *_DELETES, *_IGNORED)


def match(
    schema: pa.Schema,
    table: str,
    columns: Sequence[Column],
    conversion: Callable[[pa.DataType, Any], C],
    key: Sequence[str] = (),
) -> tuple[C, ...]:
    """Return a conversion for each column of `schema`, in its order.

    Args:
        schema: The schema of the data.
        table: The table's name, for messages.
        columns: The table's columns.
        conversion: Returns the conversion from an Arrow type to a Column's type, or raises UnfitError.
        key: Columns that must be in the data.

    Raises:
        SchemaError: A column is unknown or is given twice, a type does not fit, or a not-null column is missing. The
            message names all such columns, with both types.
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
        except UnfitError as unfit:
            why = why or unfit
        if why:
            problems.append(f"column {field.name!r}: {field.type} does not fit into {column.declared}: {why}")
    problems += _missing_keys(schema, key)
    _refuse(table, problems)
    return tuple(conversions)


def check_given(schema: pa.Schema, table: str, key: Sequence[str]) -> None:
    """Check the columns as far as no database need be asked, see `match`.

    Raises:
        SchemaError: There is no column, one is given twice, or a column of the key is missing.
    """
    names = list(schema.names)
    if not names:
        raise SchemaError(f"nothing to write into table {table}: the data has no columns")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"columns {twice} are given more than once for table {table}")
    _refuse(table, _missing_keys(schema, key))


def _missing_keys(schema: pa.Schema, key: Sequence[str]) -> list[str]:
    missing = [name for name in key if name not in schema.names]
    return [f"key columns {missing} are not in the data, which has {schema.names}"] if missing else []


def _check_names(schema: pa.Schema, table: str, columns: dict[str, Column]) -> None:
    names = list(schema.names)
    check_given(schema, table, ())
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


def without_change(schema: pa.Schema, change: str | None) -> pa.Schema:
    """Return the schema of the rows as the table gets them, without the change column.

    Raises:
        SchemaError: The change column is not there, or holds no text.
    """
    if not change:
        return schema
    if schema.names.count(change) != 1:
        raise SchemaError(f"change column {change!r} is not in the data, which has {schema.names}")
    kind = schema.field(change).type
    if not is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
        raise SchemaError(f"change column {change!r} holds {kind}: it must be text, one of {', '.join(_CHANGES)}")
    return schema.remove(schema.get_field_index(change))


def split_changes(batch: pa.RecordBatch, change: str) -> tuple[pa.RecordBatch, pa.Array]:
    """Return the rows to write, without the change column, and for each of them whether it deletes (bool).

    Raises:
        SchemaError: A value of the change column is unknown.
    """
    values = pc.utf8_lower(without_dictionary(batch.column(change)).cast(pa.large_string()))
    known = pc.is_in(values, value_set=pa.array(_CHANGES, pa.large_string()))
    if not pc.all(known, min_count=0).as_py():
        strange = values.filter(pc.invert(known))[0].as_py()
        raise refusing_rows(
            SchemaError(f"change column {change!r} holds {strange!r}: give one of {', '.join(_CHANGES)}")
        )
    rows = batch.remove_column(batch.schema.get_field_index(change))
    kept = pc.invert(pc.is_in(values, value_set=pa.array(_IGNORED, pa.large_string())))
    deletes = pc.is_in(values, value_set=pa.array(_DELETES, pa.large_string()))
    return rows.filter(kept), deletes.filter(kept)


def convert_columns(
    batch: pa.RecordBatch, steps: Sequence[Callable[[pa.Array], pa.Array]], required: Collection[str] = ()
) -> list[pa.Array]:
    """Return a batch's columns, each after its step, and check that those in `required` have no nulls.

    Raises:
        SchemaError: A value does not fit; the message names the column.
    """
    arrays = []
    for name, array, step in zip(batch.schema.names, batch.columns, steps, strict=True):
        if name in required and has_nulls(array):
            raise refusing_rows(
                SchemaError(f"column {name!r} has nulls, and it must have none; the epoch's rows are not written")
            )
        try:
            arrays.append(step(array))
        except (ValueError, pa.ArrowException) as error:
            why = f"column {name!r}: {text_of(error)}; the epoch's rows are not written"
            raise refusing_rows(SchemaError(why)) from error
    return arrays


@dataclass(frozen=True)
class Plan:
    """How each column of the arriving schema is written by executemany."""

    schema: pa.Schema
    table: DescribedTable
    conversions: tuple[Conversion, ...]
    required: frozenset[str]
    """Columns that may hold no null: those that are NOT NULL, and those of the key."""
    compared: Mapping[str, pa.DataType]
    """Columns whose values read back as they were written, and the type they are read as, see `read_back`."""

    def check(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the batch's columns, converted and checked.

        Raises:
            SchemaError: A value does not fit; the message names the column.
        """
        return convert_columns(batch, [step.prepare for step in self.conversions], self.required)

    def new_hash(self) -> RowHash | None:
        """Return a sum of the hashes of rows, which is still empty; None if no column can be compared."""
        return RowHash() if self.compared else None

    def add(self, arrays: Sequence[pa.Array], to: RowHash | None) -> None:
        """Add rows to a hash, if there is one, from their columns as `check` returned them."""
        if to is not None:
            by_name = dict(zip(self.schema.names, arrays, strict=True))
            to.add(pa.record_batch({name: as_read_back(by_name[name], kind) for name, kind in self.compared.items()}))

    def pieces(self, batch: pa.RecordBatch, hashed: RowHash | None = None) -> Iterator[list[dict[str, Any]]]:
        """Yield the batch's rows in chunks for executemany, and add each chunk to `hashed`, if it is given.

        The rows are parameters of `insert`. They have numbers, because a column's own name may contain anything.
        """
        names = [f"c{number}" for number in range(len(self.conversions))]
        for piece in pieces(batch):
            for start in range(0, piece.num_rows, _ROWS_AT_ONCE):
                arrays = self.check(piece.slice(start, _ROWS_AT_ONCE))
                self.add(arrays, hashed)
                columns = [step.python(array) for step, array in zip(self.conversions, arrays, strict=True)]
                yield [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def insert(
        self, dialect: RowDialect | None = None, key: Sequence[str] = (), into: TableName | None = None
    ) -> Insert:
        """Return the INSERT of one row; with a key, it updates the row that has this key, if there is one.

        A row that the table refuses is an error, even if the definition of an SQLite table says ON CONFLICT IGNORE.

        Args:
            dialect: The dialect, which a key needs.
            key: Columns of the key of an upsert.
            into: Another table with the same columns. Default: the plan's table.
        """
        # The table by its names only: no defaults of SQLAlchemy's, and nothing to return.
        columns = [sa.column(name, _null_as_null(self.table.column(name).type)) for name in self.schema.names]
        schema, name = (self.table.schema, self.table.name) if into is None else into
        table = sa.table(name, *columns, schema=schema)
        values = {c.name: sa.bindparam(f"c{number}", type_=c.type) for number, c in enumerate(columns)}
        if dialect is not None and key:
            statement = dialect.upsert(table, values, key)
        else:
            statement = sa.insert(table).values(values)
        return statement.prefix_with("OR ABORT", dialect="sqlite")


class InsertWriter(RowWriter):
    """Inserts rows into one table by statements, and waits for the answer to each.

    Args:
        connection: A connection in a transaction.
        plan: The plan for the table.
        proof: Whether to hash the rows.
    """

    def __init__(self, connection: sa.Connection, plan: Plan, *, proof: bool = False) -> None:
        self.hash = plan.new_hash() if proof else None
        self._connection = connection
        self._plan = plan
        self._statement = plan.insert()

    def write(self, batch: pa.RecordBatch) -> None:
        check_same(batch.schema, self._plan.schema)
        for rows in self._plan.pieces(batch, self.hash):
            self._connection.execute(self._statement, rows)


def make_plan(schema: pa.Schema, table: DescribedTable, dialect: RowDialect, key: Sequence[str] = ()) -> Plan:
    """Return the plan by which rows of `schema` are written into `table`: a column for each column, see `match`."""
    types = dialect.types
    steps = match(schema, table.full_name, table.columns, types.conversion, key)
    conversions = tuple(
        dialect.key_conversion(step, table.column(name)) if name in key else step
        for name, step in zip(schema.names, steps, strict=True)
    )
    required = {column.name for column in table.columns if column.not_null}
    kinds = {name: types.read_back(table.column(name).type) for name in schema.names}
    compared = {name: kind for name, kind in kinds.items() if kind is not None}
    return Plan(schema, table, conversions, frozenset(required | set(key)), compared)


def _null_as_null(kind: SqlType) -> SqlType:
    """Return the type; for JSON, one that stores NULL for a null, not the text `null` as SQLAlchemy's default does."""
    return sa.JSON(none_as_null=True) if isinstance(kind, sa.JSON) else kind
