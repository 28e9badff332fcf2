"""What flows between tasks: channels, how an output distributes rows to them, and how a gate aligns barriers in them.

Asynchronous barrier snapshotting (Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows",
2015): a barrier divides a channel's records into those that belong to a checkpoint and those that come after it.

A channel never blocks its caller: a task whose element is refused keeps it and waits to be woken. So threads and the
simulator run the same code, and a full channel is what slows a producer down (backpressure).

Why an aligned checkpoint is consistent: a channel whose barrier has arrived is not read until all others' barriers
are there too. So the task's state at the snapshot holds exactly the rows before the barriers, of every channel, and
none behind them. What waits behind a barrier waits in its bounded channel.

In at-least-once mode no channel waits: rows behind a barrier that came early may get into the snapshot, and are
delivered again after a failure.

A channel that ended counts as one whose barrier has arrived. A newer barrier, or a cancel marker, ends the alignment of
an older one. Barriers of a checkpoint that is done or was given up are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ..kit.pieces import PIECE_BYTES
from .batch_sizing import MOST_ROWS
from .state.keys import Memo, group_of, subtask_of

if TYPE_CHECKING:
    from .state.keys import KeyEncoder


class CheckpointKind(Enum):
    """The purpose of a checkpoint.

    Values: (pre-commits sinks, belongs to the user, ends the job, drains it first, is that of a decided epoch).
    """

    CHECKPOINT = (True, False, False, False)
    """A periodic checkpoint."""
    FINAL = (True, False, True, True)
    """The last checkpoint of a job whose input has ended."""
    AGAIN = (True, False, True, False, True)
    """The end of a decided epoch that is computed again, because some of it was lost. It keeps no state."""
    AGAIN_DRAINED = (True, False, True, True, True)
    """The end of such an epoch, if operators emitted the rows that they held back there."""
    SAVEPOINT = (False, True, False, False)
    """An intermediate savepoint: it commits nothing, so sinks need not prepare."""
    SUSPEND = (True, True, True, False)
    """A savepoint with which the job stops."""
    DRAIN = (True, True, True, True)
    """A savepoint with which the job stops, after operators have emitted the rows that they hold back."""

    def __init__(self, commits: bool, savepoint: bool, terminal: bool, drains: bool, again: bool = False) -> None:
        self.commits = commits
        self.savepoint = savepoint
        self.terminal = terminal
        self.drains = drains
        self.again = again


class Barrier(msgspec.Struct, frozen=True):
    """Everything before it in its channel belongs to the checkpoint. A savepoint's has a target: its folder."""

    checkpoint: int
    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    target: str | None = None


class Cancel(msgspec.Struct, frozen=True):
    """The notice that this checkpoint's barrier will not come: tasks stop waiting for it."""

    checkpoint: int


class End(msgspec.Struct, frozen=True):
    """Last element of a channel: the input has ended."""


Element: TypeAlias = pa.RecordBatch | Barrier | Cancel | End
CHANNEL_BYTES: Final = 2 * PIECE_BYTES
"""Room for two batches of the usual largest size: while one is worked on, the next one waits."""


class TaskId(NamedTuple):
    """A subtask of an operator."""

    uid: str
    subtask: int

    def __str__(self) -> str:
        return f"{self.uid}[{self.subtask}]"


