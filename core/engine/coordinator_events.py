"""What the coordinator of checkpoints hears (events), what it has done by others (effects), and what it remembers."""

from __future__ import annotations

from concurrent.futures import Future
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from ..contract.transaction import Committable, Written
from ..errors import OncewardError
from ..log.note_kinds import CheckpointRecord, TaskRecord
from .channels import Barrier, CheckpointKind, TaskId
from .state.handles import SubtaskState

# What is remembered


class Status(StrEnum):
    """The end of a checkpoint."""

    COMPLETED = "completed"
    FAILED = "failed"
    """The checkpoint expired, a task declined it, or it could not be stored."""
    DECLINED = "declined"
    """The checkpoint did not begin."""
    SUBSUMED = "subsumed"


# Events


class TaskOpened(msgspec.Struct, frozen=True):
    """A task takes barriers from now on."""

    task: TaskId


class Exhausted(msgspec.Struct, frozen=True):
    """A source has no more rows."""

    task: TaskId


class Finished(msgspec.Struct, frozen=True):
    """A task has ended."""

    task: TaskId


class Acknowledged(msgspec.Struct, frozen=True):
    """A task has written its snapshot."""

    task: TaskId
    checkpoint: int
    state: SubtaskState
    committables: tuple[Committable, ...] = ()
    """Transactions that the task prepared since the newest decision that it knows of."""
    measured: TaskRecord = TaskRecord()
    target: str | None = None
    """Folder of the savepoint that it is for."""
    written: Written | None = None
    """The work of a sink since the last barrier; None for other tasks."""


class Declined(msgspec.Struct, frozen=True):
    """A task cannot make its snapshot."""

    task: TaskId
    checkpoint: int
    reason: str


class Requested(msgspec.Struct, frozen=True):
    """Somebody asks for a checkpoint; `answer` gets what `Completed` brings, or an error."""

    kind: CheckpointKind
    target: str | None = None
    answer: Future[Any] | None = None


class CompletedCheckpoint(msgspec.Struct, frozen=True):
    """Answers `Complete`: the checkpoint is durable and committed."""

    result: Any = None


class NotCompleted(msgspec.Struct, frozen=True):
    """Answers `Complete`: it is not durable and never will be; or, in doubt, only a restart finds out."""

    error: OncewardError
    in_doubt: bool = False


class Failed(msgspec.Struct, frozen=True):
    """A task failed, or whatever else ends the attempt."""

    error: OncewardError


class Stopping(msgspec.Struct, frozen=True):
    """The attempt ends: nothing begins any more."""

    reason: str


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


Event: TypeAlias = (
    TaskOpened
    | Exhausted
    | Finished
    | Acknowledged
    | Declined
    | Requested
    | CompletedCheckpoint
    | NotCompleted
    | Failed
    | Stopping
    | Tick
)


class Pending(msgspec.Struct, frozen=True):
    """A checkpoint that is in progress."""

    barrier: Barrier
    triggered: float
    """Time of its trigger, in seconds on the job's clock."""
    missing: frozenset[TaskId] = frozenset()
    """Tasks that have not acknowledged."""
    answer: Future[Any] | None = None
    """Future of a caller who waits for the checkpoint; None if nobody does."""
    acks: dict[TaskId, tuple[Acknowledged, float]] = {}
    """Acknowledgements, and when they came."""

    @property
    def checkpoint(self) -> int:
        return self.barrier.checkpoint

    def committables(self) -> list[Committable]:
        return [c for task in sorted(self.acks) for c in self.acks[task][0].committables]

    def written(self) -> tuple[Written, ...]:
        return tuple(ack.written for ack, _ in self.acks.values() if ack.written is not None)

    def record(self, now: float, status: Status, reason: str = "") -> CheckpointRecord:
        return CheckpointRecord(
            checkpoint=self.checkpoint,
            kind=self.barrier.kind.name.lower(),
            status=status,
            reason=reason,
            triggered=self.triggered,
            duration=now - self.triggered,
            subtasks=len(self.acks) + len(self.missing),
            tasks=[
                msgspec.structs.replace(
                    ack.measured, task=str(task), acknowledged=at - self.triggered, state=ack.state.size
                )
                for task, (ack, at) in sorted(self.acks.items(), key=lambda item: item[0])
            ],
        )


# Effects; the first three are for tasks


class Trigger(msgspec.Struct, frozen=True):
    """Have every source inject a barrier."""

    barrier: Barrier


class Confirm(msgspec.Struct, frozen=True):
    """Tell every task that this checkpoint is completed."""

    checkpoint: int


class GiveUp(msgspec.Struct, frozen=True):
    """Tell every task that this checkpoint was given up."""

    checkpoint: int


class Complete(msgspec.Struct, frozen=True):
    """Make a checkpoint durable and commit it; `Completed` or `NotCompleted` answers. Others are under way."""

    pending: Pending
    under_way: tuple[int, ...]


class Discard(msgspec.Struct, frozen=True):
    """Free what a task wrote for nothing."""

    ack: Acknowledged


class Reply(msgspec.Struct, frozen=True):
    """Tell whoever asked for a checkpoint: the result, or the error."""

    to: Future[Any]
    result: Any = None
    error: OncewardError | None = None


class Remember(msgspec.Struct, frozen=True):
    """Keep the record of a checkpoint that has ended, or that could not begin."""

    record: CheckpointRecord
    bad: bool = False


ToTask: TypeAlias = Trigger | Confirm | GiveUp
Effect: TypeAlias = ToTask | Complete | Discard | Reply | Remember
