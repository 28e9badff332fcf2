"""What the coordinator of checkpoints hears (events), what it has done by others (effects), and what it remembers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ..errors import OncewardError
from .channels import Barrier, Kind, TaskId  # noqa: TC001 - fields of dataclasses

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from ..transaction import Committable
    from .state.handles import SubtaskState


class CheckpointFailedError(OncewardError):
    """A checkpoint or savepoint that somebody asked for was not made. The message says why."""


# Events


@dataclass(frozen=True, slots=True)
class Opened:
    """A task takes barriers from now on."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A source has no more rows."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class Finished:
    """A task has ended."""

    task: TaskId


@dataclass(frozen=True)
class Acknowledged:
    """A task has written its snapshot.

    Attributes:
        task: Which.
        checkpoint: For which checkpoint.
        state: Handles of its state.
        committables: What it prepared since the newest decision that it knows of.
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


@dataclass(frozen=True, slots=True)
class Declined:
    """A task cannot make its snapshot."""

    task: TaskId
    checkpoint: int
    reason: str


@dataclass(frozen=True, slots=True)
class Requested:
    """Somebody asks for a checkpoint; `answer` gets what `Completed` brings, or an error."""

    kind: Kind
    target: str | None = None
    answer: Future[Any] | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """Answers `Complete`: the checkpoint is durable and committed."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotCompleted:
    """Answers `Complete`: it is not durable and never will be; or, in doubt, only a restart finds out."""

    error: OncewardError
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """A task failed, or whatever else ends the attempt."""

    error: OncewardError


@dataclass(frozen=True, slots=True)
class Stopping:
    """The attempt ends: nothing begins any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event: TypeAlias = (
    Opened
    | Exhausted
    | Finished
    | Acknowledged
    | Declined
    | Requested
    | Completed
    | NotCompleted
    | Failed
    | Stopping
    | Tick
)


# Effects; the first three are for tasks


@dataclass(frozen=True, slots=True)
class Trigger:
    """Have every source inject a barrier."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class Confirm:
    """Tell every task that this checkpoint is completed."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Tell every task that this checkpoint was given up."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class Complete:
    """Make a checkpoint durable and commit it; `Completed` or `NotCompleted` answers.

    Attributes:
        pending: The checkpoint.
        under_way: Others that are in progress.
    """

    pending: Pending
    under_way: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """Free what a task wrote for nothing."""

    ack: Acknowledged


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell whoever asked for a checkpoint: the result, or the error."""

    to: Future[Any]
    result: Any = None
    error: OncewardError | None = None


@dataclass(frozen=True, slots=True)
class Remember:
    """A checkpoint has ended, or did not begin."""

    record: CheckpointRecord
    bad: bool = False


ToTask: TypeAlias = Trigger | Confirm | GiveUp
Effect: TypeAlias = ToTask | Complete | Discard | Answer | Remember


# What is remembered


class Status(StrEnum):
    """How a checkpoint ended."""

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


@dataclass(frozen=True)
class Pending:
    """A checkpoint that is in progress.

    Attributes:
        barrier: Its barrier.
        triggered: When, in seconds on the job's clock.
        missing: Tasks that have not acknowledged.
        answer: Of whoever waits for it.
        acks: Acknowledgements, and when they came.
    """

    barrier: Barrier
    triggered: float
    missing: frozenset[TaskId] = frozenset()
    answer: Future[Any] | None = None
    acks: Mapping[TaskId, tuple[Acknowledged, float]] = field(default_factory=dict)

    @property
    def checkpoint(self) -> int:
        return self.barrier.checkpoint

    def committables(self) -> list[Committable]:
        return [c for task in sorted(self.acks) for c in self.acks[task][0].committables]

    def record(self, now: float, status: Status, reason: str = "") -> CheckpointRecord:
        return CheckpointRecord(
            checkpoint=self.checkpoint,
            kind=self.barrier.kind.name.lower(),
            status=status,
            reason=reason,
            triggered=self.triggered,
            duration=now - self.triggered,
            tasks=[self._of_task(*self.acks[task]) for task in sorted(self.acks)],
        )

    def _of_task(self, ack: Acknowledged, at: float) -> TaskRecord:
        return TaskRecord(
            task=str(ack.task),
            acknowledged=at - self.triggered,
            alignment=ack.alignment,
            buffered=ack.buffered,
            sync=ack.sync,
            asynchronous=ack.asynchronous,
            uploaded=ack.uploaded,
            state=ack.state.size,
        )
