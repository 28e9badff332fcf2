"""State in RocksDB, larger than memory, with incremental snapshots.

A snapshot flushes and hard-links RocksDB's files, which never change and only come and go, and uploads those which the
newest completed checkpoint does not hold yet; the rest is referred to. Only a *completed* checkpoint is a base: files
of one that was given up are deleted again. The working copy is disposable: nothing is written ahead or synced in it.

After "Incremental Checkpointing in Apache Flink" (2018). Each upload gets a path of its own, so a file of the same name
with other content (another subtask, another run) is another file.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from ...errors import MissingExtraError, StateError, text_of
from .handles import FileRef, KeyedHandle
from .keys import group_in, row_end, row_prefix
from .row_store import Freezing, KeyedTable, Overflow, StateBackend, encode_cells, require_storage, restored_cells
from .storage import SHARED, CheckpointStorage, folder_in, inside
from .working import WorkingCopy, room

try:
    from rocksdict import AccessType, Checkpoint, Options, Rdict, WriteBatch, WriteOptions
except ModuleNotFoundError as error:
    advice = "RocksDBBackend needs rocksdict: pip install 'onceward[rocksdb]'"
    raise MissingExtraError(advice, name=error.name) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ..channels import TaskId
    from .row_store import Cell

_SUFFIX: Final = ".sst"
_FORM: Final = "rocksdb"
_NEAR_BYTES: Final = 16_000_000
_OVERFLOW_BUFFER: Final = 4_000_000
"""Bytes of an overflow that RocksDB keeps in memory before it writes them."""
_ENTRY: Final = 200
"""Bytes that Python takes for an entry of a dictionary and its objects."""


class RocksTable(KeyedTable):
    """One subtask's RocksDB."""

    def __init__(
        self,
        copy: WorkingCopy,
        groups: range,
        task: str,
        generation: int,
        base: Iterable[FileRef],
        *,
        incremental: bool,
    ) -> None:
        self._copy = copy
        self._groups = groups
        self._task = task
        self._generation = generation
        self._incremental = incremental
        # For `_base` and `_written`: files are written in another thread than the one that confirms.
        self._lock = Lock()
        self._db = _open(copy.folder / "db")
        self.overflow = self._make_overflow
        self._overflows: list[RocksOverflow] = []
        self._near: dict[bytes, bytes | None] = {}
        """Values that were read or written lately, by row and column. Every call into RocksDB lets another thread take
        the interpreter, which then keeps it for milliseconds."""
        self._changed: dict[bytes, bytes | None] = {}
        """Those of them that RocksDB does not have yet; None: deleted."""
        self._room = _NEAR_BYTES
        self._base = {ref.name: ref for ref in base if ref.shared}
        """Files of the working copy that a completed checkpoint holds."""
        self._written: dict[int, dict[str, FileRef]] = {}
        self._round: bytes | None = None
        """Where `revise` goes on; None: at the front."""

    def get(self, row: bytes, column: bytes = b"") -> bytes | None:
        key = row + column
        try:
            return self._near[key]
        except KeyError:
            self._make_room()
            value: bytes | None = self._db.get(key)
            self._keep(key, value)
            return value

    def put(self, row: bytes, value: bytes, column: bytes = b"") -> None:
        self._change(row + column, value)

    def get_many(self, rows: Sequence[bytes]) -> list[bytes | None]:
        # First, because it may forget values, and the last line reads them all.
        self._make_room()
        missing = [row for row in rows if row not in self._near]
        for row, value in zip(missing, self._db.get(missing) if missing else (), strict=True):
            self._keep(row, value)
        return [self._near[row] for row in rows]

    def put_many(self, rows: Sequence[bytes], values: Sequence[bytes]) -> None:
        for row, value in zip(rows, values, strict=True):
            self._change(row, value)

    def delete(self, row: bytes, column: bytes = b"") -> None:
        self._change(row + column, None)

    def columns(self, row: bytes) -> Iterator[tuple[bytes, bytes]]:
        # RocksDB does not have what was changed lately.
        self._write_changes()
        for key, value in self._db.items(from_key=row):
            if not key.startswith(row):
                return
            yield key[len(row) :], value

    def scan(self, prefix: bytes) -> Iterator[Cell]:
        self._write_changes()
        return _cells(self._db, prefix)

    def revise(self, revised: Callable[[bytes, bytes], bytes | None], most: int | None) -> None:
        self._write_changes()
        start, self._round = (self._round if most is not None else None), None
        for number, (key, value) in enumerate(self._db.items(from_key=start) if start else self._db.items()):
            if number == most:
                self._round = key
                return
            new = revised(key[: row_end(key)], value)
            if new is not value:
                self._change(key, new)

    def _change(self, key: bytes, value: bytes | None) -> None:
        self._make_room()
        self._keep(key, value)
        self._changed[key] = value

    def _keep(self, key: bytes, value: bytes | None) -> None:
        if key in self._near:
            self._room += len(self._near[key] or b"")
        else:
            self._room -= _ENTRY + len(key)
        self._room -= len(value or b"")
        self._near[key] = value

    def _make_room(self) -> None:
        if self._room < 0:
            self._write_changes()
            self._near.clear()
            self._room = _NEAR_BYTES

    def _write_changes(self) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in self._changed.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self._db.write(batch)
        self._changed.clear()

    def freeze(self, checkpoint: int, *, full: bool = False) -> Freezing:
        frozen = self._copy.folder / f"frozen-{checkpoint}-{secrets.token_hex(4)}"
        try:
            self._write_changes()
            self._db.flush()
            Checkpoint(self._db).create_checkpoint(str(frozen))
        except Exception as error:
            raise StateError(f"RocksDB of {self._task} cannot be frozen: {text_of(error)}") from error
        # Taken now, because `confirm` may set another one before the files are written.
        base = self._base

        def write(storage: CheckpointStorage | None, folder: str) -> tuple[KeyedHandle, int]:
            if storage is None:
                raise StateError(f"there is no folder for the files of {self._task}")
            if full or not self._incremental:
                return self._write_rows(frozen, storage, inside(folder, f"{self._task}-{checkpoint}.rows"))
            return self._write_files(frozen, storage, folder, checkpoint, base)

        return Freezing(write, lambda: shutil.rmtree(frozen, ignore_errors=True))

    def confirm(self, checkpoint: int) -> None:
        with self._lock:
            self._base = self._written.get(checkpoint, self._base)
            self._written = {later: files for later, files in self._written.items() if later > checkpoint}

    def close(self) -> None:
        try:
            for database in (self._db, *self._overflows):
                with suppress(Exception):  # a full disk: what it cannot write is not needed any more
                    database.close()
        finally:
            self._copy.close()

    def _make_overflow(self) -> Overflow:
        overflow = RocksOverflow(self._copy.folder / f"overflow-{len(self._overflows)}")
        self._overflows.append(overflow)
        return overflow

    def _write_rows(self, frozen: Path, storage: CheckpointStorage, path: str) -> tuple[KeyedHandle, int]:
        with _reading(frozen) as db:
            ref = storage.write(path, encode_cells(_cells(db, b"")))
        return KeyedHandle(first=self._groups.start, end=self._groups.stop, files=(ref,)), ref.size

    def _write_files(
        self, frozen: Path, storage: CheckpointStorage, folder: str, checkpoint: int, base: dict[str, FileRef]
    ) -> tuple[KeyedHandle, int]:
        files: list[FileRef] = []
        try:
            for path in sorted(frozen.iterdir()):
                known = base.get(path.name)
                if path.suffix != _SUFFIX:
                    files.append(storage.copy_in(path, inside(folder, f"{self._task}/{path.name}"), shared=False))
                elif known is not None:
                    files.append(known)
                else:
                    where = f"{SHARED}/{self._generation}-{self._task}-{secrets.token_hex(8)}{_SUFFIX}"
                    files.append(storage.copy_in(path, where, shared=True))
        except StateError:
            # Not those of the base, to which a completed checkpoint refers.
            storage.delete(ref.path for ref in files if base.get(ref.name) != ref)
            raise
        with self._lock:
            self._written[checkpoint] = {ref.name: ref for ref in files if ref.shared}
        handle = KeyedHandle(first=self._groups.start, end=self._groups.stop, form=_FORM, files=tuple(files))
        return handle, sum(ref.size for ref in files if base.get(ref.name) != ref)


