"""A streaming query through a format, without a JVM."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from onceward.connectors.spark.formats.writers import StreamWriter
from onceward.connectors.spark.session.options import FormatOptions
from onceward.core.log import DirectoryStore, read

from .sink_kit import TargetSink, target_called
from .spark_kit import Checkpoint, batches, running

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from onceward.core.log import LogView


TIMEOUT = 40.0


class Query:
    """One streaming query through a format."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = Checkpoint(folder / "checkpoint")
        self.key, self.log = str(folder), folder / "log"
        self.target = target_called(self.key)
        self.options = {"checkpointLocation": str(self.checkpoint.root), "store": str(self.log), "pipeline": "p"}
        self.told: list[int] = []

    def writer(self, **options: str) -> StreamWriter:
        sink = TargetSink(self.key, timeout=TIMEOUT)
        return StreamWriter(sink, FormatOptions.parse({**self.options, **options}))

    def begin(self, **options: str) -> bytes:
        """Spark's first process: START, sweep, recovery."""
        return pickle.dumps(self.writer(**options))

    def write(self, begun: bytes, batch: int, *partitions: Sequence[int], attempt: int = 0) -> list[Any]:
        """The executors."""
        messages = []
        for number, values in enumerate(partitions):
            writer: StreamWriter = pickle.loads(begun)
            properties = {"streaming.sql.batchId": str(batch), "spark.jobGroup.id": "run"}
            with running(number, attempt=attempt, properties=properties):
                messages.append(pickle.loads(pickle.dumps(writer.write(batches(values)))))
        return messages

    def commit(self, messages: list[Any], batch: int) -> None:
        """Spark's second process."""
        writer = self.writer()
        writer.on_complete = lambda epoch, _: self.told.append(epoch)
        writer.commit(messages, batch)

    def abort(self, messages: list[Any], batch: int = 0) -> None:
        """Spark's second process, when a task or commit has failed."""
        self.writer().abort(messages, batch)

    def run(self, batch: int) -> None:
        self.checkpoint.plan(batch)
        self.commit(self.write(self.begin(), batch, [10 * batch], [10 * batch + 1]), batch)

    def view(self) -> LogView:
        return read(DirectoryStore(self.log))

    def shown(self) -> list[int]:
        return sorted(row["n"] for row in self.target.rows)
