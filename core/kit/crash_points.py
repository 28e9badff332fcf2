"""The registry of durable steps: named points that the code passes, at which it may die.

Production code calls `crash_point(STEP)` right before and right after each call that changes something durable.
Outside of tests a call costs one comparison. The simulator, the tests, the conformance kit and the crash matrix
all use this one list, so that a step added here is crashed at everywhere.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
from contextlib import contextmanager

CRASH_VARIABLE: Final = "ONCEWARD_CRASH_AT"
"""Environment variable `step` or `step:n`: SIGKILL this process when it reaches the step for the n-th time."""


class Step(StrEnum):
    """Every durable step. The value is `where.what.before|after`."""

    LOG_PUT_BEFORE = "log.put.before"
    LOG_PUT_AFTER = "log.put.after"
    LOG_DELETE_BEFORE = "log.delete.before"
    LOG_DELETE_AFTER = "log.delete.after"
    START_BEFORE = "start.before"
    START_AFTER = "start.after"
    SWEEP_BEFORE = "sweep.before"
    SWEEP_AFTER = "sweep.after"
    BEGIN_BEFORE = "sink.begin.before"
    BEGIN_AFTER = "sink.begin.after"
    WRITE_BEFORE = "sink.write.before"
    WRITE_AFTER = "sink.write.after"
    PRE_COMMIT_BEFORE = "sink.pre_commit.before"
    PRE_COMMIT_AFTER = "sink.pre_commit.after"
    ACKNOWLEDGED = "epoch.acknowledged"
    DECIDE_BEFORE = "decide.before"
    DECIDE_AFTER = "decide.after"
    COMMIT_BEFORE = "sink.commit.before"
    COMMIT_AFTER = "sink.commit.after"
    COMPLETE_BEFORE = "complete.before"
    COMPLETE_AFTER = "complete.after"
    ABORT_BEFORE = "sink.abort.before"
    ABORT_AFTER = "sink.abort.after"
    SEND_BEFORE = "wal.send.before"
    SEND_AFTER = "wal.send.after"
    MARK_AFTER = "wal.mark.after"


_hook: Callable[[Step], None] | None = None


def crash_point(step: Step) -> None:
    """Pass a durable step. Does nothing unless a hook is installed."""
    if _hook is not None:
        _hook(step)


@contextmanager
def hooked(hook: Callable[[Step], None]) -> Iterator[None]:
    """Call `hook` at each step inside the block; for tests and the simulator."""
    global _hook  # noqa: PLW0603 - one process-wide hook is the point of it
    previous, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = previous


def kill_at(specification: str) -> Callable[[Step], None]:
    """Return a hook that ends this process with SIGKILL at `step` or, counted from 1, at `step:n`.

    Raises:
        ValueError: No such step.
    """
    name, _, count = specification.partition(":")
    wanted, left = Step(name), int(count or 1)

    def hook(step: Step) -> None:
        nonlocal left
        if step is wanted:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


if CRASH_VARIABLE in os.environ:
    _hook = kill_at(os.environ[CRASH_VARIABLE])
