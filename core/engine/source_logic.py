"""Reads a source: from its position on, in pieces, between which barriers can be injected."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from ..errors import OncewardError
from .logic import Frozen, Logic
from .state.handles import SubtaskState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from ..source import LiveSource, Position, ResettableSource, Source
    from .channels import Barrier

_log = logging.getLogger("onceward.engine")
EXHAUSTED: Final = object()
"""What `poll` gives at the end of a bounded source."""


class SourceLogic(Logic):
    """Base of what feeds a source's subtask."""

    def __init__(self, source: Source, subtask: int) -> None:
        self._told = source
        self._subtask = subtask

    def before_barrier(self, barrier: Barrier) -> Sequence[pa.RecordBatch]:
        self._told.snapshot(barrier.checkpoint, self._subtask)
        return []

    def confirm(self, checkpoint: int) -> None:
        self._told.on_checkpoint_complete(checkpoint, self._subtask)

    def poll(self) -> Any:
        """The next batch; None if there is none now; EXHAUSTED."""
        raise NotImplementedError


class ResettableLogic(SourceLogic):
    """One subtask of a resettable source."""

    def __init__(self, source: ResettableSource, subtask: int, position: Position) -> None:
        super().__init__(source, subtask)
        self._source = source
        self._position = position
        self._until: Position | None = None
        self._reading: Generator[pa.RecordBatch] | None = None
        self._stored: dict[int, Position] = {}

    def open(self) -> None:
        if self._source.bounded:
            self._until = self._source.end()

    def poll(self) -> Any:
        while True:
            if self._reading is None:
                end = self._source.latest(self._position, until=self._until)
                if end == self._position:
                    return EXHAUSTED if self._source.bounded else None
                self._reading = self._ranges(end)
            batch = next(self._reading, None)
            if batch is not None:
                return batch
            self._reading = None

    def _ranges(self, end: Position) -> Generator[pa.RecordBatch]:
        """What lies between here and there; the position is ahead of each batch that was given."""
        for split in self._source.splits(self._position, end):
            for piece in self._source.read(split):
                self._position = self._source.advance(self._position, split, piece.next)
                yield piece.batch
            self._position = self._source.advance(self._position, split, split.end)
        self._position = end

    def freeze(self, barrier: Barrier) -> Frozen:
        position = self._position
        if barrier.kind.commits:
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
                _log.warning("a source could not publish its position: %s", error)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()


class LiveLogic(SourceLogic):
    """One subtask of a source that cannot be read again."""

    def __init__(self, source: LiveSource, subtask: int, parallelism: int) -> None:
        super().__init__(source, subtask)
        self._source = source
        self._parallelism = parallelism
        self._arriving: Iterator[pa.RecordBatch | None] | None = None

    def poll(self) -> Any:
        if self._arriving is None:
            self._arriving = iter(self._source.listen(self._subtask, self._parallelism))
        return next(self._arriving, EXHAUSTED)

    def close(self) -> None:
        if isinstance(self._arriving, Generator):
            self._arriving.close()
