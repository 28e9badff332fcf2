"""What a source guarantees, so that an epoch can be read again exactly as it was.

A position says how far a source was read: a JSON value over all splits (Kafka: `{"orders": {"0": 123}}`). Drivers store
it with the epoch's decision and hand it back after a failure; nothing else of a source outlives its process. So both
drivers work alike. Spark asks the driver for `start`, `latest` and `splits`, and runs `read` in its tasks. The embedded
engine gives each subtask its `share` of the splits; the subtask does the same for its share, injects its barriers
between two pieces, and stores its position at the barrier; `merge` takes the positions of all subtasks to however many
there are after a restore.

The shape follows Flink's split enumerator and reader (FLIP-27) and Spark's micro-batch sources: offsets are planned in
one place, read in many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

Position = Any
"""How far a source was read: a JSON value, opaque to whoever stores it."""


class Split(msgspec.Struct, frozen=True):
    """A range of one unit of the source that is read in order: a partition's offsets, a file's lines.

    Picklable and JSON-serialisable.

    Attributes:
        unit: Names the unit within the source.
        start: Where the range begins.
        end: Where it ends; this one is not part of it.
    """

    unit: str
    start: int
    end: int


class Piece(NamedTuple):
    """A part of a split, as it was read."""

    batch: pa.RecordBatch
    """At least one row, in the source's schema."""
    next: int
    """Where the split goes on: `Split(unit, next, end)` delivers exactly what is missing. After the last piece the
    split is read to its end, whatever this says: behind the last row there may be a gap."""


class Source(ABC):
    """Where a pipeline's data comes from: record batches in one schema."""

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

    def snapshot(self, checkpoint: int, subtask: int) -> None:  # noqa: B027 - most sources need no hook
        """Called by the embedded engine in each subtask: the checkpoint's barrier comes next, after what was given."""

    def on_checkpoint_complete(self, checkpoint: int, subtask: int) -> None:  # noqa: B027 - most sources need no hook
        """Called by the embedded engine in each subtask: the checkpoint is completed, and with it all before it.

        Not called for a savepoint that commits nothing.
        """


class LiveSource(Source):
    """A source that cannot be read again: rows in flight when a failure happens are lost (at most once).

    Only the embedded engine reads it.
    """

    @abstractmethod
    def listen(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch | None]:
        """Yield what arrives for one of `parallelism` subtasks, and None at least once a second while nothing does."""


class ResettableSource(Source):
    """A source that can be read again from any stored position.

    What an implementer guarantees:

    1. Identical replay: `read` of the same split delivers the same rows in the same order, whenever, wherever and in
       whatever pieces. Rows that may still change (an open transaction) lie behind `latest`.
    2. What cannot be delivered any more, for example below the source's retention, is a SourceError that names it;
       never silence.
    3. `splits(start, end)` covers exactly what lies between the positions: nothing twice, nothing left out. So
       reading start to middle and middle to end is reading start to end.
    4. Positions only grow: `latest` is never before the position it was given.

    The object holds configuration only and is picklable; connections are opened where they are used.
    """

    @property
    def weakness(self) -> str:
        """Why reading again is not identical, with these settings; empty if it is."""
        return ""

    @property
    def rows_per_task(self) -> int:
        """How many rows a Spark task reads at least, by reading several splits one after another; 1: one split each."""
        return 1

    @abstractmethod
    def start(self) -> Position:
        """Return the position at which a new pipeline begins. Called once; the caller stores the answer."""

    @abstractmethod
    def end(self) -> Position:
        """Where a bounded source ends, otherwise where it ends just now: something to give to `latest` as `until`."""

    @abstractmethod
    def latest(self, position: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """Return the position up to which can be read now; the same one if there is nothing new.

        Args:
            position: How far was read. What has appeared since (a new partition) begins at its beginning.
            limit: Go at most about this many rows further, fairly over the units.
            until: Do not go beyond; what it does not name stays where it is.

        Raises:
            SourceError: What follows `position` is gone.
        """

    @abstractmethod
    def splits(self, start: Position, end: Position, parallelism: int = 1) -> Sequence[Split]:
        """Return the ranges between two positions; at least `parallelism` of them where there are enough rows.

        Raises:
            SourceError: What lies between is gone.
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
        """Merge the positions that the subtasks of an earlier run stored, without what is not in this share."""

    def publish(self, position: Position) -> None:
        """Publish how far was read. Called after the epoch is completed, never before; may be skipped."""