class RocksOverflow(Overflow):
    """A RocksDB of its own in the working copy, so that snapshots need not leave it out."""

    def __init__(self, folder: Path) -> None:
        self._db = _open(folder, write_buffer=_OVERFLOW_BUFFER)

    def change(self, changes: Mapping[bytes, bool]) -> None:
        batch = WriteBatch(raw_mode=True)
        for data, there in changes.items():
            if there:
                batch.put(data, b"")
            else:
                batch.delete(data)
        self._db.write(batch)

    def first(self, start: bytes, most: int) -> list[bytes]:
        return list(islice(self._db.keys(from_key=start), most))

    def close(self) -> None:
        self._db.close()


class RocksDBBackend(StateBackend):
    """Backend for state larger than memory, in RocksDB; snapshots are files, by default only those that are new.

    Args:
        folder: Folder of checkpoints: a path, file:///…, or a URL that fsspec knows (s3://bucket/folder). It must
            survive every failure that the job must survive.
        local: Folder on a local disk for working copies, which may be lost at any time. Default: the system's folder
            for temporary files (TMPDIR). A start removes working copies that killed runs of the pipeline left there.
        incremental: Upload only files that the newest completed checkpoint does not hold.
    """

    def __init__(self, folder: str | Path, *, local: str | Path | None = None, incremental: bool = True) -> None:
        self.storage: CheckpointStorage = CheckpointStorage(folder)
        self.local = Path(local) if local is not None else None
        self.incremental = incremental
        self._owner: str | None = None
        """Where the pipeline's checkpoints are, under whichever decision log."""

    def bind(self, name: str) -> StateBackend:
        root = folder_in(self.storage.root, name)
        bound = RocksDBBackend(root, local=self.local, incremental=self.incremental)
        bound._owner = self._owner or root
        return bound

    def open(
        self,
        task: TaskId,
        groups: range,
        restored: Sequence[KeyedHandle],
        storage: CheckpointStorage | None,
        generation: int = 0,
    ) -> KeyedTable:
        copy = WorkingCopy(self.local, self._owner or self.storage.root)
        same = len(restored) == 1 and restored[0].form == _FORM and _groups(restored[0]) == groups
        base: tuple[FileRef, ...] = ()
        try:
            if same:
                _copy_out(restored[0], require_storage(storage), copy.folder / "db")
                # A handle's paths are in this storage, so files of another one must be uploaded again.
                base = restored[0].files if require_storage(storage).root == self.storage.root else ()
            table = RocksTable(copy, groups, str(task), generation, base, incremental=self.incremental)
            for handle in () if same else restored:
                for row, column, value in _cells_of(handle, storage, groups, copy.folder / "restored"):
                    table.put(row, value, column)
        except BaseException:
            copy.close()
            raise
        return table


