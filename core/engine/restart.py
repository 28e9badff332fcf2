"""What happens after a failure: strategies that say how long to wait before the next attempt, or that there is none.

Names and defaults are Flink's ("Task Failure Recovery" in its documentation). Pure: times come in as arguments.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable  # noqa: TC003 - a dataclass field's type
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Protocol

from ..errors import ConfigurationError
from .settings import refuse_unknown, settings

if TYPE_CHECKING:
    from pathlib import Path


class Restarts(Protocol):
    """One run's memory of its failures."""

    def after(self, failed_at: float, ran_for: float) -> float | None:
        """Seconds to wait before the next attempt; None if there is none.

        Args:
            failed_at: Time of the failure, in seconds on a monotonic clock.
            ran_for: How long the attempt had run.
        """
        ...


@dataclass(frozen=True)
class RestartStrategy:
    """How a pipeline starts again after a failure; make one with the methods below.

    Attributes:
        name: none, fixed-delay, failure-rate or exponential-delay.
    """

    name: str
    _begin: Callable[[], Restarts] = field(repr=False)

    def begin(self) -> Restarts:
        """A fresh memory of failures, for one run."""
        return self._begin()

    @classmethod
    def load(cls, path: str | Path | None = None) -> RestartStrategy | None:
        """The strategy of a TOML file's table `restart` and of environment variables ONCEWARD_RESTART_….

        Args:
            path: The file; default: the environment alone.

        Returns:
            None if neither names one: Pipeline has its default then.

        Raises:
            ConfigurationError: A name is unknown, or a value makes no sense.
        """
        values = settings("restart", path)
        makers = {maker.__name__.replace("_", "-"): maker for maker in _makers(cls)}
        if not values:
            return None
        name = values.pop("strategy", None)
        if name not in makers:
            raise ConfigurationError(f"settings of restart: strategy={name!r}: give one of {', '.join(makers)}")
        known = {p.name: p.default for p in signature(makers[name]).parameters.values() if p.kind is not p.KEYWORD_ONLY}
        refuse_unknown(f"restart with strategy {name}", values, known)
        try:
            numbers = {what: type(known[what])(value) for what, value in values.items()}
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"settings of restart: {error}") from error
        return makers[name](**numbers)

    @classmethod
    def none(cls) -> RestartStrategy:
        """The first failure ends the run."""
        return cls("none", _None)

    @classmethod
    def fixed_delay(cls, attempts: int = 3, delay: float = 10.0) -> RestartStrategy:
        """A number of restarts, with the same pause (seconds) before each."""
        _at_least("attempts", attempts, 1)
        _at_least("delay", delay, 0)
        return cls("fixed-delay", lambda: _FixedDelay(attempts, delay))

    @classmethod
    def failure_rate(cls, failures: int = 3, interval: float = 300.0, delay: float = 10.0) -> RestartStrategy:
        """Restart as long as there are at most so many failures in an interval (seconds)."""
        _at_least("failures", failures, 1)
        _at_least("delay", delay, 0)
        if interval <= 0:
            raise ConfigurationError(f"interval of a restart strategy must be more than 0 s, not {interval}")
        return cls("failure-rate", lambda: _FailureRate(failures, interval, delay))

    @classmethod
    def exponential_delay(
        cls,
        initial: float = 1.0,
        most: float = 60.0,
        factor: float = 1.5,
        jitter: float = 0.1,
        reset_after: float = 3600.0,
        *,
        fraction: Callable[[], float] = random.random,
    ) -> RestartStrategy:
        """Restart for ever, after pauses that grow while failures go on.

        Args:
            initial: First pause in seconds.
            most: Longest pause.
            factor: Growth from one pause to the next.
            jitter: Part of the pause by which it is made longer or shorter at random.
            reset_after: An attempt that ran so long makes the next pause the first again.
            fraction: Random number in [0, 1).
        """
        _at_least("initial", initial, 0)
        _at_least("most", most, initial)
        _at_least("factor", factor, 1)
        if not 0 <= jitter <= 1:
            raise ConfigurationError(f"jitter of a restart strategy must be 0 to 1, not {jitter}")
        return cls(
            "exponential-delay",
            lambda: _Exponential(initial, most, factor, jitter=jitter, reset_after=reset_after, fraction=fraction),
        )


def _makers(cls: type[RestartStrategy]) -> list[Callable[..., RestartStrategy]]:
    return [cls.none, cls.fixed_delay, cls.failure_rate, cls.exponential_delay]


def _at_least(what: str, value: float, least: float) -> None:
    if value < least:
        raise ConfigurationError(f"{what} of a restart strategy must be {least} or more, not {value}")


class _None:
    def after(self, failed_at: float, ran_for: float) -> float | None:  # noqa: ARG002 - see Restarts
        return None


class _FixedDelay:
    def __init__(self, attempts: int, delay: float) -> None:
        self._left, self._delay = attempts, delay

    def after(self, failed_at: float, ran_for: float) -> float | None:  # noqa: ARG002 - see Restarts
        self._left -= 1
        return self._delay if self._left >= 0 else None


class _FailureRate:
    def __init__(self, failures: int, interval: float, delay: float) -> None:
        self._most, self._interval, self._delay = failures, interval, delay
        self._failed: deque[float] = deque()

    def after(self, failed_at: float, ran_for: float) -> float | None:  # noqa: ARG002 - see Restarts
        self._failed.append(failed_at)
        while self._failed[0] <= failed_at - self._interval:
            self._failed.popleft()
        return self._delay if len(self._failed) <= self._most else None


class _Exponential:
    def __init__(
        self,
        initial: float,
        most: float,
        factor: float,
        *,
        jitter: float,
        reset_after: float,
        fraction: Callable[[], float],
    ) -> None:
        self._initial, self._most, self._factor = initial, most, factor
        self._jitter, self._reset_after, self._fraction = jitter, reset_after, fraction
        self._next = initial

    def after(self, failed_at: float, ran_for: float) -> float | None:  # noqa: ARG002 - see Restarts
        pause = self._initial if ran_for >= self._reset_after else self._next
        self._next = min(self._most, pause * self._factor)
        return pause * (1 + self._jitter * (2 * self._fraction() - 1))
