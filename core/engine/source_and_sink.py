"""The ends of a graph: what reads a source, and what writes to a sink.

A source is read from its position on, in pieces, between which barriers can be injected. A sink's transaction is opened
at the first row after a barrier and prepared at the next. Its epoch is the number after the last barrier that this
subtask has seen, so it is greater than any decided epoch and at most that of the checkpoint which names it. What was
prepared for a checkpoint that was given up stays prepared and is acknowledged again with the next one: rows are
committed by the first checkpoint that completes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from ..checkpoint.subtask import DirectlyWritten, SubtaskEpoch
from ..contract.source import read_split
from ..errors import OncewardError, SourceError
from ..kit.pieces import PIECE_BYTES
from .batch_sizing import FIRST_ROWS, even_part
from .logic import Frozen, Logic, nothing_to_write
from .projection import projection_of
from .state.handles import SubtaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from threading import Lock

    import pyarrow as pa

    from ..contract.sink import TwoPhaseCommitSink
    from ..contract.source import LiveSource, Piece, Position, ResettableSource, Source, Split
    from ..contract.transaction import Committable, WriteContext
    from .channels import Barrier

S = TypeVar("S", bound="Source")
_log = logging.getLogger("onceward.engine")
_MOST_SCHEMAS: Final = 20
EXHAUSTED: Final = object()
"""Marker that `poll` returns at the end of a bounded source."""


class SourceLogic(Logic, Generic[S]):
    """Base of what feeds a source's subtask."""

    def __init__(self, source: S, subtask: int) -> None:
        self._source = source
        self._subtask = subtask
        self.most_rows = FIRST_ROWS
        """Maximum number of rows of the next batch, where it can be cut."""

    def before_barrier(self, barrier: Barrier) -> Sequence[pa.RecordBatch]:
        self._source.snapshot(barrier.checkpoint, self._subtask)
        return []

    def confirm(self, checkpoint: int) -> None:
        self._source.on_checkpoint_complete(checkpoint, self._subtask)

    def poll(self) -> Any:
        """Return the next batch; None if there is none now; EXHAUSTED."""
        raise NotImplementedError


