"""FileSource: the files of a folder, and those that arrive later.

A unit is a file; a split is a range of its rows. A file must be complete when it appears (written under another name
and renamed, as FileSink does) and not change afterwards: its size and modification time are kept with the position, and
a file that was replaced is an error. Names that begin with "_" or "." are ignored. Every other file is read, whatever
its suffix, or it is an error that names it: a file that was left out silently would be lost rows.

A schema that was given says what is read: columns of the files, and of folders such as `country=de`. Without one, no
column is left out silently: a file with columns that the oldest one does not have is an error, and so are such folders.
"""

from __future__ import annotations

import copy
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.json

from onceward.core.contract.source import Piece, Position, ResettableSource, Split
from onceward.core.errors import ConfigurationError, SourceError, text_of
from onceward.core.kit.rows import is_binary, with_leaves
from onceward.core.kit.text_options import check_choice, check_types

from .file_formats import (
    FORMATS,
    FileFormat,
    types_in,
    visible_files,
)
from .file_names import as_text, on_disk
from .foreign_folders import check_name, check_tables
from .text import CSV_NULLS, batches_with_blocks, csv_header, open_text, with_blocks

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_LARGE_ROW: Final = 64 << 10
"""Average bytes of a file's rows from which on they are read in small batches, one after another."""
_AHEAD: Final[dict[str, Any]] = {"batch_size": 10_000}
_ONE_BY_ONE: Final[dict[str, Any]] = {
    "batch_size": 100,
    "batch_readahead": 0,
    "fragment_readahead": 0,
    "use_threads": False,
}
"""Options with which pyarrow.dataset scans files of small and of large rows."""


_TEXTS: Final = ("csv", "jsonl")
_DATASETS: Final = {"parquet": "parquet", "arrow": "ipc"}
"""Names in pyarrow.dataset of the formats that it reads. It skips compressed files of text, or takes them for text."""


