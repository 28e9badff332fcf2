"""Files of each format, written batch by batch and synced at the end, and the folders that they go to.

Rows are distributed to folders by the values of columns, as Spark and Hive name them: `country=de/day=2026-11-21`. The
text of a value, and which of its characters are percent-encoded, are those of Spark (ExternalCatalogUtils,
escapePathName): it decodes byte by byte, so what is not ASCII stays as it is. A timestamp with a zone has its offset in
the text too, which Spark reads back as the same instant in any session.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from onceward.core.errors import SchemaError
from onceward.core.kit.rows import check_columns, json_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class OpenFile(ABC):
    """A file that is being written.

    Args:
        sink: Name of the sink, for messages.
        path: Where.
        schema: Of all its batches.
    """

    def __init__(self, sink: str, path: Path, schema: pa.Schema) -> None:
        self.sink = sink
        self.path = path
        self.schema = schema
        self._file = path.open("xb")
        self._open()

    @classmethod  # noqa: B027 - most hold everything
    def check(cls, sink: str, schema: pa.Schema) -> None:
        """Check that the format can hold these columns.

        Raises:
            SchemaError: It cannot; the message names the column.
        """

    def fits(self, schema: pa.Schema) -> bool:
        """Whether batches of this schema can follow."""
        return bool(self.schema.equals(schema))

    @property
    def size(self) -> int:
        """Bytes so far, about."""
        return self._file.tell()

    def write(self, batch: pa.RecordBatch) -> None:
        self._append(batch)

    def finish(self) -> None:
        """Complete the file and sync it."""
        try:
            self._close()
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Close the file as it is; it will be deleted."""
        with suppress(OSError, pa.ArrowException):  # else Arrow closes it later, into a closed file
            self._close()
        self._file.close()

    def _open(self) -> None:  # noqa: B027 - a format may have nothing to begin with
        """Begin."""

    @abstractmethod
    def _append(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""

    def _close(self) -> None:  # noqa: B027 - a format may have nothing to end with
        """End."""


class ParquetFile(OpenFile):
    """Parquet."""

    def _open(self) -> None:
        self._writer = pyarrow.parquet.ParquetWriter(self._file, self.schema)

    def _append(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def _close(self) -> None:
        self._writer.close()


class ArrowFile(OpenFile):
    """Arrow's IPC file format."""

    def _open(self) -> None:
        self._writer = pa.ipc.new_file(self._file, self.schema)

    def _append(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def _close(self) -> None:
        self._writer.close()


class CsvFile(OpenFile):
    """CSV with a header."""

    @classmethod
    def check(cls, sink: str, schema: pa.Schema) -> None:
        """Refuse nested columns."""
        for field in schema:
            if pa.types.is_nested(field.type):
                raise SchemaError(f"sink {sink}: CSV cannot hold column {field.name!r} of type {field.type}")

    def _open(self) -> None:
        self._writer = pyarrow.csv.CSVWriter(self._file, self.schema)

    def _append(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def _close(self) -> None:
        self._writer.close()


class JsonLinesFile(OpenFile):
    """A JSON object a line, with values as in core/kit/rows.py."""

    @classmethod
    def check(cls, sink: str, schema: pa.Schema) -> None:
        """Refuse what has no JSON form."""
        check_columns(sink, schema)

    def fits(self, schema: pa.Schema) -> bool:
        """Any schema follows: each line names its own columns."""
        del schema
        return True

    def _append(self, batch: pa.RecordBatch) -> None:
        self._file.write("".join(f"{line}\n" for line in json_rows(self.sink, batch)).encode())


FORMATS: Final[dict[str, type[OpenFile]]] = {
    "parquet": ParquetFile,
    "csv": CsvFile,
    "jsonl": JsonLinesFile,
    "arrow": ArrowFile,
}


NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""Spark's and Hive's text of null and of the empty string."""
_ENCODED: Final = {code: f"%{code:02X}" for code in (*range(0x20), 0x7F, *map(ord, "\"#%'*/:<=>?[\\]^{|"))}
"""What Spark encodes, and also what Spark encodes on Windows alone."""


def check_partitions(sink: str, columns: Sequence[str], schema: pa.Schema) -> None:
    """Check that columns can be partitioned by.

    Raises:
        SchemaError: They cannot; the message names the column.
    """
    missing = [column for column in columns if column not in schema.names]
    if missing:
        raise SchemaError(f"sink {sink}: partition_by names {missing}; the columns are {schema.names}")
    for column in columns:
        kind = schema.field(column).type
        if pa.types.is_nested(kind) or _is_binary(kind):
            raise SchemaError(f"sink {sink}: partition_by column {column!r} is {kind}: cast it to text")
        if column.startswith(("_", ".")):
            raise SchemaError(
                f"sink {sink}: partition_by column {column!r}: many readers take folders that begin with '_' or '.' "
                "for hidden. Give it another name with select"
            )
    if len(set(columns)) == len(schema.names):
        raise SchemaError(f"sink {sink}: partition_by leaves no column for the files")


def _is_binary(kind: pa.DataType) -> bool:
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(check(kind) for check in checks)


def parts(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each folder, in order, without these columns; without columns all rows, in the folder ""."""
    if not columns:
        yield "", batch
        return
    rows: dict[str, list[int]] = {}
    names = [_encoded(column) for column in columns]
    for number, values in enumerate(zip(*(batch.column(column).to_pylist() for column in columns), strict=True)):
        folder = "/".join(f"{name}={_text(value)}" for name, value in zip(names, values, strict=True))
        rows.setdefault(folder, []).append(number)
    rest = batch.drop_columns(list(columns))
    for folder, numbers in rows.items():
        yield folder, rest.take(pa.array(numbers, pa.int64()))


def _text(value: Any) -> str:
    if value is None or value == "":
        return NULL
    if isinstance(value, bool):
        return str(value).lower()
    return _encoded(f"{value:f}" if isinstance(value, Decimal) else str(value))


def _encoded(text: str) -> str:
    return text.translate(_ENCODED)
