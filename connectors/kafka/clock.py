"""How far this machine's clock is behind that of a coordinator, which alone decides when a transaction expires.

No answer of a broker holds its time. But a coordinator lists the transactions that have been open for longer than a
given time, by its own clock, so a few questions find out the age of a transaction.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .transaction_coordinator import TransactionCoordinatorClient
    from .transaction_state import Handle

_CLOSE: Final = 1.0
"""Seconds by which the age may be wrong."""
_LONGEST: Final = 1 << 31
"""Milliseconds: no transaction is open for longer than this."""


def clock_behind(transactions: TransactionCoordinatorClient, handle: Handle) -> float:
    """Return how many seconds this machine's clock is behind the coordinator's; 0 if they agree within two seconds.

    Also 0 if it cannot be found out: the brokers are older than Kafka 3.8, or the transaction is no longer open.
    """

    def is_older(seconds: float) -> bool | None:
        ids = transactions.running_longer([handle.transactional_id], max(0, round(seconds * 1000)))
        return None if ids is None else bool(ids)

    by_own_clock = time.time() - handle.started_ms / 1000
    if is_older(0.0) is not True:
        return 0.0
    if by_own_clock >= 0 and is_older(by_own_clock + _CLOSE) is False and is_older(by_own_clock - _CLOSE):
        return 0.0
    low, high = 0.0, _LONGEST / 1000
    while high - low > _CLOSE:
        middle = min((low + high) / 2, 2 * low + 60)  # a transaction is rather young
        if is_older(middle):
            low = middle
        else:
            high = middle
    return high - (time.time() - handle.started_ms / 1000)  # rather too old than too young: less time is left
