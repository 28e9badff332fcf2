"""Whether a call comes from inside of a run: from a user's function, a sink, a source, or an observer of its events.

There the run cannot be waited for, because it waits for the caller. Threads do not inherit a context, so each thread of
a run is started in a copy of the run's own. Threads that a user's function starts are outside, and may wait.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_run: ContextVar[object] = ContextVar("onceward_run", default=None)


def is_inside(run: object) -> bool:
    """Return whether the caller is part of this run."""
    return _run.get() is run


def thread_of(run: object, work: Callable[..., object], *args: Any, name: str) -> threading.Thread:
    """Return a daemon thread in which `work` will be a part of this run; of that of the caller if it is None."""
    context = copy_context()
    if run is not None:
        context.run(_run.set, run)
    return threading.Thread(target=context.run, args=(work, *args), name=name, daemon=True)
