"""What an answer says of a delivery: a pure function of its status, and when to come again.

RFC 9110 (HTTP Semantics), sections 15 and 10.2.3; 425 is RFC 8470's, 429 is RFC 6585's. 409 is what a server answers
to a key whose first request it is still at, 422 to a key that came with another payload
(draft-ietf-httpapi-idempotency-key-header-07, section 2.7).
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

LATER: Final = frozenset({408, 409, 425, 429})
"""Statuses below 500 of what may pass by itself."""
_SUCCESS: Final = range(200, 300)
_SERVER_ERROR: Final = range(500, 600)


class Verdict(StrEnum):
    """What became of a delivery."""

    TAKEN = "taken"
    LATER = "later"
    """Not known, or not yet: it is to be sent again, under the same key."""
    REFUSED = "refused"
    """It will be refused again."""


class Answer(NamedTuple):
    """An answer.

    Attributes:
        status: Of HTTP.
        retry_after: Seconds to wait before the next request, if the server says so.
        text: The beginning of its body.
    """

    status: int
    retry_after: float | None = None
    text: str = ""


def judge(status: int, also_later: Collection[int] = ()) -> Verdict:
    """What a status says.

    Args:
        status: Of the answer.
        also_later: Statuses that this server gives to what may pass by itself.
    """
    if status in _SUCCESS:
        return Verdict.TAKEN
    if status in LATER or status in _SERVER_ERROR or status in also_later:
        return Verdict.LATER
    return Verdict.REFUSED


def seconds_to_wait(retry_after: str | None, now: datetime | None = None) -> float | None:
    """Seconds out of a header Retry-After: a number of them, or a date; None if there is nothing to be read."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())
