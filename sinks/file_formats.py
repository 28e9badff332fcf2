"""Files of each format, written batch by batch and synced at the end."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ..core.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class OpenFile(ABC):
    """A file that is being written.

    Args:
        path: Where.
        schema: Of all its batches.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self._file = path.open("xb")
        self._open()

    @classmethod  # noqa: B027 - most hold everything
    def check(cls, sink: str, fields: Sequence[pa.Field]) -> None:
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
        self._close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Nobody wants it."""
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
    def check(cls, sink: str, fields: Sequence[pa.Field]) -> None:
        """See OpenFile."""
        for field in fields:
            if pa.types.is_nested(field.type):
                raise SchemaError(f"sink {sink}: CSV cannot hold column {field.name!r} of type {field.type}")

    def _open(self) -> None:
        self._writer = pyarrow.csv.CSVWriter(self._file, self.schema)

    def _append(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def _close(self) -> None:
        self._writer.close()


class JsonLinesFile(OpenFile):
    """A JSON object a line; dates and times in ISO 8601, decimals as text, bytes in hex."""

    def fits(self, schema: pa.Schema) -> bool:
        """Each line says its own."""
        del schema
        return True

    def _append(self, batch: pa.RecordBatch) -> None:
        lines = [json.dumps(row, ensure_ascii=False, default=_plain) for row in batch.to_pylist()]
        self._file.write("".join(f"{line}\n" for line in lines).encode())


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


FORMATS: Final[dict[str, type[OpenFile]]] = {
    "parquet": ParquetFile,
    "csv": CsvFile,
    "jsonl": JsonLinesFile,
    "arrow": ArrowFile,
}
