"""Trying again, for a short while, what an answer of "busy" or a cut connection left open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_delay, wait_random_exponential

from onceward.core.errors import RetryableSinkError

if TYPE_CHECKING:
    from collections.abc import Callable

RETRY_SECONDS = 3.0
"""Seconds; whatever takes longer is RETRY_LATER, and its caller's decision."""


def retry_until_known(round_trip: Callable[[], bool]) -> str:
    """Call `round_trip` until it answers True (all settled) or RETRY_SECONDS is over.

    A RetryableSinkError is a round without result: what it left open is asked again in the next one.

    Returns:
        The last such error's message; empty if there was none.
    """
    words = ""

    def attempt() -> bool:
        nonlocal words
        try:
            return round_trip()
        except RetryableSinkError as error:
            words = str(error)
            return False

    Retrying(
        retry=retry_if_result(lambda settled: not settled),
        stop=stop_after_delay(RETRY_SECONDS),
        wait=wait_random_exponential(multiplier=0.005, max=0.5),
        retry_error_callback=_give_up,
    )(attempt)
    return words


def _give_up(_: RetryCallState) -> bool:
    return False
