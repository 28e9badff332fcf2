"""Rows distributed to folders by the values of columns, as Spark and Hive name them: `country=de/day=2026-11-21`.

The text of a value, and which of its characters are percent-encoded, are those of Spark (ExternalCatalogUtils,
escapePathName): it decodes byte by byte, so what is not ASCII stays as it is. A timestamp with a zone has its offset in
the text too, which Spark reads back as the same instant in any session.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from onceward.core.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""Spark's and Hive's text of null and of the empty string."""
_ENCODED: Final = {code: f"%{code:02X}" for code in (*range(0x20), 0x7F, *map(ord, "\"#%'*/:<=>?[\\]^{|"))}
"""What Spark encodes, and also what Spark encodes on Windows alone."""


def check_partitions(sink: str, columns: Sequence[str], schema: pa.Schema) -> None:
    """Check that columns can be partitioned by.

    Raises:
        SchemaError: They cannot; the message names the column.
    """
    missing = [column for column in columns if column not in schema.names]
    if missing:
        raise SchemaError(f"sink {sink}: partition_by names {missing}; the columns are {schema.names}")
    for column in columns:
        kind = schema.field(column).type
        if pa.types.is_nested(kind) or _is_binary(kind):
            raise SchemaError(f"sink {sink}: partition_by column {column!r} is {kind}: cast it to text")
        if column.startswith(("_", ".")):
            raise SchemaError(
                f"sink {sink}: partition_by column {column!r}: many readers take folders that begin with '_' or '.' "
                "for hidden. Give it another name with select"
            )
    if len(set(columns)) == len(schema.names):
        raise SchemaError(f"sink {sink}: partition_by leaves no column for the files")


def _is_binary(kind: pa.DataType) -> bool:
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(check(kind) for check in checks)


def parts(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each folder, in order, without these columns; without columns all rows, in the folder ""."""
    if not columns:
        yield "", batch
        return
    rows: dict[str, list[int]] = {}
    names = [_encoded(column) for column in columns]
    for number, values in enumerate(zip(*(batch.column(column).to_pylist() for column in columns), strict=True)):
        folder = "/".join(f"{name}={_text(value)}" for name, value in zip(names, values, strict=True))
        rows.setdefault(folder, []).append(number)
    rest = batch.drop_columns(list(columns))
    for folder, numbers in rows.items():
        yield folder, rest.take(pa.array(numbers, pa.int64()))


def _text(value: Any) -> str:
    if value is None or value == "":
        return NULL
    if isinstance(value, bool):
        return str(value).lower()
    return _encoded(f"{value:f}" if isinstance(value, Decimal) else str(value))


def _encoded(text: str) -> str:
    return text.translate(_ENCODED)
