"""Files of text are read block by block. A row must fit into a block, so larger ones are tried if it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_Result = TypeVar("_Result")

BLOCKS: Final = (2**20, 2**24, 2**28)
"""Bytes. The first is Arrow's default; larger ones take more memory."""


def with_blocks(read: Callable[[int], _Result]) -> _Result:
    """Read with the first of BLOCKS that every row fits into.

    Raises:
        pyarrow.ArrowInvalid: A row is longer than the last one, or is not what it must be.
    """
    for block in BLOCKS[:-1]:
        try:
            return read(block)
        except pa.ArrowInvalid:
            continue
    return read(BLOCKS[-1])


def batches_with_blocks(read: Callable[[int], Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Read the batches of a file; if a row does not fit, go on from there with larger blocks.

    Raises:
        pyarrow.ArrowInvalid: As in with_blocks.
    """
    given = 0
    for block in BLOCKS:
        at = 0
        try:
            for batch in read(block):
                at += batch.num_rows
                new = min(at - given, batch.num_rows)
                if new > 0:
                    given = at
                    yield batch.slice(batch.num_rows - new)
        except pa.ArrowInvalid:
            if block == BLOCKS[-1]:
                raise
        else:
            return
