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

from ..core.errors import ConfigurationError, DataLossError, RetryableSinkError
from ..core.folders import sync_folder
from ..core.steps import Step, reach
from ..core.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    ExternalState,
    WriteContext,
)
from .base import Guarantee, TwoPhaseCommitSink
from .folders import FolderClaims, check_folder, elsewhere, identity_of, name_in, sole
from .segments import DONE, MARKS, PARTIAL, SEGMENT, Marks, SegmentWriter, read_segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from ..core.names import Scope, TransactionName

KIND: Final = "write-ahead-log"
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

    name: TransactionName
    writer: SegmentWriter


class WriteAheadLogSink(TwoPhaseCommitSink[Segment]):
    """Base of sinks for targets without transactions. Subclass it and write `send`.

    Args:
        name: Unique in its pipeline.
        directory: Folder for segments, which the processes that write and the one that commits all see, and which
            survives as far as the pipeline must.
        rows_per_send: Rows of one delivery at most.
        select: See Sink.
        where: See Sink.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    remembers = False
    """Whether the target recognises a delivery's identity that it has taken before."""

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
        recognise it.
        """
        return {}

    def deliver(self, rows: pa.RecordBatch, attempt: Attempt) -> None:
        """Try a delivery, by `send`. Override it too where more is to be known; duties and errors are the same."""
        self.send(rows, attempt.identity)

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once if the target remembers identities, else at-least-once."""
        return Guarantee.EXACTLY_ONCE if self.remembers else Guarantee.AT_LEAST_ONCE

    def begin(self, context: WriteContext) -> Segment:
        """Open a segment."""
        name = context.transaction_name()
        return Segment(name, SegmentWriter(Path(self.directory), str(name)))

    def write(self, transaction: Segment, batch: pa.RecordBatch) -> None:
        """Append a batch to it."""
        transaction.writer.write(batch)

    def pre_commit(self, transaction: Segment) -> Committable:
        """Make it durable."""
        name, writer = transaction
        handle = {"sha256": writer.finish(), "rows_per_send": self.rows_per_send, "pinned": self.pinned()}
        handle["folder"] = identity_of(Path(self.directory))
        return Committable.named(KIND, name, handle=handle, rows=writer.rows)

    def discard(self, transaction: Segment) -> None:
        """Delete it."""
        transaction.writer.discard()

    def commit(self, committable: Committable) -> CommitOutcome:
        """Send what is not sent yet."""
        segment = self._path(committable, SEGMENT)
        if self._path(committable, DONE).exists():
            segment.unlink(missing_ok=True)
            return CommitOutcome(CommitStatus.ALREADY_COMMITTED)
        try:
            with sole(segment) as there:
                if there:
                    self._send(committable, segment)
                    return CommitOutcome(CommitStatus.COMMITTED)
        except RetryableSinkError as error:
            return CommitOutcome(CommitStatus.RETRY_LATER, str(error))
        except DataLossError as error:
            return self._lost(committable, str(error))
        if self._path(committable, DONE).exists():
            return CommitOutcome(CommitStatus.ALREADY_COMMITTED)
        return self._lost(committable, f"{segment} is gone")

    def _lost(self, committable: Committable, why: str) -> CommitOutcome:
        """Some of it may have been delivered, if sending has begun: then writing it again would double that."""
        if self._path(committable, MARKS).exists():
            return CommitOutcome(CommitStatus.UNKNOWN, f"{why}; some of it may have been delivered")
        if wrong := elsewhere(Path(self.directory), committable):
            return CommitOutcome(CommitStatus.RETRY_LATER, wrong)
        return CommitOutcome(CommitStatus.LOST, why)

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
        for suffix in (SEGMENT, PARTIAL):
            path = self._path(committable, suffix)
            try:
                with sole(path) as there:
                    if there and self._is_sent(committable):
                        return AbortOutcome(AbortStatus.COMMITTED)
                    if there:
                        path.unlink()
                        return AbortOutcome(AbortStatus.ABORTED)
            except RetryableSinkError as error:
                return AbortOutcome(AbortStatus.RETRY_LATER, str(error))
        if self._is_sent(committable):
            return AbortOutcome(AbortStatus.COMMITTED)
        return AbortOutcome(AbortStatus.UNKNOWN, "there is no trace of it")

    def _is_sent(self, committable: Committable) -> bool:
        """Whether its sending has begun."""
        return self._path(committable, DONE).exists() or self._path(committable, MARKS).exists()

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        """Segments of exactly this pipeline and sink that are not sent."""
        files = self._files(scope, SEGMENT, PARTIAL)
        return [Committable.named(KIND, name) for path, name in files if not path.with_suffix(MARKS).exists()]

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[ExternalState]:
        """Look for the segment, and for what says that it is sent."""
        return [self._inspect(committable) for committable in committables]

    def _inspect(self, committable: Committable) -> ExternalState:
        if self._path(committable, DONE).exists():
            return ExternalState.COMMITTED
        if self._path(committable, SEGMENT).exists():
            return ExternalState.PREPARED
        wrong = elsewhere(Path(self.directory), committable) or self._path(committable, MARKS).exists()
        return ExternalState.UNKNOWN if wrong or not committable.handle else ExternalState.ABORTED

    def claim(self, scope: Scope) -> None:
        """Note the decision log behind this pipeline's name in the folder.

        Raises:
            EpochConflictError: The folder knows the name from another one.
        """
        FolderClaims(Path(self.directory)).claim(scope)

    def release(self, scope: Scope) -> None:
        """Forget it."""
        FolderClaims(Path(self.directory)).release(scope)

    def completed(self, scope: Scope, epoch: int) -> None:
        """Delete what says that segments of older epochs are sent."""
        for path, name in self._files(scope, DONE):
            if name.epoch < epoch:
                path.with_suffix(MARKS).unlink(missing_ok=True)
                path.unlink(missing_ok=True)

    def _send(self, committable: Committable, segment: Path) -> None:
        batches = read_segment(segment, committable.handle["sha256"])
        size = committable.handle["rows_per_send"]  # as it was when it was written: an identity never changes
        pinned = committable.handle.get("pinned", {})
        again = segment.with_suffix(MARKS).exists()
        marks = Marks(segment.with_suffix(MARKS))
        try:
            at = 0
            for batch in batches:
                for first in range(0, batch.num_rows, size):
                    rows = batch.slice(first, size)
                    if at >= marks.sent:
                        reach(Step.SEND_BEFORE)
                        self.deliver(rows, Attempt(Identity(committable.transaction, at, rows.num_rows), pinned, again))
                        again = False
                        reach(Step.SEND_AFTER)
                        marks.put(at + rows.num_rows)
                        reach(Step.MARK_AFTER)
                    at += rows.num_rows
        finally:
            marks.close()
        segment.with_suffix(DONE).touch()
        sync_folder(segment.parent)
        segment.unlink()

    def _path(self, committable: Committable, suffix: str) -> Path:
        return Path(self.directory) / f"{committable.transaction}{suffix}"

    def _files(self, scope: Scope, *suffixes: str) -> list[tuple[Path, TransactionName]]:
        folder = Path(self.directory)
        found = [path for suffix in suffixes for path in sorted(folder.glob(f"*{suffix}"))] if folder.is_dir() else []
        names = [(path, name_in(path.stem, scope)) for path in found]
        return [(path, name) for path, name in names if name is not None]
