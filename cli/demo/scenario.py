"""The demo's scenario: settings, orders and what a correct pipeline makes of them, what is killed when. All by seed."""

from __future__ import annotations

import random
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from onceward.testing.pipeline.endpoints import Addresses

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class Target(NamedTuple):
    """A topic or table that the pipeline writes."""

    system: str
    name: str

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.system}, {'exactly once' if self.name == EXACTLY_ONCE else 'at least once'}"


SOURCE_TOPIC = "orders"
EXACTLY_ONCE, AT_LEAST_ONCE = "order_totals", "order_totals_at_least_once"
TARGETS = [Target(system, name) for name in (EXACTLY_ONCE, AT_LEAST_ONCE) for system in ("Kafka", "PostgreSQL")]
PARTITIONS = 4


class DemoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the driver process and the checker need to know."""

    bootstrap_servers: str
    dsn: str
    home: str
    orders: int
    users: int
    seed: int

    @property
    def addresses(self) -> Addresses:
        """Where everything is, for the kit's readers and feeders."""
        return Addresses(Path(self.home), self.bootstrap_servers, self.dsn)

    @property
    def file(self) -> Path:
        """File for the driver process; readable by its owner only, for it holds the database's password."""
        return Path(self.home) / "settings.json"

    @property
    def events(self) -> Path:
        """File to which the driver appends what it has done, one JSON object a line."""
        return Path(self.home) / "events.jsonl"

    def checkpoint(self, query: str) -> str:
        """Checkpoint folder of a query."""
        return str(Path(self.home) / "checkpoints" / query)


class Victim(StrEnum):
    """What gets SIGKILL."""

    DRIVER = "driver"
    BROKER = "broker"
    DATABASE = "database"


class Kill(NamedTuple):
    """One kill: once `share` of the orders is through, and `delay` seconds after that was seen."""

    victim: Victim
    share: float
    delay: float


def plan(seed: int, driver_kills: int) -> list[Kill]:
    """The kills of a run, in order: the driver so often, broker and database once each."""
    rng = random.Random(seed)  # noqa: S311 - repeatable on purpose
    victims = [Victim.DRIVER] * driver_kills + [Victim.BROKER, Victim.DATABASE]
    rng.shuffle(victims)
    width = 0.88 / len(victims)
    shares = [width * (number + rng.random() * 0.8) for number in range(len(victims))]
    return [Kill(victim, share, rng.uniform(0.0, 2.5)) for victim, share in zip(victims, shares, strict=True)]
