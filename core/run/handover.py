"""Pass a pipeline to a newer driver between two epochs, so that a deployment leaves no gap.

The driver that shall run the pipeline (the successor) prepares all that it can, and asks in the store of the decision
log. The one that runs it (the predecessor) ends the epoch that it is in, begins no other, and says so. The successor
puts START, as at any start; the predecessor sees that, ends, and says so, too.

A request is for the newest START. A driver puts its own one with its first epoch, which may come late. Until then it
answers for the START that it has found, or for none. A successor that sees another START asks again for that one.

No decision depends on this. It only chooses the moment of a START, which fences whoever wrote before (rule of the
decision log). A successor that dies before its START is noticed, since its request no longer changes, and the
predecessor goes on. One that gets no answer puts START all the same, as after a crash.

Both sides are generators that yield the seconds after which they look again: threads run them with `run_steps`, and the
simulator of tests/test_handover.py steps them in every order.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from contextlib import closing, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from ..errors import ConfigurationError, FencedError, LogDamagedError, StoreError
from ..kit.sealed import decode_json
from ..kit.text_options import check_type
from ..log import read
from ..log.entries import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ..log import LogStore

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks of a predecessor for a request."""
STEP_SECONDS: Final = 0.1
"""Seconds between two looks of either side once they talk."""
BEAT_SECONDS: Final = 0.5
"""Seconds between two signs of life of a successor."""
SILENT_SECONDS: Final = 5.0
"""Time after which a side that has shown no sign of life counts as dead."""
END_SECONDS: Final = 10.0
"""Seconds that a successor waits for its predecessor to end after START."""

_log = logging.getLogger("onceward.coordinator")
_REQUEST, _ANSWER = "H", "I"


class HandoverRequest(msgspec.Struct, frozen=True):
    """A successor's request. JSON-serialisable."""

    id: str
    beat: int
    """Number that grows while the successor is alive."""


class HandoverState(StrEnum):
    """What a predecessor answers."""

    WORKING = "working"
    PAUSED = "paused"
    ENDED = "ended"


class HandoverAnswer(msgspec.Struct, frozen=True):
    """A predecessor's answer. JSON-serialisable."""

    id: str
    """Identity of the request."""
    state: HandoverState


_UNREADABLE: Final = HandoverRequest("", 0)
"""Request in place of one that cannot be read: nobody changes it."""
_IN_DOUBT: Final = HandoverAnswer("", HandoverState.WORKING)
"""Answer in place of one that may be in the store or not."""


def check_take_over(patience: float | None, *, known: bool = True) -> None:
    """Check a user's setting.

    Args:
        patience: Seconds to wait for the other driver; None: nothing is taken over.
        known: True if this process knows before the start where the decision log is.

    Raises:
        ConfigurationError: It is no time, or the log is not known.
    """
    check_type("take_over", patience, float | None)
    if patience is not None and not 0 <= patience < math.inf:
        raise ConfigurationError(f"take_over={patience}: give a number of seconds, 0 or more")
    if patience is not None and not known:
        raise ConfigurationError(
            "take_over needs checkpoint=… or store=…, where the other driver is asked, and a classic session: over "
            "Spark Connect, leave it out, and stop the other driver first"
        )


def run_steps(steps: Generator[float, None, bool], pause: Callable[[float], object] = time.sleep) -> bool:
    """Run one side to its end.

    Args:
        steps: The steps of the side, each of which yields the seconds to pause.
        pause: Waits for a number of seconds; if it returns a true value, the side is given up.

    Returns:
        What the side returns; False if it was given up.
    """
    with closing(steps):  # also at a signal: the other side need not wait for one that says that it has gone
        while True:
            try:
                seconds = next(steps)
            except StopIteration as end:
                return bool(end.value)
            if pause(seconds):
                return False


def _key(kind: str, start: int) -> str:
    return kind + (key_of(start)[1:] if start >= 0 else "none")


