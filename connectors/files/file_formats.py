"""Files of each format, written batch by batch and synced at the end."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

import pyarrow as pa
import pyarrow.parquet

from onceward.core.contract.names import file_name
from onceward.core.contract.proof import JSON_LINE
from onceward.core.errors import SchemaError, SourceError, text_of
from onceward.core.kit.folders import make_folder, sync_folder
from onceward.core.kit.rows import UNWRITABLE, check_columns, is_view, to_json, with_column, without_null_values

from .file_names import as_text, on_disk
from .text import CsvWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onceward.core.contract.row_hash import RowHash
    from onceward.core.contract.transaction import WriteContext


OPEN_FILES: Final = 256
"""Files that a transaction keeps open; for one more, the least recently used is completed."""


class _JsonLinesWriter:
    """A JSON object a line, see as_lines."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        del schema  # each line names its own columns
        self._file = file

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._file.write("\n".join([*batch.column(JSON_LINE).to_pylist(), ""]).encode())

    def close(self) -> None:
        pass


class _ParquetWriter:
    """Parquet, whose writer in Arrow takes no dictionary that holds a null among its values."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pyarrow.parquet.ParquetWriter(file, schema)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        columns = [without_null_values(column) for column in batch.columns]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))

    def close(self) -> None:
        self._writer.close()


FileFormat = Literal["parquet", "csv", "jsonl", "arrow"]
FORMATS: Final[dict[str, Callable[[BinaryIO, pa.Schema], Any]]] = {
    "parquet": _ParquetWriter,
    "csv": CsvWriter,
    "jsonl": _JsonLinesWriter,
    "arrow": pa.ipc.new_file,
}
"""Makers of writers of one schema's batches into an open file, by format."""


def as_lines(batch: pa.RecordBatch, partition_by: Sequence[str] = ()) -> pa.RecordBatch:
    """Write each row as a line of JSON, with values as in core/kit/rows.py; keep the columns that become folders."""
    rows = batch.drop_columns(list(partition_by))
    try:
        lines = pa.array([to_json(row) for row in rows.to_pylist()], pa.large_string())
    except UNWRITABLE as error:
        raise ValueError(with_column(error, rows, to_json)) from error
    return pa.RecordBatch.from_arrays(
        [*(batch.column(name) for name in partition_by), lines], names=[*partition_by, JSON_LINE]
    )


def check_format(sink: str, format_: str, schema: pa.Schema) -> None:
    """Check that a format can hold these columns.

    Raises:
        SchemaError: It cannot; the message names the column.
    """
    if format_ == "jsonl":
        check_columns(sink, schema)
    for field in schema:
        if format_ == "parquet" and any(pa.types.is_decimal(kind) and kind.scale < 0 for kind in types_in(field.type)):
            raise SchemaError(
                f"sink {sink}: Parquet cannot hold column {field.name!r} of type {field.type}, a decimal of negative "
                "scale: cast it to a scale of 0"
            )
        coded = [kind.value_type for kind in types_in(field.type) if pa.types.is_dictionary(kind)]
        if format_ == "parquet" and any(pa.types.is_nested(kind) or is_view(kind) for kind in coded):
            raise SchemaError(
                f"sink {sink}: Parquet cannot hold column {field.name!r} of type {field.type}: cast it to {coded[0]}"
            )
        try:
            FORMATS[format_](BytesIO(), pa.schema([field])).close()
        except pa.ArrowException as error:
            raise SchemaError(
                f"sink {sink}: {format_} files cannot hold column {field.name!r} of type {field.type} "
                f"({text_of(error)}): cast it, or leave it out with select"
            ) from None


def check_names(sink: str, schema: pa.Schema) -> None:
    """Check that readers can tell all columns apart, those that become folders too.

    Raises:
        SchemaError: There are none, or two have the same name to Spark, which takes no notice of upper and lower case.
    """
    if not schema.names:
        raise SchemaError(f"sink {sink}: there are no columns: select must name one or more")
    for name in schema.names:
        same = [other for other in schema.names if other.lower() == name.lower()]
        if len(same) > 1:
            raise SchemaError(
                f"sink {sink}: columns {same} have the same name to Spark, which cannot read such files: rename one "
                "with select"
            )


