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
from onceward.sinks.folders import FolderSink, with_file_errors

from .area import ABORT, COMMIT, FileArea, hidden
from .formats import FORMATS, OpenFile, check_format, check_partitions, parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onceward.core.names import TransactionName

ROLL_BYTES: Final = 128 * 2**20
_UNWRITABLE: Final = (pa.ArrowException, ValueError, TypeError, OverflowError)


class Files:
    """The files of one transaction.

    Args:
        context: Context of the attempt.
        area: Where the files go.
        format_: Format of the files.
        roll_bytes: Size in bytes after which a new file is started.

    Attributes:
        finished: Partition and number of each complete file, as in the finished name.
    """

    def __init__(self, context: WriteContext, area: FileArea, format_: str, roll_bytes: int) -> None:
        self.context = context
        self.name = str(context.transaction_name())
        self.rows = 0
        self._format = format_
        self._roll = roll_bytes
        self._open: dict[str, tuple[str, OpenFile]] = {}
        self.finished: list[str] = []
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
        for partition in list(self._open):
            self._finish(partition)
        sync_folder(self.folder)
        sync_folder(self.folder.parent)

    def discard(self) -> None:
        for _, file in self._open.values():
            file.abandon()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begin(self, partition: str, schema: pa.Schema) -> tuple[str, OpenFile]:
        number = len(self.finished) + len(self._open)
        name = str(Path(partition) / f"{number}.{self._format}")
        path = self.folder / hidden(name)
        make_folder(path.parent)
        return name, OpenFile(path, self._format, schema)

    def _finish(self, partition: str) -> None:
        name, file = self._open.pop(partition)
        file.finish()
        sync_folder(file.path.parent)
        self.finished.append(name)


class FileSink(FolderSink[Files]):
    """Sink that writes files into a folder; each file appears whole, once, after its epoch's decision.

    Args:
        name: Unique in its pipeline.
        directory: The folder, which the writing processes and the committing process can all reach.
        format: "parquet", "csv" (with a header), "jsonl" or "arrow" (Arrow IPC files).
        partition_by: Columns whose values become folders (`country=de/`) and are left out of the files.
        roll_bytes: Size in bytes after which a new file is started; each epoch starts new ones anyway.
        select: SQL expressions that make this sink's columns out of the pipeline's; default: all columns.
        where: SQL condition; this sink gets only the rows for which it is true; default: all rows.

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
        super().__init__(name, directory, select=select, where=where)
        if format not in FORMATS:
            raise ConfigurationError(f"sink {name}: format {format!r} is unknown: give one of {', '.join(FORMATS)}")
        if roll_bytes < 1:
            raise ConfigurationError(f"sink {name}: roll_bytes must be 1 or more, not {roll_bytes}")
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
        check_partitions(self.name, self.partition_by, schema)
        left = pa.schema([field for field in schema if field.name not in self.partition_by])
        check_format(self.name, self.format, left)

    def validate_complete_mode(self) -> None:
        raise ConfigurationError(
            "output mode complete writes the whole result at each epoch, which would add every row again: use append",
            sink=self.name,
        )

    @with_file_errors
    def begin(self, context: WriteContext) -> Files:
        return Files(context, self._area, self.format, self.roll_bytes)

    @with_file_errors
    def write(self, transaction: Files, batch: pa.RecordBatch) -> None:
        try:
            for partition, rows in parts(batch, self.partition_by):
                transaction.write(partition, rows)
        except _UNWRITABLE as error:
            raise SinkError(f"a row cannot be written as {self.format}: {error}", sink=self.name) from error

    @with_file_errors
    def pre_commit(self, transaction: Files) -> Committable:
        transaction.finish()
        handle = {"files": transaction.finished, "folder": self._identity()}
        return transaction.context.committable(
            kind=self.kind, transaction=transaction.name, handle=handle, rows=transaction.rows
        )

    def discard(self, transaction: Files) -> None:
        transaction.discard()

    @with_file_errors
    def _commit(self, committable: Committable) -> CommitOutcome:
        """Rename each file to its final name."""
        transaction, files = committable.transaction, committable.handle["files"]
        missing = self._area.begin_commit(transaction, files)
        if missing:
            gone = self._area.pending(transaction) / hidden(missing[0])
            return commit_outcome(Observation.ABORTED, f"{gone} is gone")
        if not self._area.has_begun(transaction):
            return commit_outcome(*self._look(committable))
        moved = self._area.finish(transaction, files)
        return CommitOutcome(CommitStatus.COMMITTED if moved else CommitStatus.ALREADY_COMMITTED)

    @with_file_errors
    def _abort(self, committable: Committable) -> AbortOutcome:
        """Delete the pending files, unless their commit has begun."""
        if self._area.abort(committable.transaction):
            return AbortOutcome(AbortStatus.ABORTED)
        if self._area.has_begun(committable.transaction):
            return AbortOutcome(AbortStatus.COMMITTED)
        return AbortOutcome(AbortStatus.UNKNOWN, "there is no trace of it")

    def _look(self, committable: Committable) -> tuple[Observation, str]:
        transaction, files = committable.transaction, committable.handle.get("files", ())
        pending, begun = self._area.pending(transaction), self._area.has_begun(transaction)
        if pending.exists() or (begun and not self._area.is_finished(transaction, files)):
            return Observation.PREPARED, ""
        finished = [self._area.final(transaction, file).exists() for file in files]
        if begun or (committable.handle and all(finished)):
            return Observation.COMMITTED, ""
        if wrong := self._elsewhere(committable):
            return Observation.NO_ANSWER, wrong
        if not committable.handle or any(finished) or self._is_outlived(committable):
            return Observation.UNKNOWN, f"{pending} is gone; its files may have been finished"
        return Observation.ABORTED, f"{pending} is gone, and was not committed"

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
