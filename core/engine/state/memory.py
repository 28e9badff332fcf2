"""State in memory: MemoryBackend keeps snapshots with the coordinator, FileBackend writes them to files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ConfigurationError
from .handles import KeyedHandle
from .storage import CheckpointStorage, folder_in, inside
from .store import Freezing, KeyedTable, StateBackend, encode_cells, restored_cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ..channels import TaskId
    from .store import Cell


class MemoryTable(KeyedTable):
    """Cells in dictionaries. Freezing copies them; bytes are not copied."""

    def __init__(self, groups: range, task: str) -> None:
        self._groups = groups
        self._task = task
        self._rows: dict[bytes, dict[bytes, bytes]] = {}

    def get(self, row: bytes, column: bytes = b"") -> bytes | None:
        found = self._rows.get(row)
        return found.get(column) if found is not None else None

    def put(self, row: bytes, value: bytes, column: bytes = b"") -> None:
        found = self._rows.get(row)
        if found is None:
            self._rows[row] = {column: value}
        else:
            found[column] = value

    def delete(self, row: bytes, column: bytes = b"") -> None:
        found = self._rows.get(row)
        if found is not None:
            found.pop(column, None)
            if not found:
                del self._rows[row]

    def columns(self, row: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted(self._rows.get(row, {}).items())

    def scan(self, prefix: bytes) -> Iterator[Cell]:
        for row in sorted(row for row in self._rows if row.startswith(prefix)):
            for column, value in sorted(self._rows[row].items()):
                yield row, column, value

    def freeze(self, checkpoint: int, *, full: bool = False) -> Freezing:  # noqa: ARG002 - it is always full
        frozen = [(row, list(columns.items())) for row, columns in self._rows.items()]

        def write(storage: CheckpointStorage | None, folder: str) -> tuple[KeyedHandle, int]:
            chunks = encode_cells((row, column, value) for row, columns in frozen for column, value in columns)
            first, end = self._groups.start, self._groups.stop
            if storage is not None:
                ref = storage.write(inside(folder, f"{self._task}-{checkpoint}.rows"), chunks)
                return KeyedHandle(files=(ref,), first=first, end=end), ref.size
            data = b"".join(chunks)
            return KeyedHandle(inline=data, first=first, end=end), len(data)

        return Freezing(write, frozen.clear)

    def close(self) -> None:
        self._rows.clear()


class _InMemory(StateBackend):
    def open(
        self,
        task: TaskId,
        groups: range,
        restored: Sequence[KeyedHandle],
        storage: CheckpointStorage | None,
        writer: int = 0,  # noqa: ARG002 - it shares no files
    ) -> KeyedTable:
        table = MemoryTable(groups, str(task))
        for handle in restored:
            for row, column, value in cells_of(handle, storage, groups):
                table.put(row, value, column)
        return table


class MemoryBackend(_InMemory):
    """Small state: lives in memory, and its snapshots inside the decision log. Nothing to set up.

    Args:
        most: Bytes of one subtask's snapshot at most, keyed and operator state together.
    """

    def __init__(self, most: int = 5_000_000) -> None:
        if most < 1:
            raise ConfigurationError(f"MemoryBackend(most={most}): give 1 byte or more")
        self.most = most

    def bind(self, name: str) -> StateBackend:  # noqa: ARG002 - nothing to keep apart
        return self


class FileBackend(_InMemory):
    """State that fits into memory; snapshots are files in a folder.

    Args:
        path: Folder of checkpoints: a path, file:///…, or a URL that fsspec knows (s3://bucket/folder). It must outlive
            this machine as far as the job must.
    """

    def __init__(self, path: str | Path) -> None:
        self.storage: CheckpointStorage = CheckpointStorage(path)

    def bind(self, name: str) -> StateBackend:
        return FileBackend(folder_in(self.storage.root, name))


def cells_of(handle: KeyedHandle, storage: CheckpointStorage | None, groups: range) -> Iterator[Cell]:
    """The cells of a handle of any form that belong to these groups."""
    if handle.form == "rows":
        return restored_cells(handle, storage, groups)
    from .rocksdb import cells_of_rocksdb  # noqa: PLC0415 - an extra

    return cells_of_rocksdb(handle, storage, groups)
