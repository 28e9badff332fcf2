"""A checkpoint that is in progress, one that is complete, and what is remembered of either."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import OncewardError
from .elements import Barrier, Kind, TaskId  # noqa: TC001 - fields of dataclasses

if TYPE_CHECKING:
    from ..transaction import Committable
    from .state.handles import SubtaskState


@dataclass(frozen=True)
class TaskAck:
    """What a task answers when its snapshot is written.

    Attributes:
        task: Who.
        checkpoint: For which one.
        state: Its state's handles.
        committables: What it prepared since the newest decision it knows of.
        alignment: Seconds of alignment.
        buffered: Bytes that waited meanwhile.
        sync: Seconds of the synchronous part.
        asynchronous: Seconds of the asynchronous part.
        uploaded: Bytes written for it.
        target: Folder of the savepoint that it is for.
    """

    task: TaskId
    checkpoint: int
    state: SubtaskState
    committables: tuple[Committable, ...] = ()
    alignment: float = 0.0
    buffered: int = 0
    sync: float = 0.0
    asynchronous: float = 0.0
    uploaded: int = 0
    target: str | None = None


class Status(StrEnum):
    """How a checkpoint ended."""

    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"
    """It expired, a task declined it, or it could not be stored."""
    DECLINED = "declined"
    """It did not begin."""
    SUBSUMED = "subsumed"


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One task's part in a checkpoint: seconds after the trigger, seconds, bytes."""

    task: str
    acknowledged: float
    alignment: float
    buffered: int
    sync: float
    asynchronous: float
    uploaded: int
    state: int


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a checkpoint, for people. JSON-serialisable."""

    checkpoint: int
    kind: str
    status: str
    reason: str = ""
    triggered: float = 0.0
    """Seconds on the job's clock."""
    duration: float = 0.0
    tasks: list[TaskRecord] = []

    def __str__(self) -> str:
        how = f"in {self.duration:.3f} s, {sum(task.state for task in self.tasks)} bytes"
        kind = "" if self.kind == "checkpoint" else f" ({self.kind})"
        return f"checkpoint {self.checkpoint}{kind} {self.status}{f': {self.reason}' if self.reason else f' {how}'}"


class CheckpointFailedError(OncewardError):
    """A checkpoint or savepoint that somebody asked for was not made. The message says why."""


class Request:
    """A checkpoint that somebody asked for and waits for."""

    def __init__(self, kind: Kind, target: str | None = None) -> None:
        self.kind = kind
        self.target = target
        self._done = threading.Event()
        self._result: Any = None
        self._error: OncewardError | None = None

    def succeed(self, result: Any) -> None:
        """It is complete."""
        self._result = result
        self._done.set()

    def fail(self, error: OncewardError) -> None:
        """It will not be."""
        if not self._done.is_set():
            self._error = error
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether it ended."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for its end.

        Raises:
            CheckpointFailedError: It failed, or time is over.
        """
        if not self._done.wait(timeout):
            raise CheckpointFailedError(f"no {self.kind.name.lower()} after {timeout} s")
        if self._error is not None:
            raise self._error
        return self._result


@dataclass
class Pending:
    """A checkpoint that is in progress.

    Attributes:
        barrier: Its barrier.
        triggered: When, in seconds on the job's clock.
        missing: Tasks that have not acknowledged.
        acks: Those that have, and when.
        request: Who waits for it.
    """

    barrier: Barrier
    triggered: float
    missing: set[TaskId]
    request: Request | None = None
    acks: dict[TaskId, tuple[TaskAck, float]] = field(default_factory=dict)

    @property
    def checkpoint(self) -> int:
        """Its id."""
        return self.barrier.checkpoint

    def accept(self, ack: TaskAck, now: float) -> bool:
        """Take an acknowledgement; False if it is not awaited."""
        if ack.task not in self.missing:
            return False
        self.missing.discard(ack.task)
        self.acks[ack.task] = (ack, now)
        return True

    def committables(self) -> list[Committable]:
        """All that its tasks prepared."""
        return [c for task in sorted(self.acks) for c in self.acks[task][0].committables]

    def record(self, now: float, status: Status, reason: str = "") -> CheckpointRecord:
        """What to remember of it."""
        return CheckpointRecord(
            checkpoint=self.checkpoint,
            kind=self.barrier.kind.name.lower(),
            status=status,
            reason=reason,
            triggered=self.triggered,
            duration=now - self.triggered,
            tasks=[_task_record(self.acks[task], self.triggered) for task in sorted(self.acks)],
        )


def _task_record(acknowledged: tuple[TaskAck, float], triggered: float) -> TaskRecord:
    ack, at = acknowledged
    return TaskRecord(
        task=str(ack.task),
        acknowledged=at - triggered,
        alignment=ack.alignment,
        buffered=ack.buffered,
        sync=ack.sync,
        asynchronous=ack.asynchronous,
        uploaded=ack.uploaded,
        state=ack.state.size,
    )