class Channel:
    """From one subtask to another, first in, first out. One reader, one writer.

    Args:
        capacity: Maximum number of elements.
        most_bytes: Maximum bytes of the batches among them. A larger batch enters an empty channel: a row may be large.
        most_rows: Maximum rows of the batches among them, which the reader sets to what it can work off soon. A larger
            batch enters an empty channel.
    """

    def __init__(self, capacity: int, most_bytes: int = CHANNEL_BYTES, most_rows: int = MOST_ROWS) -> None:
        self._elements: deque[Element] = deque()
        self._capacity = capacity
        self._most_bytes = most_bytes
        self.most_rows = most_rows
        # Two counts, because only the writer changes one, and only the reader the other: one count would need a lock.
        self._bytes_in = self._bytes_out = self._rows_in = self._rows_out = 0
        self._refused = False
        self.wake_reader: Callable[[], object] = bool  # nobody waits
        self.wake_writer: Callable[[], object] = bool

    def offer(self, element: Element) -> bool:
        """Append; False if it is full."""
        size, rows = _size_of(element)
        if self._is_full(size, rows):
            self._refused = True
            if self._is_full(size, rows):  # else the reader has just made room, and may not have seen `_refused`
                return False
        # Counted before it is appended: the reader may take it at once, and would count out what was not counted in.
        self._bytes_in += size
        self._rows_in += rows
        self._elements.append(element)
        self.wake_reader()
        return True

    def _is_full(self, size: int, rows: int) -> bool:
        """Return whether an element of `size` bytes must wait. A barrier has none: for it, only the number counts."""
        if len(self._elements) >= self._capacity:
            return True
        if not rows or not self._elements:
            return False
        return self.buffered_bytes + size > self._most_bytes or self.buffered_rows + rows > self.most_rows

    def take(self) -> Element | None:
        if not self._elements:
            return None
        element = self._elements.popleft()
        size, rows = _size_of(element)
        self._bytes_out += size
        self._rows_out += rows
        # Looked at after room was made: `offer` sets it, then looks for room again, so one of the two sees the other.
        if self._refused:
            self._refused = False
            self.wake_writer()
        return element

    @property
    def readable(self) -> bool:
        return bool(self._elements)

    @property
    def buffered_bytes(self) -> int:
        return self._bytes_in - self._bytes_out

    @property
    def buffered_rows(self) -> int:
        return self._rows_in - self._rows_out


def _size_of(element: Element) -> tuple[int, int]:
    """Return the bytes and rows of an element."""
    return (int(element.nbytes), element.num_rows) if isinstance(element, pa.RecordBatch) else (0, 0)


Partitioner: TypeAlias = Callable[[pa.RecordBatch, int], list[tuple[int, pa.RecordBatch]]]
"""Function of a batch and the number of an output's channels; it returns the channels with their rows, in order."""


def forward(batch: pa.RecordBatch, _channels: int) -> list[tuple[int, pa.RecordBatch]]:
    """Send a batch from subtask i to subtask i: there is one channel."""
    return [(0, batch)]


def rebalance(subtask: int) -> Partitioner:
    """Return a partitioner that sends batches to the channels in turn."""
    turns = count(subtask + 1)
    return lambda batch, channels: [(next(turns) % channels, batch)]


def by_key(keys: KeyEncoder, max_parallelism: int) -> Partitioner:
    """Return a partitioner that sends each row to the subtask that owns its key's group."""
    groups = Memo(partial(group_of, max_parallelism=max_parallelism))

    def parts(batch: pa.RecordBatch, channels: int) -> list[tuple[int, pa.RecordBatch]]:
        if channels == 1:
            return [(0, batch)]
        distinct = keys.distinct(batch)
        owners = [subtask_of(groups[key], channels, max_parallelism) for key in distinct.encoded]
        different = list(dict.fromkeys(owners))
        if len(different) == 1:
            return [(different[0], batch)]
        of_rows = pa.array(owners, pa.int32()).take(distinct.codes)
        return [(owner, batch.filter(pc.equal(of_rows, owner))) for owner in different]

    return parts


class TaskOutput(NamedTuple):
    """One edge of the graph, seen from one of its producers: a channel to each consumer, and which rows go where."""

    channels: Sequence[Channel]
    partitioner: Partitioner

    def parts(self, batch: pa.RecordBatch) -> list[tuple[Channel, Element]]:
        return [(self.channels[i], part) for i, part in self.partitioner(batch, len(self.channels))]

    @property
    def rows(self) -> int:
        """Number of rows that the consumers can work off soon."""
        return sum(channel.most_rows for channel in self.channels)


class Aligned(NamedTuple):
    """A barrier that arrived in all channels, the seconds since the first one, and the bytes that wait behind it."""

    barrier: Barrier
    seconds: float = 0.0
    buffered: int = 0


