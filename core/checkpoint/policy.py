"""The settings and the world of a coordinator: clock, pauses, and what to do when data is lost."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable  # noqa: TC003 - a dataclass field's type
from dataclasses import dataclass, field
from enum import StrEnum

from ..log.clock import WriterClock, wall_clock_text
from ..transaction import CommitStatus


class OnLost(StrEnum):
    """What to do when a decided transaction can no longer be committed (invariant 8)."""

    FAIL = "fail"
    """Stop with DataLossError."""
    REPLAY = "replay"
    """Void the decision and write the epoch again, where every transaction is proven not committed."""
    SKIP = "skip"
    """Go on without the data, and leave an audit record in the decision log."""


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff with full jitter, bounded in number (after "Exponential Backoff And Jitter", AWS, 2015).

    Attributes:
        first: Longest first pause in seconds.
        factor: Growth per attempt.
        most: Longest pause in seconds.
        attempts: Pauses before giving up.
        sleep: How to wait.
        fraction: Random number in [0, 1).
    """

    first: float = 0.02
    factor: float = 2.0
    most: float = 2.0
    attempts: int = 12
    sleep: Callable[[float], None] = time.sleep
    fraction: Callable[[], float] = random.random

    def pause(self, attempt: int) -> bool:
        """Wait before the next attempt; False if there is to be none."""
        if attempt >= self.attempts:
            return False
        longest = min(self.most, self.first * self.factor**attempt)
        self.sleep(longest * (0.5 + 0.5 * self.fraction()))
        return True


@dataclass(frozen=True)
class CommitPolicy:
    """How a coordinator behaves.

    Attributes:
        on_lost: What to do with a decided transaction that cannot be committed.
        commits: Pauses between commit attempts that answered "later".
        puts: Pauses between puts of the same bytes into the decision log.
        sweep_every: Longest time in seconds between two sweeps of a pipeline that has epochs to commit.
        monotonic: Seconds on a clock that never goes back; used for ages, never for a decision.
        token: Fresh random identity (16 hex digits).
        now: Wall-clock time as text, for people.
        skips: Outcomes of a commit that on_lost=skip may skip.
        skipped_by: Who says that lost data may be skipped, for the audit record.
        skipped_why: Why, likewise.
    """

    on_lost: OnLost = OnLost.FAIL
    commits: Backoff = field(default_factory=lambda: Backoff(attempts=40))
    puts: Backoff = field(default_factory=Backoff)
    sweep_every: float = 60.0
    monotonic: Callable[[], float] = time.monotonic
    token: Callable[[], str] = lambda: secrets.token_hex(8)
    now: Callable[[], str] = wall_clock_text
    skips: frozenset[CommitStatus] = frozenset({CommitStatus.LOST, CommitStatus.FENCED, CommitStatus.UNKNOWN})
    skipped_by: str = "policy on_lost=skip"
    skipped_why: str = ""

    def writer_clock(self) -> WriterClock:
        """What a log writer needs of it."""
        return WriterClock(token=self.token, now=self.now, pause=self.puts.pause)
