"""Signals that end the process, as exceptions in whoever waits for a pipeline."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_SIGNALLED: Final = 128
"""Plus the signal's number: the exit code of a process that a signal has ended, as shells have it."""


@contextmanager
def raising_exit(number: signal.Signals) -> Iterator[None]:
    """Raise SystemExit when this signal comes, if the program does not handle it itself.

    Python delivers signals to the main thread alone: elsewhere this changes nothing.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return
    signal.signal(number, _exit)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(_SIGNALLED + number)
