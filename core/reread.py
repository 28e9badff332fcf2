"""Rows that are read back from a target, with what shows which transaction wrote each."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

NUMBER: Final = "onceward.number"
"""Metadata of a column whose texts are decimal numbers, as short as they can be: 1.5, and not 1.50."""

PARTITION: Final = "onceward.partition"
"""Metadata of a column whose texts are parts of the names of folders."""
JSON_LINE: Final = "JSON line"
"""The only column of rows that are lines of JSON, beside those that are folders."""
ANY_EPOCH: Final = range(2**62)
"""The epochs whose rows a target cannot tell apart, if it never shows who wrote a row."""


class Piece(NamedTuple):
    """Some rows."""

    rows: pa.RecordBatch
    """The columns that were hashed, and no others."""
    marks: Sequence[str]
    """Which transaction wrote each row: the target's own name for it."""
    positions: Sequence[str]
    """Where each row is, for people."""


class Reread(NamedTuple):
    """What a target holds."""

    pieces: Iterator[Piece]
    epochs: Mapping[str, int]
    """The epochs of the marks, as far as the target itself knows them."""
    schema: pa.Schema
    """Of the pieces' rows."""
    is_foreign: Callable[[str], bool]
    """Whether a mark that no epoch is known of cannot be that of an old epoch either."""
    counts: Mapping[int, int] = MappingProxyType({})
    """How many rows the epochs wrote, as far as the target itself knows it."""
    unmarked: Collection[int] = ()
    """Epochs whose rows the target can no longer tell from those of others."""
    left_out: Sequence[str] = ()
    """Columns that are not compared, and, when all pieces are read, what could not be read."""
