"""FileSink: Parquet, CSV, JSON lines and Arrow files in a folder, exactly once.

    <folder>/_onceward/<transaction>/…/<n>.<format>     in progress, then pending: complete and synced
    <folder>/<column>=<value>/…/<transaction>-<n>.<format>    finished

A file is renamed from pending to finished, which a file system does atomically: no reader sees a part of one. Readers
pass over names that begin with "_" (Spark, Hive, pyarrow.dataset do). The finished name says which transaction wrote
it, so a commit that is repeated finds it there. Files of one transaction appear one after the other.

An object store has no rename; there, a multipart upload that is completed by its id takes the place of it, and the id
that of the path in the handle.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from ..connectors.options import Option, read_options
from ..core.errors import ConfigurationError, RetryableSinkError, SchemaError
from ..core.folders import make_folder, sync_folder
from ..core.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    ExternalState,
    WriteContext,
)
from .base import TwoPhaseCommitSink
from .file_formats import FORMATS, OpenFile
from .folders import FolderClaims, check_folder, elsewhere, identity_of, name_in, sole
from .partitions import folder_of, parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from ..core.names import Scope


KIND: Final = "files"
PENDING: Final = "_onceward"
ROLL_BYTES: Final = 128 * 2**20


class Files:
    """The files of one transaction.

    Args:
        context: Of the attempt.
        root: Folder of the sink.
        format_: Of the files.
        roll_bytes: Size after which a new file is begun.
    """

    def __init__(self, context: WriteContext, root: Path, format_: str, roll_bytes: int) -> None:
        self.name = context.transaction_name()
        self.rows = 0
        self._root = root
        self._format = format_
        self._roll = roll_bytes
        self._open: dict[str, OpenFile] = {}
        self.finished: list[str] = []
        """Paths below the transaction's folder."""
        self.folder = root / PENDING / str(self.name)
        make_folder(self.folder)

    def write(self, partition: str, batch: pa.RecordBatch) -> None:
        """Append to the partition's file; a new one for another schema, or when it is large enough."""
        file = self._open.get(partition)
        if file is not None and (file.size >= self._roll or not file.fits(batch.schema)):
            self._finish(partition)
            file = None
        if file is None:
            file = self._open[partition] = self._begin(partition, batch.schema)
        file.write(batch)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Complete and sync everything."""
        for partition in list(self._open):
            self._finish(partition)
        sync_folder(self.folder)
        sync_folder(self.folder.parent)

    def discard(self) -> None:
        """Delete everything."""
        for file in self._open.values():
            file.abandon()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begin(self, partition: str, schema: pa.Schema) -> OpenFile:
        folder = self.folder / partition
        make_folder(folder)
        number = len(self.finished) + len(self._open)
        return FORMATS[self._format](folder / f"{number}.{self._format}", schema)

    def _finish(self, partition: str) -> None:
        file = self._open.pop(partition)
        file.finish()
        sync_folder(file.path.parent)
        self.finished.append(str(file.path.relative_to(self.folder)))


OPTIONS: Final = (
    Option("path", "directory", required=True),
    Option("name", "name"),
    Option("fileFormat", "format"),
    Option("partitionBy", "partition_by", lambda text: tuple(column.strip() for column in text.split(","))),
    Option("rollBytes", "roll_bytes", int),
)


class FileSink(TwoPhaseCommitSink[Files]):
    """Writes files into a folder.

    Args:
        name: Unique in its pipeline.
        directory: The folder, which the processes that write and the one that commits all see.
        format: "parquet", "csv" (with a header), "jsonl" or "arrow" (Arrow IPC files).
        partition_by: Columns whose values become folders (`country=de/`) and are left out of the files.
        roll_bytes: Size in bytes after which a new file is begun; each epoch begins new ones anyway.
        select: See Sink.
        where: See Sink.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    def __init__(
        self,
        name: str,
        directory: str | Path,
        *,
        format: str = "parquet",  # noqa: A002 - as pyarrow and pandas call it
        partition_by: Sequence[str] = (),
        roll_bytes: int = ROLL_BYTES,
        select: Sequence[str] | None = None,
        where: str | None = None,
    ) -> None:
        super().__init__(name, select=select, where=where)
        check_folder(name, directory)
        if format not in FORMATS:
            raise ConfigurationError(f"sink {name}: format {format!r}; give one of {', '.join(FORMATS)}")
        if roll_bytes < 1:
            raise ConfigurationError(f"sink {name}: roll_bytes must be 1 or more, not {roll_bytes}")
        self.directory = str(Path(directory).absolute())
        self.format = format
        self.partition_by = tuple(partition_by)
        self.roll_bytes = roll_bytes

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """From Spark's options: `path`, `fileFormat`, `partitionBy` (columns, comma between), `rollBytes`, `name`.

        Raises:
            ConfigurationError: An option is unknown, missing or not readable.
        """
        return cls(**{"name": "files", **read_options("a file sink", options, OPTIONS)})

    def validate(self, schema: pa.Schema) -> None:
        """Check the columns.

        Raises:
            SchemaError: A partition column is missing, or the format cannot hold a type.
        """
        missing = [column for column in self.partition_by if column not in schema.names]
        if missing:
            raise SchemaError(f"sink {self.name}: partition_by names {missing}; the columns are {schema.names}")
        left = [field for field in schema if field.name not in self.partition_by]
        if not left:
            raise SchemaError(f"sink {self.name}: partition_by leaves no column for the files")
        FORMATS[self.format].check(self.name, left)

    def validate_complete_mode(self) -> None:
        """Complete mode does not fit: files are only added."""
        raise ConfigurationError(
            "output mode complete writes the whole result at each epoch, which would add every row again: use append",
            sink=self.name,
        )

    def begin(self, context: WriteContext) -> Files:
        """Open a transaction's folder."""
        return Files(context, Path(self.directory), self.format, self.roll_bytes)

    def write(self, transaction: Files, batch: pa.RecordBatch) -> None:
        """Append to the files of the partitions."""
        for values, rows in parts(batch, self.partition_by):
            transaction.write(folder_of(self.partition_by, values), rows)

    def pre_commit(self, transaction: Files) -> Committable:
        """Complete and sync the files."""
        transaction.finish()
        handle = {"files": transaction.finished, "folder": identity_of(Path(self.directory) / PENDING)}
        return Committable.named(KIND, transaction.name, handle=handle, rows=transaction.rows)

    def discard(self, transaction: Files) -> None:
        """Delete the files."""
        transaction.discard()

    def commit(self, committable: Committable) -> CommitOutcome:
        """Rename each file to its final name."""
        try:
            with sole(self._pending(committable)) as there:
                if there:
                    return self._rename(committable)
        except RetryableSinkError as error:
            return CommitOutcome(CommitStatus.RETRY_LATER, str(error))
        if all(self._final(committable, file).exists() for file in committable.handle["files"]):
            return CommitOutcome(CommitStatus.ALREADY_COMMITTED)
        if wrong := elsewhere(Path(self.directory) / PENDING, committable):
            return CommitOutcome(CommitStatus.RETRY_LATER, wrong)
        return CommitOutcome(CommitStatus.LOST, f"{self._pending(committable)} is gone")

    def _rename(self, committable: Committable) -> CommitOutcome:
        moved = 0
        for file in committable.handle["files"]:
            pending, final = self._pending(committable) / file, self._final(committable, file)
            try:
                make_folder(final.parent)
                if not final.exists():
                    pending.rename(final)
                    moved += 1
            except FileNotFoundError:
                if not final.exists():
                    return CommitOutcome(CommitStatus.LOST, f"{pending} is gone")
            except OSError as error:
                return CommitOutcome(CommitStatus.RETRY_LATER, str(error))
            sync_folder(final.parent)
        shutil.rmtree(self._pending(committable), ignore_errors=True)
        return CommitOutcome(CommitStatus.COMMITTED if moved else CommitStatus.ALREADY_COMMITTED)

    def abort(self, committable: Committable) -> AbortOutcome:
        """Delete the pending files, unless one of them is finished."""
        try:
            with sole(self._pending(committable)) as there:
                if self._any_finished(committable):
                    return AbortOutcome(AbortStatus.COMMITTED)
                if there:
                    shutil.rmtree(self._pending(committable), ignore_errors=True)
                    return AbortOutcome(AbortStatus.ABORTED)
        except RetryableSinkError as error:
            return AbortOutcome(AbortStatus.RETRY_LATER, str(error))
        return AbortOutcome(AbortStatus.UNKNOWN, "there is no trace of it")

    def _any_finished(self, committable: Committable) -> bool:
        stem = f"{committable.transaction}-"
        return any(path.name.startswith(stem) for path in Path(self.directory).rglob(f"*.{self.format}"))

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        """Transactions of exactly this pipeline and sink that have pending files."""
        folder = Path(self.directory) / PENDING
        names = [name_in(path.name, scope) for path in sorted(folder.iterdir())] if folder.is_dir() else []
        return [Committable.named(KIND, name) for name in names if name is not None]

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[ExternalState]:
        """Look for the pending folder, then for the files."""
        return [self._inspect(committable) for committable in committables]

    def _inspect(self, committable: Committable) -> ExternalState:
        files = committable.handle.get("files", ())
        if self._pending(committable).exists():
            return ExternalState.PREPARED
        if files and all(self._final(committable, file).exists() for file in files):
            return ExternalState.COMMITTED
        wrong = elsewhere(Path(self.directory) / PENDING, committable)
        return ExternalState.UNKNOWN if wrong or not files else ExternalState.ABORTED

    def claim(self, scope: Scope) -> None:
        """Note the decision log behind this pipeline's name in the folder.

        Raises:
            EpochConflictError: The folder knows the name from another one.
        """
        FolderClaims(Path(self.directory) / PENDING).claim(scope)

    def release(self, scope: Scope) -> None:
        """Forget it."""
        FolderClaims(Path(self.directory) / PENDING).release(scope)

    def _pending(self, committable: Committable) -> Path:
        return Path(self.directory) / PENDING / committable.transaction

    def _final(self, committable: Committable, file: str) -> Path:
        path = Path(file)
        return Path(self.directory) / path.parent / f"{committable.transaction}-{path.name}"
