"""The demo's input: orders, the same for the same seed, and what a correct pipeline makes of them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CENTS_PER_UNIT = {"EUR": 100, "USD": 91, "GBP": 117}
"""Euro cents for one unit of each currency: the enrichment."""
CANCELLED_SHARE = 0.05


@dataclass(frozen=True)
class Order:
    """One order as it stands in the topic `orders`."""

    order_id: str
    user: int
    amount: int
    currency: str
    status: str

    def value(self) -> bytes:
        """The message's value."""
        return json.dumps(self.__dict__, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Total:
    """What the pipeline makes of an order: its value in euro cents, and its user's running total up to it."""

    order_id: str
    user: int
    cents: int
    total: int


def generate(seed: int, count: int, users: int) -> Iterator[Order]:
    """Orders of a seed, in the order in which they are produced.

    Args:
        seed: Same seed, same orders.
        count: How many.
        users: How many users; a user's orders are all in one partition.
    """
    rng = random.Random(seed)  # noqa: S311 - repeatable on purpose
    currencies = list(CENTS_PER_UNIT)
    for number in range(count):
        yield Order(
            order_id=f"o{number:08d}",
            user=rng.randrange(users),
            amount=rng.randrange(1, 500),
            currency=rng.choice(currencies),
            status="cancelled" if rng.random() < CANCELLED_SHARE else "placed",
        )


def expected(seed: int, count: int, users: int) -> dict[str, Total]:
    """What must be in each target at the end, by order id: cancelled orders are filtered out."""
    totals: dict[int, int] = {}
    result = {}
    for order in generate(seed, count, users):
        if order.status == "cancelled":
            continue
        cents = order.amount * CENTS_PER_UNIT[order.currency]
        totals[order.user] = totals.get(order.user, 0) + cents
        result[order.order_id] = Total(order.order_id, order.user, cents, totals[order.user])
    return result
