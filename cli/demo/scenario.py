"""The demo's scenario: orders and what a correct pipeline makes of them, what is killed when. All by seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from onceward.testing.pipeline.endpoints import KafkaTopic, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

CENTS_PER_UNIT = {"EUR": 100, "USD": 91, "GBP": 117}
"""Euro cents for one unit of each currency: the enrichment."""
CANCELLED_SHARE = 0.05


class Order(msgspec.Struct, frozen=True):
    """One order as it is in the topic `orders`."""

    order_id: str
    user: int
    amount: int
    currency: str
    status: str


class Total(msgspec.Struct, frozen=True):
    """What the pipeline makes of an order: its value in euro cents, and its user's running total up to it."""

    order_id: str
    user: int
    cents: int
    total: int


def generate(seed: int, count: int, users: int) -> Iterator[Order]:
    """So many orders, as they are produced: always the same for a seed; a user's are all in one partition."""
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


SOURCE_TOPIC = "orders"
PARTITIONS = 4
EXACTLY_ONCE, AT_LEAST_ONCE = "order_totals", "order_totals_at_least_once"
_COLUMNS = 'order_id text, "user" int, cents bigint'
TARGETS: Mapping[tuple[str, str], KafkaTopic | Table] = {
    ("Kafka", "exactly once"): KafkaTopic(EXACTLY_ONCE, PARTITIONS),
    ("PostgreSQL", "exactly once"): Table(EXACTLY_ONCE, f"{_COLUMNS}, total bigint"),
    ("Kafka", "at least once"): KafkaTopic(AT_LEAST_ONCE, PARTITIONS),
    ("PostgreSQL", "at least once"): Table(AT_LEAST_ONCE, _COLUMNS),
}
"""What the pipeline writes, by system and guarantee."""
VICTIMS = {"kill-driver": "driver", "kill-kafka": "broker", "kill-postgres": "database"}
"""What gets SIGKILL, by the kit's fault."""
SAID = "demo: "
"""Before what the driver says in its log."""


def checkpoint(folder: Path, target: str) -> Path:
    """Checkpoint folder of the query that writes the targets of this name, below the demo's folder."""
    return folder / "checkpoints" / target


class Kill(NamedTuple):
    """A fault that strikes `delay` seconds after `share` of the exactly-once rows was seen."""

    fault: str
    share: float
    delay: float


def plan(seed: int, driver_kills: int) -> list[Kill]:
    """The kills of a run, in order: the driver so often, broker and database once each."""
    rng = random.Random(seed)  # noqa: S311 - repeatable on purpose
    faults = ["kill-driver"] * driver_kills + ["kill-kafka", "kill-postgres"]
    rng.shuffle(faults)
    width = 0.88 / len(faults)
    shares = [width * (number + rng.random() * 0.8) for number in range(len(faults))]
    return [Kill(fault, share, rng.uniform(0.0, 2.5)) for fault, share in zip(faults, shares, strict=True)]
