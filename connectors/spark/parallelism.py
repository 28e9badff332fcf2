"""Who writes an epoch: how many tasks, or the driver itself.

A task costs tens of milliseconds however few rows it gets, and is one more transaction in each target. So by default no
more tasks write than can run at once, and fewer where few rows come in. Where they are so few that they are no burden
to the driver, it collects them and writes them: no Python worker takes part.

Spark's `coalesce` appends whole partitions to one another. Each is still read front to back by one task, a batch at a
time: the order within a partition and the bound on memory are those of many tasks. `toArrow` keeps that order, too.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, Literal

from onceward.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

    from onceward.core.log import EpochInput

Writers = int | Literal["auto"] | None

ROWS_PER_TASK: Final = 1000
"""Input rows from which another task pays off, where a task does nothing but write them."""
DRIVER_ROWS: Final = 10_000
DRIVER_BYTES: Final = 8 * 2**20
"""What the driver writes itself, at most. Rows are known from the input, their size from the run's epoch before: the
first one is never the driver's, so that a query whose driver ran out of memory goes on after a restart."""
DRIVER_MOST: Final = 128 * 2**20
"""Bytes that the driver may get where rows have become larger than before; Spark's default heap has 1 GB."""
UNCHECKED_ROWS: Final = 500
"""Up to so many rows are not checked: brokers take messages of up to 1 MB by default."""
TOO_LARGE: Final = "onceward: a row is too large for the driver, so tasks write this epoch"
_FIXED: Final = frozenset(
    {
        "void",
        "boolean",
        "byte",
        "short",
        "integer",
        "long",
        "float",
        "double",
        "decimal",
        "date",
        "timestamp",
        "timestamp_ntz",
    }
)
"""Types whose values have about the same size, as pyspark calls them."""


def checked_writers(writers: Any) -> Writers:
    """The argument `writers`, if it is one.

    Raises:
        ConfigurationError: It is neither "auto" nor None nor a number from 1 on.
    """
    if writers in ("auto", None) or (isinstance(writers, int) and not isinstance(writers, bool) and writers > 0):
        return writers  # type: ignore[no-any-return]
    raise ConfigurationError(
        f'writers must be "auto", a number of tasks (1 or more), or None for one task a partition; got {writers!r}'
    )


def writers_of(writers: Writers, slots: int | None, about: EpochInput, *, cheap: bool) -> int | None:
    """The most tasks that may write an epoch; None: as many as it has partitions.

    Args:
        writers: What the user asked for.
        slots: How many tasks can run at once; None where executors come and go as they are needed.
        about: The epoch's input.
        cheap: Whether the query's tasks do little but write, see `plan.only_writes`.
    """
    if writers != "auto":
        return writers
    rows = rows_of(about) if cheap else None
    needed = None if rows is None else max(1, -(-rows // ROWS_PER_TASK))
    return min(needed, slots) if needed and slots else needed or slots


def driver_limit(
    writers: Writers, about: EpochInput, row_bytes: float | None, *, cheap: bool, copies: int = 1
) -> float | None:
    """Bytes of the largest row that the driver may get, if it may write an epoch itself; None: tasks write it.

    Spark needs 8 ms to check rows of 4 partitions, and 20 of 64 (measured), so very few rows may be of any size:
    math.inf.

    Args:
        writers: What the user asked for.
        about: The epoch's input.
        row_bytes: Size of a row of the epoch before, in bytes; None if there was none.
        cheap: Whether no more rows come out of the query than go in, see `plan.only_writes`.
        copies: How often each row may come: sinks with `select` or `where` get one each.
    """
    rows = rows_of(about) if writers == "auto" and cheap and row_bytes is not None else None
    if rows is None or rows > DRIVER_ROWS or rows * (row_bytes or 0) > DRIVER_BYTES:
        return None
    if rows * copies <= UNCHECKED_ROWS:
        return math.inf
    few: int = 4 ** (((rows - 1).bit_length() + 1) // 2)  # different ones, that is: Spark compiles each anew
    return DRIVER_MOST // few // copies


def row_size(schema: StructType) -> str | None:
    """SQL expression: how many bytes the values of a row have whose size varies; None if Spark cannot say."""
    names = [field.name.lower() for field in schema]
    sizes = [_value_size(field) for field in schema]
    if len(set(names)) < len(names) or None in sizes:
        return None
    return " + ".join(["0", *filter(None, sizes)])


def _value_size(field: StructField) -> str | None:
    kind, column = field.dataType.typeName(), f"`{field.name.replace('`', '``')}`"
    if kind in _FIXED:
        return ""
    if kind in {"array", "map", "struct"}:
        column = f"cast({column} AS string)"
    elif kind not in {"string", "binary", "varchar", "char"}:
        return None
    return f"coalesce(octet_length({column}), 0)"


def rows_of(about: EpochInput) -> int | None:
    """How many rows came in, if all sources are Kafka's (offsets may count a few rows that are not there)."""
    if about.start is None or about.end is None or len(about.start) != len(about.end):
        return None
    try:
        return sum(_offsets(end) - _offsets(start) for start, end in zip(about.start, about.end, strict=True))
    except (AttributeError, TypeError, ValueError):
        return None


def _offsets(text: str) -> int:
    """Sum of `{"topic": {"0": 123}}`; a partition that is not in it begins at 0."""
    return sum(offset for partitions in json.loads(text).values() for offset in partitions.values())
