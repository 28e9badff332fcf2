"""Bounded channels between tasks, and how an output deals rows to them.

A channel never blocks its caller: a task whose element is refused keeps it and waits to be woken. So threads and the
simulator run the same code, and a full channel is what slows a producer down (backpressure).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from .state.keys import KeyEncoder, subtask_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .elements import Element


def _nobody() -> None:
    """Nobody waits."""


class Channel:
    """From one subtask to another, first in, first out. One reader, one writer.

    Args:
        capacity: Elements that it holds at most.
    """

    def __init__(self, capacity: int) -> None:
        self._elements: deque[Element] = deque()
        self._capacity = capacity
        self._refused = False
        self.wake_reader: Callable[[], None] = _nobody
        self.wake_writer: Callable[[], None] = _nobody

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
        """The oldest element, if there is one."""
        if not self._elements:
            return None
        element = self._elements.popleft()
        if self._refused:
            self._refused = False
            self.wake_writer()
        return element

    @property
    def readable(self) -> bool:
        """Whether there is something to take."""
        return bool(self._elements)

    @property
    def buffered_bytes(self) -> int:
        """Size of the batches in it."""
        return sum(e.nbytes for e in list(self._elements) if isinstance(e, pa.RecordBatch))


class Partitioner(Protocol):
    """Says which rows go to which of an output's channels."""

    def deal(self, batch: pa.RecordBatch, channels: int) -> Sequence[tuple[int, pa.RecordBatch]]:
        """Pairs of a channel's number and its rows, in order."""
        ...


class Forward:
    """Subtask i gives to subtask i; with one channel only, all there is."""

    def __init__(self, subtask: int) -> None:
        self._subtask = subtask

    def deal(self, batch: pa.RecordBatch, channels: int) -> list[tuple[int, pa.RecordBatch]]:
        return [(self._subtask % channels, batch)]


class Rebalance:
    """Batch by batch in turns."""

    def __init__(self, subtask: int) -> None:
        self._next = subtask

    def deal(self, batch: pa.RecordBatch, channels: int) -> list[tuple[int, pa.RecordBatch]]:
        self._next += 1
        return [(self._next % channels, batch)]


class ByKey:
    """Each row to the subtask that owns its key's group.

    Args:
        keys: How a row's key is made.
        max_parallelism: Number of key groups.
    """

    def __init__(self, keys: KeyEncoder, max_parallelism: int) -> None:
        self._keys = keys
        self._max = max_parallelism

    def deal(self, batch: pa.RecordBatch, channels: int) -> list[tuple[int, pa.RecordBatch]]:
        if channels == 1:
            return [(0, batch)]
        owners = [subtask_of(group, channels, self._max) for group in self._keys.groups(batch, self._max)]
        if len(set(owners)) == 1:
            return [(owners[0], batch)]
        rows: dict[int, list[int]] = {}
        for row, owner in enumerate(owners):
            rows.setdefault(owner, []).append(row)
        return [(owner, batch.take(pa.array(mine, pa.int64()))) for owner, mine in rows.items()]


class Output:
    """One edge of the graph, seen from one of its producers.

    Args:
        channels: One to each consumer subtask.
        partitioner: Which rows go where.
    """

    def __init__(self, channels: Sequence[Channel], partitioner: Partitioner) -> None:
        self.channels = list(channels)
        self._partitioner = partitioner

    def deal(self, batch: pa.RecordBatch) -> list[tuple[Channel, Any]]:
        """A batch's parts and where they go."""
        return [(self.channels[i], part) for i, part in self._partitioner.deal(batch, len(self.channels))]

    def all(self, element: Element) -> list[tuple[Channel, Any]]:
        """A marker for everybody."""
        return [(channel, element) for channel in self.channels]
