"""WriteAheadLogSink: two-phase commit for targets that have no transactions.

Prepare: an epoch's batches are stored durably, in a segment (segments.py). Commit: they are sent, in order, and a mark
after each delivery records the progress. So nothing that is decided is lost, order is kept, and after a crash sending
continues in the middle of a batch. After a crash between a delivery and its mark, only the target can know whether it
accepted the delivery, so that one delivery is repeated, with the same identity. If the target recognizes identities
that it has accepted, because it stores them with the data or because writing rows twice has the same effect as once,
the result is exactly once; otherwise it is at least once. The sink says which (`remembers`).

After the write-ahead-log sink of Flink (GenericWriteAheadSink), whose segments live in its checkpoints; here they are
files, so that any process can send them.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from onceward.core.contract.names import file_name
from onceward.core.contract.row_hash import RowHash, covers, proof_of
from onceward.core.contract.sink import Guarantee
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    commit_outcome,
)
from onceward.core.errors import ConfigurationError, DataLossError, RetryableSinkError, SinkError, text_of
from onceward.core.kit.crash_points import Step, crash_point
from onceward.core.kit.folders import file_errors, sole, sync_folder
from onceward.core.kit.pieces import PIECE_BYTES, pieces, size_of
from onceward.core.kit.rows import is_view, with_leaves, without_dictionary
from onceward.core.kit.text_options import check_types

from .folder_claims import FolderLedger, FolderSink, names_of, with_file_errors
from .segments import DONE, MARKS, PARTIAL, SEGMENT, Marks, Segment, read_marks, read_segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from onceward.core.contract.names import Scope, TransactionName
    from onceward.core.contract.transaction import WriteContext
    from onceward.core.kit.text_options import Names

ROWS_PER_SEND: Final = 500
_MOST_ROWS: Final = 2**63 - 1
"""Largest number of rows that a handle can hold."""


class Delivery(NamedTuple):
    """One attempt to deliver rows. `str()` of it is their identity: the same in each attempt, and never that of others.

    Attributes:
        transaction: Name of the segment.
        first: Number of its first row in the segment.
        rows: Number of its rows.
        pinned: Values that `pinned()` returned when the rows were written.
        again: True if it may have been tried before: it was the next delivery when sending stopped.
    """

    transaction: str
    first: int
    rows: int
    pinned: Mapping[str, Any]
    again: bool

    def __str__(self) -> str:
        return f"{self.transaction}:{self.first}:{self.rows}"


class _SegmentLayout(msgspec.Struct, frozen=True):
    """Layout of a committable's handle."""

    sha256: str
    rows_per_send: Annotated[int, msgspec.Meta(ge=1, le=_MOST_ROWS)]
    pinned: dict[str, Any] = {}
    folder: str | None = None


