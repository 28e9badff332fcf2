"""Sources with injected faults (faults.py); imported from wrappers.py."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from onceward.core.source import LiveSource, ResettableSource

from .faults import InjectedSourceError, raising

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from onceward.core.source import Piece, Position, Split

    from .faults import Faults

T = TypeVar("T")
_source_fails = raising(InjectedSourceError)


class FaultySource(ResettableSource):
    """A ResettableSource with faults.

    Args:
        source: The source.
        faults: What goes wrong; calls: start, end, latest, splits, read, piece (each part that a read delivers),
            publish, validate.
    """

    def __init__(self, source: ResettableSource, faults: Faults) -> None:
        self.source = source
        self.faults = faults

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    @property
    def bounded(self) -> bool:
        return self.source.bounded

    @property
    def weakness(self) -> str:
        return self.source.weakness

    def validate(self) -> None:
        self._call("validate")

    def start(self) -> Position:
        return self._call("start")

    def end(self) -> Position:
        return self._call("end")

    def latest(self, position: Position, limit: int | None = None, until: Position | None = None) -> Position:
        return self._call("latest", position, limit, until)

    def splits(self, start: Position, end: Position, parallelism: int = 1) -> Sequence[Split]:
        found: Sequence[Split] = self._call("splits", start, end, parallelism)
        return found

    def read(self, split: Split) -> Iterator[Piece]:
        for piece in self._call("read", split):
            yield self.faults.around("piece", partial(_same, piece), _source_fails)

    def advance(self, position: Position, split: Split, to: int) -> Position:
        return self.source.advance(position, split, to)

    def share(self, subtask: int, parallelism: int) -> FaultySource:
        return FaultySource(self.source.share(subtask, parallelism), self.faults)

    def merge(self, positions: Sequence[Position]) -> Position:
        return self.source.merge(positions)

    def publish(self, position: Position) -> None:
        self._call("publish", position)

    def _call(self, call: str, *arguments: Any) -> Any:
        return self.faults.around(call, partial(getattr(self.source, call), *arguments), _source_fails)


class FaultyLiveSource(LiveSource):
    """A LiveSource with faults.

    Args:
        source: The source.
        faults: What goes wrong; calls: listen, arrival (each batch that comes), validate. A batch whose arrival fails
            is lost, as with any live source.
    """

    def __init__(self, source: LiveSource, faults: Faults) -> None:
        self.source = source
        self.faults = faults

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    @property
    def bounded(self) -> bool:
        return self.source.bounded

    def validate(self) -> None:
        self.faults.around("validate", self.source.validate, _source_fails)

    def listen(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch | None]:
        for batch in self.faults.around("listen", partial(self.source.listen, subtask, parallelism), _source_fails):
            yield batch if batch is None else self.faults.around("arrival", partial(_same, batch), _source_fails)


def _same(what: T) -> T:
    return what
