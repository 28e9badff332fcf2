"""What a source guarantees, so that an epoch can be read again exactly as it was.

A position says how far a source was read: a JSON value for all its units (Kafka: `{"orders": {"0": 123}}`). Spark and
the embedded engine store it with the epoch's decision and pass it back after a failure; nothing else of a source
outlives its process. Spark calls `start`, `latest` and `splits` in the driver, and `read` in its tasks. The embedded
engine gives each subtask its `share` of the units. The subtask calls the same methods for its share, injects its
barriers between two pieces, and stores its position at the barrier. After a restore, `merge` turns the positions of all
old subtasks into those of the new ones, however many there are.

The shape follows Flink's split enumerator and reader (FLIP-27) and Spark's micro-batch sources: offsets are planned in
one place, read in many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec

from ..errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    import pyarrow as pa

ROWS_PER_TURN: Final = 50_000
"""Number of rows that are read from one unit in a turn. Opening a Kafka partition takes about 10 ms, and reading so
many records 80 ms (measured)."""
Position = Any
"""Position up to which a source was read: a dict that JSON can hold, opaque to the code that stores it."""


class Split(msgspec.Struct, frozen=True):
    """A range of one unit of the source that is read in order: a partition's offsets, a file's lines.

    Picklable and JSON-serialisable.

    Attributes:
        unit: Name of the unit within the source.
        start: Number at which the range begins.
        end: Number at which it ends (exclusive).
    """

    unit: str
    start: int
    end: int


class Piece(NamedTuple):
    """A part of a split, as it was read."""

    batch: pa.RecordBatch
    """Rows in the source's schema, at least one."""
    next: int
    """Number at which the split continues: `Split(unit, next, end)` delivers exactly the remaining rows. After the last
    piece, the split is read to its end, whatever this says: where numbers do not count rows, a gap may follow the last
    one."""
    numbers: Sequence[int] | None = None
    """Number of each row in the split, ascending, where numbers do not count rows. With them the embedded engine can
    stop between any two rows; without them, only between two pieces."""


