"""Files of each format, written batch by batch and synced at the end."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from onceward.core.errors import SchemaError
from onceward.core.kit.rows import check_columns, json_rows

if TYPE_CHECKING:
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
        """Append a batch."""
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
