"""What a state backend offers to a subtask: rows of columns, by key group.

A row is one state of one key; its columns are a map's entries, or the one column b"" of a single value. Keys and values
are bytes, so that every backend holds the same and a savepoint of one can be restored by another: written down as rows,
a form that every backend reads.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias

from ...errors import StateDamagedError
from ...kit.sealed import check_format_version
from .keys import group_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ..channels import TaskId
    from .handles import KeyedHandle
    from .storage import CheckpointStorage

Cell: TypeAlias = tuple[bytes, bytes, bytes]
"""Row, column and value of one cell."""


class Overflow(ABC):
    """A set of byte strings outside of memory, in their order. It is in no snapshot, and ends with its table."""

    @abstractmethod
    def change(self, changes: Mapping[bytes, bool]) -> None:
        """Add strings (True) and remove strings (False)."""

    @abstractmethod
    def first(self, start: bytes, most: int) -> list[bytes]:
        """Return the first `most` strings from `start` on, in order."""


class KeyedTable(ABC):
    """The keyed state of one running subtask. One thread uses it; only what `freeze` returns runs elsewhere."""

    copied_whole: ClassVar[bool] = False
    """True if `freeze` copies every cell."""
    overflow: Callable[[], Overflow] | None = None
    """Function that makes room outside of memory; None: there is none."""

    @abstractmethod
    def get(self, row: bytes, column: bytes = b"") -> bytes | None: ...

    @abstractmethod
    def put(self, row: bytes, value: bytes, column: bytes = b"") -> None: ...

    @abstractmethod
    def get_many(self, rows: Sequence[bytes]) -> list[bytes | None]:
        """Return the single values of these rows; None where there is none."""

    @abstractmethod
    def put_many(self, rows: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set the single values of these rows."""

    @abstractmethod
    def delete(self, row: bytes, column: bytes = b"") -> None:
        """Remove one value, if it is there."""

    @abstractmethod
    def columns(self, row: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield a row's columns and values, in order. If the row is changed meanwhile, the rest is undefined."""

    @abstractmethod
    def scan(self, prefix: bytes) -> Iterator[Cell]:
        """Yield all cells whose row begins with `prefix`, in order."""

    @abstractmethod
    def revise(self, revised: Callable[[bytes, bytes], bytes | None], most: int | None) -> None:
        """Replace each value by the result of a function of row and value; delete those for which it returns None.

        Args:
            revised: Function of a cell's row and value; it returns the new value, or None.
            most: Maximum number of cells that it gets, beginning where the last call has ended, and at the front again
                after the last cell; None: all.
        """

    @abstractmethod
    def freeze(self, checkpoint: int, *, full: bool = False) -> Freezing:
        """Run the synchronous part of a snapshot; a full one (for savepoints) has rows that any backend reads."""

    def confirm(self, checkpoint: int) -> None:  # noqa: B027 - only incremental backends care
        """Confirm a checkpoint: it is completed, and later ones may build on its files."""

    @abstractmethod
    def close(self) -> None:
        """Release resources; the working copy is not needed any more."""


class Freezing(NamedTuple):
    """A frozen state: writes it out, in any thread, or gives it up."""

    write: Callable[[CheckpointStorage | None, str], tuple[KeyedHandle, int]]
    """Storage and a folder in it; returns the handle, and how many bytes were written anew."""
    discard: Callable[[], None]
    """Free what the freezing holds; called once, after `write` or instead of it."""


class StateBackend(ABC):
    """The place of keyed state during work, and the way it is written to checkpoints."""

    most: int | None = None
    """Bytes of one subtask's snapshot at most; None: any number."""
    storage: CheckpointStorage | None = None
    """Storage of the checkpoints; None if they are kept inside the decision log."""

    @abstractmethod
    def bind(self, name: str) -> StateBackend:
        """Return this backend in a folder of its own, for a pipeline's name, then for its decision log's identity."""

    @abstractmethod
    def open(
        self,
        task: TaskId,
        groups: range,
        restored: Sequence[KeyedHandle],
        storage: CheckpointStorage | None,
        generation: int = 0,
    ) -> KeyedTable:
        """Open the table of one subtask.

        Args:
            task: Subtask that owns the table.
            groups: The key groups it owns.
            restored: Handles that overlap its groups; empty for a fresh start.
            storage: Storage of the handles' files; None if they have none.
            generation: Position of the run's START, for the names of files that checkpoints share.

        Raises:
            StateDamagedError: A file is not what was written.
        """


_FORMAT: Final = 2
_MAGIC: Final = b"onceward-rows/2\n"
_LENGTHS: Final = {b"onceward-rows/1\n": struct.Struct(">HIQ"), _MAGIC: struct.Struct(">IIQ")}
"""Layout of the lengths of a cell's parts, by the file's first bytes. In format 1 a row had at most 65,535 bytes."""
_PER_CHUNK: Final = 10_000


def encode_cells(cells: Iterable[Cell]) -> Iterator[bytes]:
    """Yield the chunks of a file: for each cell its three lengths and its three parts."""
    yield _MAGIC
    lengths = _LENGTHS[_MAGIC]
    cells = iter(cells)
    while chunk := list(islice(cells, _PER_CHUNK)):
        yield b"".join(
            part
            for row, column, value in chunk
            for part in (lengths.pack(len(row), len(column), len(value)), row, column, value)
        )


def decode_cells(data: bytes, where: str) -> Iterator[Cell]:
    """Decode the chunks of encode_cells; raise StateDamagedError if the lengths do not match the bytes."""
    magic = data[: len(_MAGIC)]
    check_format_version("onceward-rows", magic.rstrip(), where, newest=_FORMAT)
    lengths = _LENGTHS.get(magic)
    if lengths is None:
        raise StateDamagedError(f"{where} does not hold rows of state")
    at = len(_MAGIC)
    while at < len(data):
        if at + lengths.size > len(data):
            raise StateDamagedError(f"{where} is cut off")
        row, column, value = lengths.unpack_from(data, at)
        at += lengths.size
        end = at + row + column + value
        if end > len(data):
            raise StateDamagedError(f"{where} is cut off")
        yield data[at : at + row], data[at + row : end - value], data[end - value : end]
        at = end


def require_storage(storage: CheckpointStorage | None) -> CheckpointStorage:
    """Return the storage of a handle's files; raise StateDamagedError if it is None."""
    if storage is None:
        raise StateDamagedError("a checkpoint with files of state needs the folder they are in")
    return storage


def restored_cells(handle: KeyedHandle, storage: CheckpointStorage | None, groups: range) -> Iterator[Cell]:
    """Yield the cells of a handle in form "rows" that belong to these groups."""
    texts = [(handle.inline, "the state inside the decision")] if handle.inline else []
    texts += [(require_storage(storage).read(ref), ref.path) for ref in handle.files]
    for data, where in texts:
        yield from (cell for cell in decode_cells(data, where) if group_in(cell[0]) in groups)
