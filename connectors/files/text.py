"""Files of text: CSV with a header as FileSink writes it, and what is read block by block.

Texts of CSV are in quotes, and a null is an empty cell without them. A row must fit into a block, so larger blocks are
tried if it does not. Compressed files are recognized by their first bytes, because Arrow's readers disagree about the
suffixes (26.0: `.json.zst` is read by one of them, `.csv.GZ` by none).
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from onceward.core.errors import SchemaError
from onceward.core.kit.rows import has_nulls

from .file_names import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_Result = TypeVar("_Result")

BLOCKS: Final = (2**20, 2**24, 2**28)
"""Bytes. The first is Arrow's default; larger ones take more memory."""
CSV_NULLS: Final[dict[str, Any]] = {
    "null_values": [""],
    "strings_can_be_null": True,
    "quoted_strings_can_be_null": False,
}
"""Options with which Arrow tells nulls from texts without characters."""
_CODECS: Final = {
    b"\x1f\x8b": "gzip",
    b"BZh91AY&SY": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
"""Arrow's names of compressions, by the bytes with which such a file begins."""
_BINARY: Final = (b"PK\x03\x04", b"\xfd7zXZ", b"x\x9c", b"x\xda", b"x\x01", b"PAR1", b"ARROW1")
"""First bytes of files that are not text: ZIP, XZ, zlib, Parquet, Arrow."""


def open_text(path: Path) -> Any:
    """Open a file of text as a stream of bytes, decompressed if it begins as a compressed file does.

    Raises:
        OSError: It cannot be opened.
        pyarrow.ArrowInvalid: It holds no text, or is compressed as Arrow cannot read it.
    """
    file = pa.OSFile(as_text(str(path)))
    begin = file.read(10)
    file.seek(0)
    begin = b"BZh9" + begin[4:] if begin[:3] == b"BZh" else begin  # the fourth byte is the level
    for magic, codec in _CODECS.items():
        if begin.startswith(magic):
            return pa.CompressedInputStream(file, codec)
    if b"\0" in begin[:4] or begin.startswith(_BINARY):
        raise pa.ArrowInvalid("it is no text in UTF-8, and not compressed with gzip, bzip2, Zstandard or LZ4 frames")
    return file


def csv_header(path: Path) -> list[str]:
    """Return the names of a CSV file's columns; none if it is empty."""
    with io.TextIOWrapper(open_text(path), encoding="utf-8-sig", errors="replace", newline="") as file:
        return next(csv.reader(file), [])


class CsvWriter:
    """CSV with a header, whose lines are rows to each reader.

    A null that is alone in its line would be an empty line, which Spark and pyarrow skip.
    """

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pyarrow.csv.CSVWriter(file, schema)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        if batch.num_columns == 1 and has_nulls(batch.column(0)):
            raise SchemaError(
                f"column {batch.schema.names[0]!r} is null in a row, and the only column of a CSV file: readers skip "
                "empty lines. Use another format, or write a second column"
            )
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _check_years(name, column)
        try:
            self._writer.write_batch(batch)
        except pa.ArrowInvalid as error:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                _check_text(name, column)
            raise error from None

    def close(self) -> None:
        self._writer.close()


def _check_years(name: str, column: pa.Array) -> None:
    """Refuse times of which Arrow would write `<value out of range: …>`, or with a zone another year."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp(column.type.unit))
    elif not pa.types.is_date(column.type):
        return
    if any(str(end.cast(pa.string())).startswith("<") for end in pc.min_max(column).values()):
        raise SchemaError(
            f"column {name!r} has a time outside of the years -32767 to 32767, which CSV cannot hold: use another "
            "format, or leave such rows out with where"
        )


def _check_text(name: str, column: pa.Array) -> None:
    try:
        column.cast(pa.string())
    except pa.ArrowNotImplementedError:
        return
    except pa.ArrowInvalid:
        raise ValueError(
            f"column {name!r} holds bytes that are not UTF-8, which CSV cannot hold: encode them as text, for example "
            "with base64"
        ) from None


def with_blocks(read: Callable[[int], _Result]) -> _Result:
    """Read with the first of BLOCKS that every row fits into.

    Raises:
        pyarrow.ArrowInvalid: A row is longer than the last one, or is not what it must be.
    """
    for block in BLOCKS[:-1]:
        try:
            return read(block)
        except pa.ArrowInvalid:
            continue
    return read(BLOCKS[-1])


def batches_with_blocks(read: Callable[[int], Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Read the batches of a file; if a row does not fit, continue there with larger blocks.

    Raises:
        pyarrow.ArrowInvalid: As in with_blocks.
    """
    count = 0
    for block in BLOCKS:
        at = 0
        try:
            for batch in read(block):
                at += batch.num_rows
                new = min(at - count, batch.num_rows)
                if new > 0:
                    count = at
                    yield batch.slice(batch.num_rows - new)
        except pa.ArrowInvalid:
            if block == BLOCKS[-1]:
                raise
        else:
            return
