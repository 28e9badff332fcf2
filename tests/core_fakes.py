# ruff: noqa: ARG001, ARG002 - the fakes keep the protocols' signatures
"""A store in memory with scripted faults, and a sink that remembers its calls; for tests of core/ alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceward.core.checkpoint import Backoff, CommitPolicy
from onceward.core.contract.ledger import Ledger
from onceward.core.contract.sink import TwoPhaseCommitSink
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    Acknowledgement,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    Progress,
    WriteContext,
)
from onceward.core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from onceward.core.contract.names import Remembered, Scope


class MemoryStore:
    """LogStore in a dict. `faults` holds one function per coming put: called with the put's effect as argument."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.put_faults: list[Callable[[Callable[[], bool]], bool] | None] = []
        self.read_faults = 0
        self.delete_faults = 0
        self.before_delete: Callable[[str], None] | None = None

    def put_if_absent(self, key: str, data: bytes) -> bool:
        def effect() -> bool:
            if key in self.entries:
                return False
            self.entries[key] = data
            return True

        fault = self.put_faults.pop(0) if self.put_faults else None
        return effect() if fault is None else fault(effect)

    def get(self, key: str) -> bytes | None:
        self._read()
        return self.entries.get(key)

    def list_keys(self) -> list[str]:
        self._read()
        return sorted(self.entries)

    def delete(self, key: str) -> None:
        if self.delete_faults:
            self.delete_faults -= 1
            raise StoreError("delete failed")
        self.entries.pop(key, None)

    def describe(self) -> str:
        return "memory"

    @property
    def shared(self) -> bool:
        return False

    def _read(self) -> None:
        if self.read_faults:
            self.read_faults -= 1
            raise StoreError("read failed")


def not_written(effect: Callable[[], bool]) -> bool:
    """A put that failed and did not happen."""
    raise StoreError("put failed")


def answer_lost(effect: Callable[[], bool]) -> bool:
    """A put that happened and whose answer was lost."""
    effect()
    raise StoreError("answer lost")


class FakeSink(TwoPhaseCommitSink[Any], Ledger):
    """Sink, and its own ledger, with scripted `answers`; when they are used up, every commit succeeds."""

    def __init__(self, name: str = "a", timeout: float | None = None) -> None:
        super().__init__(name)
        self._timeout = timeout
        self.answers: list[CommitStatus | Exception] = []
        self.open: list[Committable] = []
        self.elsewhere: list[Committable] = []
        self.committed: list[str] = []
        self.aborted: list[str] = []
        self.calls: list[str] = []
        self.states: dict[str, Observation] = {}
        self.abort_status = AbortStatus.ABORTED
        self.keeps_open = False
        self.claim_error: Exception | None = None
        """Raised by check_claim and claim."""
        self.late_claim_error: Exception | None = None
        """What becomes the claim_error with the first claim."""
        self.remembered: Remembered | None = None
        self.completed_error: Exception | None = None
        self.when_listed: Callable[[], object] | None = None
        self.place: tuple[str, str] | None = None

    def dataset(self) -> tuple[str, str] | None:
        return self.place

    @property
    def transaction_timeout(self) -> float | None:
        return self._timeout

    def begin(self, context: WriteContext) -> Any:
        raise NotImplementedError

    def write(self, transaction: Any, batch: pa.RecordBatch) -> None:
        raise NotImplementedError

    def pre_commit(self, transaction: Any) -> Committable:
        raise NotImplementedError

    def commit(self, committable: Committable) -> CommitOutcome:
        self.calls.append(f"commit {committable.transaction}")
        answer = self.answers.pop(0) if self.answers else CommitStatus.COMMITTED
        if isinstance(answer, Exception):
            raise answer
        outcome = CommitOutcome(answer, "scripted")
        if outcome.settled:
            self.committed.append(committable.transaction)
            self.states.pop(committable.transaction, None)
        return outcome

    def abort(self, committable: Committable) -> AbortOutcome:
        self.aborted.append(committable.transaction)
        self.elsewhere = [c for c in self.elsewhere if c != committable]
        self.open = [c for c in self.open if c != committable or self.keeps_open]
        return AbortOutcome(self.abort_status)

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        listed = list(self.open)
        if self.when_listed is not None:
            self.when_listed()
        return listed

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        done = dict.fromkeys(self.committed, Observation.COMMITTED)
        return [{**done, **self.states}.get(c.transaction, Observation.PREPARED) for c in committables]

    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        return [c for c in self.elsewhere if (c.pipeline, c.log) == (pipeline, log)]

    def ledger(self) -> Ledger:
        return self

    def check_claim(self, scope: Scope, newest: Progress) -> Remembered | None:
        self.calls.append(f"check {scope.log} {newest.generation} {newest.epoch}")
        if self.claim_error is not None:
            raise self.claim_error
        return self.remembered

    def claim(self, scope: Scope) -> None:
        self.calls.append(f"claim {scope.log}")
        self.claim_error, self.late_claim_error = self.late_claim_error or self.claim_error, None
        if self.claim_error is not None:
            raise self.claim_error
        if self.remembered is not None:
            self.remembered = self.remembered._replace(owned=True)

    def release(self, scope: Scope) -> None:
        self.calls.append("release")

    def completed(self, scope: Scope, epoch: int) -> None:
        self.calls.append(f"completed {epoch}")
        if self.completed_error is not None:
            raise self.completed_error


def policy(**changes: object) -> CommitPolicy:
    """A policy without waiting."""
    still = Backoff(attempts=3, sleep=lambda _: None)
    return CommitPolicy(**{"commits": still, "puts": still, "now": lambda: "", **changes})  # type: ignore[arg-type]


def prepared(context: WriteContext, rows: int = 1) -> Committable:
    """The committable that a subtask returns for `context`."""
    return context.committable(kind="fake", transaction=str(context.transaction_name()), rows=rows)


def acknowledgement(*committables: Committable, epoch: int = 0, subtask: int = 0, **changes: object) -> Acknowledgement:
    """The acknowledgement of a subtask that serves sink `a` only."""
    values: dict[str, object] = {"epoch": epoch, "subtask": subtask, "attempt": 0, "sinks": ("a",), **changes}
    return Acknowledgement(committables=committables, **values)  # type: ignore[arg-type]
