"""Tell of a source whose system does not answer: a pipeline that waits for it looks like one without input.

Whoever reads a source may wait minutes for an answer, and says nothing meanwhile. So while a pipeline completes no
epoch, a thread of its driver asks each source whether its system answers. What is told is counted from the last moment
at which the system is known to have answered: an answer to this question, or the end of an epoch, which was read from
all sources.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..contract.connector import address_to_note
from ..contract.events import SourceAnswers, SourceWaits
from ..contract.source import Source
from ..kit.times import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from ..log import LogStore

_log = logging.getLogger("onceward.sources")

S = TypeVar("S", bound=Source)
QUIET_SECONDS: Final = 10.0
"""Seconds without a completed epoch after which the sources are asked, and without an answer after which a source is
reported."""
ASK_SECONDS: Final = 5.0
"""Seconds that the system may take to answer."""
LOOK_SECONDS: Final = 5.0
"""Pause between two looks."""
MOST_SECONDS: Final = 600.0
"""Longest time until the same is told again; before that, each time after twice as long."""


@dataclass
class _Answer:
    """When a source answered last, and after how many seconds without an answer it is told."""

    at: float
    due: float = QUIET_SECONDS

    @property
    def was_told(self) -> bool:
        return self.due > QUIET_SECONDS


class SourceWatch:
    """Asks the sources of one pipeline, and tells of those that do not answer. For one thread.

    Args:
        pipeline: Name of the pipeline.
        sources: The sources by their titles, which tell two of one kind apart.
        progress: Function that returns a value that changes with each completed epoch.
        log: Function that returns the store of the decision log, for notes; None if it is not known yet.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        pipeline: str,
        sources: Mapping[str, Source],
        progress: Callable[[], Hashable],
        log: Callable[[], LogStore | None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._pipeline, self._sources = pipeline, dict(sources)
        self._progress, self._store, self._clock = progress, log, clock
        self._seen, self._since = progress(), clock()
        self._answers = {title: _Answer(self._since) for title in sources}

    def look(self) -> None:
        """Ask the sources, unless an epoch was completed a moment ago."""
        progress, now = self._progress(), self._clock()
        if progress != self._seen:
            self._seen, self._since = progress, now
            for title in self._sources:
                self._answered(title, now)
        if now - self._since < QUIET_SECONDS:
            return
        for title, source in self._sources.items():
            why = _unanswered(source)
            if why:
                self._waits(title, why)
            else:
                self._answered(title, self._clock())

    def _waits(self, title: str, why: str) -> None:
        answer = self._answers[title]
        seconds = self._clock() - answer.at
        if seconds < answer.due:
            return
        answer.due = seconds + min(seconds, MOST_SECONDS)
        self._told(SourceWaits(self._pipeline, title, seconds, why, self._address(title)))

    def _answered(self, title: str, now: float) -> None:
        answer = self._answers[title]
        self._answers[title] = _Answer(now)
        if answer.was_told:
            seconds = now - answer.at
            self._told(SourceAnswers(self._pipeline, title, seconds, self._address(title)))

    def _told(self, event: SourceWaits | SourceAnswers) -> None:
        from ..log.notes import tell_and_note  # noqa: PLC0415 - who only reads writes no notes

        tell_and_note(event, self._store())

    def _address(self, title: str) -> dict[str, Any]:
        return address_to_note(self._sources[title])


def _unanswered(source: Source) -> str:
    try:
        return source.unanswered(ASK_SECONDS)
    except Exception as error:  # noqa: BLE001 - somebody's source; reading it says what is wrong
        _log.debug("source %s cannot say whether its system answers: %s", type(source).__name__, error)
        return ""


@contextmanager
def telling_of_wait(name: str, source: Source) -> Iterator[None]:
    """Log a warning if this block waits for a source for long, where nobody watches the pipeline.

    Args:
        name: Kind of the source.
        source: The source that is waited for.
    """
    ended = threading.Event()

    def run() -> None:
        waited, due = 0.0, QUIET_SECONDS
        while not ended.wait(due - waited):
            waited, due = due, due + min(due, MOST_SECONDS)
            [title] = titles({name: source})
            _log.warning("source %s has not answered for %s", title, duration(waited), extra={"source": title})

    threading.Thread(target=run, name="onceward-source-wait", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def titles(sources: Mapping[str, S]) -> dict[str, S]:
    """Return sources by titles that say what each reads; two that read the same are numbered.

    Args:
        sources: Sources by the name of their kind or operator. A name that is used more than once ends in `#` and a
            number.
    """
    titled: dict[str, S] = {}
    for name, source in sources.items():
        title = name.partition("#")[0]
        title = f"{title} ({source.reads})" if source.reads else title
        unique, number = title, 1
        while unique in titled:
            number += 1
            unique = f"{title} #{number}"
        titled[unique] = source
    return titled
