"""Rows that are read back from the files of a folder, with the transaction that wrote each file.

A finished file's name is that of its transaction, which says of which epoch it is. So a file that is missing, was
altered or was copied shows in its epoch, and any other file holds rows that no epoch wrote: under any name, because
most readers take every file of a folder, and compressed, as they do.

What is hashed of a row is what its file gives back: of Parquet and Arrow files each column, as its type allows; of CSV,
which knows no types, the text of each cell (as bytes: a text of Spark need not be UTF-8); of JSON lines the line. A
column that became folders is the text that its folder has.
"""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from onceward.core.contract.names import parse_file_name
from onceward.core.contract.place import Place, fit_columns
from onceward.core.contract.proof import JSON_LINE, PARTITION, Reread, RereadPiece
from onceward.core.contract.row_hash import covers, kinds_of
from onceward.core.errors import ConfigurationError, text_of
from onceward.core.kit.pieces import PIECE_BYTES
from onceward.core.kit.rows import without_dictionary

from .file_formats import FORMATS, as_lines, visible_files
from .file_names import as_text
from .foreign_folders import file_format_of
from .partition_folders import folder_texts
from .text import CSV_NULLS, batches_with_blocks, open_text, with_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onceward.core.contract.names import Scope

_ROWS_AT_ONCE: Final = 10_000
TYPED: Final = ("parquet", "arrow")
"""Formats whose files keep the types of columns."""
_FINISHED: Final = re.compile(rf"(.+)-\d+\.(?:{'|'.join(FORMATS)})")


def hashed_file_columns(batch: pa.RecordBatch, format_: str, partition_by: Sequence[str] = ()) -> pa.RecordBatch:
    """Return the columns of written rows that are hashed, as the target holds them.

    Args:
        batch: Rows as the format's writer takes them, with the columns that become folders.
        format_: Format of the files, a key of FORMATS.
        partition_by: Names of the columns that become folders.
    """
    columns: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in partition_by:
            columns[name] = folder_texts(column)
        elif format_ == "csv":
            columns[name] = csv_texts(column)
        elif covers(column.type):
            columns[name] = column
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def csv_texts(column: pa.Array) -> pa.Array:
    """Return each value as the text that Arrow's CSV writer makes of it."""
    column = without_dictionary(column)
    return column if pa.types.is_large_string(column.type) else column.cast(pa.string())


class _File(NamedTuple):
    """A finished file.

    Attributes:
        path: Path of the file.
        shown: Its path below the folder.
        mark: Its transaction, as in the names of files; if it is none of a sink's, its path.
        format: Format of the file, a key of FORMATS.
        folders: Columns that became folders, and their texts.
        schema: Schema of the columns that are hashed.
    """

    path: Path
    shown: str
    mark: str
    format: str
    folders: dict[str, str]
    schema: pa.Schema


class WrittenFolder(Place):
    """A folder of a FileSink.

    Args:
        path: Path of the folder.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"files:{path}")
        self._path = path

    def reread(self, scope: Scope | None, columns: Sequence[str]) -> Reread:
        """Read the finished files, whose names tell the epochs."""
        return reread_folder(self._path, scope, columns)

    def as_hashed(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows as lines of JSON where files hold such, and the values of partitions as their folders' names."""
        if JSON_LINE in schema.names and JSON_LINE not in batch.schema.names:
            batch = as_lines(batch, [name for name in schema.names if name in batch.schema.names])
        return fit_columns(batch, schema, {PARTITION: folder_texts})


