"""A custom sink: each epoch's rows of a subtask become one file of JSON lines, which appears whole and once."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from onceward import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    TwoPhaseCommitSink,
    WriteContext,
)
from onceward.sinks import (
    FolderClaims,
    RowHash,
    Scope,
    file_name,
    make_folder,
    parse_file_name,
    sync_folder,
    with_file_errors,
)


@dataclass
class Transaction:
    """What is being written."""

    context: WriteContext
    name: str
    file: TextIO
    hash: RowHash = field(default_factory=RowHash)


class JsonLinesSink(TwoPhaseCommitSink[Transaction]):
    """JSON lines in a folder. Prepared: a whole file, _NAME.pending. Committed: it is renamed to NAME.jsonl."""

    def __init__(self, name: str, folder: str | Path) -> None:
        super().__init__(name)
        self.folder = Path(folder)  # configuration only: the object is pickled into other processes

    # On the executors

    @with_file_errors
    def begin(self, context: WriteContext) -> Transaction:
        """Open a transaction under a name that is never used again, at the first row of an epoch."""
        make_folder(self.folder)
        name = str(context.transaction_name())
        return Transaction(context, name, self._file(name, "pending").open("x"))

    @with_file_errors
    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Write rows inside it. Nothing may become visible."""
        lines = [json.dumps(row, default=str) for row in batch.to_pylist()]
        transaction.file.writelines(f"{line}\n" for line in lines)
        transaction.hash.add(pa.RecordBatch.from_pydict({"line": lines}))  # for `onceward verify`

    @with_file_errors
    def pre_commit(self, transaction: Transaction) -> Committable:
        """Flush and prepare: from here on the rows survive this process and the target's restart."""
        transaction.file.flush()
        os.fsync(transaction.file.fileno())
        transaction.file.close()
        sync_folder(self.folder)
        rows, proof = transaction.hash.rows, transaction.hash.proof()
        return transaction.context.committable(kind="json-lines", transaction=transaction.name, rows=rows, proof=proof)

    def discard(self, transaction: Transaction) -> None:
        """Roll back what was not prepared."""
        transaction.file.close()
        Path(transaction.file.name).unlink(missing_ok=True)

    # On the driver or in any other process, possibly more than once

    @with_file_errors
    def commit(self, committable: Committable) -> CommitOutcome:
        """Make the rows visible. If a commit and an abort race, one wins, and both learn which."""
        final, status = self._file(committable.transaction, "jsonl"), CommitStatus.COMMITTED
        try:
            self._file(committable.transaction, "pending").rename(final)
        except FileNotFoundError:
            status = CommitStatus.ALREADY_COMMITTED if final.exists() else CommitStatus.UNKNOWN
        sync_folder(self.folder)  # the new name must survive a power failure before anyone relies on it
        return CommitOutcome(status)

    @with_file_errors
    def abort(self, committable: Committable) -> AbortOutcome:
        """End exactly this transaction without a trace, unless it is committed."""
        try:
            self._file(committable.transaction, "pending").unlink()
        except FileNotFoundError:
            final = self._file(committable.transaction, "jsonl")
            return AbortOutcome(AbortStatus.COMMITTED if final.exists() else AbortStatus.UNKNOWN)
        return AbortOutcome(AbortStatus.ABORTED)

    @with_file_errors
    def lingering(self, scope: Scope) -> Iterator[Committable]:
        """List what is open or prepared under exactly these names: parse them, compare no prefix."""
        for path in self.folder.glob("_*.pending"):
            name = parse_file_name(path.stem[1:])
            if name is not None and name.scope[:2] == scope[:2]:
                yield Committable.named("json-lines", name)

    def ledger(self) -> FolderClaims:
        """Record in the folder which decision log owns the name: a new one would write its input a second time."""
        return FolderClaims(self.folder)

    def _file(self, name: str, kind: str) -> Path:
        hidden = "" if kind == "jsonl" else "_"  # Spark, Hive and pyarrow ignore names that begin with "_"
        return self.folder / f"{hidden}{file_name(name)}.{kind}"
