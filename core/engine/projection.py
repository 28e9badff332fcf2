"""A sink's `select` and `where` in the embedded engine: SQL over record batches, computed by DuckDB.

On Spark the same two settings are Spark's SQL (connectors/spark/write/spark_task.py).
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from ..errors import ConfigurationError, MissingExtraError, OperatorError, text_of
from ..kit.pieces import PIECE_BYTES, pieces, size_of
from ..kit.rows import cast, with_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..contract.sink import Sink

_PARSE: Final = "SELECT json_serialize_sql(?)"
_AGGREGATES: Final = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'"
_NOT_OF_ONE_ROW: Final = {"WINDOW": "a window function", "SUBQUERY": "a subquery"}
_SEVERAL_ROWS: Final = frozenset({"unnest", "unlist", "generate_subscripts"})
_ROWS_AT_FIRST: Final = 64
"""Rows that are computed together until it is known how large they become."""
_FASTER: Final = 8
"""Factor by which their number grows at most from one computation to the next."""
_SETTINGS = (
    "SET threads = 1",  # so that rows keep their order
    "SET TimeZone = 'UTC'",  # not that of the machine
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",  # no files, no network
)


def projection_of(sink: Sink) -> Projection | None:
    """Return the projection of a sink's `select` and `where` for one subtask; None if it takes all."""
    return None if sink.select is None and sink.where is None else Projection(sink.name, sink.select, sink.where)


class _Expression(NamedTuple):
    """An expression that looks at one row."""

    text: str
    columns: frozenset[str] | None
    """Names of the columns that it uses, in lower case; None if it may use all (`*`)."""


