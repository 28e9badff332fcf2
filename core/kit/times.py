"""Times, as people are told them."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """Return a time for people: `0.4 s`, `42 s`, `11:42 min`, `3:05 h`, `4 days`."""
    if seconds is None:
        return "an unknown time"
    if seconds < 10:  # noqa: PLR2004 - one digit
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, left = divmod(minutes, 60)
    if hours >= 48:  # noqa: PLR2004 - two days
        return f"{hours // 24} days"
    return f"{minutes}:{rest:02} min" if hours < 1 else f"{hours}:{left:02} h"
