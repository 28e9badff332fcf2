"""What is noted beside a decision log, each kind as a type of its own."""

from __future__ import annotations

import msgspec


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One task's part in a checkpoint: seconds after the trigger, seconds, bytes; its work since the last barrier."""

    task: str = ""
    acknowledged: float = 0.0
    alignment: float = 0.0
    buffered: int = 0
    sync: float = 0.0
    asynchronous: float = 0.0
    uploaded: int = 0
    state: int = 0
    rows_in: int = 0
    rows_out: int = 0
    busy: float = 0.0
    blocked: float = 0.0
    timers: int | None = None
    lag: int | None = None


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a checkpoint for people. JSON-serialisable."""

    checkpoint: int
    kind: str
    status: str
    reason: str = ""
    triggered: float = 0.0
    """Seconds on the job's clock."""
    duration: float = 0.0
    subtasks: int = 0
    """Number of subtasks that were to acknowledge; `tasks` has those that did."""
    tasks: list[TaskRecord] = []

    def __str__(self) -> str:
        how = f"in {self.duration:.3f} s, {sum(task.state for task in self.tasks)} bytes"
        kind = "" if self.kind == "checkpoint" else f" ({self.kind})"
        return f"checkpoint {self.checkpoint}{kind} {self.status}{f': {self.reason}' if self.reason else f' {how}'}"