class Projection:
    """The rows and columns that one subtask of a sink takes of its input. Used by one thread at a time.

    Args:
        sink: Name of the sink, for errors.
        select: Expressions that make its columns, as in SELECT; None: all columns as they are.
        where: Condition of the rows it takes; a row for which it is null is not taken. None: all rows.

    Raises:
        ConfigurationError: DuckDB is not installed, or something is no expression over a single row.
    """

    def __init__(self, sink: str, select: Sequence[str] | None, where: str | None) -> None:
        try:
            import duckdb  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"sink {sink}: select and where need DuckDB in the embedded engine: pip install 'onceward[duckdb]'",
                name=error.name,
            ) from error
        self._sink = sink
        self._error = duckdb.Error
        self._database: Any = duckdb.connect(":memory:")
        for setting in _SETTINGS:
            self._database.execute(setting)
        try:
            self._select = None if select is None else [self._parse("select", text) for text in select]
            self._where = None if where is None else self._parse("where", where)
        except ConfigurationError:
            self._database.close()
            raise
        shown = [("select", select), ("where", where)]
        self._shown = " and ".join(f"{option} {value!r}" for option, value in shown if value is not None)
        self._seen: pa.Schema | None = None
        self._at_once = _ROWS_AT_FIRST

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the sink's part of a batch: its columns, and its rows in their order.

        There is at least one batch, and there are several where rows are large: DuckDB works on a bounded number of
        bytes at a time, and Arrow cannot hold 2 GiB of texts in one column of one batch.

        Raises:
            ConfigurationError: An expression does not fit the columns.
            OperatorError: An expression failed at a row, or rows are missing in the answer.
        """
        if self._seen is None or not self._seen.equals(batch.schema):
            self._check(batch.schema)
            self._seen = batch.schema
        looked_at = 0
        for rows in self._pieces(batch):
            looked_at += rows.num_rows
            try:
                yield from self._part(rows)
            except self._error as error:
                raise OperatorError(f"sink {self._sink}: {self._shown} failed: {_short(error)}") from error
        self._require(looked_at, batch.num_rows)

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut a batch so that neither input nor answer is large, going by the size of the rows so far."""
        for piece in pieces(batch):
            start = 0
            # An empty batch is one piece too, because the caller gets at least one batch.
            while start < max(1, piece.num_rows):
                length = self._at_once  # which changes while the rows are computed
                yield piece.slice(start, length)
                start += length

    def _parse(self, option: str, text: str) -> _Expression:
        """Return an expression as DuckDB parses it, before there is any row."""
        where = f"sink {self._sink}: {option} {text!r}"
        (answer,) = self._database.execute(_PARSE, [f"SELECT {text}"]).fetchone()
        parsed = json.loads(answer)
        if parsed.get("error"):
            raise ConfigurationError(f"{where}: {parsed['error_message']}")
        node = parsed["statements"][0].get("node", {})
        alone = len(parsed["statements"]) == 1 and node.get("type") == "SELECT_NODE" and len(node["select_list"]) == 1
        more = ("modifiers", "where_clause", "group_expressions", "having", "sample", "qualify")
        if not alone or node["from_table"]["type"] != "EMPTY" or any(node[part] for part in more):
            raise ConfigurationError(f"{where} is not one SQL expression")
        aggregates = {row[0] for row in self._database.execute(_AGGREGATES).fetchall()}
        columns: set[str] = set()
        star = False
        for part in _parts(node["select_list"]):
            kind, function = part.get("class"), str(part.get("function_name", "")).lower()
            if kind == "FUNCTION" and function in aggregates:
                raise ConfigurationError(f"{where} is an aggregate ({function}): it must give a value for each row")
            if kind in _NOT_OF_ONE_ROW or (kind == "FUNCTION" and function in _SEVERAL_ROWS):
                what = _NOT_OF_ONE_ROW.get(str(kind), function)
                raise ConfigurationError(
                    f"{where} has {what}: it must give one value for each row, and see no other row"
                )
            star = star or kind == "STAR"
            columns |= {str(name).lower() for name in part.get("column_names", ())}
        return _Expression(text, None if star else frozenset(columns))

    def _check(self, schema: pa.Schema) -> None:
        """Try the expressions on no rows."""
        lower = [name.lower() for name in schema.names]
        twice = sorted({name for name in schema.names if lower.count(name.lower()) > 1})
        if twice:
            raise ConfigurationError(
                f"sink {self._sink}: columns {twice} differ only in case, which SQL ignores. Rename them before the "
                "sink"
            )
        try:
            (part,) = self._part(pa.RecordBatch.from_pylist([], schema=schema))
        except (self._error, pa.ArrowException) as error:
            raise ConfigurationError(
                f"sink {self._sink}: {self._shown} does not fit columns {schema.names}: {_short(error)}"
            ) from error
        lower = [name.lower() for name in part.schema.names]
        if len(set(lower)) < len(lower):
            raise ConfigurationError(
                f"sink {self._sink}: {self._shown} gives columns {part.schema.names}: two of them have the same name"
            )

    def _part(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        if self._where is not None:
            # The line break ends a comment that the expression may end with.
            condition = self._where._replace(text=f"({self._where.text}\n) AS kept")
            kept = pa.concat_arrays([part.column(0) for part in self._compute(batch, [condition])])
            if not pa.types.is_boolean(kept.type):
                what = f"sink {self._sink}: where {self._where.text!r}"
                raise ConfigurationError(f"{what} is {kept.type}, not a boolean condition")
            batch = batch.filter(kept)
            self._require(batch.num_rows, kept.true_count)
        if self._select is None:
            return [batch]
        parts = self._compute(batch, self._select)
        if batch.num_rows:
            fitting = PIECE_BYTES * batch.num_rows // max(1, sum(map(size_of, parts)))
            self._at_once = max(1, min(fitting, self._at_once * _FASTER))
        return parts

    def _compute(self, batch: pa.RecordBatch, expressions: Sequence[_Expression]) -> list[pa.RecordBatch]:
        """Return one row for each row of the batch, in one or more batches: Arrow's answer may have several chunks."""
        needed = self._kept(self._needed(batch, expressions))
        relation = self._database.from_arrow(pa.Table.from_batches([needed]))
        table: pa.Table = relation.project("\n,".join(e.text for e in expressions)).to_arrow_table()
        # Without rows there may be no batch, and `_check` needs the columns.
        parts = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        self._require(sum(part.num_rows for part in parts), batch.num_rows)
        return parts

    def _require(self, rows: int, expected: int) -> None:
        """Raise an OperatorError if rows were lost or made on the way: the sink's proof would not show it."""
        if rows != expected:
            raise OperatorError(
                f"sink {self._sink}: {self._shown} gave {rows} rows where {expected} were expected. Nothing of this "
                "epoch is committed. Please report it with the versions of duckdb and pyarrow"
            )

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with durations that DuckDB keeps: it counts microseconds, and returns nanoseconds."""
        for unit in (pa.duration("us"), pa.duration("ns")):
            fields = [field.with_type(with_leaves(field.type, partial(_as_duration, unit))) for field in batch.schema]
            batch = cast(batch, pa.schema(fields), self._changed_duration)
        return batch

    def _changed_duration(self, field: pa.Field, error: pa.ArrowException) -> OperatorError:
        return OperatorError(
            f"sink {self._sink}: {self._shown}: column {field.name!r} has a duration that DuckDB cannot keep, with a "
            f"fraction of a microsecond or of more than 292 years ({text_of(error)}): round it before the sink"
        )

    def _needed(self, batch: pa.RecordBatch, expressions: Sequence[_Expression]) -> pa.RecordBatch:
        """Return only the columns the expressions look at: DuckDB need not have the types of the other ones."""
        if any(e.columns is None for e in expressions):
            return batch
        names = frozenset[str]().union(*(e.columns or () for e in expressions))
        chosen = [name for name in batch.schema.names if name.lower() in names]
        rows = pa.nulls(batch.num_rows, pa.bool_())  # so that a constant has as many
        columns = [batch.column(name) for name in chosen]
        return pa.RecordBatch.from_arrays([*columns, rows], names=[*chosen, "onceward_rows"])


def _as_duration(unit: pa.DataType, kind: pa.DataType) -> pa.DataType:
    return unit if pa.types.is_duration(kind) else kind


def _short(error: Exception) -> str:
    return text_of(error).partition("\n\n")[0].replace("\n", " ")


def _parts(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for inner in tree:
            yield from _parts(inner)
