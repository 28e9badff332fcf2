"""The kinds of notes beside a decision log: what a run, its processes and operators' commands write down of an event.

A line of the file says its kind (`what`), when the event ended (`at`), and the other fields of its type, in their
order. A field may be added with a default; none is renamed, since notes that are written stay readable.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec

_MOST_SECONDS: Final = 1e9
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=_MOST_SECONDS)]
"""Number of seconds that onceward may have written: no pipeline waits for 30 years."""


class Note(msgspec.Struct, frozen=True, kw_only=True, tag_field="what"):
    """An event as it is stored."""

    at: str = ""
    """Wall-clock time (UTC) of the end of it; empty until it is written."""

    @property
    def what(self) -> str:
        """The kind of it, as the file names it."""
        return str(self.__struct_config__.tag)


class StartNote(Note, frozen=True, kw_only=True, tag="start"):
    """A start of a pipeline."""

    position: int | None = None
    """Position of its START in the log."""
    finished: list[str] = []
    """Transactions that were decided before and that it committed, by name; 50 at most."""
    aborted: list[str] = []
    """Transactions of earlier writers that it aborted, by name; 50 at most."""
    milliseconds: float = 0
    timeouts: dict[str, Any] = {}
    """Seconds after which the target of a sink ends an open transaction; sinks whose targets never do are left out."""
    targets: dict[str, Any] = {}
    """Address that each sink writes to, without secrets, as `address_to_note` returns it."""

    def timeout(self, sink: str) -> float | None:
        """Return the seconds after which the target of a sink ends an open transaction; None if that is not known."""
        seconds = self.timeouts.get(sink)
        return seconds if isinstance(seconds, int | float) and 0 <= seconds < _MOST_SECONDS else None


class EpochNote(Note, frozen=True, kw_only=True, tag="epoch"):
    """An epoch that was completed."""

    epoch: int
    rows: int | None = None
    sinks: dict[str, int | None] = {}
    """Rows of each sink."""
    transactions: int | None = None
    milliseconds: float | None = None
    """Milliseconds from its beginning to its end; None if an earlier run had decided it."""
    commit_milliseconds: float | None = None
    """Milliseconds from its decision to its end; None if an earlier run had decided it."""
    decided: str | msgspec.UnsetType = msgspec.UNSET
    """Time of its decision; only noted of one that an operator's command has completed."""
    tool: str | msgspec.UnsetType = msgspec.UNSET
    """Operator's command that has completed it; unset if a run has."""


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


class CheckpointRecord(Note, frozen=True, kw_only=True, tag="checkpoint"):
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


class ErrorNote(Note, frozen=True, kw_only=True):
    """Something that failed."""

    epoch: int | None = None
    """Number of the epoch; None if it is not one epoch that failed."""
    error: str = ""
    """Text of the error in one line, without passwords."""


class FailureNote(ErrorNote, frozen=True, kw_only=True, tag="failure"):
    """A start, an epoch or an attempt that failed."""


class TaskNote(ErrorNote, frozen=True, kw_only=True, tag="task"):
    """A task that failed. It is no failure of the epoch yet: Spark may run the task again."""


class SourceNote(Note, frozen=True, kw_only=True, tag="source"):
    """A source that does not answer, or that answers again."""

    source: str = ""
    """Title of the source."""
    seconds: Seconds | None = None
    """Seconds for which it has not answered."""
    why: str = ""
    """Text of its error; empty if it answers again."""
    system: Any = None
    """Address of what it reads, as of a sink in a note of a start; None if nobody noted it."""


class LifeNote(Note, frozen=True, kw_only=True, tag="life"):
    """A driver's process that has ended."""

    code: int | None = None
    """Exit code of the process."""
    seconds: float | None = None
    """Seconds for which the process lived."""
    again: float | None = None
    """Seconds until it is started again; None if it is not."""
    stopped: bool = False
    """True if a signal to `onceward run` has ended the process."""
    writers: list[str] = []
    """Identities of the writers that the run's processes have become."""

    @property
    def failed(self) -> bool:
        """Whether the process has failed, and was not stopped."""
        return self.code != 0 and not self.stopped


class EndNote(Note, frozen=True, kw_only=True, tag="end"):
    """A run of the embedded engine that ended without an error."""


_TYPES: Final = (StartNote, EpochNote, CheckpointRecord, FailureNote, TaskNote, SourceNote, LifeNote, EndNote)
KINDS: Final[dict[str, type[Note]]] = {str(kind.__struct_config__.tag): kind for kind in _TYPES}
"""Type of each kind of note."""