class FileSource(ResettableSource):
    """Source that reads the rows of all files in a folder, oldest first.

    Args:
        folder: The folder. Its subfolders are read too.
        format: "parquet", "csv" (with a header), "jsonl" or "arrow" (Arrow IPC files).
        schema: Arrow schema of the rows. It may name columns of folders such as `country=de`, and leave columns out.
            Default: that of the oldest file, with inferred types if it is text.
        bounded: End when all files that exist at the start have been read. Otherwise the source waits for more.
        pattern: Shell pattern of the files to read, such as "*.csv" or "2026/*.csv"; the end of a file's path must
            match it. By default every file is read whose name does not begin with "_" or ".", and a file that is not in
            `format` is an error.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        format: FileFormat = "parquet",  # noqa: A002 - as pyarrow and pandas call it
        schema: pa.Schema | None = None,
        bounded: bool = False,
        pattern: str = "*",
    ) -> None:
        check_types(FileSource, locals())
        if schema is not None and not isinstance(schema, pa.Schema):
            raise ConfigurationError(f"schema must be a pyarrow.Schema, not {type(schema).__name__}")
        self.folder = Path(folder).absolute()
        self.format = check_choice("format", format, FORMATS)
        self._schema = schema
        self._inferred = schema is None
        self._bounded = bounded
        if not pattern or pattern.startswith("/"):
            raise ConfigurationError(f"pattern must match paths below the folder, such as '*.csv': {pattern!r}")
        self._pattern = pattern
        self._share = (0, 1)

    @property
    def schema(self) -> pa.Schema:
        if self._schema is None:
            files = {name: stat for name, stat in self._files().items() if stat.st_size}
            if not files:
                raise ConfigurationError(f"{self.folder} holds no file yet, or empty ones only: give schema=…")
            oldest = min(files, key=lambda name: (files[name].st_mtime_ns, name))
            own = self._own_schema(oldest)
            if lost := sorted({column for name in files for column in _folder_columns(name)} - set(own.names)):
                raise ConfigurationError(
                    f"{self.folder} has folders that are named after columns {lost}: give schema=… with the "
                    "columns to read, which may be among them"
                )
            self._schema = pa.schema([field.with_type(with_leaves(field.type, _as_taken)) for field in own])
        return self._schema

    @property
    def reads(self) -> str:
        return f"files in {self.folder}"

    @property
    def bounded(self) -> bool:
        return self._bounded

    @property
    def rows_per_turn(self) -> int | None:
        """None: files are read one after another, oldest first."""
        return None

    def validate(self) -> None:
        if not self.folder.is_dir():
            raise ConfigurationError(f"{self.folder} is not a folder: create it, or correct the path")
        check_tables(self.folder)
        for name in self._files():
            try:
                check_name(self.folder / name, self.format)
            except SourceError as error:
                raise ConfigurationError(str(error)) from error
        _ = self.schema  # all subtasks read by one

    def start(self) -> Position:
        return {}

    def end(self) -> Position:
        return self.latest({})

    def latest(self, position: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """Return the newest position that can be read now. A file is taken whole, which may exceed `limit` rows."""
        files = self._files()
        self._check(position, files)
        end, left = dict(position), limit
        for name in sorted(files, key=lambda name: (files[name].st_mtime_ns, name)):
            read, rows = position[name][:2] if name in position else (0, -1)
            if (until is not None and name not in until) or read == rows:
                continue
            if not files[name].st_size and self.format in _TEXTS:
                continue  # Arrow refuses text without any byte; it may still be written
            if left is not None and left <= 0:
                break
            if 0 < read < rows and self.format == "csv":
                self._check_count(name, rows)
            rows = rows if rows >= 0 else self._count(name)
            end[name] = [rows, rows, files[name].st_size, files[name].st_mtime_ns]
            left = left - (rows - read) if left is not None else None
        return end

    def splits(self, start: Position, end: Position, parallelism: int = 1) -> Sequence[Split]:  # noqa: ARG002 - files
        """Return the files between two positions, whole ones. A unit says which file it was: size, time, name."""
        ranges = []
        for name, (read, _, size, changed) in sorted(end.items(), key=lambda item: (item[1][3], item[0])):
            begin = start[name][0] if name in start else 0
            if begin < read:
                ranges.append(Split(f"{size}:{changed}:{name}", begin, read))
        return ranges

    def read(self, split: Split) -> Iterator[Piece]:
        at = 0
        name, size, changed = _of_unit(split.unit)
        try:
            scan = _AHEAD if size < split.end * _LARGE_ROW else _ONE_BY_ONE
            for batch in batches_with_blocks(lambda block: self._batches(name, block, scan)):
                first, last = max(split.start - at, 0), min(split.end - at, batch.num_rows)
                at += batch.num_rows
                stat = self._path(name).stat()
                if (stat.st_size, stat.st_mtime_ns) != (size, changed):
                    raise SourceError(f"{self.folder / name} has changed while it was read")
                if first < last:
                    yield Piece(self._as_said(batch.slice(first, last - first)), at - batch.num_rows + last)
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(name, error) from error
        if at < split.end:
            raise SourceError(f"{self.folder / name} has {at} rows now; {split.end} were there")

    def _as_said(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self._schema is None or batch.schema.equals(self._schema) else batch.cast(self._schema)

    def advance(self, position: Position, split: Split, to: int) -> Position:
        name, size, changed = _of_unit(split.unit)
        return {**position, name: [to, split.end, size, changed]}

    def share(self, subtask: int, parallelism: int) -> Self:
        """Return the part of this source that one subtask reads; files are assigned by a hash of their names."""
        if self._schema is None and self._files():
            _ = self.schema
        part = copy.copy(self)
        part._share = (subtask, parallelism)  # noqa: SLF001 - its own copy
        return part

    def merge(self, positions: Sequence[Position]) -> Position:
        return {name: at for position in positions for name, at in position.items() if self._is_own(name)}

    def _path(self, name: str) -> Path:
        return self.folder / on_disk(name)

    def _files(self) -> dict[str, os.stat_result]:
        """Return the files of this share, by their path in the folder."""
        files: dict[str, os.stat_result] = {}
        for path, inside in visible_files(self.folder):
            if inside.match(self._pattern) and self._is_own(str(inside)):
                with suppress(FileNotFoundError):
                    files[str(inside)] = path.stat()
        return files

    def _check(self, position: Position, files: Mapping[str, os.stat_result]) -> None:
        """Raise SourceError if a file that was read in part is gone, or if any file has changed since."""
        for name, (read, rows, size, changed) in position.items():
            now = files.get(name)
            if now is None and read < rows:
                raise SourceError(f"{self.folder / name} is gone, and only {read} of its {rows} rows were read")
            if now is not None and (now.st_size, now.st_mtime_ns) != (size, changed):
                raise SourceError(
                    f"{self.folder / name} has changed since it was read: a file must be complete when it appears. "
                    "Write under another name, and rename"
                )

    def _is_own(self, name: str) -> bool:
        subtask, parallelism = self._share
        try:
            return zlib.crc32(name.encode()) % parallelism == subtask
        except UnicodeEncodeError:  # positions are JSON, which could not hold it
            path = str(self.folder / name)
            raise SourceError(f"the name of file {path!r} is not UTF-8: rename the file, or remove it") from None

    def _count(self, name: str) -> int:
        """Count the rows of a file.

        Raises:
            SourceError: It is not in the format, or has columns that would be lost, or none of those that are read.
        """
        check_name(self.folder / name, self.format)
        known = {path for field in self.schema for path in _paths(field.type, field.name)}
        if self._inferred:
            paths = [path for field in self._own_schema(name) for path in _paths(field.type, field.name)]
            if more := sorted({*paths, *_folder_columns(name)} - known):
                raise SourceError(
                    f"{self.folder / name} has columns {more}, which the oldest file does not have: give schema=… "
                    "with the columns to read"
                )
        elif self.format != "jsonl" and (wanted := known - {*_folder_columns(name)}):  # JSON leaves out what is null
            own = self._own_schema(name).names
            if wanted.isdisjoint(own):
                raise SourceError(
                    f"{self.folder / name} has columns {own}, and none that schema=… names: every row would be null. "
                    "Correct the file or the schema, or leave the file out with pattern=…"
                )
        try:
            return with_blocks(lambda block: self._count_rows(name, block))
        except (OSError, pa.ArrowException) as error:
            if "unexpected field" in text_of(error):
                raise SourceError(
                    f"{self.folder / name} has fields that the beginning of the oldest file does not have: give "
                    "schema=… with the columns to read"
                ) from error
            raise self._unreadable(name, error) from error

    def _count_rows(self, name: str, block: int) -> int:
        if self.format == "jsonl":
            return sum(batch.num_rows for batch in self._text(name, block))
        if self.format == "csv":
            first = self._open_csv(name, block).schema.names[0]
            return sum(batch.num_rows for batch in self._open_csv(name, block, pa.schema([(first, pa.binary())])))
        return int(self._dataset(name, self._schema).count_rows())

    def _batches(self, name: str, block: int, scan: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        if self.format in _TEXTS:
            yield from self._text(name, block)
        else:
            yield from self._dataset(name, self._schema).to_batches(**scan)

    def _text(self, name: str, block: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file of text, with the columns of its folders."""
        schema = self._as_text(name)
        folders = self._folders(name, schema)
        own = None if schema is None else pa.schema([field for field in schema if field.name not in folders])
        with self._open(name, block, own) as batches:
            for batch in batches:
                fields = batch.schema if schema is None else schema
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.repeat(pa.scalar(folders[field.name], field.type), batch.num_rows)
                        if field.name in folders
                        else batch.column(field.name)
                        for field in fields
                    ],
                    schema=fields,
                )

    def _open(self, name: str, block: int, schema: pa.Schema | None = None) -> Any:
        return (self._open_csv if self.format == "csv" else self._open_json)(name, block, schema)

    def _open_json(self, name: str, block: int, schema: pa.Schema | None = None) -> Any:
        strict = self._inferred and schema is not None
        return pyarrow.json.open_json(
            open_text(self._path(name)),
            read_options=pyarrow.json.ReadOptions(block_size=block),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="error" if strict else "infer" if schema is None else "ignore",
            ),
        )

    def _open_csv(self, name: str, block: int, schema: pa.Schema | None = None) -> Any:
        """Open a file as FileSink wrote it: an empty line is a null if there is one column, and otherwise no row."""
        path = self._path(name)
        header = csv_header(path)
        columns = header if schema is None else schema.names
        if twice := sorted({column for column in columns if header.count(column) > 1}):
            raise pa.ArrowInvalid(f"several columns are named {twice}")
        known = None if schema is None else {field.name: field.type for field in schema}
        return pyarrow.csv.open_csv(
            open_text(path),
            read_options=pyarrow.csv.ReadOptions(block_size=block),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(header) != 1),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=known,
                include_columns=None if known is None else list(known),
                include_missing_columns=True,
                **CSV_NULLS,
            ),
        )

    def _check_count(self, name: str, rows: int) -> None:
        """Raise SourceError if a file that was read in part has another number of rows than it had then."""
        if (now := self._count(name)) != rows:
            raise SourceError(
                f"{self.folder / name} has {now} rows, and {rows} when its reading began: earlier versions ignored "
                "empty lines in CSV files with one column. Let the earlier version finish this file"
            )

    def _own_schema(self, name: str) -> pa.Schema:
        """Return the schema of one file's rows, without the columns of its folders."""
        try:
            if self.format in _TEXTS:
                return with_blocks(lambda block: self._open(name, block).schema)
            return self._dataset(name).schema
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: Exception) -> SourceError:
        return SourceError(
            f"cannot read {self.folder / name} as {self.format}: {text_of(error)}. Remove the file, or leave it out "
            "with pattern=…"
        )

    def _folders(self, name: str, schema: pa.Schema | None) -> dict[str, Any]:
        """Return the values of the columns that the file's folders name, as far as the schema has them."""
        partitioning = pyarrow.dataset.partitioning(self._folder_fields(name, schema), flavor="hive")
        return dict(pyarrow.dataset.get_partition_keys(partitioning.parse(name)))

    def _folder_fields(self, name: str, schema: pa.Schema | None) -> pa.Schema:
        fields = {field.name: field for field in schema} if schema is not None else {}
        return pa.schema([_as_read(fields[column]) for column in _folder_columns(name) if column in fields])

    def _as_text(self, name: str) -> pa.Schema | None:
        """Return the schema by which a file of text is read, if there is one."""
        if self._schema is None:
            return None
        folders = self._folder_fields(name, self._schema)
        own = _in_json if self.format == "jsonl" else (lambda field: field)
        return pa.schema(
            [folders.field(field.name) if field.name in folders.names else own(field) for field in self._schema]
        )

    def _dataset(self, name: str, schema: pa.Schema | None = None) -> Any:
        folders = self._folder_fields(name, schema)
        texts = {field.name: field for field in folders}
        return pyarrow.dataset.dataset(
            as_text(str(self._path(name))),
            schema=schema and pa.schema([texts.get(field.name, field) for field in schema]),
            format=_DATASETS[self.format],
            partitioning=pyarrow.dataset.partitioning(folders, flavor="hive"),
            partition_base_dir=as_text(str(self.folder)),
        )


