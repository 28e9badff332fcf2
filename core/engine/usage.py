"""What a subtask does with its time, and with how many rows: counted by the subtask, read by others.

One thread counts, others read: each number is read at once, and they need not fit each other exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..contract.events import SubtaskUsage

if TYPE_CHECKING:
    from collections.abc import Callable

    from .channels import TaskId


class Usage:
    """The counts of one subtask since it was made.

    Args:
        monotonic: Function that returns seconds on a clock that never goes back.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.rows_in = self.rows_out = 0
        self._busy = self._blocked = 0.0
        self._blocked_since: float | None = None

    def begin(self) -> float:
        """Note that a step begins, and return the time, in seconds on the monotonic clock."""
        now = self._monotonic()
        if self._blocked_since is not None:
            self._blocked, self._blocked_since = self._blocked + now - self._blocked_since, None
        return now

    def end(self, began: float, *, worked: bool, full: bool) -> None:
        """Note that a step ends.

        Args:
            began: Time that `begin` returned.
            worked: True if there was something to do.
            full: True if outputs are full.
        """
        now = self._monotonic()
        if worked:
            self._busy += now - began
        elif full:
            self._blocked_since = now

    def total(self, task: TaskId, *, lag: int | None, timers: int | None) -> SubtaskUsage:
        """Return all that was counted so far."""
        since, blocked = self._blocked_since, self._blocked
        blocked += self._monotonic() - since if since is not None else 0.0
        return SubtaskUsage(*task, self.rows_in, self.rows_out, self._busy, blocked, timers, lag)
