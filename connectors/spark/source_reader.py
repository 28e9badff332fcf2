"""Any ResettableSource, as Spark's Python data sources want it.

Spark keeps the positions: they are written to the checkpoint before a batch runs and handed back after a restart.
From pyspark 4.2 on Python sources are told a query's limits and the trigger availableNow.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from onceward.core.errors import OncewardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from onceward.core.source import ResettableSource, Split

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    from dataclasses import dataclass

    class ReadLimit:  # type: ignore[no-redef]
        """How much to read."""

    @dataclass
    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """All there is."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most so many rows."""

        max_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A mark that only Spark 4.2 looks for."""

    LIMITS = False
else:
    LIMITS = True

__all__ = ["LIMITS", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]


_log = logging.getLogger("onceward.spark")

Offsets = dict[str, Any]


class SplitPartition(InputPartition):
    """One Spark task: a range of one unit of the source."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


class SourceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream.

    Args:
        source: What is read.
        max_rows: Rows of one batch, about; None: all there is.
    """

    def __init__(self, source: ResettableSource, max_rows: int | None = None) -> None:
        self._source = source
        self._max_rows = max_rows
        self._target: Offsets | None = source.end() if source.bounded else None

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        offsets: Offsets = self._source.start()
        return offsets

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """How much a batch reads unless the trigger says otherwise."""
        return ReadAllAvailable() if self._max_rows is None else ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember where everything ends now."""
        self._target = self._source.end()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        """Where the next batch ends."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        offsets: Offsets = self._source.latest(start, rows, self._target)
        return offsets

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        return [SplitPartition(split) for split in self._source.splits(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range; called in the tasks."""
        return batches_of(self._source, partition)

    def commit(self, end: Offsets) -> None:
        """Publish positions, for queries whose sink does not; Spark calls it a batch late and not for the last one."""
        try:
            self._source.publish(end)
        except OncewardError as error:
            _log.warning("positions could not be published: %s", error)


class BeforeLimits(SourceStreamReader):
    """Reads a stream on pyspark 4.0 and 4.1, which asks for the next end without saying where the last one was.

    The first batch after a restart takes all there is, because nobody says where it begins until its tasks are planned.
    Only then can what was lost in the meantime be told.
    """

    def __init__(self, source: ResettableSource, max_rows: int | None = None) -> None:
        super().__init__(source, max_rows)
        self._at: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        self._at = super().initialOffset()
        return self._at

    def latestOffset(self) -> Offsets:  # type: ignore[override]  # noqa: N802 - the older signature
        """Where the next batch ends."""
        if self._at is None:
            return dict(self._source.end())
        return super().latestOffset(self._at, self.getDefaultReadLimit())

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        if self._at is None:
            self._source.latest(start, None, end)
        self._at = end
        return super().partitions(start, end)


class SourceBatchReader(DataSourceReader):
    """Reads from one position to another, both looked up once.

    Args:
        source: What is read.
        start: From here.
        end: To there.
    """

    def __init__(self, source: ResettableSource, start: Offsets, end: Offsets) -> None:
        self._source = source
        self._range = (start, end)

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return [SplitPartition(split) for split in self._source.splits(*self._range)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range; called in the tasks."""
        return batches_of(self._source, partition)


def batches_of(source: ResettableSource, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    if isinstance(partition, SplitPartition):
        for piece in source.read(partition.split):
            yield piece.batch


def reader_of(source: ResettableSource, max_rows: int | None = None) -> SourceStreamReader:
    """The stream reader that this pyspark can use."""
    return (SourceStreamReader if LIMITS else BeforeLimits)(source, max_rows)