def _paths(kind: pa.DataType, path: str) -> Iterator[str]:
    """Yield the paths of a column and of the fields of the structs in it."""
    yield path
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _paths(field.type, f"{path}.{field.name}")
    elif pa.types.is_nested(kind):
        for number in range(kind.num_fields):
            yield from _paths(kind.field(number).type, path)


def _folder_columns(name: str) -> Iterable[str]:
    """Return the columns whose values a file's folders name, as Spark, Hive and FileSink have them."""
    parts = (part.partition("=") for part in Path(name).parts[:-1])
    return (unquote(column) for column, equals, _ in parts if equals)


def _as_read(field: pa.Field) -> pa.Field:
    """Return a folder's column as pyarrow.dataset reads it: it makes no decimals of text."""
    return field.with_type(pa.string()) if pa.types.is_decimal(field.type) else field


def _as_taken(kind: pa.DataType) -> pa.DataType:
    """Return a type without views (Polars writes them), as Arrow can take no part of such rows."""
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return views.get(kind, kind)


def _in_json(field: pa.Field) -> pa.Field:
    """Return a column as Arrow reads it from JSON: it makes no dates of text.

    Raises:
        ConfigurationError: It makes no times of day either, and takes the Base64 of bytes for the bytes.
    """
    if any(is_binary(kind) or pa.types.is_time(kind) for kind in types_in(field.type)):
        raise ConfigurationError(
            f"schema: column {field.name!r} is {field.type}, but JSON lines hold bytes (in Base64) and times of day as "
            "text: give string, and convert it in the pipeline"
        )
    return field.with_type(pa.string()) if pa.types.is_date(field.type) else field


def _of_unit(unit: str) -> tuple[str, int, int]:
    size, changed, name = unit.split(":", 2)
    return name, int(size), int(changed)
