"""Rows of a source and of a target side by side, to see which ones differ."""

from __future__ import annotations

import math
from base64 import b64decode
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
import pyarrow as pa

from ..contract.place import has_mark
from ..contract.proof import JSON_LINE
from ..contract.proof import UUID as UUID_BYTES
from ..contract.refusals import Refusal, RefusedError
from ..errors import text_of
from ..kit import typed
from .comparison import Record, compare, key_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from ..contract.place import Place
    from ..contract.proof import Reread
    from .comparison import Comparison

    RowMapping = Callable[[pa.RecordBatch], pa.RecordBatch]


def marked_records(reread: Reread) -> Iterator[tuple[str, Record]]:
    """Return a target's rows with their positions, and the marks of the transactions that wrote them."""
    for piece in reread.pieces:
        marked = zip(_rows(piece.rows, len(piece.marks)), piece.marks, piece.positions, strict=True)
        yield from ((mark, Record(_shown(row), place)) for row, mark, place in marked)


def records(reread: Reread, marks: Collection[str] | None = None) -> Iterator[Record]:
    """Return a target's rows with their positions, those of transactions with these marks alone."""
    yield from (record for mark, record in marked_records(reread) if marks is None or mark in marks)


def _rows(batch: pa.RecordBatch, count: int) -> list[dict[str, Any]]:
    """Return so many rows, which may have no column at all."""
    columns = [_values(column, field) for column, field in zip(batch.columns, batch.schema, strict=True)]
    if not columns:
        return [{} for _ in range(count)]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array, field: pa.Field) -> list[Any]:
    """Return a column's values: bytes for a text that is not UTF-8, text for UUIDs and for times that Python lacks."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = column.cast(pa.large_binary()).to_pylist()
    except (OverflowError, ValueError):
        return [_value(scalar) for scalar in column]
    if has_mark(field, UUID_BYTES):
        return [value if value is None else str(UUID(bytes=value)) for value in values]
    return values


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return str(scalar.cast(pa.string()))


def map_rows(
    batches: Iterable[pa.RecordBatch], place: Place, schema: pa.Schema, function: RowMapping | None
) -> Iterator[pa.RecordBatch]:
    """Convert a source's rows to those that must be in a target, with the columns and types of its own rows.

    Args:
        batches: Record batches of the source's rows.
        place: Place of the target's rows.
        schema: Schema of the target's rows.
        function: Mapping from the source's rows to the target's; None: a topic gets a copy, a table the JSON's columns.

    Raises:
        RefusedError: The rows do not fit the target.
    """
    for batch in batches:
        try:
            result = function(batch) if function is not None else _from_json(batch, place, schema)
            yield place.as_hashed(result, schema)
        except (pa.ArrowException, ArithmeticError, LookupError, ValueError, TypeError) as error:
            raise RefusedError(
                f"the source's rows do not fit {place.title} ({text_of(error)})", Refusal.NEEDS_MAPPING
            ) from error


def _from_json(batch: pa.RecordBatch, place: Place, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of JSON objects, or the batch itself if the target takes copies."""
    column = next((name for name in ("value", JSON_LINE) if name in batch.schema.names), None)
    if column is None or place.takes_copies:
        return batch
    try:
        rows = [_OBJECT.decode(value or b"null") for value in batch.column(column).to_pylist()]
    except msgspec.MsgspecError as error:
        raise ValueError(f"a message of the source is not a JSON object: {text_of(error)}") from error
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    if not place.holds_bytes:
        for field in schema:
            if field.name in columns and pa.types.is_binary(field.type) and not has_mark(field, UUID_BYTES):
                columns[field.name] = _bytes(columns[field.name])
    return pa.RecordBatch.from_pydict(columns)


def _bytes(column: pa.Array) -> pa.Array:
    """Decode texts that are bytes in Base64, as Spark's to_json writes them; return all as they are if one is not."""
    texts = column.to_pylist()
    try:
        return pa.array([None if text is None else b64decode(text, validate=True) for text in texts], pa.binary())
    except (ValueError, TypeError):
        return column


def _number(text: str) -> float | Decimal:
    """Return a float if it is exactly what is written, else a decimal."""
    number = float(text)
    return number if math.isfinite(number) and Decimal(repr(number)) == Decimal(text) else Decimal(text)


_OBJECT: Final = msgspec.json.Decoder(dict[str, Any], float_hook=_number)


def _column(values: list[Any]) -> pa.Array:
    if any(isinstance(value, Decimal) for value in values):
        exact = [Decimal(repr(value)) if isinstance(value, float) else value for value in values]
        with suppress(pa.ArrowInvalid):  # more digits than Arrow's decimals have
            return pa.array(exact)
        values = [float(value) if isinstance(value, Decimal) else value for value in values]
    return pa.array(values)


def shown(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield rows as they are printed: fields of JSON lines as columns, bytes as text where they are text, no nulls."""
    for batch in batches:
        yield from map(_shown, _rows(batch, batch.num_rows))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with text for bytes that are text, and without nulls: a missing column and a null are the same."""
    if row.get(JSON_LINE) is not None:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            row = {**row, **typed.decode(row[JSON_LINE], dict[str, Any])}
            del row[JSON_LINE]
    return {name: _text(value) for name, value in row.items() if value is not None}


def _text(value: Any) -> Any:
    """Return text for bytes that are text, and one object for each NaN, which Python finds equal only to itself."""
    if isinstance(value, float) and math.isnan(value):
        return math.nan
    if isinstance(value, list):
        return [_text(each) for each in value]
    if isinstance(value, dict):
        return {name: _text(each) for name, each in value.items()}
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value  # never equal to a text


def compare_places(
    source: Place, target: Place, *, mapping: RowMapping | None = None, key: str | Sequence[str] | None = None
) -> Comparison:
    """Compare all rows of a source with all rows of a target, on the columns that both have, without a decision log.

    A digest and a short form of each row are kept in memory.

    Args:
        source: Place of the rows that must be in the target, as `open_place` returns it.
        target: Place that they must be in.
        mapping: Function from a record batch of the source's rows to one of the target's; None: a topic gets a copy, a
            table the columns of JSON.
        key: Column or columns that identify a row: one of other content is then reported as wrong, and not also as
            missing.

    Raises:
        RefusedError: They have no column in common, or not the key.
    """
    reread, names = target.reread(None, ()), key_names(key)
    present = list(records(reread))
    rows: list[dict[str, Any]] = []
    columns: set[str] = set()
    for batch in map_rows(source.batches(), target, reread.schema, mapping):
        converted_rows = list(shown([batch]))
        rows += converted_rows
        columns.update(batch.schema.names, *converted_rows)
    if present:
        columns &= {name for record in present for name in record.row}.union(reread.schema.names)
    if rows and present and (not columns or not columns.issuperset(names)):
        without = f", and not the key {','.join(names)}" if names and columns else ""
        raise RefusedError(
            f"{source.title} and {target.title} have the columns {sorted(columns)} in common{without}",
            Refusal.NEEDS_MAPPING,
        )
    both = [{name: value for name, value in row.items() if name in columns} for row in rows]
    projected = [Record({name: value for name, value in r.row.items() if name in columns}, r.position) for r in present]
    return compare(target.title, both, projected, names)
