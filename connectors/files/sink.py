"""FileSink: Parquet, CSV, JSON lines and Arrow files in a folder, exactly once.

Files are written and completed out of every reader's sight, and renamed after the decision; area.py has the
layout, and why a commit can be repeated by any process.

An object store has no rename; there, a multipart upload that is completed by its id would take its place, and the
handle would hold that id instead of the path.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from onceward.core.errors import ConfigurationError, SinkError
from onceward.core.folders import make_folder, sync_folder
from onceward.core.kit.options import arguments
from onceward.core.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    WriteContext,
    commit_outcome,
)
from onceward.sinks.folder_sink import FolderSink, with_file_errors
from onceward.sinks.folders import check_folder, elsewhere, identity_of

from .area import ABORT, COMMIT, FileArea, hidden
from .formats import FORMATS, OpenFile, check_partitions, parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onceward.core.names import TransactionName


ROLL_BYTES: Final = 128 * 2**20


class Files:
    """The files of one transaction.

    Args:
        context: Context of the attempt.
        area: Where the files go.
        format_: Format of the files.
        roll_bytes: Size in bytes after which a new file is started.
    """

    def __init__(self, context: WriteContext, area: FileArea, format_: str, roll_bytes: int) -> None:
        self.context = context
        self.name = str(context.transaction_name())
        self.rows = 0
        self._format = format_
        self._roll = roll_bytes
        self._open: dict[str, tuple[str, OpenFile]] = {}
        self.finished: list[str] = []
        """Partition and number of each, as in the finished name."""
        self.folder = area.pending(self.name)
        make_folder(self.folder)

    def write(self, partition: str, batch: pa.RecordBatch) -> None:
        """Append to the partition's file; start a new one for another schema, or when it is large enough."""
        if partition in self._open:
            _, file = self._open[partition]
            if file.size >= self._roll or not file.fits(batch.schema):
                self._finish(partition)
        if partition not in self._open:
            self._open[partition] = self._begin(partition, batch.schema)
        self._open[partition][1].write(batch)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Complete and sync everything."""
        for partition in list(self._open):
            self._finish(partition)
        sync_folder(self.folder)
        sync_folder(self.folder.parent)

    def discard(self) -> None:
        """Delete everything."""
        for _, file in self._open.values():
            file.abandon()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begin(self, partition: str, schema: pa.Schema) -> tuple[str, OpenFile]:
        number = len(self.finished) + len(self._open)
        name = str(Path(partition) / f"{number}.{self._format}")
        path = self.folder / hidden(name)
        make_folder(path.parent)
        return name, FORMATS[self._format](self.context.scope.sink, path, schema)

    def _finish(self, partition: str) -> None:
        name, file = self._open.pop(partition)
        file.finish()
        sync_folder(file.path.parent)
        self.finished.append(name)


class FileSink(FolderSink[Files]):
    """Sink that writes files into a folder; each file appears whole, once, after its epoch's decision.

    Args:
        name: Unique in its pipeline, up to 32 letters, digits, `.`, `_` and `-`. It is part of every transaction's
            name, so it must not change between runs.
        directory: The folder. All processes that write or commit must be able to reach it.
        format: "parquet", "csv" (with a header), "jsonl" or "arrow" (Arrow IPC files).
        partition_by: Columns whose values become folders (`country=de/`) and are left out of the files. As an option,
            comma-separated.
        roll_bytes: Size in bytes after which a new file is started (the default is 128 MiB). Each epoch and each
            subtask starts new files anyway.
        select: SQL expressions that make this sink's columns out of the pipeline's. Default: all columns.
        where: SQL condition; the sink takes only the rows for which it is true. Default: all rows.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    kind = "files"

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
        """Make a sink from Spark's options: `path`, `fileFormat`, `partitionBy` (comma-separated), `rollBytes`, `name`.

        Raises:
            ConfigurationError: An option is unknown, missing or not readable.
        """
        aliases = {"path": "directory", "fileFormat": "format"}
        return cls(**arguments(cls, {"name": "files", **options}, aliases=aliases))

    def validate(self, schema: pa.Schema) -> None:
        """Check the columns.

        Raises:
            SchemaError: A partition column is missing or cannot be the name of a folder, or the format cannot hold a
                type.
        """
        check_partitions(self.name, self.partition_by, schema)
        left = pa.schema([field for field in schema if field.name not in self.partition_by])
        FORMATS[self.format].check(self.name, left)

    def validate_complete_mode(self) -> None:
        """Refuse complete mode: files are only added."""
        raise ConfigurationError(
            "output mode complete writes the whole result at each epoch, which would add every row again: use append",
            sink=self.name,
        )

    @with_file_errors
    def begin(self, context: WriteContext) -> Files:
        """Open a transaction: create its folder."""
        return Files(context, self._area, self.format, self.roll_bytes)

    @with_file_errors
    def write(self, transaction: Files, batch: pa.RecordBatch) -> None:
        """Append to the files of the partitions.

        Raises:
            SinkError: The format cannot hold a value, or the file system failed.
        """
        try:
            for partition, rows in parts(batch, self.partition_by):
                transaction.write(partition, rows)
        except pa.ArrowException as error:
            raise SinkError(f"a row cannot be written as {self.format}: {error}", sink=self.name) from error

    @with_file_errors
    def pre_commit(self, transaction: Files) -> Committable:
        """Complete and sync the files."""
        transaction.finish()
        handle = {"files": transaction.finished, "folder": identity_of(self._area.path)}
        return transaction.context.committable(
            kind=self.kind, transaction=transaction.name, handle=handle, rows=transaction.rows
        )

    def discard(self, transaction: Files) -> None:
        transaction.discard()

    def commit(self, committable: Committable) -> CommitOutcome:
        """Rename each file to its final name."""
        transaction, files = committable.transaction, committable.handle["files"]
        try:
            missing = self._area.begin_commit(transaction, files)
            if missing:
                return CommitOutcome(
                    CommitStatus.LOST, f"{self._area.pending(transaction) / hidden(missing[0])} is gone"
                )
            if not self._area.has_begun(transaction):
                return commit_outcome(*self._without_proof(committable))
            moved = self._area.finish(transaction, files)
        except OSError as error:
            return CommitOutcome(CommitStatus.RETRY_LATER, f"{self.directory}: {error}")
        return CommitOutcome(CommitStatus.COMMITTED if moved else CommitStatus.ALREADY_COMMITTED)

    def _without_proof(self, committable: Committable) -> tuple[Observation, str]:
        """Neither pending nor known to be committed."""
        files, pending = committable.handle["files"], self._area.pending(committable.transaction)
        finished = [self._area.final(committable.transaction, file).exists() for file in files]
        if all(finished):
            return Observation.COMMITTED, ""
        if wrong := elsewhere(self._area.path, committable):
            return Observation.NO_ANSWER, wrong
        if any(finished) or self._is_outlived(committable):
            return Observation.UNKNOWN, f"{pending} is gone; its files may have been finished"
        return Observation.ABORTED, f"{pending} is gone, and was not committed"

    def abort(self, committable: Committable) -> AbortOutcome:
        """Delete the pending files, unless their commit has begun."""
        try:
            if self._area.abort(committable.transaction):
                return AbortOutcome(AbortStatus.ABORTED)
            if self._area.has_begun(committable.transaction):
                return AbortOutcome(AbortStatus.COMMITTED)
        except OSError as error:
            return AbortOutcome(AbortStatus.RETRY_LATER, f"{self.directory}: {error}")
        return AbortOutcome(AbortStatus.UNKNOWN, "there is no trace of it")

    @with_file_errors
    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        """Look for the pending folder, for the proof of a commit, then for the files."""
        return [self._inspect(committable) for committable in committables]

    def _inspect(self, committable: Committable) -> Observation:
        transaction, files = committable.transaction, committable.handle.get("files", ())
        if self._area.pending(transaction).exists():
            return Observation.PREPARED
        if self._area.has_begun(transaction):
            finished = self._area.is_finished(transaction, files)
            return Observation.COMMITTED if finished else Observation.PREPARED
        if not files:
            return Observation.UNKNOWN
        return self._without_proof(committable)[0]

    @property
    def _area(self) -> FileArea:
        return FileArea(Path(self.directory))

    @property
    def _place(self) -> Path:
        return self._area.path

    def _pending(self) -> list[TransactionName]:
        return self._area.names("", ABORT)

    def _proven(self) -> list[TransactionName]:
        return self._area.names(COMMIT)

    def _forget(self, name: TransactionName, *, give_up: bool) -> None:
        self._area.forget(name, give_up=give_up)
