"""Rows dealt to folders by the values of columns, as Hive names them: `country=de/day=2026-11-21`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_PLAIN: Final = " -_.~"


def parts(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """The rows of each combination of values, in order, without these columns."""
    if not columns:
        yield (), batch
        return
    values = list(zip(*(batch.column(name).to_pylist() for name in columns), strict=True))
    rest = batch.drop_columns(list(columns))
    for key in dict.fromkeys(values):
        rows = [number for number, found in enumerate(values) if found == key]
        yield key, rest.take(pa.array(rows, pa.int64()))


def folder_of(columns: Sequence[str], values: Sequence[Any]) -> str:
    """The folder of a combination of values; "" without columns."""
    return "/".join(f"{quote(name, safe=_PLAIN)}={_text(value)}" for name, value in zip(columns, values, strict=True))


def _text(value: Any) -> str:
    return NULL if value is None or value == "" else quote(str(value), safe=_PLAIN)
