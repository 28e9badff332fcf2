"""The number of tasks that write an epoch, or whether the driver writes it itself.

A task costs tens of milliseconds however few rows it gets, and is one more transaction in each target. So by default no
more tasks write than can run at the same time, and fewer if few rows arrive. If the rows are so few that they are no
burden to the driver, it collects them and writes them, without a Python worker.

Spark's `coalesce` appends whole partitions to one another. Each is still read front to back by one task, a batch at a
time: the order within a partition and the bound on memory are those of many tasks. `toArrow` keeps that order, too.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

    from onceward.core.contract.pipeline_settings import Writers
    from onceward.core.log import EpochInput

ROWS_PER_TASK: Final = 1000
"""Input rows from which another task pays off, if tasks do nothing but write."""
DRIVER_ROWS: Final = 10_000
DRIVER_BYTES: Final = 8 * 2**20
"""The most rows, and bytes, that the driver writes itself. Their number is known from the input, their size from the
run's epoch before. The first epoch's rows are always checked, so a query whose driver ran out of memory can continue
after a restart."""
DRIVER_MOST: Final = 128 * 2**20
"""Bytes that the driver may get if rows have become larger than before; Spark's default heap has 1 GB."""
UNCHECKED_ROWS: Final = 500
"""Number of rows up to which their size is not checked: brokers take messages of up to 1 MB by default."""
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
"""Names in pyspark of the types whose values have about the same size."""


def checked_writers(writers: Any) -> Writers:
    """Check the argument `writers`, and return it.

    Raises:
        ConfigurationError: It is not "auto", None, or a number of at least 1.
    """
    if writers in ("auto", None) or (isinstance(writers, int) and not isinstance(writers, bool) and writers > 0):
        return writers  # type: ignore[no-any-return]
    raise ConfigurationError(
        f'writers must be "auto", a number of tasks (1 or more), or None for one task a partition; got {writers!r}'
    )


def writers_of(writers: Writers, slots: int | None, about: EpochInput, *, cheap: bool) -> int | None:
    """Return the maximum number of tasks that write an epoch; None for one for each of its partitions.

    Args:
        writers: The user's choice.
        slots: Number of tasks that can run at the same time; None if executors are allocated as they are needed.
        about: The epoch's input.
        cheap: True if the query's tasks do little but write, see `QueryPlan.only_writes`.
    """
    if writers != "auto":
        return writers
    rows = arrived_rows(about) if cheap else None
    needed = None if rows is None else max(1, -(-rows // ROWS_PER_TASK))
    return min(needed, slots) if needed and slots else needed or slots


def driver_limit(
    writers: Writers, about: EpochInput, row_bytes: float | None, *, cheap: bool, copies: int = 1
) -> float | None:
    """Return the size of the largest row that the driver may get, in bytes; None if tasks write the epoch.

    Very few rows may be of any size (math.inf), because Spark needs 8 ms to check the rows of 4 partitions, and 20 ms
    for 64 (measured).

    Args:
        writers: The user's choice.
        about: The epoch's input.
        row_bytes: Size of a row of the epoch before, in bytes; None if there was none: then each row is checked.
        cheap: True if no more rows come out of the query than go in, see `QueryPlan.only_writes`.
        copies: Number of times that each row may come: sinks with `select` or `where` get one copy each.
    """
    rows = arrived_rows(about) if writers == "auto" and cheap else None
    if rows is None or rows > DRIVER_ROWS or rows * (row_bytes or 0) > DRIVER_BYTES:
        return None
    if rows * copies <= UNCHECKED_ROWS and row_bytes is not None:
        return math.inf
    few: int = 4 ** (((rows - 1).bit_length() + 1) // 2)  # different ones, that is: Spark compiles each anew
    return DRIVER_MOST // few // copies


def row_size(schema: StructType) -> str | None:
    """Return an SQL expression for the bytes of a row's values whose size varies; None if Spark has none."""
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


def arrived_rows(about: EpochInput) -> int | None:
    """Return the number of rows that arrived, if all sources are Kafka's; offsets may count a few that do not exist."""
    if about.start is None or about.end is None or len(about.start) != len(about.end):
        return None
    try:
        return sum(_offsets(end) - _offsets(start) for start, end in zip(about.start, about.end, strict=True))
    except (AttributeError, TypeError, ValueError):
        # The offsets of another source, whose text has another form.
        return None


def _offsets(text: str) -> int:
    """Return the sum of the offsets in `{"topic": {"0": 123}}`; a partition that is missing begins at 0."""
    return sum(offset for partitions in json.loads(text).values() for offset in partitions.values())