class WriteAheadLogSink(FolderSink[Segment]):
    """Base of sinks for targets without transactions. Subclass it and write `send`.

    Args:
        name: Name of the sink, unique in its pipeline: up to 32 letters, digits, `.`, `_` and `-`. It is part of every
            transaction's name, so it must not change between runs.
        folder: Folder of the segments. All processes that write or commit must be able to reach it, and it must
            survive whatever the pipeline must survive.
        rows_per_send: Maximum number of rows in one delivery, which has at most 16 MiB, or one row.
        proof: Record a hash of the rows of each epoch in the decision log.
        select: SQL expressions that make this sink's columns out of the pipeline's. Default: all columns.
        where: SQL condition; the sink takes only the rows for which it is true. Default: all rows.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    kind = "write-ahead-log"
    layout = _SegmentLayout
    remembers = False
    """True if the target recognizes the identity of a delivery that it has accepted before."""

    def __init__(
        self,
        name: str,
        folder: str | Path,
        *,
        rows_per_send: int = ROWS_PER_SEND,
        proof: bool = True,
        select: Names | None = None,
        where: str | None = None,
    ) -> None:
        check_types(WriteAheadLogSink, locals())
        super().__init__(name, folder, select=select, where=where)
        if not 1 <= rows_per_send <= _MOST_ROWS:
            raise ConfigurationError(
                f"sink {name}: rows_per_send must be 1 or more, and at most {_MOST_ROWS}, not {rows_per_send}"
            )
        self.rows_per_send = rows_per_send
        self.proof = proof

    @abstractmethod
    def send(self, rows: pa.RecordBatch, delivery: Delivery) -> None:
        """Deliver rows; when this returns, the target has them.

        Called in one process at a time, in the order of the rows. It is called again with the same rows and identity,
        `str(delivery)`, if it raised an error, or if it is unknown after a crash whether it had returned.

        Raises:
            RetryableSinkError: The target may accept them later. No later rows are sent until then.
            DataLossError: The target has lost rows that it had accepted, or is another one. The epoch stays decided.
            SinkError: The target will never accept them.
        """

    def pinned(self) -> dict[str, Any]:
        """Return the settings that belong to a delivery, as JSON values. They are stored with the rows.

        A delivery that is tried again after such a setting was changed must be identical to the first attempt, or the
        target does not recognize it. So `send` must take these settings from `delivery.pinned`.
        """
        return {}

    def hashed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the hashed columns, as a reader of the target sees them. Default: all columns of simple types."""
        return batch.select([field.name for field in batch.schema if covers(field.type)])

    @property
    def rows_remain(self) -> bool:
        """Whether the target keeps each row as it was delivered, so that their hash can be compared. Default: yes."""
        return True

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once if the target remembers identities, else at-least-once."""
        return Guarantee.EXACTLY_ONCE if self.remembers else Guarantee.AT_LEAST_ONCE

    @with_file_errors
    def begin(self, context: WriteContext) -> Segment:
        segment = Segment(self._place, context)
        segment.hash = RowHash() if self.proof and self.rows_remain else None
        return segment

    @with_file_errors
    def write(self, transaction: Segment, batch: pa.RecordBatch) -> None:
        if transaction.hash is not None:
            try:
                transaction.hash.add(self.hashed(batch))
            except (pa.ArrowException, KeyError):  # such as a date that is none, or two columns of one name
                transaction.hash = None
        for piece in _cut(batch):
            transaction.write(piece)

    @with_file_errors
    def pre_commit(self, transaction: Segment) -> Committable:
        handle = {
            "sha256": transaction.finish(),
            "rows_per_send": self.rows_per_send,
            "pinned": self.pinned(),
            "folder": self._identity(),
        }
        proof = proof_of(transaction.rows, transaction.hash)
        return transaction.context.committable(
            kind=self.kind, transaction=transaction.name, handle=handle, rows=transaction.rows, proof=proof
        )

    def discard(self, transaction: Segment) -> None:
        transaction.discard()

    def _commit(self, committable: Committable) -> CommitOutcome:
        segment = self._path(committable, SEGMENT)
        with sole(segment) as there:
            if there and not self._is_done(committable):
                try:
                    batches = read_segment(segment, committable.handle["sha256"], self.name)
                    again, marks = self._marks(segment)
                except DataLossError as damaged:
                    return commit_outcome(*self._lost(committable, str(damaged)))
                self._send(committable, segment, batches, marks, again=again)  # rule R: no loss of this transaction
                return CommitOutcome(CommitStatus.COMMITTED)
        return commit_outcome(*self._look(committable))

    @with_file_errors
    def _is_done(self, committable: Committable) -> bool:
        """Return whether all of it is delivered; delete its segment, which a crash may have left."""
        done = self._path(committable, DONE).exists()
        if done:
            self._path(committable, SEGMENT).unlink(missing_ok=True)
        return done

    @with_file_errors
    def _look(self, committable: Committable) -> tuple[Observation, str]:
        segment = self._path(committable, SEGMENT)
        if self._path(committable, DONE).exists():
            return Observation.COMMITTED, ""
        if segment.exists():
            return Observation.BEGUN if self._path(committable, MARKS).exists() else Observation.PREPARED, ""
        if not committable.handle or self._is_outlived(committable):
            return Observation.UNKNOWN, f"{segment} is gone; it may have been delivered"
        return self._lost(committable, f"{segment} is gone")

    @with_file_errors
    def _lost(self, committable: Committable, why: str) -> tuple[Observation, str]:
        """Return the state of a transaction that lost its segment: UNKNOWN if some of it may have been delivered."""
        if self._path(committable, MARKS).exists():
            return Observation.UNKNOWN, f"{why}; some of it may have been delivered"
        if wrong := self._elsewhere(committable):
            return Observation.NO_ANSWER, wrong
        return Observation.ABORTED, why

    @with_file_errors
    def _abort(self, committable: Committable) -> AbortOutcome:
        """Delete it, unless its sending has begun: that needs a decision."""
        for suffix in (SEGMENT, PARTIAL):
            with sole(self._path(committable, suffix)) as there:
                if there and not self._is_sent(committable):
                    self._path(committable, suffix).unlink()
                    return AbortOutcome(AbortStatus.ABORTED)
        if self._is_sent(committable):
            return AbortOutcome(AbortStatus.COMMITTED)
        return AbortOutcome(AbortStatus.UNKNOWN, f"{self.folder} holds no trace of {committable.transaction}")

    def _is_sent(self, committable: Committable) -> bool:
        return self._path(committable, DONE).exists() or self._path(committable, MARKS).exists()

    def ledger(self) -> WriteAheadLedger:
        return WriteAheadLedger(self)

    def _pending(self) -> list[TransactionName]:
        begun = set(self._names(MARKS))
        return [name for name in self._names(SEGMENT, PARTIAL) if name not in begun]

    def _proven(self) -> list[TransactionName]:
        return self._names(MARKS, DONE)

    def _forget(self, name: TransactionName, *, give_up: bool) -> None:
        stem = Path(self.folder) / file_name(str(name))
        segment, marks, done = (stem.with_name(f"{stem.name}{suffix}") for suffix in (SEGMENT, MARKS, DONE))
        if done.exists():
            segment.unlink(missing_ok=True)
        if give_up or not segment.exists():
            marks.unlink(missing_ok=True)
            done.unlink(missing_ok=True)

    def _marks(self, segment: Path) -> tuple[bool, Marks]:
        """Open the marks of a segment; also return whether its sending had begun."""
        path = segment.with_suffix(MARKS)
        with file_errors(self.name, segment):
            return path.exists(), Marks(path)

    def _send(
        self, committable: Committable, segment: Path, batches: Iterable[pa.RecordBatch], marks: Marks, *, again: bool
    ) -> None:
        """Send the rows that are not marked as sent; exceptions of `send` pass through."""
        try:
            for first, rows in _slices(batches, committable.handle["rows_per_send"]):
                if first < marks.sent:
                    continue
                pinned = committable.handle.get("pinned", {})
                with file_errors(self.name, segment):
                    marks.reserve()
                crash_point(Step.SEND_BEFORE)
                self.send(rows, Delivery(committable.transaction, first, rows.num_rows, pinned, again))
                again = False
                crash_point(Step.SEND_AFTER)
                self._mark(marks, first + rows.num_rows)
                crash_point(Step.MARK_AFTER)
        finally:
            marks.close()
        with file_errors(self.name, segment):
            segment.with_suffix(DONE).touch()
            sync_folder(segment.parent)
            segment.unlink()

    def _mark(self, marks: Marks, sent: int) -> None:
        try:
            marks.put(sent)
        except OSError as error:
            # A target that does not recognize the delivery would get it once more in each attempt.
            kind = RetryableSinkError if self.remembers else SinkError
            raise kind(
                f"{self.folder}: rows were delivered, and this could not be recorded ({text_of(error)}). They are "
                "delivered again: correct the file system before the next start",
                sink=self.name,
            ) from error

    def _path(self, committable: Committable, suffix: str) -> Path:
        return Path(self.folder) / f"{file_name(committable.transaction)}{suffix}"

    def _names(self, *suffixes: str) -> list[TransactionName]:
        """Return the transactions that have a file with one of these suffixes."""
        if not self._place.is_dir():
            return []
        return names_of(path.stem for suffix in suffixes for path in sorted(self._place.glob(f"*{suffix}")))


class WriteAheadLedger(FolderLedger):
    """What the folder of a write-ahead log remembers of decision logs."""

    @with_file_errors
    def acknowledged(self, scope: Scope) -> dict[TransactionName, int]:
        """Return how many rows of each transaction whose sending has begun the target has acknowledged.

        Transactions from before a rewind are left out, and so are those whose marks are damaged: their commit says so.
        """
        acknowledged: dict[TransactionName, int] = {}
        for name in self.proven_of(scope) - self.released():
            with suppress(DataLossError):
                acknowledged[name] = read_marks(self.place / f"{file_name(str(name))}{MARKS}")[0]
        return acknowledged


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces of a bounded number of bytes.

    Dictionaries and views of a piece are replaced: it would be stored with all values that the batch refers to.
    """
    if size_of(batch) <= PIECE_BYTES:
        yield batch
        return
    for piece in pieces(batch):
        columns = [without_dictionary(column) for column in piece.columns]
        columns = [column.cast(with_leaves(column.type, _plain)) for column in columns]
        yield pa.RecordBatch.from_arrays(columns, names=piece.schema.names)


def _plain(kind: pa.DataType) -> pa.DataType:
    if is_view(kind):
        return pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
    return kind.value_type if pa.types.is_dictionary(kind) and not is_view(kind.value_type) else kind


def _slices(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each delivery and the number of the first; `size` is that of when they were written.

    No delivery has rows of two batches, which were cut by bytes when they were written. So deliveries are the same in
    each attempt, whatever a later version takes for the size of a row.
    """
    at = 0
    for batch in batches:
        for first in range(0, batch.num_rows, size):
            yield at + first, batch.slice(first, size)
        at += batch.num_rows
