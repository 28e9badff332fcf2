"""A task's input channels, and the alignment of barriers in them.

Why an aligned checkpoint is consistent: a channel whose barrier has arrived is not read until all others' barriers
are there too. So the task's state at the snapshot holds exactly the rows before the barriers, of every channel, and
none behind them. What waits behind a barrier waits in its bounded channel.

In at-least-once mode no channel waits: rows behind a barrier that came early may get into the snapshot, and are
delivered again after a failure.

A channel that ended counts as one whose barrier has arrived. A newer barrier, or a cancel marker, ends the alignment of
an older one. Barriers of a checkpoint that is done or was given up are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa

from .channels import Barrier, Cancel, Element, End

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .channels import Channel


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
    """Reads a task's channels."""

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
        """What is next; None if nothing can be read now."""
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
        """The coordinator has given this checkpoint up: do not wait for its barriers. Others go on."""
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
