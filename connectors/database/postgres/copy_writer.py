"""One COPY … FROM STDIN in PostgreSQL's binary format, fed with Arrow batches, inside a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from onceward.core.errors import SchemaError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from .connections import Connection
    from .plan import CopyPlan

_ROWS_AT_ONCE: Final = 65_536
"""Bounds the memory of one encoded piece."""


class CopyWriter:
    """A COPY that stays open over many batches: it ends in `finish`, or by closing the connection.

    Args:
        connection: In a transaction; nothing else can be done on it until `finish`.
        target: The table.
        plan: Made for that table.
    """

    def __init__(self, connection: Connection, target: sql.Composable, plan: CopyPlan) -> None:
        columns = sql.SQL(", ").join(sql.Identifier(name) for name in plan.columns)
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(target, columns)
        self.rows = 0
        self._plan = plan
        self._encoder: Any = plan.encoder()
        self._manager: AbstractContextManager[psycopg.Copy] = connection.cursor().copy(statement)
        self._copy = self._manager.__enter__()
        self._open = True
        self._copy.write(self._encoder.write_header())

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are written, in order."""
        return self._plan.columns

    def write(self, batch: pa.RecordBatch) -> None:
        """Send one batch.

        Raises:
            SchemaError: Its schema is not that of the first batch, or a value cannot be converted.
            psycopg.Error: The server has refused something; earlier batches may be to blame.
        """
        first = self._plan.schema
        if batch.schema.names != first.names or batch.schema.types != first.types:
            raise SchemaError(f"a batch has schema {batch.schema} after others with {first}")
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            piece = self._plan.convert(batch.slice(start, _ROWS_AT_ONCE))
            self._copy.write(self._encode(piece))
            self.rows += piece.num_rows

    def finish(self) -> None:
        """End the COPY: when this returns, the server has all rows and has checked them."""
        self._copy.write(self._encoder.finish())
        self._open = False
        self._manager.__exit__(None, None, None)

    def cancel(self) -> None:
        """Break the COPY off, which fails its transaction on the server before this returns."""
        if self._open:
            self._open = False
            why = psycopg.errors.QueryCanceled("discarded")
            self._manager.__exit__(type(why), why, None)

    def _encode(self, piece: pa.RecordBatch) -> bytes:
        try:
            encoded: bytes = self._encoder.write_batch(piece)
        except ValueError as error:
            raise SchemaError(f"a value of columns {self._plan.columns} cannot be sent: {error}") from error
        return encoded