class Source(ABC):
    """The origin of a pipeline's data: record batches in one schema.

    Several threads may call one object concurrently: the subtasks of the embedded engine, and what asks whether the
    system behind it answers. What belongs to one reading is kept in the generator that reads. On Spark, each process
    has a copy.
    """

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Schema of every batch."""

    @property
    @abstractmethod
    def bounded(self) -> bool:
        """Whether the source ends."""

    def validate(self) -> None:  # noqa: B027 - a source without checks is fine
        """Check settings and that the source can be reached, before anything is read.

        Raises:
            ConfigurationError: A setting is wrong.
            SourceError: The source does not answer, or lacks what is to be read.
        """

    @property
    def reads(self) -> str:
        """What it reads and where, in a few words, which tell two sources of one kind apart; empty if it cannot say."""
        return ""

    def unanswered(self, timeout: float) -> str:  # noqa: ARG002
        """Return why the system behind the source does not answer now; empty if it does, or if nobody can tell.

        Asked in the driver, by a thread of its own, while no epoch is completed.

        Args:
            timeout: Seconds that the answer may take.
        """
        return ""

    def snapshot(self, checkpoint: int, subtask: int) -> None:  # noqa: B027 - most sources need no hook
        """Prepare for a checkpoint; the embedded engine calls this in each subtask right before the barrier."""

    def on_checkpoint_complete(self, checkpoint: int, subtask: int) -> None:  # noqa: B027 - most sources need no hook
        """React to a completed checkpoint, which completes all earlier ones; the engine calls this in each subtask.

        Not called for a savepoint that commits nothing.
        """


class LiveSource(Source):
    """A source that cannot be read again: rows in flight when a failure happens are lost (at most once).

    Only the embedded engine reads it.
    """

    @abstractmethod
    def listen(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch | None]:
        """Yield the batches for one of `parallelism` subtasks; while none arrive, yield None at least once a second."""


class ResettableSource(Source):
    """A source that can be read again from any stored position.

    What an implementer guarantees:

    1. Identical replay: `read` of the same split delivers the same rows in the same order, whenever, wherever and in
       whatever pieces. Rows that may still change (an open transaction) are beyond `latest`.
    2. Rows that can no longer be delivered, for example because of the source's retention, raise a SourceError that
       names them; they are never left out silently.
    3. `splits(start, end)` covers exactly what is between the positions: nothing twice, nothing left out. So
       reading from start to middle and from middle to end delivers the same as reading from start to end.
    4. Positions only grow: `latest` is never before the position it was given.
    5. The numbers of a split count rows: `read` delivers exactly `end - start` of them, and `Piece.next` counts on. A
       source whose numbers have gaps says so by `counts_rows`.

    The object holds configuration only and is picklable; connections are opened where they are used.
    """

    @property
    def weakness(self) -> str:
        """The reason why reading again is not identical with these settings; empty if it is identical."""
        return ""

    @property
    def leaves_out(self) -> bool:
        """Whether rows that can no longer be delivered are left out with a warning, because its user has chosen so."""
        return False

    @property
    def counts_rows(self) -> bool:
        """Whether the numbers of a split count rows; False if some numbers have no row, as Kafka's offsets may.

        If they do, `read_split` notices a missing row. Otherwise it can check the order of rows only, and
        the source must notice a missing row by itself.
        """
        return True

    @property
    def rows_per_epoch(self) -> int | None:
        """Number of rows, about, that Spark reads in a micro-batch; None for all that can be read."""
        return None

    @property
    def rows_per_task(self) -> int:
        """Minimum number of rows that a Spark task reads, from several splits one after another; 1: one split each."""
        return 1

    @property
    def rows_per_turn(self) -> int | None:
        """Number of rows, about, that the embedded engine reads of one unit before it turns to the next.

        16 MiB of rows end a turn, too. At its next turn, the unit is read on from `Piece.next`. None: units are read
        one after another, in the order of `splits`.
        """
        return ROWS_PER_TURN

    @abstractmethod
    def start(self) -> Position:
        """Return the position at which a new pipeline begins. Called once; the caller stores the answer."""

    @abstractmethod
    def end(self) -> Position:
        """Return where a bounded source ends, or where an unbounded one ends now; passed to `latest` as `until`."""

    @abstractmethod
    def latest(self, position: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """Return the position up to which rows can be read now; the same position if there is nothing new.

        Args:
            position: Position up to which the source was read. Units that have appeared since (a new partition) are
                read from their beginning.
            limit: Advance by at most about this many rows, shared fairly among the units.
            until: Do not advance beyond this position; units that it does not name stay where they are.

        Raises:
            SourceError: The rows after `position` are gone.
        """

    @abstractmethod
    def splits(self, start: Position, end: Position, parallelism: int = 1) -> Sequence[Split]:
        """Return the ranges between two positions; at least `parallelism` of them where there are enough rows.

        Raises:
            SourceError: Rows between them are gone.
        """

    @abstractmethod
    def read(self, split: Split) -> Iterator[Piece]:
        """Read a range to its end, in order. Called in any process.

        Raises:
            SourceError: Rows of the range are gone, or the source does not deliver them in time.
        """

    @abstractmethod
    def advance(self, position: Position, split: Split, to: int) -> Position:
        """Return the position after `split` was read up to `to`, with the rest unchanged."""

    @abstractmethod
    def share(self, subtask: int, parallelism: int) -> Self:
        """Return the part that one of `parallelism` subtasks reads; each unit belongs to exactly one of them."""

    @abstractmethod
    def merge(self, positions: Sequence[Position]) -> Position:
        """Merge the positions that the subtasks of an earlier run stored, without units that are not in this share."""

    def publish(self, position: Position) -> None:
        """Publish how far the source was read. Called after the epoch is completed, never before; may be skipped."""


def read_split(source: ResettableSource, split: Split) -> Generator[Piece]:
    """Read a range to its end, and check that each piece continues where the one before ended, without a missing row.

    Whoever reads a source (the engine, Spark's tasks, the conformance suite) calls this rather than `read`.

    Raises:
        SourceError: `read` raised it, or delivered something else than the split says.
    """
    at = split.start
    for piece in source.read(split):
        span = piece.next - at
        if not 0 < span <= split.end - at:
            raise SourceError(
                f"{type(source).__name__} read {split.unit} from {at} to {piece.next}, and was to read on from {at} to "
                f"{split.end} at most: each Piece.next must be greater than the one before"
            )
        if source.counts_rows and piece.batch.num_rows != span:
            raise _miscounted(source, split, piece.batch.num_rows, at, piece.next)
        at = piece.next
        yield piece
    if source.counts_rows and at != split.end:
        raise _miscounted(source, split, 0, at, split.end)


def _miscounted(source: ResettableSource, split: Split, rows: int, start: int, end: int) -> SourceError:
    return SourceError(
        f"{type(source).__name__} delivered {rows} rows of {split.unit} from {start} to {end}, where {end - start} "
        "must be: rows are missing or too many, so nothing of this epoch is committed. Its read() must deliver each "
        "row of a split once. Only if the numbers of its splits do not count rows (offsets with gaps), let its "
        "property counts_rows return False"
    )
