"""A sink's `select` and `where` in the embedded engine: SQL over record batches, computed by DuckDB.

On Spark the same two settings are Spark's SQL (connectors/spark/projection.py); what both dialects have, which is most
of what one writes there, means the same in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import ConfigurationError, OperatorError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SETTINGS = (
    "SET threads = 1",  # so that rows keep their order
    "SET TimeZone = 'UTC'",  # not that of the machine
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",  # no files, no network
)


class Projection:
    """What one subtask of a sink takes of its input. Used by one thread at a time.

    Args:
        sink: Name of the sink, for errors.
        select: Expressions that make its columns, as in SELECT; None: all columns as they are.
        where: Condition of the rows it takes; a row for which it is null is not taken. None: all rows.

    Raises:
        ConfigurationError: DuckDB is not installed.
    """

    def __init__(self, sink: str, select: Sequence[str] | None, where: str | None) -> None:
        try:
            import duckdb  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"sink {sink}: select and where need DuckDB in the embedded engine: pip install 'onceward[duckdb]'"
            ) from error
        self._sink = sink
        self._select = None if select is None else ", ".join(select)
        self._where = where
        self._wrong = duckdb.ProgrammingError, duckdb.NotSupportedError
        self._failed = duckdb.Error
        self._database = duckdb.connect(":memory:")
        for setting in _SETTINGS:
            self._database.execute(setting)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The sink's part of a batch: its columns, and its rows in their order.

        Raises:
            ConfigurationError: An expression is no SQL, or names a column that is not there.
            OperatorError: An expression failed at a row.
        """
        if self._where is not None:
            kept = self._compute(batch, f"coalesce(({self._where}), false) AS kept", "where", self._where)
            batch = batch.filter(kept.column(0))
        if self._select is not None:
            batch = self._compute(batch, self._select, "select", self._select)
        return batch

    def close(self) -> None:
        """Free the database."""
        self._database.close()

    def _compute(self, batch: pa.RecordBatch, expressions: str, option: str, shown: str) -> pa.RecordBatch:
        relation: Any = self._database.from_arrow(pa.Table.from_batches([batch]))
        try:
            table: pa.Table = relation.project(expressions).to_arrow_table()
        except self._wrong as error:
            raise ConfigurationError(
                f"sink {self._sink}: {option} {shown!r} does not fit columns {batch.schema.names}: {_short(error)}"
            ) from error
        except self._failed as error:
            raise OperatorError(f"sink {self._sink}: {option} {shown!r} failed: {_short(error)}") from error
        if table.num_rows != batch.num_rows:
            raise ConfigurationError(f"sink {self._sink}: {option} {shown!r} does not give one row for each row")
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _short(error: Exception) -> str:
    return str(error).partition("\n\n")[0].replace("\n", " ")
