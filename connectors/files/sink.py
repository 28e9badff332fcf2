"""FileSink: Parquet, CSV, JSON lines and Arrow files in a folder, exactly once.

Files are written and completed out of every reader's sight, and renamed after the decision.

    <root>/_onceward/<transaction>/<partition>/.<n>.<format>.pending    being written, then prepared: complete, synced
    <root>/_onceward/<transaction>.commit/…                             decided: what is in it is still to be moved
    <root>/_onceward/<transaction>.abort/…                              given up: being deleted
    <root>/<partition>/<transaction>-<n>.<format>                       finished

1. The transaction's folder is renamed before anything else happens to it, which a file system does atomically: of a
   commit and an abort in parallel, one finds nothing.
2. A file is renamed from pending to finished: no reader sees a part of it. Files of one transaction appear one after
   the other. The finished name says which transaction wrote it.
3. Nothing but a commit takes files out of `.commit`, and it puts each under its finished name. So a file that is not
   there any more has been finished, even if a loader has taken it away since.
4. The empty `.commit` stays until a newer transaction's is completed: it proves the commit whatever becomes of the
   finished files, and shows how far the decision log had come.
5. No reader sees what is pending, however it looks for files: Spark, Hive and pyarrow ignore names that begin with "_"
   or ".", whether they list the root or a glob names a folder below it; DuckDB and globs look for the extension.

An object store has no rename; there, a multipart upload that is completed by its id would take its place, and the
handle would hold that id instead of the path.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import msgspec
import pyarrow as pa

from onceward.core.contract.names import file_name
from onceward.core.contract.row_hash import RowHash, proof_of
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    WriteContext,
    commit_outcome,
)
from onceward.core.errors import ConfigurationError, RetryableSinkError, SchemaError, SinkError, refusing_rows, text_of
from onceward.core.kit.folders import check_rename, make_folder, sync_folder
from onceward.core.kit.rows import in_microseconds
from onceward.core.kit.secrets import without_logins
from onceward.core.kit.text_options import check_choice, check_types
from onceward.sinks.folder_claims import FolderLedger, FolderSink, names_of, with_file_errors

from .file_formats import (
    FORMATS,
    OPEN_FILES,
    FileFormat,
    Files,
    as_lines,
    check_format,
    check_names,
    hidden,
)
from .file_names import on_disk
from .foreign_folders import check_partition_folders, check_tables
from .partition_folders import check_partitions, encoded, rows_by_folder
from .reread import TYPED, hashed_file_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onceward.core.contract.names import TransactionName
    from onceward.core.kit.text_options import Names

AREA: Final = "_onceward"
COMMIT, ABORT = ".commit", ".abort"
ROLL_BYTES: Final = 128 * 2**20
_UNWRITABLE: Final = (pa.ArrowException, ValueError, TypeError, OverflowError)
_LASTING: Final = {
    errno.ENAMETOOLONG: "the values of partition_by are too long for the name of a folder. Shorten them with select",
    errno.EMFILE: f"a subtask keeps up to {OPEN_FILES} files open. Raise the limit of open files (ulimit -n)",
}
"""Faults that a retry would meet again, and what to do."""
_PART: Final = r"(?!\.{1,2}(/|\Z))[^/\0]+"
"""Pattern for one part of a path that stays below its folder."""


class _FilesLayout(msgspec.Struct, frozen=True):
    """Layout of a committable's handle."""

    files: list[Annotated[str, msgspec.Meta(pattern=rf"^{_PART}(/{_PART})*\Z")]]
    """Paths of the files, below the folder."""
    folder: str | None = None


