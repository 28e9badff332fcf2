"""COPY … FROM STDIN in PostgreSQL's binary format, fed with Arrow batches, inside a transaction."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pgpq
import psycopg
import pyarrow as pa
from psycopg import sql
from sqlalchemy import exc

from onceward.core.errors import SchemaError

from ..plan import check_same, match
from .conversions import Conversion, conversion
from .session import session

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import sqlalchemy as sa

    from .catalog import Table

_ROWS_AT_ONCE: Final = 65_536
"""Bounds the memory of one encoded piece."""


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
    """Match every column of `schema` to one of `table`, see `match`."""
    return CopyPlan(schema, match(schema, f"{table.schema}.{table.name}", table.columns, conversion))


class CopyWriter:
    """A COPY that stays open over many batches, see RowWriter; closing the connection ends it, too.

    Args:
        connection: In a transaction; nothing else can be done on it until `finish`.
        table: Where to.
        schema: Of the batches.
    """

    def __init__(self, connection: sa.Connection, table: Table, schema: pa.Schema) -> None:
        self._plan = plan_copy(schema, table)
        columns = sql.SQL(", ").join(sql.Identifier(name) for name in self._plan.columns)
        into = sql.Identifier(table.schema, table.name)
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(into, columns)
        self._connection = connection
        self._encoder: Any = self._plan.encoder()
        with session(connection) as lent:
            self._manager: AbstractContextManager[psycopg.Copy] = lent.cursor().copy(statement)
            self._copy = self._manager.__enter__()
            self._open = True
            self._copy.write(self._encoder.write_header())

    def write(self, batch: pa.RecordBatch) -> None:
        """Send one batch; the server may refuse it later.

        Raises:
            SchemaError: Its schema is not that of the first batch, or a value cannot be converted.
        """
        check_same(batch.schema, self._plan.schema)
        with session(self._connection):
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                self._copy.write(self._encode(self._plan.convert(batch.slice(start, _ROWS_AT_ONCE))))

    def finish(self) -> None:
        """End the COPY: when this returns, the server has all rows and has checked them."""
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

    def _encode(self, piece: pa.RecordBatch) -> bytes:
        try:
            encoded: bytes = self._encoder.write_batch(piece)
        except ValueError as error:
            raise SchemaError(f"a value of columns {self._plan.columns} cannot be sent: {error}") from error
        return encoded