def reread_folder(folder: str, scope: Scope | None, columns: Sequence[str] = ()) -> Reread:
    """Read the folder's finished files.

    Args:
        folder: Path of the sink's folder.
        scope: Scope of the sinks whose files are not foreign; None if it does not matter.
        columns: Names of the columns to read; empty for all that can be compared.

    Raises:
        ConfigurationError: There is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ConfigurationError(f"{folder} is not a folder: give the sink's folder")
    left_out: list[str] = []
    files: list[_File] = []
    visible = sorted(visible_files(root))
    own = next((path.suffix[1:] for path, _ in visible if _FINISHED.fullmatch(path.name)), "")
    for path, inside in visible:
        with _noted(inside, left_out):
            files.append(_described(path, inside, own, columns, left_out))
    names = {file.mark: parse_file_name(file.mark) for file in files}
    epochs = {mark: name.epoch for mark, name in names.items() if name is not None and name.scope == scope}
    fields = {field.name: field for file in files for field in file.schema}
    schema = pa.schema(list(fields.values()))
    kinds: dict[str, set[str]] = {}
    for file in files:
        if file.format in TYPED:
            kinds.setdefault(file.mark, set()).add(kinds_of(file.schema))
    pieces = _pieces(files, left_out)
    return Reread(pieces, epochs, schema, lambda mark: mark not in epochs, kinds=kinds, left_out=left_out)


@contextmanager
def _noted(file: object, left_out: list[str]) -> Iterator[None]:
    """Note a file that cannot be read: its rows are missing."""
    try:
        yield
    except (OSError, pa.ArrowException, KeyError) as error:  # KeyError: two columns of one name
        left_out.append(f"{file}, which cannot be read ({text_of(error)})")


def _described(path: Path, inside: Path, own: str, columns: Sequence[str], left_out: list[str]) -> _File:
    """Describe a file; the folder's own format is that of a text whose name does not tell it."""
    finished = _FINISHED.fullmatch(path.name)
    format_ = path.suffix[1:] if finished else file_format_of(path) or own
    if format_ not in _READERS:
        raise pa.ArrowInvalid("of which format it is can be seen neither by its name nor by its content")
    texts = [part.partition("=") for part in inside.parts[:-1]]
    folders = {unquote(name): text for name, equals, text in texts if equals}
    folders = {name: text for name, text in folders.items() if not columns or name in columns}
    schema = _READERS[format_](path)[0]
    fields = [field for field in schema if covers(field.type) and (not columns or field.name in columns)]
    others = [f"{field.name} ({field.type})" for field in schema if field not in fields]
    left_out.extend(words for words in others if words not in left_out)
    parts = [pa.field(name, pa.string(), metadata={PARTITION: ""}) for name in folders]
    mark = str(inside) if finished is None else finished[1]
    return _File(path, str(inside), mark, format_, folders, pa.schema([*fields, *parts]))


def _pieces(files: Sequence[_File], left_out: list[str]) -> Iterator[RereadPiece]:
    for file in files:
        at = 0
        with _noted(file.shown, left_out):
            for batch in _READERS[file.format](file.path)[1]:
                count = batch.num_rows
                folders = [pa.repeat(text, count) for text in file.folders.values()]
                cells = [batch.column(name) for name in file.schema.names[: len(file.schema) - len(folders)]]
                rows = pa.RecordBatch.from_arrays([*cells, *folders], names=file.schema.names)
                yield RereadPiece(rows, [file.mark] * count, [f"{file.shown}:{at + n}" for n in range(count)])
                at += count


def _parquet(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    file = pyarrow.parquet.ParquetFile(as_text(str(path)))
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    row_bytes = max((group.total_byte_size / group.num_rows for group in groups if group.num_rows), default=0.0)
    rows = min(_ROWS_AT_ONCE, int(PIECE_BYTES / max(row_bytes, 1.0)))
    return file.schema_arrow, file.iter_batches(batch_size=max(rows, 1))


def _arrow(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    file = pa.ipc.open_file(as_text(str(path)))
    return file.schema, (file.get_batch(number) for number in range(file.num_record_batches))


def _csv(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    def opened(block: int, names: Sequence[str] = ()) -> pyarrow.csv.CSVStreamingReader:
        types = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary()), **CSV_NULLS)
        blocks = pyarrow.csv.ReadOptions(block_size=block)
        return pyarrow.csv.open_csv(open_text(path), read_options=blocks, parse_options=_PARSED, convert_options=types)

    names = with_blocks(opened).schema.names
    schema = pa.schema([(name, pa.string()) for name in names])
    return schema, batches_with_blocks(lambda block: opened(block, names))


def _json_lines(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    def batches() -> Iterator[pa.RecordBatch]:
        with io.BufferedReader(open_text(path)) as file:
            while lines := _lines(file):
                texts = pa.array([line.removesuffix(b"\n") for line in lines], pa.binary())
                yield pa.RecordBatch.from_arrays([texts], names=[JSON_LINE])

    return pa.schema([(JSON_LINE, pa.string())]), batches()


def _lines(file: IO[bytes]) -> list[bytes]:
    """Read the next lines, up to a limit of lines and of bytes; return none at the end of the file."""
    some: list[bytes] = []
    size = 0
    while len(some) < _ROWS_AT_ONCE and size < PIECE_BYTES and (line := file.readline()):
        some.append(line)
        size += len(line)
    return some


_PARSED: Final = pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
_READERS: Final = {"parquet": _parquet, "csv": _csv, "jsonl": _json_lines, "arrow": _arrow}
