"""Interrupt a call of a sink before one of the lines of its own code, as a death at that line would.

It is for commits: what a sink does in its own modules may take several steps, and no list of steps knows those of
somebody else's sink. Lines in the package's core, and what runs in other threads, are left alone.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

CONTRACT = "onceward.core."
"""The modules of the contract, whose lines are no sink's own."""


class Interrupted(BaseException):
    """The process has died here."""


class Interruption:
    """A context in which the line number `at` of a sink's own code raises Interrupted.

    Args:
        sink: Sink whose code is interrupted.
        at: Number of the line among those that are passed, counted from 0.

    Attributes:
        line: Line that was interrupted, as `file:line`; empty if so many lines were not passed.
    """

    def __init__(self, sink: object, at: int) -> None:
        modules = {kind.__module__ for kind in type(sink).__mro__ if not kind.__module__.startswith(CONTRACT)}
        own = (sys.modules[name] for name in modules - {"builtins", "abc", "typing"} if name in sys.modules)
        self._files = {getattr(module, "__file__", None) for module in own}
        self._left = at
        self.line = ""

    def __enter__(self) -> Self:
        self._before: Callable[..., Any] | None = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        sys.settrace(self._before)
        return isinstance(error, Interrupted)

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        return self._passed if frame.f_code.co_filename in self._files and not self.line else None

    def _passed(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        if event == "line" and not self.line:
            if not self._left:
                self.line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise Interrupted
            self._left -= 1
        return self._passed
