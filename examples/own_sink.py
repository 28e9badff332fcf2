"""An own sink in thirty lines: each epoch's rows of a subtask become one JSON-lines file, exactly once.

Prepare: the file is complete and synced under a hidden name. Commit: it is renamed, which a file system does
atomically. Run it with `python examples/own_sink.py FOLDER`.
"""

import json
import os
import sys
from pathlib import Path

import pyarrow as pa

from onceward.sinks import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Scope,
    TwoPhaseCommitSink,
    WriteContext,
)


class JsonLinesSink(TwoPhaseCommitSink[dict]):
    """JSON lines in a folder."""

    def __init__(self, name: str, folder: str) -> None:
        super().__init__(name)
        self.folder = folder

    def begin(self, context: WriteContext) -> dict:
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        name = str(context.transaction_name())
        return {"context": context, "name": name, "rows": 0, "file": self._hidden(name).open("w")}

    def write(self, transaction: dict, batch: pa.RecordBatch) -> None:
        transaction["file"].writelines(json.dumps(row) + "\n" for row in batch.to_pylist())
        transaction["rows"] += batch.num_rows

    def pre_commit(self, transaction: dict) -> Committable:
        file, context = transaction["file"], transaction["context"]
        file.flush()
        os.fsync(file.fileno())
        file.close()
        return Committable(
            kind="json-lines",
            pipeline=context.pipeline,
            sink=context.sink,
            log=context.log,
            writer=context.writer,
            epoch=context.epoch,
            transaction=transaction["name"],
            rows=transaction["rows"],
        )

    def commit(self, committable: Committable) -> CommitOutcome:
        hidden, final = self._hidden(committable.transaction), self._final(committable.transaction)
        if final.exists():
            return CommitOutcome(CommitStatus.ALREADY_COMMITTED)
        if not hidden.exists():
            return CommitOutcome(CommitStatus.LOST, f"{hidden} is gone")
        hidden.rename(final)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)  # the new name must survive a power cut before anybody says COMMITTED
        os.close(folder)
        return CommitOutcome(CommitStatus.COMMITTED)

    def abort(self, committable: Committable) -> AbortOutcome:
        if self._final(committable.transaction).exists():
            return AbortOutcome(AbortStatus.COMMITTED)
        self._hidden(committable.transaction).unlink(missing_ok=True)
        return AbortOutcome(AbortStatus.ABORTED)

    def lingering(self, scope: Scope) -> list[Committable]:
        return []  # hidden files hold nobody back

    def _hidden(self, name: str) -> Path:
        return Path(self.folder) / f".{name}"

    def _final(self, name: str) -> Path:
        return Path(self.folder) / f"{name}.jsonl"


def main(folder: str) -> None:
    """Write a thousand numbers, in four micro-batches."""
    from pyspark.sql import SparkSession

    from onceward.connectors.spark import exactly_once

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").appName("own-sink").getOrCreate()
    spark.range(1000).repartition(4).write.mode("ignore").json(f"{folder}-input")
    numbers = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(f"{folder}-input")
    writer = exactly_once(numbers, JsonLinesSink("files", folder), checkpoint=f"{folder}-checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
