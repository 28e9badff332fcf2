"""What ends a case of a conformance suite at once: a sink's own mistake, the same fault again and again, and time.

A pipeline restarts after any failure, so a sink with a misspelled name would be restarted a thousand times, and the
cause would be one line among a thousand. A SinkWatch sees each exception that leaves the sink:

1. One that no fault of the environment explains (TypeError, KeyError, …) ends the case, and is quoted.
2. The same exception at the same place ends the case when it comes so often that it cannot be a passing fault.
3. A case that takes longer than its limit of time is ended, and the error says what the sink was doing.
"""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

from onceward.core.checkpoint.subtask import DirectlyWritten
from onceward.core.engine.config import RestartStrategy
from onceward.core.errors import named_text_of

from .faults import Faults

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from onceward.sinks import Sink

T = TypeVar("T")
MOST_ALIKE: Final = 50
"""Exceptions of one kind at one place; the injected faults of a case cause fewer."""


def is_bug(error: BaseException) -> bool:
    """Return whether no fault of the environment explains an error: a built-in one, such as TypeError or KeyError."""
    kind = type(error)
    # A plain RuntimeError may be that of a client whose event loop is closed.
    passing = issubclass(kind, OSError) or kind in {Exception, RuntimeError}
    return isinstance(error, Exception) and kind.__module__ == "builtins" and not passing


def line_of_error(error: BaseException) -> str:
    """Return where an error was raised, as `file.py:12 (function)`: the last line that is not onceward's, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_of_onceward(frame.filename)] or list(frames)
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} ({own[-1].name})" if own else "an unknown line"


def _is_of_onceward(file: str) -> bool:
    return any(Path(file).resolve().is_relative_to(root) for root in _ROOTS)


_ROOTS: Final = [Path(__file__).resolve().parents[1] / name for name in ("core", "connectors", "sinks", "testing")]


class SinkWatch(Faults):
    """Sees each call of a sink and remembers the first error that ends the case; give it to a FaultySink as faults."""

    def __init__(self) -> None:
        super().__init__()
        self.bug: Exception | None = None
        self.words = ""
        self._alike: Counter[str] = Counter()
        self._lock = threading.Lock()

    def around(
        self,
        call: str,
        make: Callable[[], T],
        lost: Callable[[str], T],  # noqa: ARG002 - signature
        *,
        again: bool = True,  # noqa: ARG002 - signature
    ) -> T:
        """Make the call, and look at the exception that it raises."""
        try:
            answer: Any = make()
            return list(answer) if isinstance(answer, Iterator) else answer  # type: ignore[return-value]
        except Exception as error:
            self._look_at(call, error)
            raise

    def _look_at(self, call: str, error: Exception) -> None:
        alike = re.sub(r"\d+", "#", f"{call} {named_text_of(error)}")
        with self._lock:
            self._alike[alike] += 1
            if self.bug is not None or (not is_bug(error) and self._alike[alike] < MOST_ALIKE):
                return
            self.bug = error
        why = "no fault of the environment explains that" if is_bug(error) else f"it did so {MOST_ALIKE} times"
        self.words = f"{call} raised {named_text_of(error)} at {line_of_error(error)}: {why}, so the case ended here"

    def restarts(self, attempts: int = 1000, pause: float = 0.0) -> RestartStrategy:
        """Return a strategy that restarts so many times, after a pause in seconds, unless the case is to end."""
        fixed = RestartStrategy.fixed_delay(attempts, pause).begin()
        return RestartStrategy("watched", lambda: lambda at, ran_for: None if self.bug else fixed(at, ran_for))

    def check(self) -> None:
        """Fail the test with the error that ended the case, if one did."""
        if self.bug is not None:
            raise AssertionError(self.words) from self.bug


@contextlib.contextmanager
def time_limit(seconds: float, sink: Sink | None = None) -> Iterator[None]:
    """Fail the test when the block has taken so long; the error says what each thread does in the sink's module.

    It takes effect between two lines of Python in the main thread, and does nothing in another thread or on Windows.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ends(_signal: int, _frame: FrameType | None) -> None:
        pytest.fail(f"the case took more than {seconds:g} s. {doing(sink)}")

    before = signal.signal(signal.SIGALRM, ends)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)  # of pytest-timeout, if it is there
        signal.signal(signal.SIGALRM, before)


def doing(sink: Sink | None) -> str:
    """Return a sentence that says which lines of the sink's modules are being run."""
    files = files_of(sink) if sink is not None else set()
    lines = []
    for frame in sys._current_frames().values():  # noqa: SLF001 - as `faulthandler` does, but of some frames only
        stack = traceback.extract_stack(frame)
        inner = [one for one in stack if one.filename in files]
        if inner:
            lines.append(f"{inner[-1].name} at {Path(inner[-1].filename).name}:{inner[-1].lineno}")
    return f"The sink is in {', '.join(sorted(set(lines)))}" if lines else "No thread is inside the sink's own module"


def files_of(sink: Sink) -> set[str]:
    """Return the files of the modules in which a sink's own classes are.

    Those are the classes that are not onceward's; of a sink of onceward, the class itself.
    """
    sink = sink.sink if isinstance(sink, DirectlyWritten) else sink
    kinds = [kind for kind in type(sink).__mro__ if kind.__module__.partition(".")[0] not in _NOT_OWN]
    modules = (sys.modules.get(kind.__module__) for kind in kinds or [type(sink)])
    return {file for file in (getattr(module, "__file__", None) for module in modules) if file}


_NOT_OWN: Final = frozenset({"onceward", "builtins", "abc", "typing"})
