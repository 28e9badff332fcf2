"""The world as a log writer needs it."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - a dataclass field's type
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True)
class WriterClock:
    """What a log writer takes from the world; the simulator puts in its own.

    Attributes:
        token: Gives a fresh random identity (16 hex digits).
        now: Gives the wall-clock time as text, for people only.
        pause: Waits before the n-th (from 0) repetition of a put or of a start; False to give up.
    """

    token: Callable[[], str]
    now: Callable[[], str]
    pause: Callable[[int], bool]


def wall_clock_text() -> str:
    """The time now, in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
