"""What flows through channels besides record batches: barriers, cancel markers, the end.

Asynchronous barrier snapshotting (Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows",
2015): a barrier divides a channel's records into those that belong to a checkpoint and those that come after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pyarrow as pa


class Kind(Enum):
    """What a checkpoint is for. Values: (pre-commits sinks, belongs to the user, ends the job, drains it first)."""

    CHECKPOINT = (True, False, False, False)
    """A periodic one."""
    FINAL = (True, False, True, True)
    """The last one of a job whose input has ended."""
    SAVEPOINT = (False, True, False, False)
    """An intermediate savepoint: it commits nothing, so sinks need not prepare."""
    SUSPEND = (True, True, True, False)
    """Stop with a savepoint."""
    DRAIN = (True, True, True, True)
    """Stop with a savepoint, and first let operators give what they hold back."""

    def __init__(self, commits: bool, savepoint: bool, terminal: bool, drains: bool) -> None:
        self.commits = commits
        self.savepoint = savepoint
        self.terminal = terminal
        self.drains = drains


@dataclass(frozen=True, slots=True)
class Barrier:
    """Everything before it in its channel belongs to the checkpoint.

    Attributes:
        checkpoint: Its id; grows.
        kind: What for.
        target: Folder of a savepoint.
    """

    checkpoint: int
    kind: Kind = Kind.CHECKPOINT
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """This checkpoint's barrier will not come: whoever waits for it goes on."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class End:
    """Nothing comes after it."""


Element: TypeAlias = pa.RecordBatch | Barrier | Cancel | End


@dataclass(frozen=True, order=True, slots=True)
class TaskId:
    """A subtask of an operator."""

    uid: str
    subtask: int

    def __str__(self) -> str:
        return f"{self.uid}[{self.subtask}]"
