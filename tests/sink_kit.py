"""The two base fakes of a sink, and what tests of sinks do again and again: write an epoch, crash, commit elsewhere.

Two, since two things can hold a prepared transaction. `TargetSink` is a sink whose target does: a `Target` in memory,
which other "processes" of the same test find again, and which can be asked, be away and lose transactions. `Mailbox`
is a sink whose target takes deliveries only: its transactions are files of a write-ahead log, so that a real process
may die and another one may commit them. Tests subclass one of them where a sink is wrong, slow or special.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.core.contract.ledger import Ledger
from onceward.core.contract.names import file_name, other_log, outdated_log, parse_transaction_name
from onceward.core.contract.row_hash import RowHash, covers, proof_of
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    Progress,
    WriteContext,
    commit_outcome,
)
from onceward.core.errors import RetryableSinkError, SinkError
from onceward.core.kit.crash_points import Step, hooked
from onceward.sinks import TwoPhaseCommitSink, WriteAheadLogSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from onceward.core.contract.names import Remembered, Scope
    from onceward.sinks.write_ahead import Delivery

LOG = "0123abcd"


class Crash(BaseException):
    """The process ends here."""


class Target:
    """A target in memory. It outlives the processes that write to it: every copy of its sinks finds it by its key.

    Args:
        key: The key; default: a new one.
        trusting: Whether it takes a transaction that nobody wrote for prepared.
        keeps_ledger: Whether it remembers which decision log owns the names of a pipeline and a sink.

    Attributes:
        prepared: Committable and rows of each prepared transaction.
        committed: Visible rows of each committed transaction.
        commits: Transactions in the order of their commits; one that was committed again stands here again.
        aborted: Transactions that were aborted or discarded, each time.
        states: What the target says of a transaction, whatever has happened to it.
        owners: The decision log that owns the names of a pipeline and a sink.
        away: True if the target does not answer for its transactions.
    """

    def __init__(self, key: str = "", *, trusting: bool = False, keeps_ledger: bool = False) -> None:
        self.key = key or uuid.uuid4().hex
        self.trusting, self.keeps_ledger = trusting, keeps_ledger
        self.prepared: dict[str, tuple[Committable, list[dict[str, Any]]]] = {}
        self.committed: dict[str, list[dict[str, Any]]] = {}
        self.sinks: dict[str, str] = {}
        self.commits: list[str] = []
        self.aborted: list[str] = []
        self.states: dict[str, Observation] = {}
        self.owners: dict[tuple[str, str], str] = {}
        self.set_aside: set[str] = set()
        self.away = False
        self.written = 0
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return target_called, (_TARGETS.setdefault(self.key, self).key,)

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

    def hold(self, *committables: Committable) -> None:
        """Prepare transactions without rows."""
        self.prepared |= {committable.transaction: (committable, []) for committable in committables}

    def delete_prepared(self, name: str) -> None:
        """Forget a prepared transaction."""
        with self.lock:
            del self.prepared[name]

    def counts(self, column: str) -> Counter[Any]:
        """How often each value of a column shows."""
        return Counter(row[column] for row in self.rows)

    def state_of(self, transaction: str) -> Observation:
        """Return what the target knows of a transaction; a trusting one takes what nobody wrote for prepared."""
        if transaction in self.states:
            return self.states[transaction]
        if transaction in self.committed:
            return Observation.COMMITTED
        if transaction in self.prepared or (self.trusting and transaction not in self.aborted):
            return Observation.PREPARED
        return Observation.ABORTED

    def with_state(self, *states: Observation) -> list[str]:
        """Return the transactions in one of these states, but for those that nobody wrote."""
        known = dict.fromkeys([*self.committed, *self.aborted, *self.prepared, *self.states])
        return [name for name in known if self.state_of(name) in states]

    def settle(self, committable: Committable) -> None:
        """Make the rows of a transaction visible."""
        name = committable.transaction
        _, rows = self.prepared.pop(name, (None, []))
        self.committed.setdefault(name, rows)
        self.sinks[name] = committable.sink
        self.commits.append(name)
        self.states.pop(name, None)


_TARGETS: dict[str, Target] = {}


def target_called(key: str) -> Target:
    """Return the target that every copy of its sinks finds again, in whichever process Spark would unpickle them."""
    return _TARGETS.setdefault(key, Target(key))


class Transaction:
    """Rows on their way."""

    def __init__(self, context: WriteContext) -> None:
        self.context = context
        self.name = str(context.transaction_name())
        self.rows: list[dict[str, Any]] = []
        self.hash = RowHash()


class TargetSink(TwoPhaseCommitSink[Transaction], Ledger):
    """Writes to a target, and is its ledger if the target keeps one.

    Args:
        target: Where the rows go, or its key. Default: a target of its own, which is trusting and keeps a ledger, for
            tests of the coordinator: they make committables up.
        name: The sink's name.
        timeout: Seconds after which the target says that it ends a transaction.
        proves: Whether committables carry a hash of their rows.

    Attributes:
        answers: Answers of the coming commits; when they are used up, the target decides.
        abort_answer: Answer of every abort, which then leaves the transaction as it is; None: the target decides.
        calls: Calls of `commit` and of the ledger, with their arguments.
        claim_error: Error of `check_claim` and of `claim`.
        late_claim_error: Error that replaces `claim_error` at the first claim.
        completed_error: Error of `completed`.
        remembered: Answer of `check_claim`.
        when_listed: Function that is called when transactions were listed and their list was not yet returned.
        place: Namespace and name of the target.
    """

    def __init__(
        self,
        target: Target | str | None = None,
        name: str = "target",
        *,
        timeout: float | None = None,
        proves: bool = True,
    ) -> None:
        super().__init__(name)
        if target is None:
            target = Target(trusting=True, keeps_ledger=True)
        self.target = target_called(target) if isinstance(target, str) else target
        self.timeout, self.proves = timeout, proves
        self.answers: list[CommitStatus | Exception] = []
        self.abort_answer: AbortStatus | None = None
        self.calls: list[str] = []
        self.claim_error: Exception | None = None
        self.late_claim_error: Exception | None = None
        self.completed_error: Exception | None = None
        self.remembered: Remembered | None = None
        self.when_listed: Callable[[], object] | None = None
        self.place: tuple[str, str] | None = None

    def dataset(self) -> tuple[str, str] | None:
        return self.place

    @property
    def transaction_timeout(self) -> float | None:
        return self.timeout

    # Rows

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

    def discard(self, transaction: Transaction) -> None:
        self.target.aborted.append(transaction.name)

    # Transactions

    def commit(self, committable: Committable) -> CommitOutcome:
        self.calls.append(f"commit {committable.transaction}")
        with self.target.lock:
            if self.answers:
                return self._scripted(committable)
            self._ask()
            seen = self.target.state_of(committable.transaction)
            if seen not in (Observation.PREPARED, Observation.BEGUN):
                return commit_outcome(seen, seen)
            self.target.settle(committable)
            return CommitOutcome(CommitStatus.COMMITTED)

    def _scripted(self, committable: Committable) -> CommitOutcome:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        outcome = CommitOutcome(answer, "scripted")
        if outcome.settled:
            self.target.settle(committable)
        return outcome

    def abort(self, committable: Committable) -> AbortOutcome:
        with self.target.lock:
            self._ask()
            if self.target.state_of(committable.transaction) in (Observation.BEGUN, Observation.COMMITTED):
                return AbortOutcome(AbortStatus.COMMITTED)
            self.target.aborted.append(committable.transaction)
            if self.abort_answer is not None:
                return AbortOutcome(self.abort_answer)
            self.target.prepared.pop(committable.transaction, None)
            self.target.states.pop(committable.transaction, None)
            return AbortOutcome(AbortStatus.ABORTED)

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        self._ask()
        return [self.target.state_of(committable.transaction) for committable in committables]

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        found = [c for c in self._prepared() if (c.pipeline, c.sink) == (scope.pipeline, scope.sink)]
        if self.when_listed is not None:
            self.when_listed()
        return found

    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        return [c for c in self._prepared() if (c.pipeline, c.log) == (pipeline, log)]

    def _prepared(self) -> list[Committable]:
        with self.target.lock:
            return [committable for committable, _ in self.target.prepared.values()]

    def _ask(self) -> None:
        if self.target.away:
            raise RetryableSinkError("no answer")

    # The ledger

    def ledger(self) -> Ledger:
        return self if self.target.keeps_ledger else Ledger()

    def check_claim(self, scope: Scope, newest: Progress) -> Remembered | None:
        self.calls.append(f"check {scope.log} {newest.generation} {newest.epoch}")
        if self.claim_error is not None:
            raise self.claim_error
        self._refuse_other_log(scope)
        names = [parse_transaction_name(name) for name in self.target.committed.keys() - self.target.set_aside]
        known = max((Progress(n.start, n.epoch) for n in names if n is not None and n.scope == scope), default=newest)
        if known > newest:
            raise outdated_log(scope, known, newest, "the target")
        return self.remembered

    def claim(self, scope: Scope) -> None:
        self.calls.append(f"claim {scope.log}")
        self.claim_error, self.late_claim_error = self.late_claim_error or self.claim_error, None
        if self.claim_error is not None:
            raise self.claim_error
        self._refuse_other_log(scope)
        self.target.owners[scope[:2]] = scope.log
        if self.remembered is not None:
            self.remembered = self.remembered._replace(owned=True)

    def _refuse_other_log(self, scope: Scope) -> None:
        owner = self.target.owners.get(scope[:2], scope.log)
        if owner != scope.log:
            raise other_log(scope, owner, "the target")

    def release(self, scope: Scope) -> None:
        self.calls.append("release")
        if self.target.owners.get(scope[:2]) != scope.log:
            self.target.owners.pop(scope[:2], None)
        names = [parse_transaction_name(name) for name in self.target.committed]
        self.target.set_aside.update(str(n) for n in names if n is not None and n.scope[:2] == scope[:2])

    def completed(self, scope: Scope, epoch: int) -> None:  # noqa: ARG002 - signature
        self.calls.append(f"completed {epoch}")
        if self.completed_error is not None:
            raise self.completed_error


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
