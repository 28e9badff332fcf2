"""Rows that are read back from a table of MariaDB or SQLite.

These databases do not tell which transaction wrote a row, so only all rows together can be compared with what was
written. The ledger says how many rows each epoch wrote.

Values are compared as the database holds them, not as a driver or SQLAlchemy understands them: MariaDB's TIME may have
more hours than a day, and SQLite's times are texts that can be spelled in several ways.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from onceward.core.contract.place import Place, fit_columns
from onceward.core.contract.proof import ALL_EPOCHS, NUMBER, Reread, RereadPiece
from onceward.core.errors import SchemaError, SqlError, text_of
from onceward.core.kit.pieces import PIECE_BYTES

from .engines import autocommitting, row_dialect_for
from .failures import translated
from .ledger_tables import written_rows
from .tables import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from decimal import Decimal

    from onceward.core.contract.names import Scope

    from .target import DatabaseTarget

_ROWS_AT_ONCE: Final = 10_000
_READ: Final = {pa.int64(): sa.BigInteger(), pa.uint64(): sa.BigInteger(), pa.float64(): sa.Double()}
"""Types as which SQLAlchemy reads columns that may be declared as booleans, or as decimals of a double."""


class OtherTable(Place):
    """A table of another database than PostgreSQL."""

    holds_upserts = True

    def __init__(self, title: str, target: DatabaseTarget) -> None:
        super().__init__(title)
        self._target = target

    def reread(self, scope: Scope | None, columns: Sequence[str]) -> Reread:
        """Read the rows, which do not show their epochs, and the ledger."""
        return reread_table(self._target, scope, columns)

    def as_hashed(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows in the table's types; a time with a zone, as JSON has it, is stored as UTC."""
        plain = {field.name for field in schema if field.type == pa.timestamp("us")}
        columns = [
            _in_utc(c) if name in plain else c for name, c in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return fit_columns(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), schema)


def _in_utc(array: pa.Array) -> pa.Array:
    if not pa.types.is_string(array.type):
        return array
    try:
        return array.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    except pa.ArrowInvalid:  # without a zone
        return array


def reread_table(target: DatabaseTarget, scope: Scope | None = None, columns: Sequence[str] = ()) -> Reread:
    """Read the rows that the table holds now.

    Args:
        target: The database and its table.
        scope: Scope whose ledger rows say how many rows each epoch wrote; None if epochs do not matter.
        columns: Columns to read. Default: all that can be compared.

    Raises:
        SchemaError: There is no such table, a column is missing, or a value is not of its column's type.
        SinkError: The database does not answer, or refuses.
    """
    file = Path(target.url.parsed.database or "")
    known, types = target.url.capabilities, row_dialect_for(target).types
    if known.is_file and file.name and "uri" not in target.url.parsed.query and not file.exists():
        raise SqlError(f"there is no database {file}")  # the driver would create it
    described = describe(target, target.table)
    if described is None:
        raise SchemaError(f"table {target.table} does not exist; is this its name, and its database?")
    kinds = {column.name: types.read_back(column.type) for column in described.columns}
    missing = sorted(name for name in columns if kinds.get(name) is None)
    if missing:
        raise SchemaError(f"table {target.table} no longer has columns {missing} of the types they were written with")
    chosen = [name for name, kind in kinds.items() if kind is not None and (not columns or name in columns)]
    left_out = [f"{column.name} ({column.declared})" for column in described.columns if column.name not in chosen]
    schema = pa.schema([_field(name, kinds[name]) for name in chosen])
    if scope is not None and known.times_are_texts:
        times = [field.name for field in schema if pa.types.is_temporal(field.type)]
        schema = pa.schema([*schema, *(pa.field(_spelled(name), pa.large_string()) for name in times)])
    pieces, counts = _pieces(target, described.clause, schema), written_rows(target, scope) if scope is not None else {}
    return Reread(pieces, {}, schema, lambda _: False, counts=counts, unmarked=ALL_EPOCHS, left_out=left_out)


def _field(name: str, kind: Any) -> pa.Field:
    return pa.field(name, kind, metadata={NUMBER: ""} if kind == pa.string() else None)


def _spelled(column: str) -> str:
    """Return the name under which a time is told that is not spelled as it was written; null for all others."""
    return f"{column} as text"


def _pieces(target: DatabaseTarget, table: sa.TableClause, schema: pa.Schema) -> Iterator[RereadPiece]:
    spelled = {_spelled(name): name for name in table.columns.keys() if _spelled(name) in schema.names}  # noqa: SIM118
    as_texts = target.url.capabilities.times_are_texts
    read: list[sa.ColumnElement[Any]] = []
    for field in schema:
        column = table.columns[spelled.get(field.name, field.name)]
        raw = field.name in spelled or (pa.types.is_time(field.type) and not as_texts)
        read.append(sa.type_coerce(column, sa.types.NullType() if raw else _READ.get(field.type, column.type)))
    query = sa.select(*(read or [sa.literal_column("1")])).select_from(table)
    with translated("cannot read", target), autocommitting(target) as connection:
        at, streamed = 0, connection.execution_options(stream_results=True, max_row_buffer=1)
        try:
            for rows in _partitions(streamed.execute(query)):
                cells = list(zip(*rows, strict=True))
                arrays = [_array(cells[number], field.type) for number, field in enumerate(schema)]
                for name, column in spelled.items():
                    number, value = schema.get_field_index(name), schema.get_field_index(column)
                    same = pc.equal(arrays[number], arrays[value].cast(pa.large_string()))
                    arrays[number] = pc.if_else(same, None, arrays[number])
                places = [f"{target.table}, row {at + number} as read" for number in range(len(rows))]
                yield RereadPiece(pa.RecordBatch.from_arrays(arrays, schema=schema), [""] * len(rows), places)
                at += len(rows)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SchemaError(
                f"table {target.table} holds a value that is not of its column's type: {text_of(error)}"
            ) from error


def _partitions(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """Yield rows together, up to a number of rows and of bytes of their texts."""
    some: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        some.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if size > PIECE_BYTES or len(some) == _ROWS_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_time(kind) and any(isinstance(value, timedelta) for value in values):  # of any number of hours
        return pa.array(values, pa.duration("us")).cast(pa.int64()).view(kind)
    for fits, classes in _CLASSES:
        if fits(kind) and not all(value is None or isinstance(value, classes) for value in values):
            wrong = next(value for value in values if value is not None and not isinstance(value, classes))
            raise TypeError(f"{wrong!r}")
    return pa.array([_shortest(value) for value in values] if kind == pa.string() else values, kind)


_CLASSES: Final[tuple[tuple[Any, tuple[type, ...]], ...]] = (
    (pa.types.is_integer, (int,)),
    (pa.types.is_large_string, (str,)),
    (pa.types.is_large_binary, (bytes,)),
)
"""Arrow would convert values of other classes, which SQLite keeps in any column, and they would look as written."""


def _shortest(value: Decimal | None) -> str | None:
    """Return the shortest text of a number without an exponent: 1.5 for 1.50."""
    if value is None:
        return None
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
