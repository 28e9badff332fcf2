"""How a coordinator behaves: clock, retries of commits, and what to do when data is lost.

Only the coordinator retries a commit. A sink's client calls its target once, with a bounded time, and says what it
saw. All sinks are asked at the same time. So the longest time until CommitPendingError is `commit_timeout` and the
longest such call, and it is set here alone.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Sequence  # noqa: TC003 - a dataclass field's type
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Literal

from ..errors import ConfigurationError
from ..kit.text_options import check_types
from .transaction import CommitStatus


class OnLost(StrEnum):
    """The reaction when a decided transaction can no longer be committed (invariant 8)."""

    FAIL = "fail"
    """Stop with DataLossError."""
    REPLAY = "replay"
    """Write again what is proven not committed: the epoch if nothing of it is visible, else only what was lost."""
    SKIP = "skip"
    """Go on without the data, and leave an audit record in the decision log."""


AnyOnLost = OnLost | Literal["fail", "replay", "skip"]
DEFAULT_ON_LOST: Final = OnLost.REPLAY
"""Default of a pipeline, unless its user says otherwise. An operator's command never writes anything again."""
COMMIT_TIMEOUT: Final = 300.0
COMMIT_BACKOFF: Final = 2.0
FIRST_PAUSE: Final = 0.02
MOST_DOUBLINGS: Final = 50
"""Larger exponents would not change the pause, which is capped, and would overflow."""
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff with jitter (after "Exponential Backoff And Jitter", AWS, 2015).

    Attributes:
        first: Longest first pause in seconds.
        factor: Factor by which the pause grows from one attempt to the next.
        most: Longest pause in seconds.
        attempts: Number of pauses before giving up; None if only time bounds them.
        sleep: Function that waits for a number of seconds.
        fraction: Random number in [0, 1).
    """

    first: float = FIRST_PAUSE
    factor: float = 2.0
    most: float = 2.0
    attempts: int | None = None
    sleep: Callable[[float], None] = time.sleep
    fraction: Callable[[], float] = random.random

    def pause(self, attempt: int, left: float = math.inf) -> bool:
        """Wait before the next attempt; False if there is to be none.

        Args:
            attempt: Number of attempts that were made before the last one.
            left: Seconds until the end; the last attempt is made then.
        """
        if left <= 0 or (self.attempts is not None and attempt >= self.attempts):
            return False
        longest = min(self.most, self.first * self.factor ** min(attempt, MOST_DOUBLINGS))
        self.sleep(min(left, longest * (0.5 + 0.5 * self.fraction())))
        return True


def side_by_side(calls: Sequence[Callable[[], None]]) -> None:
    """Make calls at the same time and wait for all of them; then raise the first error, if there was one."""
    if len(calls) == 1:
        calls[0]()
        return
    with ThreadPoolExecutor(len(calls) or 1, thread_name_prefix="onceward-commit") as threads:
        futures = [threads.submit(copy_context().run, call) for call in calls]  # whose run it is, counts there too
    for future in futures:
        future.result()


def _since_boot() -> float:
    """Return the seconds since boot, including those when the machine was suspended: brokers' clocks went on."""
    return time.clock_gettime(_CLOCK)


def _wall_clock() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class CommitPolicy:
    """The settings of a coordinator: retries, pauses, and the reaction to lost data.

    Attributes:
        on_lost: Action for a decided transaction that cannot be committed.
        commit_timeout: Seconds for which a decided transaction is asked for again while its target answers "later".
        commits: Pauses between these requests.
        puts: Pauses between puts of the same bytes into the decision log.
        make_all: Function that makes one call to each of several targets: at the same time, or in an order of its own.
        sweep_every: Longest time in seconds between two sweeps of a pipeline that has epochs to commit.
        monotonic: Seconds on a clock that never goes back; used for ages, never for a decision.
        token: Fresh random identity (16 hex digits).
        now: Wall-clock time as text, for people.
        skips: Outcomes of a commit that on_lost=skip may skip.
        skipped_by: Person or policy that says that lost data may be skipped, for the audit record.
        skipped_why: Reason to skip lost data, for the audit record.
    """

    on_lost: OnLost = OnLost.FAIL
    commit_timeout: float = COMMIT_TIMEOUT
    commits: Backoff = field(default_factory=lambda: Backoff(most=COMMIT_BACKOFF))
    puts: Backoff = field(default_factory=lambda: Backoff(attempts=12))
    make_all: Callable[[Sequence[Callable[[], None]]], None] = side_by_side
    sweep_every: float = 60.0
    monotonic: Callable[[], float] = _since_boot
    token: Callable[[], str] = lambda: secrets.token_hex(8)
    now: Callable[[], str] = _wall_clock
    skips: frozenset[CommitStatus] = frozenset({CommitStatus.LOST, CommitStatus.FENCED, CommitStatus.UNKNOWN})
    skipped_by: str = "policy on_lost=skip"
    skipped_why: str = ""

    @classmethod
    def of(cls, on_lost: str, commit_timeout: float, commit_backoff: float) -> CommitPolicy:
        """Make the policy for a user's settings.

        Args:
            on_lost: Value of OnLost, in upper or lower case.
            commit_timeout: Seconds for which a commit is retried; 0 for one attempt.
            commit_backoff: Longest pause between two attempts, in seconds.

        Raises:
            ConfigurationError: A setting is not usable.
        """
        check_types(cls.of, locals())
        choices = [choice.value for choice in OnLost]
        if on_lost.lower() not in choices:
            raise ConfigurationError(f"on_lost is {on_lost!r}; give one of {choices}")
        if not 0 <= commit_timeout < math.inf:
            raise ConfigurationError(f"commit_timeout is {commit_timeout}; give seconds, 0 or more")
        if not 0 < commit_backoff < math.inf:
            raise ConfigurationError(f"commit_backoff is {commit_backoff}; give seconds, more than 0")
        backoff = Backoff(first=min(FIRST_PAUSE, commit_backoff), most=commit_backoff)
        return cls(on_lost=OnLost(on_lost.lower()), commit_timeout=commit_timeout, commits=backoff)
