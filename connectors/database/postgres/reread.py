# ruff: noqa: S608 - names are quoted, and nothing else comes from outside
"""Rows that are read back from a table of PostgreSQL, each with the transaction that wrote it.

A row's system column xmin is the id of the transaction that inserted it. An epoch's ledger rows are written in the same
transaction, so they have the same xmin, and the table needs no column for a row's epoch. A row that is updated gets the
xmin of that transaction. VACUUM keeps xmin (since 9.4); a dump does not, and a rewind changes that of ledger rows.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from onceward.core.contract.place import Place, fit_columns
from onceward.core.contract.proof import NUMBER, UUID, Reread, RereadPiece
from onceward.core.errors import SchemaError
from onceward.core.kit.pieces import PIECE_BYTES

from ..engines import autocommitting
from ..failures import translated
from ..target import TableName, quoted
from .catalog import read_table
from .connection import is_hashed, session
from .conversions import encode_uuids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onceward.core.contract.names import Scope

    from ..described_table import Column
    from ..target import DatabaseTarget
    from .catalog import Session

_ROWS_AT_ONCE: Final = 10_000
_SMALL_BYTES: Final = 8 * 2**10
"""Size of a row's texts and bytes up to which rows are read by thousands; larger rows are read by bytes."""
_SMALL_ROWS: Final = 2_000
_LENGTHS: Final = dict.fromkeys(("text", "varchar", "bytea"), "octet_length({})") | {"numeric": "pg_column_size({})"}
"""Expressions for the size of a value, for types without a bound; the server reads only the head of the value."""
_ARROW: Final = {
    "bool": pa.bool_(),
    "int2": pa.int64(),
    "int4": pa.int64(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "uuid": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
"""Arrow types that columns are read as; all other types are read as text."""
_READ: Final = {
    "numeric": "trim_scale({})::text",
    "uuid": "uuid_send({})",
    "date": "date_send({})",
    "timestamp": "timestamp_send({})",
    "timestamptz": "timestamptz_send({})",
}
"""Expressions that read a column. Dates and times are read as numbers: Python has none before year 1 or after 9999."""
_SINCE_1970: Final = {4: (">i4", 10_957), 8: (">i8", 10_957 * 24 * 3600 * 10**6)}
"""For each size of a number: its kind, and PostgreSQL's zero, the year 2000, in days or microseconds since 1970."""
_MARKS: Final = {"numeric": {NUMBER: ""}, "uuid": {UUID: ""}}


class PostgresTable(Place):
    """A table of PostgreSQL."""

    holds_upserts = True

    def __init__(self, title: str, target: DatabaseTarget) -> None:
        super().__init__(title)
        self._target = target

    def reread(self, scope: Scope | None, columns: Sequence[str]) -> Reread:
        """Read the rows, with the transactions that wrote them, whose epochs the ledger tells."""
        return reread_postgres_table(self._target, scope, columns)

    def as_hashed(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows in the table's types, UUIDs as bytes."""
        return fit_columns(batch, schema, {UUID: _uuids})


def _uuids(array: pa.Array) -> pa.Array:
    return encode_uuids(array) if pa.types.is_string(array.type) else array


def reread_postgres_table(target: DatabaseTarget, scope: Scope | None, columns: Sequence[str] = ()) -> Reread:
    """Read the rows that the table holds now.

    Args:
        target: The database and its table.
        scope: Scope whose ledger rows tell which epoch wrote a row; None if epochs do not matter.
        columns: Columns to read. Default: all that can be compared.

    Raises:
        SchemaError: There is no such table, or a column is missing.
        SinkError: The database does not answer, or refuses.
    """
    with translated("cannot read", target), autocommitting(target) as connection, session(connection) as lent:
        table = read_table(lent, target.table)
        if table is None:
            raise SchemaError(f"table {target.table} does not exist; is this its name, and its database?")
        missing = sorted(set(columns) - {column.name for column in table.columns})
        if missing:
            raise SchemaError(f"table {target.table} has no columns {missing} any more, which were written")
        chosen = [c for c in table.columns if (c.name in columns if columns else is_hashed(c.type))]
    left_out = [f"{c.name} ({c.declared})" for c in table.columns if c not in chosen]
    ledger = _Ledger()
    schema = pa.schema([_field(column) for column in chosen])
    pieces = _pieces(target, chosen, schema, scope, ledger)
    return Reread(pieces, ledger.epochs, schema, lambda _: ledger.complete, ledger.rows, ledger.rewound, left_out)


def _field(column: Column) -> pa.Field:
    kind = _ARROW.get(column.type.name, pa.string())
    return pa.field(column.name, kind, metadata=_MARKS.get(column.type.name))


class _Ledger:
    """The content of the ledger in the snapshot in which the table is read.

    Attributes:
        epochs: The epoch of each transaction, by its xmin.
        rows: The number of rows of each epoch.
        rewound: Epochs from before a rewind, which has changed their ledger rows, and so their xmin.
        complete: Whether the ledger has all transactions.
    """

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self.rows: Counter[int] = Counter()
        self.rewound: set[int] = set()
        self.complete = False


def _read_ledger(lent: Session, target: DatabaseTarget, scope: Scope, into: _Ledger) -> None:
    schema = target.ledger_schema or ""
    ledger, logs = (TableName(schema, name).quoted_beside_parameters for name in ("ledger", "logs"))
    condition = "WHERE pipeline = %(pipeline)s AND sink = %(sink)s AND log = %(log)s"
    query = f"SELECT xmin::text, epoch, row_count, rewound FROM {ledger} {condition}"
    for xmin, epoch, rows, rewound in lent.execute(query.encode(), scope._asdict()):
        into.epochs[xmin] = epoch
        into.rows[epoch] += rows
        if rewound:
            into.rewound.add(epoch)
    pruned = lent.execute(f"SELECT max(pruned) FROM {logs} {condition}".encode(), scope._asdict()).fetchone()
    into.complete = pruned == (-1,) and not into.rewound


def _pieces(
    target: DatabaseTarget, columns: Sequence[Column], schema: pa.Schema, scope: Scope | None, ledger: _Ledger
) -> Iterator[RereadPiece]:
    shown = [_READ.get(c.type.name, "{}::text" if c.type.enum else "{}").format(quoted(c.name)) for c in columns]
    query = f"SELECT {', '.join(['xmin::text', 'ctid::text', *shown])} FROM {target.table.quoted}"
    with (
        translated("cannot read", target),
        autocommitting(target) as connection,
        session(connection) as lent,
        lent.transaction(),
    ):
        lent.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if scope is not None:
            _read_ledger(lent, target, scope, ledger)
        for condition, at_once in _sizes(lent, target, columns):
            for rows in _fetched(lent, query + condition, at_once):
                marks, places, *cells = map(list, zip(*rows, strict=True))
                arrays = [_column(column, kind) for column, kind in zip(cells, schema.types, strict=True)]
                batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
                yield RereadPiece(batch, marks, [f"{target.table}@{place}" for place in places])


def _sizes(lent: Session, target: DatabaseTarget, columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Return conditions that split the table by the size of its rows, each with the number of rows of one fetch.

    A fetch is bounded by its number of rows alone, and psycopg and Arrow hold all of it: 230 rows of 10 MB are more
    than one column of Arrow can hold.
    """
    unbounded = [_LENGTHS[c.type.name].format(quoted(c.name)) for c in columns if c.type.name in _LENGTHS]
    if not unbounded:
        return [("", _ROWS_AT_ONCE)]
    size = " + ".join(f"coalesce({length}, 0)::bigint" for length in unbounded)
    small, large = f" WHERE {size} <= {_SMALL_BYTES}", f" WHERE {size} > {_SMALL_BYTES}"
    (largest,) = lent.execute(f"SELECT max({size}) FROM {target.table.quoted}".encode()).fetchone() or (0,)
    if (largest or 0) <= _SMALL_BYTES:
        return [("", _SMALL_ROWS)]
    return [(small, _SMALL_ROWS), (large, max(1, PIECE_BYTES // largest))]


def _fetched(lent: Session, query: str, at_once: int) -> Iterator[list[tuple[Any, ...]]]:
    with lent.cursor(name="onceward_reread") as cursor:
        cursor.execute(query.encode())
        while rows := cursor.fetchmany(at_once):
            yield rows


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return pa.array(values, kind)
    missing = np.array([value is None for value in values])
    width = 4 if pa.types.is_date(kind) else 8
    sent, zero = _SINCE_1970[width]
    numbers = np.frombuffer(b"".join(value or bytes(width) for value in values), sent).astype(f"i{width}")
    return pa.array(numbers + numbers.dtype.type(zero), mask=missing).cast(kind)
