"""What the engine needs of sources and sinks. The classes of onceward.sources and onceward.sinks have all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from ..transaction import WriteContext

Position = Any


class PieceLike(Protocol):
    """A part of a split."""

    @property
    def batch(self) -> pa.RecordBatch:
        """Rows."""
        ...

    @property
    def next(self) -> int:
        """Where the split goes on."""
        ...


class SplitLike(Protocol):
    """A range of a source's unit."""

    @property
    def end(self) -> int:
        """Where it ends."""
        ...


@runtime_checkable
class Resettable(Protocol):
    """A source that can be read again from a position; sources.base.ResettableSource says what it guarantees."""

    @property
    def bounded(self) -> bool:
        """Whether it ends."""
        ...

    def start(self) -> Position:
        """Where a pipeline without a stored position begins."""
        ...

    def end(self) -> Position:
        """Where a bounded one ends."""
        ...

    def latest(self, position: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """How far can be read now."""
        ...

    def splits(self, start: Position, end: Position, parallelism: int = 1) -> Sequence[Any]:
        """The ranges between two positions."""
        ...

    def read(self, split: Any) -> Iterator[PieceLike]:
        """Read a range."""
        ...

    def advance(self, position: Position, split: Any, to: int) -> Position:
        """The position after a range was read up to there."""
        ...

    def share(self, subtask: int, parallelism: int) -> Self:
        """One subtask's share of it."""
        ...

    def merge(self, positions: Sequence[Position]) -> Position:
        """One position out of those of earlier subtasks."""
        ...

    def publish(self, position: Position) -> None:
        """Tell the outside how far was read."""
        ...


@runtime_checkable
class Live(Protocol):
    """A source that cannot be read again; sources.base.LiveSource says more."""

    @property
    def bounded(self) -> bool:
        """Whether it ends."""
        ...

    def listen(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch | None]:
        """What arrives; None if nothing did for a moment."""
        ...


@runtime_checkable
class Checkpointed(Protocol):
    """A source that has these methods too is told of checkpoints, once by each of its subtasks."""

    def snapshot(self, checkpoint: int, subtask: int) -> None:
        """The checkpoint's barrier is next: what was given until now comes before it."""
        ...

    def on_checkpoint_complete(self, checkpoint: int, subtask: int) -> None:
        """It is completed, and with it all before it. Not called for a savepoint that commits nothing."""
        ...


@runtime_checkable
class Direct(Protocol):
    """A sink whose rows show as they are written; sinks.base.DirectSink says more."""

    name: str
    select: Sequence[str] | None
    where: str | None

    def open(self, context: WriteContext) -> Any:
        """A writer."""
        ...

    def write(self, writer: Any, batch: pa.RecordBatch) -> None:
        """Write rows."""
        ...

    def flush(self, writer: Any) -> None:
        """Return when all rows written so far are safe in the target."""
        ...

    def close(self, writer: Any) -> None:
        """Give up the writer."""
        ...