class _Conversation:
    def __init__(self, store: LogStore, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock

    def _request(self, start: int) -> HandoverRequest | None:
        data = self._store.get(_key(_REQUEST, start))
        with suppress(LogDamagedError):
            return None if data is None else decode_json(data, HandoverRequest, LogDamagedError, "a request")
        return _UNREADABLE

    def _answer(self, start: int) -> HandoverAnswer | None:
        data = self._store.get(_key(_ANSWER, start))
        with suppress(LogDamagedError):
            return None if data is None else decode_json(data, HandoverAnswer, LogDamagedError, "an answer")
        return None

    def _replace(self, kind: str, start: int, content: HandoverRequest | HandoverAnswer) -> bool:
        self._store.delete(_key(kind, start))
        return self._store.put_if_absent(_key(kind, start), msgspec.json.encode(content))


class Successor(_Conversation):
    """The driver that takes a pipeline over.

    Args:
        store: Store of the pipeline's decision log.
        patience: Seconds to wait at most until the predecessor has ended its epoch.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, store: LogStore, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(store, clock)
        self._patience = patience
        self._id, self._beat = secrets.token_hex(8), 0
        self._start = -1
        """Position of the START whose driver it asks."""
        self._asked = self._beaten = clock()
        self._other: HandoverRequest | None = None
        self._since = 0.0

    def take(self, put_start: Callable[[], object]) -> Generator[float, None, bool]:
        """Ask for the pipeline, put START as soon as the predecessor has paused, and wait until it has ended.

        START is put in any case: without an answer, it fences whoever may still write.

        Returns:
            Whether the predecessor has made room and ended.

        Raises:
            FencedError: Yet another driver is taking the pipeline over. START was not put.
            StoreError: The store did not answer.
        """
        self._start = read(self._store).start
        self._forget_earlier()
        try:
            paused = yield from self._ask()
            put_start()
            return paused and (yield from self._see_end())
        finally:
            with suppress(StoreError):
                self._withdraw()

    def _ask(self) -> Generator[float, None, bool]:
        """Return whether the predecessor has paused."""
        began, heard = self._clock(), False
        while True:
            with suppress(StoreError):  # it may answer the next time
                self._show_life()
                answer = self._answer(self._start)
                if answer is not None and answer.id == self._id:
                    if answer.state is not HandoverState.WORKING:
                        return True
                    heard = True
                newest = read(self._store).start
                if newest != self._start:  # its first epoch has begun, it has started again, or it is another driver
                    self._withdraw()
                    self._start, self._asked, heard = newest, self._clock(), False
            now = self._clock()
            if not heard and self._beat and now - self._asked > SILENT_SECONDS:
                _log.info("No running driver answered; starting as after a crash.")
                return False
            if now - began > self._patience:
                _log.warning("the driver that runs the pipeline has not ended its epoch in %.0f s", now - began)
                return False
            yield STEP_SECONDS

    def _show_life(self) -> None:
        """Put the request, and change it now and then."""
        now, there = self._clock(), self._request(self._start)
        if there is not None and there.id != self._id:
            if not self._is_dead(there, now):
                return
        elif there is not None and now - self._beaten < BEAT_SECONDS:
            return
        if self._replace(_REQUEST, self._start, HandoverRequest(self._id, self._beat + 1)):
            self._asked = self._asked if self._beat else now
            self._beat, self._beaten = self._beat + 1, now

    def _is_dead(self, there: HandoverRequest, now: float) -> bool:
        """Return whether the successor that asked before this one shows no sign of life."""
        if self._other is None or self._other.id != there.id:
            self._other, self._since = there, now
        elif self._other.beat != there.beat:
            raise FencedError("another driver is taking the pipeline over: start only one")
        return now - self._since >= SILENT_SECONDS

    def _see_end(self) -> Generator[float, None, bool]:
        began = self._clock()
        while self._clock() - began < END_SECONDS:
            with suppress(StoreError):
                answer = self._answer(self._start)
                if answer is not None and answer.id == self._id and answer.state is HandoverState.ENDED:
                    return True
            yield STEP_SECONDS
        _log.warning("the driver that ran the pipeline has paused, and does not say that it has ended: it is fenced")
        return False

    def _withdraw(self) -> None:
        there = self._request(self._start)
        if there is not None and there.id == self._id:
            self._store.delete(_key(_REQUEST, self._start))
        answer = self._answer(self._start)
        if answer is not None and answer.id == self._id:
            self._store.delete(_key(_ANSWER, self._start))

    def _forget_earlier(self) -> None:
        """Delete what was said to and by earlier writers."""
        for key in self._store.list_keys():
            if key.startswith((_REQUEST, _ANSWER)) and key[1:] != _key("", self._start):
                self._store.delete(key)


class Predecessor(_Conversation):
    """The driver that runs a pipeline, and hands it over.

    Args:
        store: Store of the pipeline's decision log.
        start: Position of its START; -1 if it has put none and there is no other; None if it has put none: then it
            answers for the newest that is there.
        clock: Monotonic clock, in seconds.

    Attributes:
        start: Position of the START for which it answers.

    Raises:
        StoreError: The store did not answer.
    """

    def __init__(self, store: LogStore, start: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(store, clock)
        self.start = read(store).start if start is None else start
        self._forget()

    def _forget(self) -> None:
        self._seen: HandoverRequest | None = None
        self._changed: float | None = None
        self._said: HandoverAnswer | None = None

    def answer_for(self, start: int | None) -> None:
        """Answer for the newest START that this driver has put; None: it has put none yet."""
        if start is not None and start != self.start:
            self.start = start
            self._forget()

    def is_asked(self) -> bool:
        """Return whether a successor that is alive asks for the pipeline, and tell it that this driver has heard.

        Raises:
            StoreError: The store did not answer.
        """
        if not self._is_alive():
            self._say(None)
            return False
        self._say(HandoverState.WORKING)
        return True

    def hand_over(self) -> Generator[float, None, bool]:
        """Say that no epoch is under way, and wait until the successor has put START; no epoch may begin meanwhile.

        Returns:
            Whether a newer START is there. If not, the successor has gone, and this driver goes on.
        """
        while True:
            alive = self._changed is not None and self._clock() - self._changed < SILENT_SECONDS
            with suppress(StoreError):
                self._say(HandoverState.PAUSED)  # nobody works until the successor has read it
                if read(self._store).start != self.start:
                    return True
                alive = self._is_alive()
            if not alive:
                _log.warning("the driver that asked for the pipeline has gone: this one goes on")
                with suppress(StoreError):
                    self._say(None)
                return False
            yield STEP_SECONDS

    def say_ended(self) -> None:
        """Tell the successor that this driver runs no more."""
        with suppress(StoreError):
            self._say(HandoverState.ENDED)

    def _is_alive(self) -> bool:
        """Return whether the request has changed lately: one that a dead successor left behind does not."""
        request, now = self._request(self.start), self._clock()
        if request is not None and self._seen is not None and request.id == self._seen.id:
            if request.beat != self._seen.beat:
                self._changed = now
        elif request is not None:
            self._changed = None
        self._seen = request or self._seen  # it is away for a moment when it changes
        return self._changed is not None and now - self._changed < SILENT_SECONDS

    def _say(self, state: HandoverState | None) -> None:
        """Answer the request that was seen last, unless that has been said; None takes the answer back."""
        answer = None if state is None or self._seen is None else HandoverAnswer(self._seen.id, state)
        if answer == self._said:
            return
        self._said = _IN_DOUBT
        if answer is None:
            self._store.delete(_key(_ANSWER, self.start))
        elif not self._replace(_ANSWER, self.start, answer):
            return  # an earlier put has landed late
        self._said = answer
