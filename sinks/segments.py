"""Segments of a write-ahead log: an epoch's batches of one subtask in a file, and how far they were sent.

    <folder>/<transaction>.partial    being written
    <folder>/<transaction>.segment    prepared: complete, synced
    <folder>/<transaction>.marks      sending has begun: after each delivery a line says how many rows are delivered
    <folder>/<transaction>.done       everything is delivered; the segment is gone. Kept until a newer transaction's
                                      epoch is completed, as proof, and as that which shows how far the log had come

1. A batch is a frame: its length, its SHA-256, and an Arrow IPC stream of its own. The committable holds the digest of
   the whole file. A frame that does not match is an error; nothing after it is sent.
2. A mark is a line with a checksum. A torn last line is cut off: its delivery is repeated, under the same identity. A
   damaged line with others behind it is an error.
3. A mark's room is reserved before its delivery: bytes of zero follow the last mark. So a full disk refuses a delivery
   that it could not record, instead of having it repeated in each attempt.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Final

import pyarrow as pa

from onceward.core.contract.names import file_name
from onceward.core.errors import DataLossError
from onceward.core.kit.folders import file_errors, make_folder, sole, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.core.contract.row_hash import RowHash
    from onceward.core.contract.transaction import WriteContext

_HEADER: Final = struct.Struct(">Q32s")
_DIGITS: Final = 20
_MARK_BYTES: Final = _DIGITS + len(" 01234567\n")
_ROOM: Final = 4096
"""Bytes that are reserved for marks at a time: a block of most file systems."""
PARTIAL, SEGMENT, MARKS, DONE = ".partial", ".segment", ".marks", ".done"


class Segment:
    """A segment that an attempt is writing."""

    def __init__(self, folder: Path, context: WriteContext) -> None:
        make_folder(folder)
        self.context = context
        self.hash: RowHash | None = None
        self.name = str(context.transaction_name())
        self.rows = 0
        self._path = folder / f"{file_name(self.name)}{PARTIAL}"
        self._digest = hashlib.sha256()
        self._file = self._path.open("xb")

    def write(self, batch: pa.RecordBatch) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        body = sink.getvalue().to_pybytes()
        frame = _HEADER.pack(len(body), hashlib.sha256(body).digest()) + body
        self._digest.update(frame)
        self._file.write(frame)
        self.rows += batch.num_rows

    def finish(self) -> str:
        """Make it durable under its final name; the SHA-256 of its bytes.

        Raises:
            SinkError: Its file system has no locks, so it could not be committed.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        with sole(self._path):
            self._path.rename(self._path.with_suffix(SEGMENT))
        sync_folder(self._path.parent)
        return self._digest.hexdigest()

    def discard(self) -> None:
        with suppress(OSError):  # a full disk refuses again what is still in the buffer
            self._file.close()
        self._path.unlink(missing_ok=True)


def read_segment(path: Path, sha256: str, sink: str) -> Iterator[pa.RecordBatch]:
    """Check a whole segment, and return its batches, which are read one at a time.

    Args:
        path: File of the segment.
        sha256: Digest of the file, from the committable.
        sink: Name of the sink, for errors.

    Raises:
        DataLossError: The file is not as it was written.
        RetryableSinkError: The file cannot be read.
    """
    with file_errors(sink, path), path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise DataLossError(f"segment {path} is damaged: {_damage(path)}")
    return _batches(path, sink)


def _batches(path: Path, sink: str) -> Iterator[pa.RecordBatch]:
    with file_errors(sink, path), path.open("rb") as file:
        for _, body in _frames(file):
            yield from pa.ipc.open_stream(body)


def _frames(file: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Yield the recorded SHA-256 and the bytes of each frame; a damaged one may end where the file ends."""
    size = os.fstat(file.fileno()).st_size
    while len(header := file.read(_HEADER.size)) == _HEADER.size:
        length, digest = _HEADER.unpack(header)
        yield digest, file.read(min(length, size))


def _damage(path: Path) -> str:
    """Return which batch of a damaged segment is the first that is not as it was written."""
    at = number = 0
    with path.open("rb") as file:
        for digest, body in _frames(file):
            if hashlib.sha256(body).digest() != digest:
                break
            at += _HEADER.size + len(body)
            number += 1
    return f"batch {number}, at byte {at} of {path.stat().st_size}"


def read_marks(path: Path) -> tuple[int, int]:
    """Return how many rows the marks say are delivered, and at which byte they end: a torn mark may follow.

    Raises:
        DataLossError: A mark in the middle is damaged.
    """
    sent = good = 0
    data = path.read_bytes().rstrip(b"\0") if path.exists() else b""  # (3)
    for line in data.splitlines(keepends=True):
        mark = _mark(line)
        if mark is None:
            if good + len(line) < len(data):
                raise DataLossError(f"{path} is damaged at byte {good}: how much was delivered is unknown")
            break  # torn by a crash
        sent, good = mark, good + len(line)
    return sent, good


class Marks:
    """The number of a segment's rows that are delivered, in a file.

    Attributes:
        sent: Number of rows that were delivered when the file was opened.

    Raises:
        DataLossError: A mark in the middle is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.sent, good = read_marks(path)
        self._file = path.open("r+b" if path.exists() else "xb")
        try:
            self._file.truncate(good)
            self._end = self._reserved = self._file.seek(good)
            sync_folder(path.parent)  # before the first delivery: without its marks all would be repeated
        except OSError:
            self.close()
            raise

    def reserve(self) -> None:
        """Take room on the disk for the next mark."""
        if self._end + _MARK_BYTES > self._reserved:
            self._reserved = (self._end + _MARK_BYTES + _ROOM - 1) // _ROOM * _ROOM
            self._file.write(bytes(self._reserved - self._end))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.seek(self._end)

    def put(self, sent: int) -> None:
        """Record that so many rows are delivered; durable when this returns."""
        text = str(sent).encode()
        self._end += self._file.write(text + b" %08x\n" % zlib.crc32(text))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. Only a mark whose `put` has raised is still in the buffer, and may be refused again."""
        with suppress(OSError):
            self._file.close()


def _mark(line: bytes) -> int | None:
    text, _, crc = line.partition(b" ")
    good = crc == b"%08x\n" % zlib.crc32(text) and text.isdigit() and len(text) < _DIGITS
    return int(text) if good else None
