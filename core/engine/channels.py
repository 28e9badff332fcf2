"""What flows between tasks, the bounded channels it flows through, and how an output distributes rows to them.

Asynchronous barrier snapshotting (Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows",
2015): a barrier divides a channel's records into those that belong to a checkpoint and those that come after it.

A channel never blocks its caller: a task whose element is refused keeps it and waits to be woken. So threads and the
simulator run the same code, and a full channel is what slows a producer down (backpressure).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from .state.keys import subtask_of

if TYPE_CHECKING:
    from .state.keys import KeyEncoder


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


class Barrier(msgspec.Struct, frozen=True):
    """Everything before it in its channel belongs to the checkpoint. A savepoint's has a target: its folder."""

    checkpoint: int
    kind: Kind = Kind.CHECKPOINT
    target: str | None = None


class Cancel(msgspec.Struct, frozen=True):
    """This checkpoint's barrier will not come: whoever waits for it goes on."""

    checkpoint: int


class End(msgspec.Struct, frozen=True):
    """Nothing comes after it."""


Element: TypeAlias = pa.RecordBatch | Barrier | Cancel | End


class TaskId(NamedTuple):
    """A subtask of an operator."""

    uid: str
    subtask: int

    def __str__(self) -> str:
        return f"{self.uid}[{self.subtask}]"


class Channel:
    """From one subtask to another, first in, first out. One reader, one writer."""

    def __init__(self, capacity: int) -> None:
        self._elements: deque[Element] = deque()
        self._capacity = capacity
        self._refused = False
        self.wake_reader: Callable[[], object] = bool  # nobody waits
        self.wake_writer: Callable[[], object] = bool

    def offer(self, element: Element) -> bool:
        """Append; False if it is full."""
        if len(self._elements) >= self._capacity:
            self._refused = True
            if len(self._elements) >= self._capacity:
                return False
        self._elements.append(element)
        self.wake_reader()
        return True

    def take(self) -> Element | None:
        if not self._elements:
            return None
        element = self._elements.popleft()
        if self._refused:
            self._refused = False
            self.wake_writer()
        return element

    @property
    def readable(self) -> bool:
        return bool(self._elements)

    @property
    def buffered_bytes(self) -> int:
        return sum(e.nbytes for e in list(self._elements) if isinstance(e, pa.RecordBatch))


Partitioner: TypeAlias = Callable[[pa.RecordBatch, int], list[tuple[int, pa.RecordBatch]]]
"""Of a batch and the number of an output's channels: which rows go to which, in order."""


def forward(batch: pa.RecordBatch, _channels: int) -> list[tuple[int, pa.RecordBatch]]:
    """Subtask i gives to subtask i: there is one channel."""
    return [(0, batch)]


def rebalance(subtask: int) -> Partitioner:
    """Batch by batch in turns."""
    turns = count(subtask + 1)
    return lambda batch, channels: [(next(turns) % channels, batch)]


def by_key(keys: KeyEncoder, max_parallelism: int) -> Partitioner:
    """Each row to the subtask that owns its key's group."""

    def parts(batch: pa.RecordBatch, channels: int) -> list[tuple[int, pa.RecordBatch]]:
        if channels == 1:
            return [(0, batch)]
        owners = [subtask_of(group, channels, max_parallelism) for group in keys.groups(batch, max_parallelism)]
        if len(set(owners)) == 1:
            return [(owners[0], batch)]
        rows: dict[int, list[int]] = {}
        for row, owner in enumerate(owners):
            rows.setdefault(owner, []).append(row)
        return [(owner, batch.take(pa.array(mine, pa.int64()))) for owner, mine in rows.items()]

    return parts


class Output(NamedTuple):
    """One edge of the graph, seen from one of its producers: a channel to each consumer, and which rows go where."""

    channels: Sequence[Channel]
    partitioner: Partitioner

    def parts(self, batch: pa.RecordBatch) -> list[tuple[Channel, Element]]:
        return [(self.channels[i], part) for i, part in self.partitioner(batch, len(self.channels))]
