"""COPY … FROM STDIN in PostgreSQL's binary format, fed with Arrow batches, inside a transaction."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pgpq
import psycopg
import pyarrow as pa
from sqlalchemy import exc

from onceward.core.errors import SchemaError
from onceward.core.row_hash import RowHash

from ..dialect import RowWriter
from ..plan import check_same, match
from ..target import TableName, quoted
from .conversions import Conversion, conversion
from .session import session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import sqlalchemy as sa

    from .catalog import PgType, Table

_ROWS_AT_ONCE: Final = 65_536
"""Bounds the memory of one encoded piece."""
_HASHED: Final = frozenset(
    {"bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar", "bytea", "date", "uuid"}
)
_TIMES: Final = frozenset({"timestamp", "timestamptz", "time"})


def is_hashed(kind: PgType) -> bool:
    """Whether a value of this type reads back as it was written, so that its hash proves something.

    Not so: json and jsonb (spelled anew), char(n) (padded), times of a declared precision (rounded), xml, and arrays.
    """
    if kind.element is not None:
        return False
    return kind.enum or kind.name in _HASHED or (kind.name in _TIMES and kind.modifier < 0)


def conversions_for(schema: pa.Schema, table: Table, key: Sequence[str] = ()) -> tuple[Conversion, ...]:
    """How each column of `schema` is sent into one of `table`, see `match`."""
    return match(schema, f"{table.schema}.{table.name}", table.columns, conversion, key)


class CopyWriter(RowWriter):
    """A COPY that stays open over many batches; closing the connection ends it, too.

    Args:
        connection: In a transaction; nothing else can be done on it until `finish`.
        table: Where to.
        schema: Of the batches.
        hashed: Columns to hash, where their type allows it.
    """

    def __init__(self, connection: sa.Connection, table: Table, schema: pa.Schema, hashed: Sequence[str] = ()) -> None:
        self._schema = schema
        self._conversions = conversions_for(schema, table)
        fields = [pa.field(name, step.wire) for name, step in zip(schema.names, self._conversions, strict=True)]
        self._wire = pa.schema(fields)
        self._hashed = [column.name for column in table.columns if column.name in hashed and is_hashed(column.type)]
        self.hash = RowHash() if self._hashed else None
        columns = ", ".join(quoted(name) for name in schema.names)
        statement = f"COPY {TableName(table.schema, table.name).quoted} ({columns}) FROM STDIN (FORMAT BINARY)"
        self._connection = connection
        builders = {field.name: step.builder(field) for field, step in zip(fields, self._conversions, strict=True)}
        self._encoder: Any = pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(self._wire, builders)
        with session(connection) as lent:
            self._manager: AbstractContextManager[psycopg.Copy] = lent.cursor().copy(statement.encode())
            self._copy = self._manager.__enter__()
            self._open = True
            self._copy.write(self._encoder.write_header())

    def write(self, batch: pa.RecordBatch) -> None:
        check_same(batch.schema, self._schema)
        with session(self._connection):
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                piece = self._converted(batch.slice(start, _ROWS_AT_ONCE))
                self._copy.write(self._encode(piece))
                if self.hash is not None:
                    self.hash.add(piece.select(self._hashed))

    def finish(self) -> None:
        with session(self._connection):
            self._copy.write(self._encoder.finish())
            self._open = False
            self._manager.__exit__(None, None, None)

    def cancel(self) -> None:
        """Break the COPY off, which fails its transaction on the server before this returns."""
        if self._open:
            self._open = False
            why = psycopg.errors.QueryCanceled("discarded")
            with suppress(exc.SQLAlchemyError, OSError), session(self._connection):
                self._manager.__exit__(type(why), why, None)

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for name, array, step in zip(self._schema.names, batch.columns, self._conversions, strict=True):
            try:
                columns.append(step.convert(array))
            except (pa.ArrowInvalid, ValueError) as error:
                raise SchemaError(f"column {name!r}: {error}; the epoch's rows are not written") from error
        return pa.RecordBatch.from_arrays(columns, schema=self._wire)

    def _encode(self, piece: pa.RecordBatch) -> bytes:
        try:
            encoded: bytes = self._encoder.write_batch(piece)
        except ValueError as error:
            raise SchemaError(f"a value of columns {self._schema.names} cannot be sent: {error}") from error
        return encoded
