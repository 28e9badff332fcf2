"""How many rows a task works on at once: about as many as take it 50 ms.

A barrier, and a stop, wait for the rows before them. So what lies before them is bounded by time and not by a number
of rows: a task works on a part of a batch, its channels hold about one more part, and a source reads no more than
its readers take. Where a row takes 10 ms, a part has five rows; where it takes 5 µs, a part has 10,000.

The time of a part is `fixed + rows * each`, because a sink may need a while for each request, whatever is in it: if
all of it were attributed to the rows, parts would shrink until each had one row. Both are estimated by least squares
over the newest parts. After Flink's buffer debloating (FLIP-183), which bounds the bytes in flight by time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

WORK_SECONDS: Final = 0.05
"""Seconds that a task works before it looks for other things to do."""
FIRST_ROWS: Final = 32
"""Rows of the first part, when nothing is known yet."""
MOST_ROWS: Final = 1 << 20
JOINED_ROWS: Final = 10_000
"""Rows to which small parts are joined for a sink, if it works these off in time."""
_GROWTH: Final = (2, 8)
"""Limits of the growth from one part to the next: twofold if only the estimate of the fixed time calls for it, and
eightfold if the whole time of the last part does."""
_KEPT: Final = 0.8
"""Weight of a part when the next one is measured."""
_LEAST_SHARE: Final = 0.01
"""Smallest share of a part's time that is attributed to its rows."""
_SPREAD: Final = 0.01
"""Relative variance of the numbers of rows from which on fixed and proportional time can be told apart."""


class Pace:
    """The measured speed of one task.

    Args:
        most: Maximum number of rows of a part.
        first: Number of rows of the first part.

    Attributes:
        rows: Number of rows of the next part.
    """

    def __init__(self, most: int = MOST_ROWS, first: int = FIRST_ROWS) -> None:
        self._most = most
        self.rows = min(first, most)
        self._forget()
        self._out = 0.0

    def _forget(self) -> None:
        self._parts = self._rows = self._seconds = self._rows_squared = self._product = self._fixed = 0.0

    def measured(self, rows: int, seconds: float, rows_out: int, *, left_off: bool = False) -> None:
        """Note how long a part has taken; `left_off`: it took so long that not all of it was done."""
        if not rows:
            return
        if left_off:  # it has become slower: older parts say nothing
            self._out *= rows / self._rows if self._rows else 1.0
            self._forget()
        values = (1.0, rows, seconds, rows * rows, rows * seconds)
        sums = (self._parts, self._rows, self._seconds, self._rows_squared, self._product)
        self._parts, self._rows, self._seconds, self._rows_squared, self._product = (
            total * _KEPT + value for total, value in zip(sums, values, strict=True)
        )
        self._out = self._out * _KEPT + rows_out
        wanted = self._wanted()
        least, most = (factor * self.rows for factor in _GROWTH)
        quick = rows * WORK_SECONDS / max(seconds, 1e-9)
        self.rows = max(1, int(min(wanted, max(least, min(most, quick)), self._most)))

    def _wanted(self) -> float:
        """Return the number of rows that take as long as a part should, without the time that is fixed."""
        rows, seconds = self._rows / self._parts, self._seconds / self._parts
        variance = self._rows_squared / self._parts - rows * rows
        tells = variance >= _SPREAD * rows * rows
        if tells:
            slope = (self._product / self._parts - rows * seconds) / variance
            self._fixed = max(0.0, seconds - slope * rows)
        each = max(seconds - self._fixed, _LEAST_SHARE * seconds) / rows
        wanted = WORK_SECONDS / max(each, 1e-9)
        # Parts of the same size do not tell fixed from proportional time: then the next one has another size.
        return wanted if tells or not rows / 2 < wanted < rows * 2 else rows / 2

    def up_to(self, room: Iterable[int]) -> int:
        """Return the number of rows of the next part: no more than its readers can work off in time.

        Args:
            room: Number of rows that each output has room for.
        """
        rows, out = self.rows, self._out / self._rows if self._rows else 1.0
        for most in room:
            rows = min(rows, int(most / out) if out else rows)
        return max(1, rows)


def even_part(rows: int, most: int) -> int:
    """Return the size of the first of as few parts of about the same size as possible, each of at most `most` rows."""
    parts = -(-rows // most)
    return -(-rows // parts)
