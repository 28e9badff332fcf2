"""A write-ahead sink for tests, and what tests of sinks do again and again: write an epoch, crash, commit elsewhere."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.core.contract.names import file_name
from onceward.core.contract.row_hash import RowHash, covers, proof_of
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    WriteContext,
)
from onceward.core.errors import RetryableSinkError, SinkError
from onceward.core.kit.crash_points import Step, hooked
from onceward.sinks import TwoPhaseCommitSink, WriteAheadLogSink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onceward.core.contract.names import Scope
    from onceward.sinks.write_ahead import Delivery

LOG = "0123abcd"


class Crash(BaseException):
    """The process ends here."""


class Target:
    """A database in memory: what is prepared outlives whoever wrote it."""

    def __init__(self) -> None:
        self.prepared: dict[str, tuple[Committable, list[dict[str, Any]]]] = {}
        self.committed: dict[str, list[dict[str, Any]]] = {}
        self.sinks: dict[str, str] = {}
        self.aborted: set[str] = set()
        self.written = 0
        self.lock = threading.Lock()
        self.commits: list[str] = []

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All visible rows."""
        return [row for rows in self.committed.values() for row in rows]

    def by_sink(self, sink: str) -> list[dict[str, Any]]:
        """Visible rows of one sink."""
        return [row for name, rows in self.committed.items() if self.sinks[name] == sink for row in rows]

    def take_away(self) -> None:
        """Remove all visible rows, as a reader may; what was committed stays known."""
        with self.lock:
            self.committed = {name: [] for name in self.committed}

    def delete_prepared(self, name: str) -> None:
        """Forget a prepared transaction."""
        with self.lock:
            del self.prepared[name]

    def counts(self, column: str) -> Counter[Any]:
        """How often each value of a column shows."""
        return Counter(row[column] for row in self.rows)


class Transaction:
    """Rows on their way."""

    def __init__(self, context: WriteContext) -> None:
        self.context = context
        self.name = str(context.transaction_name())
        self.rows: list[dict[str, Any]] = []
        self.hash = RowHash()


class TargetSink(TwoPhaseCommitSink[Transaction]):
    """Writes to a Target."""

    def __init__(self, target: Target, name: str = "target", *, proves: bool = True) -> None:
        super().__init__(name)
        self.proves = proves
        self.target = target

    def begin(self, context: WriteContext) -> Transaction:
        return Transaction(context)

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        transaction.rows += batch.to_pylist()
        if self.proves and all(covers(field.type) for field in batch.schema):
            transaction.hash.add(batch)
        self.target.written += batch.num_rows

    def pre_commit(self, transaction: Transaction) -> Committable:
        rows = len(transaction.rows)
        committable = transaction.context.committable(
            kind="target", transaction=transaction.name, rows=rows, proof=proof_of(rows, transaction.hash)
        )
        with self.target.lock:
            self.target.prepared[transaction.name] = (committable, transaction.rows)
        return committable

    def commit(self, committable: Committable) -> CommitOutcome:
        with self.target.lock:
            self.target.commits.append(committable.transaction)
            if committable.transaction in self.target.committed:
                return CommitOutcome(CommitStatus.ALREADY_COMMITTED)
            if committable.transaction not in self.target.prepared:
                return CommitOutcome(CommitStatus.LOST)
            _, rows = self.target.prepared.pop(committable.transaction)
            self.target.committed[committable.transaction] = rows
            self.target.sinks[committable.transaction] = committable.sink
            return CommitOutcome(CommitStatus.COMMITTED)

    def abort(self, committable: Committable) -> AbortOutcome:
        with self.target.lock:
            if committable.transaction in self.target.committed:
                return AbortOutcome(AbortStatus.COMMITTED)
            self.target.prepared.pop(committable.transaction, None)
            self.target.aborted.add(committable.transaction)
            return AbortOutcome(AbortStatus.ABORTED)

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        with self.target.lock:
            found = [c for c, _ in self.target.prepared.values()]
        return [c for c in found if (c.pipeline, c.sink) == (scope.pipeline, scope.sink)]


_TARGETS: dict[str, Target] = {}


def target_called(name: str) -> Target:
    """A target that every copy of its sinks finds again, in whichever process Spark would unpickle them."""
    return _TARGETS.setdefault(name, Target())


class Mailbox(WriteAheadLogSink):
    """A target that takes deliveries, and may refuse them."""

    def __init__(self, folder: Path, *, remembers: bool = False, rows_per_send: int = 2, name: str = "mail") -> None:
        super().__init__(name, folder, rows_per_send=rows_per_send)
        self.remembers = remembers
        self.taken: list[tuple[str, list[int]]] = []
        self.refuse_after: int | None = None

    def send(self, rows: pa.RecordBatch, delivery: Delivery) -> None:
        if self.refuse_after is not None and len(self.taken) >= self.refuse_after:
            raise RetryableSinkError("the target is full")
        if not (self.remembers and str(delivery) in dict(self.taken)):
            self.taken.append((str(delivery), rows["n"].to_pylist()))

    @property
    def rows(self) -> list[int]:
        return [n for _, rows in self.taken for n in rows]

    def __deepcopy__(self, memo: Any) -> Mailbox:
        return self


def context(sink: str, epoch: int = 1, generation: int = 1) -> WriteContext:
    return WriteContext(pipeline="p", sink=sink, log=LOG, generation=generation, epoch=epoch, subtask=0)


def prepared(
    sink: TwoPhaseCommitSink[Any],
    *batches: range | list[dict[str, Any]] | pa.RecordBatch,
    epoch: int = 1,
    generation: int = 1,
) -> Committable:
    """Write batches as one subtask's part of an epoch; a range stands for rows of one column n."""
    transaction = sink.begin(context(sink.name, epoch, generation))
    try:
        for rows in batches:
            given = [{"n": n} for n in rows] if isinstance(rows, range) else rows
            batch = pa.RecordBatch.from_pylist(given) if isinstance(given, list) else given
            sink.write(transaction, batch)
    except SinkError:
        sink.discard(transaction)
        raise
    return sink.pre_commit(transaction)


def crash_at(step: Step, count: int, sink: TwoPhaseCommitSink[Any], committable: Committable) -> None:
    """Commit, and die when a step is reached for the n-th time."""
    left = [count]

    def hook(reached: Step) -> None:
        left[0] -= reached is step
        if left[0] == 0:
            raise Crash

    with hooked(hook), pytest.raises(Crash):
        sink.commit(committable)


def delete_files_of(folder: Path, committable: Committable) -> None:
    """Delete every file and folder below `folder` that carries the transaction's name."""
    found = [path for path in folder.rglob("*") if file_name(committable.transaction) in path.name]
    assert found, f"nothing in {folder} carries the name of {committable.transaction}"
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def commit_in_child(sink: TwoPhaseCommitSink[Any], committable: Committable, crash: str = "") -> int:
    """Commit in a process of its own, which kills itself at a step; its exit status."""
    code = "import pickle, sys; s, c = pickle.load(sys.stdin.buffer); print(s.commit(c).status)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps((sink, committable)),
        env={**environment, **({"ONCEWARD_CRASH_AT": crash} if crash else {})},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert crash or done.stdout.strip() == b"committed", done.stderr.decode()
    return done.returncode
