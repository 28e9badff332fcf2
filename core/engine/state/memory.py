"""State in memory: MemoryBackend keeps snapshots with the coordinator, FileBackend writes them to files."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

from ...errors import ConfigurationError
from .handles import KeyedHandle
from .row_store import Freezing, KeyedTable, StateBackend, encode_cells, restored_cells
from .storage import CheckpointStorage, folder_in, inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ..channels import TaskId
    from .row_store import Cell


class MemoryTable(KeyedTable):
    """Cells in dictionaries. Freezing copies them; bytes are not copied."""

    copied_whole = True

    def __init__(self, groups: range, task: str) -> None:
        self._groups = groups
        self._task = task
        self._values: dict[bytes, bytes] = {}
        """Single values by row."""
        self._maps: dict[bytes, dict[bytes, bytes]] = {}
        """Rows with columns."""
        self._round: Iterator[tuple[bytes, bytes]] = iter(())
        """Cells that `revise` has not come to."""

    def get(self, row: bytes, column: bytes = b"") -> bytes | None:
        return self._maps.get(row, {}).get(column) if column else self._values.get(row)

    def put(self, row: bytes, value: bytes, column: bytes = b"") -> None:
        if column:
            self._maps.setdefault(row, {})[column] = value
        else:
            self._values[row] = value

    def get_many(self, rows: Sequence[bytes]) -> list[bytes | None]:
        return [*map(self._values.get, rows)]

    def put_many(self, rows: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._values.update(zip(rows, values, strict=True))

    def delete(self, row: bytes, column: bytes = b"") -> None:
        if not column:
            self._values.pop(row, None)
        elif row in self._maps:
            self._maps[row].pop(column, None)
            if not self._maps[row]:
                del self._maps[row]

    def columns(self, row: bytes) -> Iterator[tuple[bytes, bytes]]:
        if row in self._values:
            yield b"", self._values[row]
        yield from sorted(self._maps.get(row, {}).items())

    def scan(self, prefix: bytes) -> Iterator[Cell]:
        for row in sorted(row for row in self._values.keys() | self._maps if row.startswith(prefix)):
            for column, value in self.columns(row):
                yield row, column, value

    def revise(self, revised: Callable[[bytes, bytes], bytes | None], most: int | None) -> None:
        looked_at = 0
        if most is None:
            self._round = self._places()
        for row, column in islice(self._round, most):
            looked_at += 1
            value = self.get(row, column)
            new = None if value is None else revised(row, value)
            if new is None:
                self.delete(row, column)
            elif new is not value:
                self.put(row, new, column)
        if most is not None and looked_at < most:
            self._round = self._places()

    def _places(self) -> Iterator[tuple[bytes, bytes]]:
        """Return row and column of each cell, as they are now."""
        maps = [(row, column) for row, columns in self._maps.items() for column in columns]
        return chain(((row, b"") for row in list(self._values)), maps)

    def freeze(self, checkpoint: int, *, full: bool = False) -> Freezing:  # noqa: ARG002 - it is always full
        frozen = [(row, b"", value) for row, value in self._values.items()]
        frozen += [(row, column, value) for row, columns in self._maps.items() for column, value in columns.items()]

        def write(storage: CheckpointStorage | None, folder: str) -> tuple[KeyedHandle, int]:
            chunks = encode_cells(frozen)
            first, end = self._groups.start, self._groups.stop
            if storage is not None:
                ref = storage.write(inside(folder, f"{self._task}-{checkpoint}.rows"), chunks)
                return KeyedHandle(files=(ref,), first=first, end=end), ref.size
            data = b"".join(chunks)
            return KeyedHandle(inline=data, first=first, end=end), len(data)

        return Freezing(write, frozen.clear)

    def close(self) -> None:
        self._values.clear()
        self._maps.clear()


class _InMemory(StateBackend):
    def open(
        self,
        task: TaskId,
        groups: range,
        restored: Sequence[KeyedHandle],
        storage: CheckpointStorage | None,
        generation: int = 0,  # noqa: ARG002 - it shares no files
    ) -> KeyedTable:
        table = MemoryTable(groups, str(task))
        for handle in restored:
            for row, column, value in cells_of(handle, storage, groups):
                table.put(row, value, column)
        return table


class MemoryBackend(_InMemory):
    """Backend for small state: it lives in memory, and its snapshots in the decision log. Needs no setup.

    Args:
        most: Maximum number of bytes of one subtask's snapshot, keyed and operator state together.
    """

    def __init__(self, most: int = 5_000_000) -> None:
        if most < 1:
            raise ConfigurationError(f"MemoryBackend(most={most}): give 1 byte or more")
        self.most = most

    def bind(self, name: str) -> StateBackend:  # noqa: ARG002 - nothing to keep apart
        return self


class FileBackend(_InMemory):
    """Backend for state that fits into memory; snapshots are files in a folder.

    Args:
        folder: Folder of checkpoints: a path, file:///…, or a URL that fsspec knows (s3://bucket/folder). It must
            survive every failure that the job must survive.
    """

    def __init__(self, folder: str | Path) -> None:
        self.storage: CheckpointStorage = CheckpointStorage(folder)

    def bind(self, name: str) -> StateBackend:
        return FileBackend(folder_in(self.storage.root, name))


def cells_of(handle: KeyedHandle, storage: CheckpointStorage | None, groups: range) -> Iterator[Cell]:
    """Yield the cells of a handle of any form that belong to these groups."""
    if handle.form == "rows":
        return restored_cells(handle, storage, groups)
    from .rocksdb import cells_of_rocksdb  # noqa: PLC0415 - an extra

    return cells_of_rocksdb(handle, storage, groups)
