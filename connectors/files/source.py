"""FileSource: the files of a folder, and those that arrive later.

A unit is a file; a split is a range of its rows. A file must be complete when it appears (written under another name
and renamed, as FileSink does) and not change afterwards: its size and modification time are kept with the position, and
a file that was replaced is an error. Names that begin with "_" or "." are ignored.
"""

from __future__ import annotations

import copy
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.dataset

from onceward.core.errors import ConfigurationError, SourceError
from onceward.core.source import Piece, Position, ResettableSource, Split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FORMATS: Final = {"parquet": "parquet", "csv": "csv", "jsonl": "json", "arrow": "ipc"}
_BATCH_ROWS: Final = 10_000


class _Seen(NamedTuple):
    """What a position says of a file."""

    read: int
    """How many rows were read."""
    rows: int
    """How many it has."""
    size: int
    changed: int
    """Time of change, in nanoseconds."""


class FileSource(ResettableSource):
    """Source that reads the rows of all files in a folder, oldest first.

    Args:
        directory: The folder. Its subfolders are read too.
        format: "parquet", "csv" (with a header), "jsonl" or "arrow" (Arrow IPC files).
        schema: Arrow schema of the rows. Default: that of the oldest file.
        bounded: End when all files that exist at the start have been read. Otherwise the source waits for more.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        format: str = "parquet",  # noqa: A002 - as pyarrow and pandas call it
        schema: pa.Schema | None = None,
        bounded: bool = False,
    ) -> None:
        if format not in _FORMATS:
            raise ConfigurationError(f"format {format!r}; give one of {', '.join(_FORMATS)}")
        self.directory = Path(directory).absolute()
        self.format = format
        self._schema = schema
        self._bounded = bounded
        self._share = (0, 1)

    @property
    def schema(self) -> pa.Schema:
        if self._schema is None:
            files = self._files()
            if not files:
                raise ConfigurationError(f"{self.directory} holds no file yet: give schema=…")
            self._schema = self._dataset(min(files, key=lambda name: (files[name].changed, name))).schema
        return self._schema

    @property
    def bounded(self) -> bool:
        """Whether reading ends with the files that exist at the start."""
        return self._bounded

    def validate(self) -> None:
        """Check that the folder exists.

        Raises:
            ConfigurationError: It does not.
        """
        if not self.directory.is_dir():
            raise ConfigurationError(f"{self.directory} is no folder")
        _ = self.schema  # all subtasks read by one

    def start(self) -> Position:
        """The position before the first file."""
        return {}

    def end(self) -> Position:
        """The position after all files that exist now."""
        return self.latest({})

    def latest(self, position: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """The newest position that can be read now. A file is taken whole, so the last one may exceed `limit`."""
        files = self._files()
        self._check(position, files)
        end, left = dict(position), limit
        for name in sorted(files, key=lambda name: (files[name].changed, name)):
            read, rows = position[name][:2] if name in position else (0, -1)
            if (until is not None and name not in until) or read == rows:
                continue
            if left is not None and left <= 0:
                break
            rows = rows if rows >= 0 else self._dataset(name).count_rows()
            end[name] = [rows, rows, files[name].size, files[name].changed]
            left = left - (rows - read) if left is not None else None
        return end

    def splits(self, start: Position, end: Position, parallelism: int = 1) -> Sequence[Split]:  # noqa: ARG002 - files
        """The files between two positions; a file is never split."""
        begins = {name: start[name][0] if name in start else 0 for name in end}
        oldest = sorted(end, key=lambda name: (end[name][3], name))
        return [
            Split(_unit(name, end[name]), begins[name], end[name][0]) for name in oldest if begins[name] < end[name][0]
        ]

    def read(self, split: Split) -> Iterator[Piece]:
        at = 0
        name, size, changed = _of_unit(split.unit)
        try:
            for batch in self._dataset(name).to_batches(batch_size=_BATCH_ROWS):
                first, last = max(split.start - at, 0), min(split.end - at, batch.num_rows)
                at += batch.num_rows
                stat = (self.directory / name).stat()
                if (stat.st_size, stat.st_mtime_ns) != (size, changed):
                    raise SourceError(f"{self.directory / name} has changed while it was read")
                if first < last:
                    yield Piece(batch.slice(first, last - first), at - batch.num_rows + last)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"cannot read {self.directory / name}: {error}") from error
        if at < split.end:
            raise SourceError(f"{self.directory / name} has {at} rows now; {split.end} were there")

    def advance(self, position: Position, split: Split, to: int) -> Position:
        name, size, changed = _of_unit(split.unit)
        return {**position, name: [to, split.end, size, changed]}

    def share(self, subtask: int, parallelism: int) -> Self:
        """The part of this source that one subtask reads; files are assigned by a hash of their names."""
        if self._schema is None and self._files():
            _ = self.schema
        part = copy.copy(self)
        part._share = (subtask, parallelism)  # noqa: SLF001 - its own copy
        return part

    def merge(self, positions: Sequence[Position]) -> Position:
        return {name: at for position in positions for name, at in position.items() if self._is_own(name)}

    def _files(self) -> dict[str, _Seen]:
        """The files of this share, by their path in the folder."""
        found: dict[str, _Seen] = {}
        for path in self.directory.rglob(f"*.{self.format}"):
            inside = path.relative_to(self.directory)
            if inside.parts and not any(part[0] in "_." for part in inside.parts) and self._is_own(str(inside)):
                try:
                    stat = path.stat()
                except FileNotFoundError:
                    continue
                found[str(inside)] = _Seen(0, 0, stat.st_size, stat.st_mtime_ns)
        return found

    def _check(self, position: Position, files: dict[str, _Seen]) -> None:
        """A file that was read to a part must still be the same; one that was read whole may be gone.

        Raises:
            SourceError: The file was changed, or is gone.
        """
        for name, (read, rows, size, changed) in position.items():
            now = files.get(name)
            if now is None and read < rows:
                raise SourceError(f"{self.directory / name} is gone, and only {read} of its {rows} rows were read")
            if now is not None and (now.size, now.changed) != (size, changed):
                raise SourceError(
                    f"{self.directory / name} has changed since it was read: a file must be complete when it appears. "
                    "Write under another name, and rename"
                )

    def _is_own(self, name: str) -> bool:
        subtask, parallelism = self._share
        return zlib.crc32(name.encode()) % parallelism == subtask

    def _dataset(self, name: str) -> Any:
        path = self.directory / name
        try:
            return pyarrow.dataset.dataset(str(path), format=_FORMATS[self.format], schema=self._schema)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"cannot read {path}: {error}") from error


def _unit(name: str, seen: Sequence[int]) -> str:
    """A split's unit: the file, and which one it was."""
    return f"{seen[2]}:{seen[3]}:{name}"


def _of_unit(unit: str) -> tuple[str, int, int]:
    size, changed, name = unit.split(":", 2)
    return name, int(size), int(changed)