class FileSink(FolderSink[Files]):
    """Sink that writes files into a folder; each file appears whole, once, after its epoch's decision.

    Args:
        name: Unique in its pipeline, up to 32 letters, digits, `.`, `_` and `-`. It is part of every transaction's
            name, so it must not change between runs.
        folder: The folder. All processes that write or commit must be able to reach it.
        format: "parquet", "csv" (with a header), "jsonl" or "arrow" (Arrow IPC files).
        partition_by: Columns whose values become folders (`country=de/`) and are left out of the files. As an option,
            comma-separated.
        roll_bytes: Size in bytes after which a new file is started (the default is 128 MiB). Each epoch and each
            subtask starts new files anyway.
        proof: Hash the rows, so that `onceward verify` can tell whether the files still hold them.
        select: SQL expressions that make this sink's columns out of the pipeline's. Default: all columns.
        where: SQL condition; the sink takes only the rows for which it is true. Default: all rows.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    default_name = "files"
    option_aliases: ClassVar[Mapping[str, str]] = {"path": "folder", "fileFormat": "format"}
    kind = "files"
    layout = _FilesLayout

    def __init__(
        self,
        name: str,
        folder: str | Path,
        *,
        format: FileFormat = "parquet",  # noqa: A002 - as pyarrow and pandas call it
        partition_by: Names = (),
        roll_bytes: int = ROLL_BYTES,
        proof: bool = True,
        select: Names | None = None,
        where: str | None = None,
    ) -> None:
        check_types(FileSink, locals())
        super().__init__(name, folder, select=select, where=where)
        if roll_bytes < 1:
            raise ConfigurationError(f"sink {name}: roll_bytes must be 1 or more, not {roll_bytes}")
        self.format = check_choice(f"sink {name}: format", format, FORMATS)
        self.partition_by = tuple(partition_by)
        self.roll_bytes = roll_bytes
        self.proof = proof

    def __repr__(self) -> str:
        return without_logins(f"FileSink({self.name!r}, {str(self.folder)!r}, format={self.format!r})")

    def dataset(self) -> tuple[str, str] | None:
        return "file", str(self.folder)

    def check_schema(self, schema: pa.Schema) -> None:
        check_names(self.name, schema)
        check_partitions(self.name, self.partition_by, schema)
        left = pa.schema([field for field in schema if field.name not in self.partition_by])
        check_format(self.name, self.format, left)

    def validate(self, schema: pa.Schema) -> None:
        self.check_schema(schema)
        self.check_folder()

    @with_file_errors
    def check_folder(self) -> None:
        """Refuse a folder whose readers would not see the rows; changes nothing.

        Raises:
            ConfigurationError: It belongs to a table, has other partitions, or is not a folder.
            SinkError: It cannot be read.
        """
        if os.path.lexists(self.folder) and not Path(self.folder).is_dir():
            raise ConfigurationError(f"{self.folder} is not a folder: give another one", sink=self.name)
        try:
            check_tables(Path(self.folder))
            columns = [encoded(column) for column in self.partition_by]
            check_partition_folders(Path(self.folder), columns, self.format)
            if self._place.exists():
                check_rename(self._place, Path(self.folder))
        except ConfigurationError as error:
            raise ConfigurationError(error.message, sink=self.name) from None

    def validate_complete_mode(self) -> None:
        raise ConfigurationError(
            "output mode complete writes the whole result at each epoch, which would add every row again: use append",
            sink=self.name,
        )

    @with_file_errors
    def begin(self, context: WriteContext) -> Files:
        files = Files(context, self._place, self.format, self.roll_bytes)
        files.hash = RowHash(typed=self.format in TYPED) if self.proof else None
        return files

    @with_file_errors
    def write(self, transaction: Files, batch: pa.RecordBatch) -> None:
        try:
            if self.format != "arrow":
                batch = in_microseconds(batch)
            if self.format == "jsonl":
                batch = as_lines(batch, self.partition_by)
            for partition, rows in rows_by_folder(batch, self.partition_by):
                transaction.write(partition, rows)
            if transaction.hash is not None:
                transaction.hash.add(hashed_file_columns(batch, self.format, self.partition_by))
        except SchemaError as error:
            why = f"{error.message}; the epoch's rows are not written"
            raise refusing_rows(SchemaError(why, sink=self.name)) from None
        except _UNWRITABLE as error:
            why = f"a row cannot be written as {self.format}: {text_of(error)}"
            raise refusing_rows(SinkError(why, sink=self.name)) from error
        except OSError as error:
            if error.errno not in _LASTING:
                raise
            lasting = ConfigurationError(f"{text_of(error)}: {_LASTING[error.errno]}", sink=self.name)
            lasting.refuses_rows = lasting.refuses_alone = (
                error.errno == errno.ENAMETOOLONG
            )  # of the rows; open files are the machine's
            raise lasting from error

    @with_file_errors
    def pre_commit(self, transaction: Files) -> Committable:
        transaction.finish()
        self._check_targets(transaction)
        handle = {"files": transaction.finished, "folder": self._identity()}
        proof = proof_of(transaction.rows, transaction.hash)
        return transaction.context.committable(
            kind=self.kind, transaction=transaction.name, handle=handle, rows=transaction.rows, proof=proof
        )

    def _check_targets(self, transaction: Files) -> None:
        """Refuse, before the decision, partitions into whose folders files cannot be moved.

        On a file system that does not tell upper from lower case, this makes the folders, to see how they are named.
        """
        takes_any_case = self._place.with_name(AREA.upper()).exists()
        for partition in sorted({Path(file).parent for file in transaction.finished}):
            folder = Path(self.folder) / on_disk(str(partition))
            check_rename(transaction.folder, folder)
            if takes_any_case:
                make_folder(folder)
                _check_case(Path(self.folder), Path(on_disk(str(partition))))

    def discard(self, transaction: Files) -> None:
        transaction.discard()

    @with_file_errors
    def _commit(self, committable: Committable) -> CommitOutcome:
        """Give the transaction's folder to its commit, if it is pending and whole, and move its files."""
        transaction, files = committable.transaction, committable.handle["files"]
        pending, commit = self._folder(transaction), self._folder(transaction, COMMIT)
        missing = [pending / hidden(file) for file in files if not (pending / hidden(file)).exists()]
        with suppress(FileNotFoundError):
            if missing:
                pending.stat()  # looked at after the files: another commit may have begun meanwhile
                return commit_outcome(Observation.ABORTED, f"{missing[0]} is gone")
            pending.rename(commit)
        if self._place.is_dir():
            sync_folder(self._place)
        if not commit.is_dir():
            return commit_outcome(*self._look(committable))
        moved = self._finish(transaction, files)
        return CommitOutcome(CommitStatus.COMMITTED if moved else CommitStatus.ALREADY_COMMITTED)

    def _finish(self, transaction: str, files: Sequence[str]) -> bool:
        """Move the files that are still to be moved; return whether there were any."""
        folder, moved = self._folder(transaction, COMMIT), False
        finals = {folder / hidden(file): self._final(transaction, file) for file in files}
        for source, final in finals.items():
            if source.exists():
                make_folder(final.parent)
                moved = _move(source, final) or moved
        for parent in {final.parent for final in finals.values()}:
            if parent.is_dir():
                sync_folder(parent)
        if not self._is_finished(transaction, files):
            raise RetryableSinkError(f"{folder}: not all of it was moved", sink=self.name)
        for left, _, _ in os.walk(folder, topdown=False):
            if left != str(folder):
                _remove_if_empty(Path(left))
        return moved

    @with_file_errors
    def _abort(self, committable: Committable) -> AbortOutcome:
        """Delete the pending files, unless their commit has begun."""
        folder = self._folder(committable.transaction, ABORT)
        exists = folder.exists()
        if exists:
            shutil.rmtree(folder)
        with suppress(FileNotFoundError):
            self._folder(committable.transaction).rename(folder)
            shutil.rmtree(folder)
            exists = True
        if exists:
            return AbortOutcome(AbortStatus.ABORTED)
        if self._folder(committable.transaction, COMMIT).is_dir():
            return AbortOutcome(AbortStatus.COMMITTED)
        return AbortOutcome(AbortStatus.UNKNOWN, f"{self.folder} holds no trace of {committable.transaction}")

    def _look(self, committable: Committable) -> tuple[Observation, str]:
        transaction, files = committable.transaction, committable.handle.get("files", ())
        pending = self._folder(transaction)
        if pending.exists():
            return Observation.PREPARED, ""
        begun = self._folder(transaction, COMMIT).is_dir()  # after the first look: (1) a commit may begin meanwhile
        if begun and not self._is_finished(transaction, files):
            return Observation.BEGUN, "not all of its files are moved yet"
        finished = [self._final(transaction, file).exists() for file in files]
        if begun or (committable.handle and all(finished)):
            return Observation.COMMITTED, ""
        if wrong := self._elsewhere(committable):
            return Observation.NO_ANSWER, wrong
        if not committable.handle or any(finished) or self._is_outlived(committable):
            return Observation.UNKNOWN, f"{pending} is gone; its files may have been finished"
        return Observation.ABORTED, f"{pending} is gone, and was not committed"

    def ledger(self) -> FolderLedger:
        return FileLedger(self)

    @property
    def _place(self) -> Path:
        return Path(self.folder) / AREA

    def _pending(self) -> list[TransactionName]:
        return self._names("", ABORT)

    def _proven(self) -> list[TransactionName]:
        return self._names(COMMIT)

    def _names(self, *suffixes: str) -> list[TransactionName]:
        """Return transactions that have a folder with one of these suffixes; "" for pending ones."""
        names = sorted(path.name for path in self._place.iterdir()) if self._place.is_dir() else []
        return names_of(text.removesuffix(suffix) for suffix in suffixes for text in names if text.endswith(suffix))

    def _forget(self, name: TransactionName, *, give_up: bool) -> None:
        folder = self._folder(str(name), COMMIT)
        _remove_if_empty(folder)
        if give_up and folder.exists():
            folder.rename(self._folder(str(name), ABORT))

    def _folder(self, transaction: str, suffix: str = "") -> Path:
        return self._place / f"{file_name(transaction)}{suffix}"

    def _final(self, transaction: str, file: str) -> Path:
        path = Path(file)
        return Path(self.folder) / on_disk(str(path.parent)) / f"{file_name(transaction)}-{path.name}"

    def _is_finished(self, transaction: str, files: Sequence[str]) -> bool:
        """Return whether every file of a transaction whose commit has begun was moved to its place."""
        return not any((self._folder(transaction, COMMIT) / hidden(file)).exists() for file in files)


class FileLedger(FolderLedger):
    """What a FileSink's folder remembers of decision logs."""

    records_transactions = True


def _check_case(root: Path, partition: Path) -> None:
    """Refuse a partition whose folder has a name in other case, which readers would take for the values of its rows."""
    for part in partition.parts:
        names = {path.name for path in root.iterdir()}
        if part not in names:
            other = next(name for name in names if name.casefold() == part.casefold())
            raise ConfigurationError(
                f"{root} has a folder {other}, which is {part}, too, to a file system that ignores case: readers would "
                "take one value for the other. Use another file system, or make the values alike with select"
            )
        root /= part


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST}:
            raise


def _move(source: Path, final: Path) -> bool:
    try:
        source.rename(final)
    except FileNotFoundError:
        if source.exists():
            raise  # the folder that it goes to is gone
        return False  # another commit was faster
    return True