def cells_of_rocksdb(handle: KeyedHandle, storage: CheckpointStorage | None, groups: range) -> Iterator[Cell]:
    """Yield the cells of a handle in RocksDB's form that belong to these groups, for any other backend."""
    copy = WorkingCopy(None, require_storage(storage).root)
    try:
        yield from _cells_of(handle, storage, groups, copy.folder / "restored")
    finally:
        copy.close()


def _cells_of(handle: KeyedHandle, storage: CheckpointStorage | None, groups: range, folder: Path) -> Iterator[Cell]:
    """Yield the cells of a handle of any form that belong to these groups; RocksDB's files go to `folder`."""
    if handle.form == "rows":
        yield from restored_cells(handle, storage, groups)
        return
    try:
        _copy_out(handle, require_storage(storage), folder)
        with _reading(folder) as db:
            for group in _groups(handle):
                yield from (cell for cell in _cells(db, row_prefix(group, "")[:2]) if group_in(cell[0]) in groups)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _groups(handle: KeyedHandle) -> range:
    return range(handle.first, handle.end)


def _copy_out(handle: KeyedHandle, storage: CheckpointStorage, folder: Path) -> None:
    with room(folder):
        folder.mkdir(parents=True)
        for ref in handle.files:
            storage.copy_out(ref, folder / ref.name)


def _options() -> Any:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_keep_log_file_num(1)
    return options


def _open(path: Path, write_buffer: int | None = None) -> Any:
    options = _options()
    if write_buffer is not None:
        options.set_write_buffer_size(write_buffer)
    try:
        db = Rdict(str(path), options)
    except Exception as error:
        raise StateError(f"RocksDB cannot be opened at {path}: {text_of(error)}") from error
    unlogged = WriteOptions()
    # The working copy may be lost at any time: what must survive is in checkpoints.
    unlogged.disable_wal = True  # type: ignore[method-assign,assignment]  # its stub takes the property for a method
    db.set_write_options(unlogged)
    return db


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    try:
        db = Rdict(str(path), _options(), access_type=AccessType.read_only())
    except Exception as error:
        raise StateError(f"RocksDB cannot be read at {path}: {text_of(error)}") from error
    try:
        yield db
    finally:
        db.close()


def _cells(db: Any, prefix: bytes) -> Iterator[Cell]:
    for key, value in db.items(from_key=prefix) if prefix else db.items():
        if not key.startswith(prefix):
            return
        at = row_end(key)
        yield key[:at], key[at:], value
