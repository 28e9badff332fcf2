"""The demo's scenario: settings, orders and what a correct pipeline makes of them, what is killed when. All by seed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

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


class DemoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the driver process and the checker need to know."""

    bootstrap_servers: str
    dsn: str
    jdbc_url: str
    home: str
    orders: int
    users: int
    seed: int
    partitions: int = 4
    orders_per_batch: int = 8000
    source_topic: str = "orders"
    sink_topic: str = "order_totals"
    sink_table: str = "order_totals"
    contrast_topic: str = "order_totals_at_least_once"
    contrast_table: str = "order_totals_at_least_once"

    @property
    def events(self) -> Path:
        """File to which the driver appends what it has done, one JSON object a line."""
        return Path(self.home) / "events.jsonl"

    def checkpoint(self, query: str) -> str:
        """Checkpoint folder of a query."""
        return str(Path(self.home) / "checkpoints" / query)

    def save(self, path: Path) -> None:
        """Write it for the driver process; readable by its owner only, for it holds the database's password."""
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: Path) -> DemoSettings:
        """Read what save wrote."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


class Victim(StrEnum):
    """What gets SIGKILL."""

    DRIVER = "driver"
    BROKER = "broker"
    DATABASE = "database"


@dataclass(frozen=True)
class Kill:
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