def types_in(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and those that it is made of."""
    yield kind
    if pa.types.is_dictionary(kind):
        yield from types_in(kind.value_type)
    elif pa.types.is_nested(kind):
        for number in range(kind.num_fields):
            yield from types_in(kind.field(number).type)


class _OpenFile:
    """A file that is being written; its name is the finished one, below the folder."""

    def __init__(self, name: str, path: Path, format_: str, schema: pa.Schema) -> None:
        self.name = name
        self.path = path
        self._schema = None if format_ == "jsonl" else schema
        self._file = path.open("xb")
        self._writer: Any = None
        with self._abandoned_on_error():
            self._writer = FORMATS[format_](self._file, schema)

    def fits(self, schema: pa.Schema) -> bool:
        return self._schema is None or bool(self._schema.equals(schema))

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def finish(self) -> None:
        with self._abandoned_on_error():
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Close the file, even on a full disk, which refuses the bytes that are still to be written."""
        with suppress(OSError, pa.ArrowException):  # else Arrow closes it later, into a closed file
            if self._writer is not None:
                self._writer.close()
        with suppress(OSError):
            self._file.close()

    @contextmanager
    def _abandoned_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.abandon()
            raise


def visible_files(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the files that readers of a folder see, whatever their suffixes, and the texts of their paths below it.

    Subfolders may be links. One that leads into the folder, or back to where it lies, is left out: those files are seen
    without it.

    Raises:
        SourceError: A subfolder cannot be listed, so that its files would be left out.
    """
    for path in _visible_below(folder, (folder.resolve(),)):
        yield path, Path(as_text(str(path.relative_to(folder))))


def _visible_below(folder: Path, roots: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the visible files below a folder, which was reached through `roots`: the top, and the links' targets."""
    try:
        with os.scandir(folder) as listed:
            entries = [entry for entry in listed if entry.name[0] not in "_."]
        folders = [entry for entry in entries if entry.is_dir()]
        files = [entry for entry in entries if entry.is_file()]
    except FileNotFoundError:
        return  # it was removed
    except OSError as error:
        raise SourceError(
            f"{folder} cannot be listed ({text_of(error)}), so its files would be left out: allow this process to read "
            "it, or give it a name that begins with _"
        ) from error
    yield from (Path(entry.path) for entry in files)
    for entry in folders:
        path = Path(entry.path)
        target = path.resolve() if entry.is_symlink() else None
        if target is None:
            yield from _visible_below(path, roots)
        elif not any(target.is_relative_to(root) or root.is_relative_to(target) for root in roots):
            yield from _visible_below(path, (*roots, target))


def hidden(file: str) -> str:
    """Return the name on disk of a transaction's file while it is pending."""
    path = Path(file)
    return on_disk(str(path.parent / f".{path.name}.pending"))


class Files:
    """The files of one transaction.

    Args:
        context: Context of the attempt.
        area: Folder of all transactions.
        format_: Format of the files, a key of FORMATS.
        roll_bytes: Size in bytes after which a new file is started.

    Attributes:
        finished: Partition and number of each complete file, as in the finished name.
        hash: Hash of the rows; None if they are not hashed.
    """

    def __init__(self, context: WriteContext, area: Path, format_: str, roll_bytes: int) -> None:
        self.context = context
        self.name = str(context.transaction_name())
        self.rows = 0
        self._format = format_
        self._roll = roll_bytes
        self._open: dict[str, _OpenFile] = {}
        self.finished: list[str] = []
        self.hash: RowHash | None = None
        self.folder = area / file_name(self.name)
        make_folder(self.folder)

    def write(self, partition: str, batch: pa.RecordBatch) -> None:
        """Append to the partition's file; start a new one for another schema, or when it is large enough."""
        if partition in self._open:
            file = self._open[partition]
            if file.size >= self._roll or not file.fits(batch.schema):
                self._finish(partition)
        elif len(self._open) == OPEN_FILES:
            self._finish(next(iter(self._open)))
        known = partition in self._open
        file = self._open.pop(partition) if known else self._begin(partition, batch.schema)
        self._open[partition] = file  # the least recently used comes first
        try:
            file.write(batch)
        except pa.ArrowInvalid:
            if not known or self._format != "arrow":
                raise
            self._finish(partition)  # it has one dictionary for each column, and refuses another before it writes
            self._open[partition] = file = self._begin(partition, batch.schema)
            file.write(batch)
        self.rows += batch.num_rows

    def finish(self) -> None:
        for partition in list(self._open):
            self._finish(partition)
        sync_folder(self.folder)
        sync_folder(self.folder.parent)

    def discard(self) -> None:
        for file in self._open.values():
            file.abandon()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begin(self, partition: str, schema: pa.Schema) -> _OpenFile:
        number = len(self.finished) + len(self._open)
        name = str(Path(partition) / f"{number}.{self._format}")
        path = self.folder / hidden(name)
        make_folder(path.parent)
        return _OpenFile(name, path, self._format, schema)

    def _finish(self, partition: str) -> None:
        file = self._open.pop(partition)
        file.finish()
        sync_folder(file.path.parent)
        self.finished.append(file.name)
