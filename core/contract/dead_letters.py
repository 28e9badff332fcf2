"""Dead letters: the rows that sinks of a pipeline refuse, as rows for another sink of it.

Every dead letter says which sink refused the row, why, and where the row came from. A sink gets them with the columns
of SCHEMA, unless it makes rows of its own of them (`from_letters`, as KafkaSink does: the row as value, the rest as
headers).
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from ..errors import ConfigurationError
from ..kit.rows import UNWRITABLE, in_microseconds, text_of_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..errors import OncewardError
    from .sink import TwoPhaseCommitSink
    from .transaction import WriteContext, Written

SOURCE: Final = ("topic", "partition", "offset")
"""Columns that say where a row came from, as Spark's Kafka source and onceward's name them."""
SCHEMA: Final = pa.schema(
    [
        ("pipeline", pa.string()),
        ("epoch", pa.int64()),
        ("sink", pa.string()),
        ("error", pa.string()),
        ("reason", pa.string()),
        ("row", pa.string()),
        ("source_topic", pa.string()),
        ("source_partition", pa.int32()),
        ("source_offset", pa.int64()),
    ]
)
Limit = int | float | None


@runtime_checkable
class MakesLetters(Protocol):
    """A sink that makes rows of its own of dead letters."""

    def from_letters(self, letters: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows to write for dead letters of SCHEMA."""


@runtime_checkable
class TriesRows(Protocol):
    """A sink whose target can try rows before they are durable, so that it does not refuse them after the decision."""

    def trying_rows(self, sinks: Sequence[TwoPhaseCommitSink[Any]]) -> TwoPhaseCommitSink[Any]:
        """Return a copy of the sink that tries its rows in the target before they are durable.

        Args:
            sinks: All sinks of the pipeline.
        """


class DeadLetters(NamedTuple):
    """Where the refused rows of a pipeline go, and how many are allowed."""

    sink: TwoPhaseCommitSink[Any]
    limit: Limit
    """Limit for an epoch: a number of rows, or a share of the rows of each sink; None for any number."""

    @property
    def most(self) -> int | None:
        """The limit as a number of rows, if it is one."""
        return int(self.limit) if isinstance(self.limit, int) or self.limit == 0 else None

    def share(self, tasks: int | None) -> float | None:
        """Return the share of its rows that one task may have refused before the whole epoch is above the limit.

        It assumes that the tasks have equally many rows, and that the others refuse none. None if the limit is not a
        share.

        Args:
            tasks: Maximum number of tasks that write the epoch; None if that is not known.
        """
        return self.limit * tasks if isinstance(self.limit, float) and tasks is not None else None

    def exceeded(self, written: Iterable[Written]) -> str:
        """Return the limit in words if an epoch's refused rows are above it; else "".

        A share is one of each sink's rows: else a sink that takes no row at all would pass beside others that do.

        Args:
            written: The work of all subtasks for all sinks but the dead-letter sink.
        """
        sinks: dict[str, list[Written]] = {}
        for one in written:
            sinks.setdefault(one.sink, []).append(one)
        refused = {sink: sum(one.refused for one in parts) for sink, parts in sinks.items()}
        if isinstance(self.limit, int):
            return f"{self.limit} rows" if sum(refused.values()) > self.limit else ""
        for sink, parts in sinks.items():
            rows = refused[sink] + sum(one.rows for one in parts)
            if self.limit is not None and refused[sink] > self.limit * rows:
                return f"{self.limit:.2%} of the rows of sink {sink}"
        return ""


def checked_limit(limit: Any) -> Limit:
    """Return the limit of dead letters.

    Raises:
        ConfigurationError: It is not a number of rows, a share of at most 1.0, or None.
    """
    whole = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0
    if limit is None or whole or (isinstance(limit, float) and 0 <= limit <= 1):
        known: Limit = limit
        return known
    raise ConfigurationError(
        f"max_dead_letters must be a number of rows (0 or more), a share of an epoch's rows (0.0 to 1.0), or None; got "
        f"{limit!r}"
    )


def letters_of(
    context: WriteContext, row: pa.RecordBatch, error: OncewardError, source: Mapping[str, Any]
) -> pa.RecordBatch:
    """Return the dead letter of a refused row.

    Args:
        context: Context of the sink that refused it.
        row: The row, as the sink got it.
        error: Error with which the row was refused.
        source: The row's SOURCE columns, as far as the frame has them.
    """
    values = {
        "pipeline": context.pipeline,
        "epoch": context.epoch,
        "sink": context.sink,
        "error": type(error).__name__,
        "reason": error.message,
        "row": row_text(row),
        **{f"source_{name}": source.get(name) for name in SOURCE},
    }
    return pa.RecordBatch.from_pylist([values], SCHEMA)


def source_position(row: pa.RecordBatch) -> dict[str, Any]:
    """Return where a row came from, from its SOURCE columns.

    A value that is none of Kafka's is None: these may be columns of the query's own with the same names.
    """
    values = {}
    for name in SOURCE:
        with suppress(pa.ArrowException, *UNWRITABLE):
            values[name] = pa.array([row.column(name)[0].as_py()], SCHEMA.field(f"source_{name}").type)[0].as_py()
    return values


def rows_for(sink: object, letters: pa.RecordBatch) -> pa.RecordBatch:
    """Return dead letters as a sink gets them."""
    return sink.from_letters(letters) if isinstance(sink, MakesLetters) else letters


def schema_for_letters(sink: object) -> pa.Schema:
    """Return the columns of dead letters as a sink gets them."""
    return rows_for(sink, pa.RecordBatch.from_pylist([], SCHEMA)).schema


def row_text(row: pa.RecordBatch) -> str:
    """Return a row as a JSON object. Values that JSON cannot hold (NaN, bytes that are not UTF-8) become text."""
    values = {name: _value(row.select([name])) for name in row.schema.names}
    return json.dumps(values, ensure_ascii=False, default=text_of_value)


def _value(row: pa.RecordBatch) -> Any:
    column = in_microseconds(row).column(0)
    try:
        value = column.to_pylist()[0]
        json.dumps(value, allow_nan=False, default=text_of_value)
    except UNWRITABLE:
        return _part(column[0])
    return value


def _part(scalar: Any) -> Any:
    """Return a value of which JSON cannot hold a part. All other parts stay as they are."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {kind.field(number).name: _part(scalar[number]) for number in range(kind.num_fields)}
    if pa.types.is_map(kind):
        return [[_part(entry[0]), _part(entry[1])] for entry in scalar.values]
    if pa.types.is_nested(kind):
        return [_part(element) for element in scalar.values]
    return _leaf(scalar)


def _leaf(scalar: Any) -> Any:
    kind = scalar.type
    try:
        value = scalar.as_py()
        json.dumps(value, allow_nan=False, default=text_of_value)
    except UnicodeDecodeError as error:
        return {"base64": base64.b64encode(error.object).decode()}
    except UNWRITABLE:
        # Python has no years before 1 or after 9999, and Arrow's own text is of another year above 32767.
        if pa.types.is_timestamp(kind):
            return f"{np.datetime64(scalar.value, kind.unit)}{'' if kind.tz is None else '+00:00'}"
        return str(np.datetime64(scalar.value, "D")) if pa.types.is_date32(kind) else str(scalar)
    return value
