"""Fault injection: what goes wrong, at which call, how often. For any sink, source and store, with or without pytest.

    from onceward.testing.faults import Faults, die, fail, lose_answer
    from onceward.testing.wrappers import FaultySink

    faults = Faults(fail("commit", nth=2, times=3), lose_answer("pre_commit"), die("commit", nth=5))
    sink = FaultySink(KafkaSink(...), faults)

Calls are counted in each process: copies of a `Faults` object that reach the same one (tasks of a Spark worker) count
together, and a process that is started anew begins at one. What happened in another process is not known here.
`Faults.at_random` hits calls at random, by a seed. After Jepsen's nemesis, one call at a time.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from onceward.core.errors import ConfigurationError, RetryableSinkError, SourceError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


class FaultKind(StrEnum):
    """The kind of a call's failure."""

    FAIL = "fail"
    """The call is never made; the caller gets an error that may pass."""
    DELAY = "delay"
    """The call is made late."""
    LOSE_ANSWER = "lose the answer"
    """The call is made; the caller gets an error that may pass."""
    DUPLICATE = "duplicate"
    """The call is made twice, as by a network that repeats; the caller gets the second answer."""
    DIE = "die"
    """The process ends by SIGKILL before it is made."""
    DIE_AFTER = "die after"
    """The process ends by SIGKILL after it was made."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: Kind of the failure.
        call: Name of the method, as in the wrapped class; "*" for any.
        nth: Number of the first call that fails, counted from 1 in each process.
        times: Number of calls in a row that fail.
        seconds: Delay of the call in seconds, for DELAY.

    Raises:
        ConfigurationError: A number is out of range.
    """

    kind: FaultKind
    call: str
    nth: int = 1
    times: int = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.nth < 1 or self.times < 1 or self.seconds < 0:
            raise ConfigurationError(f"a fault's nth and times are 1 or more, its seconds 0 or more: {self}")


def fail(call: str, *, nth: int = 1, times: int = 1) -> Fault:
    """Plan that a call is not made, and raises or answers "retry later"."""
    return Fault(FaultKind.FAIL, call, nth, times)


def delay(call: str, seconds: float, *, nth: int = 1, times: int = 1) -> Fault:
    """Plan that a call is made `seconds` late."""
    return Fault(FaultKind.DELAY, call, nth, times, seconds)


def lose_answer(call: str, *, nth: int = 1, times: int = 1) -> Fault:
    """Plan that a call is made, and raises or answers "retry later"."""
    return Fault(FaultKind.LOSE_ANSWER, call, nth, times)


def duplicate(call: str, *, nth: int = 1, times: int = 1) -> Fault:
    """Plan that a call is made twice."""
    return Fault(FaultKind.DUPLICATE, call, nth, times)


def die(call: str, *, nth: int = 1) -> Fault:
    """Plan a SIGKILL of this process before a call."""
    return Fault(FaultKind.DIE, call, nth)


def die_after(call: str, *, nth: int = 1) -> Fault:
    """Plan a SIGKILL of this process after a call."""
    return Fault(FaultKind.DIE_AFTER, call, nth)


class InjectedSinkError(RetryableSinkError):
    """An injected fault, at a sink."""


class InjectedSourceError(SourceError):
    """An injected fault, at a source."""


class InjectedStoreError(StoreError):
    """An injected fault, at a store: the put is in doubt."""


@dataclass
class _History:
    """The calls and faults so far in this process, for all copies of one `Faults`."""

    dice: random.Random
    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    struck: list[Fault] = field(default_factory=list)


_histories: dict[str, _History] = {}


class Faults:
    """A plan of the calls that go wrong. Thread-safe; picklable, and counts once in each process.

    Args:
        faults: Faults that are to happen. If several meet at a call, the first counts.
    """

    def __init__(self, *faults: Fault) -> None:
        self._faults = faults
        self._seed, self._rate = 0, 0.0
        self._kinds: Sequence[FaultKind] = ()
        self._calls: Sequence[str] = ()
        self._id = uuid.uuid4().hex

    @classmethod
    def at_random(
        cls,
        seed: int,
        rate: float,
        *,
        kinds: Sequence[FaultKind] = (FaultKind.FAIL, FaultKind.LOSE_ANSWER, FaultKind.DUPLICATE),
        calls: Sequence[str] = (),
    ) -> Faults:
        """Make a plan in which each call goes wrong with this probability.

        Args:
            seed: The same seed gives the same faults for the same order of calls.
            rate: Probability, 0 to 1.
            kinds: Kinds of faults to choose from; a DELAY takes up to 0.2 s.
            calls: Only at these; default: at all.

        Raises:
            ConfigurationError: The rate is no probability, or there are no kinds.
        """
        if not 0 <= rate <= 1 or not kinds:
            raise ConfigurationError(f"rate is a probability from 0 to 1, and kinds are at least one: {rate}, {kinds}")
        faults = cls()
        faults._seed, faults._rate, faults._kinds, faults._calls = seed, rate, tuple(kinds), tuple(calls)
        return faults

    @property
    def calls(self) -> list[str]:
        """Names of all calls in this process so far, in order, as they began."""
        return self._history.calls

    @property
    def struck(self) -> list[Fault]:
        """The faults that have happened in this process, in order."""
        return self._history.struck

    def left(self) -> list[Fault]:
        """Return the faults that have not happened in this process: a test that expected them has shown nothing."""
        return [fault for fault in self._faults if fault not in self.struck]

    def around(self, call: str, make: Callable[[], T], lost: Callable[[str], T], *, again: bool = True) -> T:
        """Make a call with the planned fault, if there is one.

        Args:
            call: Name of the call.
            make: Function that makes the call.
            lost: Function that makes from words what the caller gets instead of an answer: it raises, or says "retry
                later".
            again: True if a network could repeat the call; if not, a DUPLICATE does not happen.
        """
        fault = self._next(call, again=again)
        if fault is None:
            return make()
        words = f"injected fault: {fault.kind}, at {call}"
        if fault.kind is FaultKind.FAIL:
            return lost(words)
        if fault.kind is FaultKind.DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind is FaultKind.DELAY:
            time.sleep(fault.seconds)
        if fault.kind is FaultKind.DUPLICATE:
            make()
        answer = make()
        if fault.kind is FaultKind.DIE_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        return lost(words) if fault.kind is FaultKind.LOSE_ANSWER else answer

    @property
    def _history(self) -> _History:
        return _histories.setdefault(self._id, _History(random.Random(self._seed)))  # noqa: S311 - no secret

    def _next(self, call: str, *, again: bool) -> Fault | None:
        history = self._history
        with history.lock:
            history.calls.append(call)
            for name in (call, "*"):
                history.counts[name] = history.counts.get(name, 0) + 1
            fault = self._planned(call, history.counts) or self._by_chance(call, history.dice)
            if fault is None or (fault.kind is FaultKind.DUPLICATE and not again):
                return None
            history.struck.append(fault)
            return fault

    def _planned(self, call: str, counts: dict[str, int]) -> Fault | None:
        for fault in self._faults:
            if fault.call in (call, "*") and 0 <= counts[fault.call] - fault.nth < fault.times:
                return fault
        return None

    def _by_chance(self, call: str, dice: random.Random) -> Fault | None:
        if (self._calls and call not in self._calls) or dice.random() >= self._rate:
            return None
        return Fault(dice.choice(self._kinds), call, seconds=dice.random() / 5)
