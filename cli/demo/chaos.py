"""When the demo kills what: at random moments, repeatable by seed, and never after the work is done."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


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
