"""WriteAheadLogSink: two-phase commit for targets that have no transactions.

Prepare: an epoch's batches are stored durably, in a segment (segments.py). Commit: they are sent, in order, and a mark
after each delivery says how far. So nothing that is decided is lost, order is kept, and after a crash sending goes on
in the middle of a batch. What a crash between a delivery and its mark leaves open, nobody but the target can close: the
one delivery is repeated, with the same identity. A target that knows the identities which it has taken, because it
stores them with the data or because the same rows twice are the same as once, makes it exactly once; any other target
gets it at least once. The sink says which (`remembers`).

After the write-ahead-log sink of Flink (GenericWriteAheadSink), whose segments live in its checkpoints; here they are
files, so that any process can send them.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceward.core.errors import ConfigurationError, DataLossError, RetryableSinkError
from onceward.core.folders import sync_folder
from onceward.core.names import file_name, parse_file_name
from onceward.core.sink import Guarantee
from onceward.core.steps import Step, crash_point
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

from .folder_sink import FolderSink, with_file_errors
from .folders import check_folder, elsewhere, file_errors, identity_of, sole
from .segments import DONE, MARKS, PARTIAL, SEGMENT, Marks, SegmentWriter, read_segment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from onceward.core.names import TransactionName

ROWS_PER_SEND: Final = 500


class Identity(NamedTuple):
    """What a delivery is called, however often it is tried: never another one, never the same for other rows.

    Attributes:
        transaction: Name of the segment.
        first: Number of its first row in the segment.
        rows: How many rows it has.
    """

    transaction: str
    first: int
    rows: int

    def __str__(self) -> str:
        return f"{self.transaction}:{self.first}:{self.rows}"


class Attempt(NamedTuple):
    """One try of a delivery.

    Attributes:
        identity: Of the delivery.
        pinned: What `pinned` said when the rows were written.
        again: Whether it may have been tried before: it was the next one when sending stopped.
    """

    identity: Identity
    pinned: Mapping[str, Any]
    again: bool


class Segment(NamedTuple):
    """A segment that is being written."""

    context: WriteContext
    name: str
    writer: SegmentWriter


class WriteAheadLogSink(FolderSink[Segment]):
    """Base of sinks for targets without transactions. Subclass it and write `send`.

    Args:
        name: Unique in its pipeline, up to 32 letters, digits, `.`, `_` and `-`. It is part of every transaction's
            name, so it must not change between runs.
        directory: Folder of the segments. All processes that write or commit must be able to reach it, and it must
            survive whatever the pipeline must survive.
        rows_per_send: Maximum number of rows in one delivery.
        select: SQL expressions that make this sink's columns out of the pipeline's. Default: all columns.
        where: SQL condition; the sink takes only the rows for which it is true. Default: all rows.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    kind = "write-ahead-log"
    remembers = False
    """Whether the target recognizes a delivery's identity that it has taken before."""

    def __init__(
        self,
        name: str,
        directory: str | Path,
        *,
        rows_per_send: int = ROWS_PER_SEND,
        select: Sequence[str] | None = None,
        where: str | None = None,
    ) -> None:
        super().__init__(name, select=select, where=where)
        if rows_per_send < 1:
            raise ConfigurationError(f"sink {name}: rows_per_send must be 1 or more, not {rows_per_send}")
        check_folder(name, directory)
        self.directory = str(Path(directory).absolute())
        self.rows_per_send = rows_per_send

    @abstractmethod
    def send(self, rows: pa.RecordBatch, identity: Identity) -> None:
        """Deliver rows; when this returns, the target has them.

        Called in one process at a time, in the rows' order; again with the same rows and identity if it raised, or if
        a crash left open whether it had returned.

        Raises:
            RetryableSinkError: The target may take them later. Nothing behind them is sent before.
            SinkError: It never will.
        """

    def pinned(self) -> dict[str, Any]:
        """Settings that are part of a delivery, as JSON has them. They are kept with the rows, for every try of it.

        A delivery that is tried again after such a setting was changed must still be what it was, or a target does not
        recognize it.
        """
        return {}

    def deliver(self, rows: pa.RecordBatch, attempt: Attempt) -> None:
        """Try a delivery, by `send`. Override it too where more is to be known; duties and errors are the same."""
        self.send(rows, attempt.identity)

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once if the target remembers identities, else at-least-once."""
        return Guarantee.EXACTLY_ONCE if self.remembers else Guarantee.AT_LEAST_ONCE

    @with_file_errors
    def begin(self, context: WriteContext) -> Segment:
        name = str(context.transaction_name())
        return Segment(context, name, SegmentWriter(Path(self.directory), name))

    @with_file_errors
    def write(self, transaction: Segment, batch: pa.RecordBatch) -> None:
        transaction.writer.write(batch)

    @with_file_errors
    def pre_commit(self, transaction: Segment) -> Committable:
        context, name, writer = transaction
        handle = {"sha256": writer.finish(), "rows_per_send": self.rows_per_send, "pinned": self.pinned()}
        handle["folder"] = identity_of(Path(self.directory))
        return context.committable(kind=self.kind, transaction=name, handle=handle, rows=writer.rows)

    def discard(self, transaction: Segment) -> None:
        transaction.writer.discard()

    def commit(self, committable: Committable) -> CommitOutcome:
        """Send what is not sent yet."""
        segment = self._path(committable, SEGMENT)
        try:
            with sole(segment) as there:
                if there and not self._is_done(committable):
                    self._send(committable, segment)
                    return CommitOutcome(CommitStatus.COMMITTED)
            return commit_outcome(*self._after_segment(committable))
        except DataLossError as error:
            return commit_outcome(*self._lost(committable, str(error)))
        except RetryableSinkError as error:
            return CommitOutcome(CommitStatus.RETRY_LATER, str(error))

    @with_file_errors
    def _is_done(self, committable: Committable) -> bool:
        """Whether all of it is delivered; then its segment may be left from a crash."""
        done = self._path(committable, DONE).exists()
        if done:
            self._path(committable, SEGMENT).unlink(missing_ok=True)
        return done

    @with_file_errors
    def _after_segment(self, committable: Committable) -> tuple[Observation, str]:
        segment = self._path(committable, SEGMENT)
        if self._is_done(committable):
            return Observation.COMMITTED, ""
        if self._is_outlived(committable):
            return Observation.UNKNOWN, f"{segment} is gone; it may have been delivered"
        return self._lost(committable, f"{segment} is gone")

    def _lost(self, committable: Committable, why: str) -> tuple[Observation, str]:
        """Some of it may have been delivered, if sending has begun: writing it again would duplicate that."""
        if self._path(committable, MARKS).exists():
            return Observation.UNKNOWN, f"{why}; some of it may have been delivered"
        if wrong := elsewhere(Path(self.directory), committable):
            return Observation.NO_ANSWER, wrong
        return Observation.ABORTED, why

    def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        """In order: what comes behind something that cannot be sent now waits."""
        outcomes: list[CommitOutcome] = []
        for committable in committables:
            if outcomes and outcomes[-1].status is CommitStatus.RETRY_LATER:
                outcomes.append(CommitOutcome(CommitStatus.RETRY_LATER, "waits for what comes before it"))
            else:
                outcomes.append(self.commit(committable))
        return outcomes

    def abort(self, committable: Committable) -> AbortOutcome:
        """Delete it, unless its sending has begun: that needs a decision."""
        try:
            return self._abort(committable)
        except RetryableSinkError as error:
            return AbortOutcome(AbortStatus.RETRY_LATER, str(error))

    @with_file_errors
    def _abort(self, committable: Committable) -> AbortOutcome:
        for suffix in (SEGMENT, PARTIAL):
            with sole(self._path(committable, suffix)) as there:
                if there and not self._is_sent(committable):
                    self._path(committable, suffix).unlink()
                    return AbortOutcome(AbortStatus.ABORTED)
        if self._is_sent(committable):
            return AbortOutcome(AbortStatus.COMMITTED)
        return AbortOutcome(AbortStatus.UNKNOWN, "there is no trace of it")

    def _is_sent(self, committable: Committable) -> bool:
        """Whether its sending has begun."""
        return self._path(committable, DONE).exists() or self._path(committable, MARKS).exists()

    @with_file_errors
    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        """Look for the segment, and for what says that it is sent."""
        return [self._inspect(committable) for committable in committables]

    def _inspect(self, committable: Committable) -> Observation:
        if self._path(committable, DONE).exists():
            return Observation.COMMITTED
        if self._path(committable, SEGMENT).exists():
            return Observation.PREPARED
        if not committable.handle or self._is_outlived(committable):
            return Observation.UNKNOWN
        return self._lost(committable, "")[0]

    @property
    def _place(self) -> Path:
        return Path(self.directory)

    def _pending(self) -> list[TransactionName]:
        begun = set(self._names(MARKS))
        return [name for name in self._names(SEGMENT, PARTIAL) if name not in begun]

    def _proven(self) -> list[TransactionName]:
        return self._names(MARKS, DONE)

    def _forget(self, name: TransactionName, *, give_up: bool) -> None:
        stem = Path(self.directory) / file_name(str(name))
        segment, marks, done = (stem.with_name(f"{stem.name}{suffix}") for suffix in (SEGMENT, MARKS, DONE))
        if done.exists():
            segment.unlink(missing_ok=True)
        if give_up or not segment.exists():
            marks.unlink(missing_ok=True)
            done.unlink(missing_ok=True)

    def _send(self, committable: Committable, segment: Path) -> None:
        """Send what is not marked as sent. What `deliver` raises is left as it is."""
        with file_errors(self.name, segment):
            deliveries = self._deliveries(committable, segment)
            pinned, again = committable.handle.get("pinned", {}), segment.with_suffix(MARKS).exists()
            marks = Marks(segment.with_suffix(MARKS))
        try:
            for identity, rows in deliveries:
                if identity.first < marks.sent:
                    continue
                crash_point(Step.SEND_BEFORE)
                self.deliver(rows, Attempt(identity, pinned, again))
                again = False
                crash_point(Step.SEND_AFTER)
                with file_errors(self.name, segment):
                    marks.put(identity.first + identity.rows)
                crash_point(Step.MARK_AFTER)
        finally:
            marks.close()
        with file_errors(self.name, segment):
            segment.with_suffix(DONE).touch()
            sync_folder(segment.parent)
            segment.unlink()

    @staticmethod
    def _deliveries(committable: Committable, segment: Path) -> list[tuple[Identity, pa.RecordBatch]]:
        size = committable.handle["rows_per_send"]  # as it was when it was written: an identity never changes
        found: list[tuple[Identity, pa.RecordBatch]] = []
        at = 0
        for batch in read_segment(segment, committable.handle["sha256"]):
            for first in range(0, batch.num_rows, size):
                rows = batch.slice(first, size)
                found.append((Identity(committable.transaction, at, rows.num_rows), rows))
                at += rows.num_rows
        return found

    def _path(self, committable: Committable, suffix: str) -> Path:
        return Path(self.directory) / f"{file_name(committable.transaction)}{suffix}"

    def _names(self, *suffixes: str) -> list[TransactionName]:
        """Transactions that have a file with one of these suffixes."""
        folder = Path(self.directory)
        found = [path for suffix in suffixes for path in sorted(folder.glob(f"*{suffix}"))] if folder.is_dir() else []
        names = [parse_file_name(path.stem) for path in found]
        return [name for name in names if name is not None]
