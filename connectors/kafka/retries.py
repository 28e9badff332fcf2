"""Asking again and again, with growing pauses and an end."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_PAUSE: Final = 0.004
LONGEST_PAUSE: Final = 0.5
GROWTH: Final = 1.6
LEAST: Final = 0.05


class Retries:
    """Iterates over 0, 1, 2 … with exponential pauses and jitter in between, until time is over; at least once.

    Args:
        seconds: When to stop, counted from now.
    """

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until the end, never less than a twentieth."""
        return max(LEAST, self._deadline - time.monotonic())

    def __iter__(self) -> Iterator[int]:
        pause, number = FIRST_PAUSE, 0
        while True:
            yield number
            number += 1
            left = self._deadline - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, pause * random.uniform(0.7, 1.3)))  # noqa: S311 - jitter
            pause = min(LONGEST_PAUSE, pause * GROWTH)