class ResettableLogic(SourceLogic["ResettableSource"]):
    """One subtask of a resettable source.

    Args:
        source: The source, of which the subtask reads a share.
        subtask: Number of the subtask.
        position: Position at which it begins.
        until: Position at which it ends, if a decided epoch is computed again; else None.
    """

    def __init__(
        self, source: ResettableSource, subtask: int, position: Position, until: Position | None = None
    ) -> None:
        super().__init__(source, subtask)
        self._position = position
        self._again = until is not None
        self._until = until
        self._reading: Generator[pa.RecordBatch] | None = None
        self._unread: dict[tuple[str, int], int] = {}
        """By unit and end of a range: how much of it is left."""
        self._left = 0
        """The sum of these."""
        self._stored: dict[int, Position] = {}

    @property
    def lag(self) -> int:
        return self._left

    def open(self) -> None:
        # If an epoch is computed again, the decision says where it ends, and not the source.
        if self._source.bounded and not self._again:
            self._until = self._source.end()

    def poll(self) -> Any:
        while True:
            if self._reading is None:
                end = self._source.latest(self._position, until=self._until)
                if end == self._position:
                    self._check_reached()
                    return EXHAUSTED if self._again or self._source.bounded else None
                self._reading = self._ranges(end)
            batch = next(self._reading, None)
            if batch is not None:
                return batch
            self._reading = None

    def _check_reached(self) -> None:
        if self._again and (left := self._source.splits(self._position, self._until)):
            missing = ", ".join(f"{split.unit} from {split.start} to {split.end}" for split in left)
            raise SourceError(
                f"the source no longer gives rows that were read before, and are read again because some of an epoch "
                f"was lost: {missing}"
            )

    def _ranges(self, end: Position) -> Generator[pa.RecordBatch]:
        """Yield the batches up to the position `end`; the current position is advanced before each batch.

        Units are read in turn, one at a time, so that none waits until all others are read.
        """
        waiting = deque(self._source.splits(self._position, end))
        self._unread = {(split.unit, split.end): split.end - split.start for split in waiting}
        self._left = sum(self._unread.values())
        while waiting:
            rest = yield from self._turn(waiting.popleft(), alone=not waiting)
            if rest is not None:
                waiting.append(rest)
        self._position = end

    def _turn(self, split: Split, *, alone: bool) -> Generator[pa.RecordBatch, None, Split | None]:
        """Yield rows of a range, and return the rest of it for its next turn; None if nothing is left."""
        most, rows, size = self._source.rows_per_turn, 0, 0
        pieces = read_split(self._source, split)
        for piece in pieces:
            yield from self._parts(piece, split)
            rows += piece.batch.num_rows
            size += piece.batch.nbytes
            if most is not None and not alone and (rows >= most or size >= PIECE_BYTES) and piece.next < split.end:
                pieces.close()  # before another unit is read: a source may have one connection
                return msgspec.structs.replace(split, start=piece.next)
        self._move(split, split.end)
        return None

    def _parts(self, piece: Piece, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield a piece in parts between which there may be a barrier, if the position of each row is known."""
        batch, numbers = piece.batch, piece.numbers
        if self._source.counts_rows:
            numbers = range(piece.next - batch.num_rows, piece.next)
        done = 0
        while numbers is not None and (left := batch.num_rows - done) > self.most_rows:
            part = batch.slice(done, even_part(left, self.most_rows))
            done += part.num_rows
            # Before the yield, at which a barrier may come: its position must be behind these rows.
            self._move(split, int(numbers[done]))
            yield part
        self._move(split, piece.next)
        yield batch.slice(done)

    def _move(self, split: Split, to: int) -> None:
        """Set the position behind the rows of a range that were read."""
        self._position = self._source.advance(self._position, split, to)
        range_, left = (split.unit, split.end), split.end - to
        self._left += left - self._unread[range_]
        self._unread[range_] = left

    def freeze(self, barrier: Barrier) -> Frozen:
        position = self._position
        if barrier.kind.commits:
            # Only a checkpoint that commits is confirmed, and only then is its position published.
            self._stored[barrier.checkpoint] = position
        return Frozen(lambda _storage, _folder: (SubtaskState(position=position), 0))

    def confirm(self, checkpoint: int) -> None:
        super().confirm(checkpoint)
        position = self._stored.get(checkpoint)
        self._stored = {later: kept for later, kept in self._stored.items() if later > checkpoint}
        if position is not None:
            try:
                self._source.publish(position)
            except OncewardError as error:
                # The contract says that this may be skipped: the position that counts is in the decision.
                _log.warning("a source cannot publish its position: %s", error)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()


class LiveLogic(SourceLogic["LiveSource"]):
    """One subtask of a source that cannot be read again."""

    def __init__(self, source: LiveSource, subtask: int, parallelism: int) -> None:
        super().__init__(source, subtask)
        self._parallelism = parallelism
        self._arriving: Iterator[pa.RecordBatch | None] | None = None

    def poll(self) -> Any:
        if self._arriving is None:
            self._arriving = iter(self._source.listen(self._subtask, self._parallelism))
        return next(self._arriving, EXHAUSTED)

    def close(self) -> None:
        if isinstance(self._arriving, Generator):
            self._arriving.close()


class SinkLogic(Logic):
    """One subtask of a sink.

    Args:
        sink: The sink that gets the rows.
        context: Function that makes the context of an epoch.
        epoch: Number of the first epoch.
        lock: Held while the sink checks a schema.
        skips: Ranges of rows that are not written, by their places: a decided epoch is computed again, and these are
            not lost.
    """

    reads_mixed = False

    def __init__(
        self,
        sink: TwoPhaseCommitSink[Any],
        context: Callable[[int], WriteContext],
        epoch: int,
        lock: Lock,
        skips: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._sink = sink
        self._context = context
        self._epoch = epoch
        self._lock = lock
        self._skips = skips
        self._seen = 0
        self._valid: list[pa.Schema] = []
        """Schemas that the sink has accepted, the newest last: records of several shapes come in turns."""
        self._project = projection_of(sink)
        self.joins = not isinstance(sink, DirectlyWritten)  # whose rows are to be seen at once
        self._writing: SubtaskEpoch | None = None
        self._prepared: dict[int, Committable] = {}
        """By the checkpoint at whose barrier it was prepared; not known to be decided."""

    def rows(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        for part in [batch] if self._project is None else self._project(batch):
            for rows in self._without_skipped(part):
                self._write(rows)
        return []

    def _without_skipped(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not self._skips:
            yield batch
            return
        at = 0
        for begin, end in (*self._skips, (self._seen + batch.num_rows, 0)):
            if begin - self._seen > at:
                yield batch.slice(at, begin - self._seen - at)
            at = max(at, end - self._seen)
        self._seen += batch.num_rows

    def _write(self, batch: pa.RecordBatch) -> None:
        if not any(valid.equals(batch.schema) for valid in reversed(self._valid)):
            with self._lock:  # it may create what is missing in the target: one subtask at a time
                self._sink.validate(batch.schema)
            self._valid = [*self._valid[1 - _MOST_SCHEMAS :], batch.schema]
        if batch.num_rows:
            if self._writing is None:
                self._writing = SubtaskEpoch(self._sink, self._context(self._epoch))
            self._writing.write(batch)

    def freeze(self, barrier: Barrier) -> Frozen:
        """Prepare; nothing for a savepoint that commits nothing."""
        if not barrier.kind.commits:
            return Frozen(nothing_to_write)
        written = None
        if self._writing is not None:
            committable = self._writing.pre_commit()
            written = self._writing.written
            if committable is not None:
                self._prepared[barrier.checkpoint] = committable
        self._writing = None
        # Greater than any decided epoch, and at most the checkpoint that will name the transaction.
        self._epoch = barrier.checkpoint + 1
        # With those of checkpoints that were given up: their rows lie before the sources' next position.
        return Frozen(nothing_to_write, tuple(self._prepared.values()), written=written)

    def confirm(self, checkpoint: int) -> None:
        self._prepared = {later: c for later, c in self._prepared.items() if later > checkpoint}

    def close(self) -> None:
        # What is prepared stays, because a decision may name it.
        if self._writing is not None:
            self._writing.discard()