Input: TypeAlias = pa.RecordBatch | Aligned | Cancel | End
"""Rows of any channel; a barrier that arrived in all; a checkpoint whose barrier does not; all channels have ended."""


@dataclass
class _Alignment:
    barrier: Barrier
    since: float
    arrived: set[int] = field(default_factory=set)


class Gate:
    """The reading end of a task's channels."""

    def __init__(
        self,
        channels: Sequence[Channel],
        *,
        aligned: bool,
        clock: Callable[[], float],
        choose: Callable[[Sequence[int]], int] | None = None,
    ) -> None:
        self.channels = list(channels)
        self._aligned = aligned
        self._clock = clock
        self._choose = choose or self._in_turns
        self._turn = 0
        self._ended: set[int] = set()
        self._alignments: dict[int, _Alignment] = {}
        """By checkpoint: where its barrier has arrived. Aligned, there is at most one."""
        self._done = -1
        """Newest checkpoint that is aligned; older ones are over too."""
        self._over: set[int] = set()
        """Those beyond it that were cancelled or given up."""
        self._events: list[Input] = []

    def poll(self) -> Input | None:
        """Return the next input; None if nothing can be read now."""
        while not self._events:
            readable = [i for i, channel in enumerate(self.channels) if channel.readable and not self.is_blocked(i)]
            if not readable:
                return None
            number = self._choose(readable)
            element = self.channels[number].take()
            if element is not None:
                self._accept(number, element)
        return self._events.pop(0)

    def is_blocked(self, number: int) -> bool:
        return self._aligned and any(number in alignment.arrived for alignment in self._alignments.values())

    def give_up(self, checkpoint: int) -> None:
        """Stop waiting for the barriers of a checkpoint that the coordinator has given up; others continue."""
        self._over.add(checkpoint)
        self._alignments.pop(checkpoint, None)

    def _accept(self, number: int, element: Element) -> None:
        match element:
            case Barrier():
                self._barrier(number, element)
            case Cancel(checkpoint):
                self._cancel(checkpoint)
            case End():
                self._ended.add(number)
                # An ended channel brings no more barriers, so its end may be what a checkpoint has waited for.
                for checkpoint in sorted(self._alignments):
                    self._check(checkpoint)
                if len(self._ended) == len(self.channels):
                    self._events.append(End())
            case batch:
                self._events.append(batch)

    def _barrier(self, number: int, barrier: Barrier) -> None:
        checkpoint = barrier.checkpoint
        if self._is_over(checkpoint):
            return
        if checkpoint not in self._alignments:
            if self._aligned:
                for older in [c for c in self._alignments if c < checkpoint]:
                    self._cancel(older)
                self._done = max(self._done, checkpoint - 1)  # a channel that brings a newer one has none of the older
            self._alignments[checkpoint] = _Alignment(barrier, self._clock())
        self._alignments[checkpoint].arrived.add(number)
        self._check(checkpoint)

    def _check(self, checkpoint: int) -> None:
        alignment = self._alignments.get(checkpoint)
        if alignment is None or len(alignment.arrived | self._ended) < len(self.channels):
            return
        waiting = sum(self.channels[i].buffered_bytes for i in alignment.arrived) if self._aligned else 0
        self._done = checkpoint  # and with it all older ones
        self._alignments = {c: later for c, later in self._alignments.items() if c > checkpoint}
        self._over = {c for c in self._over if c > checkpoint}
        self._events.append(Aligned(alignment.barrier, self._clock() - alignment.since, waiting))

    def _cancel(self, checkpoint: int) -> None:
        if not self._is_over(checkpoint):
            self.give_up(checkpoint)
            self._events.append(Cancel(checkpoint))

    def _is_over(self, checkpoint: int) -> bool:
        return checkpoint <= self._done or checkpoint in self._over

    def _in_turns(self, readable: Sequence[int]) -> int:
        self._turn = next((i for i in readable if i > self._turn), readable[0])
        return self._turn
