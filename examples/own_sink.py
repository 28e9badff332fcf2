"""An own sink in thirty lines: each epoch's rows of a subtask become one JSON-lines file, exactly once.

Prepare: the file is complete and synced under a hidden name. Commit: it is renamed, which a file system does
atomically. Run it with `python examples/own_sink.py FOLDER`.
"""

import os
import sys
from pathlib import Path

import pyarrow as pa

from onceward.sinks import (
    AbortOutcome,
    AbortStatus,
    Committable,
    CommitOutcome,
    CommitStatus,
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
        frame = batch.to_pandas()
        transaction["file"].write(frame.to_json(orient="records", lines=True))
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
