"""State written down as rows: the form that every backend writes for a savepoint and reads."""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, Final

from ...errors import StateDamagedError
from .keys import group_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .handles import KeyedHandle
    from .storage import CheckpointStorage
    from .store import Cell

MAGIC: Final = b"onceward-rows/1\n"
_LENGTHS: Final = struct.Struct(">HIQ")
_PER_CHUNK: Final = 10_000


def encode_cells(cells: Iterable[Cell]) -> Iterator[bytes]:
    """Chunks of a file: for each cell its three lengths and its three parts."""
    yield MAGIC
    cells = iter(cells)
    while chunk := list(islice(cells, _PER_CHUNK)):
        yield b"".join(
            part
            for row, column, value in chunk
            for part in (_LENGTHS.pack(len(row), len(column), len(value)), row, column, value)
        )


def decode_cells(data: bytes, where: str) -> Iterator[Cell]:
    """Read them back.

    Raises:
        StateDamagedError: The bytes do not hold what their lengths say.
    """
    if not data.startswith(MAGIC):
        raise StateDamagedError(f"{where} does not hold rows of state")
    at = len(MAGIC)
    while at < len(data):
        if at + _LENGTHS.size > len(data):
            raise StateDamagedError(f"{where} is cut off")
        lengths = _LENGTHS.unpack_from(data, at)
        at += _LENGTHS.size
        if at + sum(lengths) > len(data):
            raise StateDamagedError(f"{where} is cut off")
        row = data[at : at + lengths[0]]
        column = data[at + lengths[0] : at + lengths[0] + lengths[1]]
        at += sum(lengths)
        yield row, column, data[at - lengths[2] : at]


def restored_cells(handle: KeyedHandle, storage: CheckpointStorage | None, groups: range) -> Iterator[Cell]:
    """The cells of a handle in form "rows" that belong to these groups."""
    if handle.inline:
        texts = [(handle.inline, "the state inside the decision")]
    elif storage is not None:
        texts = [(storage.read(ref), ref.path) for ref in handle.files]
    else:
        texts = []
    for data, where in texts:
        yield from (cell for cell in decode_cells(data, where) if group_in(cell[0]) in groups)
