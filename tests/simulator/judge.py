"""Errors must have a reason: whoever is told that something is wrong must be told the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.errors import (
    CommitPendingError,
    DataLossError,
    DecisionInDoubtError,
    EpochConflictError,
    FencedError,
    LogDamagedError,
    SinkError,
    StoreError,
)

from .spark import QueryStoppedError, TaskFailedError
from .world import Killed, Violation

if TYPE_CHECKING:
    from .pipeline import Driver

NO_REASON_NEEDED = (Killed, QueryStoppedError, TaskFailedError)
FAULTS = (CommitPendingError, DecisionInDoubtError, SinkError, StoreError)
"""What must not happen in a world that nobody has disturbed."""


def judge(error: BaseException, driver: Driver, *, alone: bool) -> None:
    """Check that there is a reason for the error with which a driver ended.

    Args:
        error: The error.
        driver: Whose.
        alone: Whether no other driver, nor another checkpoint, was in its way.

    Raises:
        Violation: There is none.
    """
    if isinstance(error, NO_REASON_NEEDED):
        return
    law = _broken_law(error, driver, alone=alone)
    if law:
        raise Violation(law, f"without a cause: {type(error).__name__}: {error}") from error


def _broken_law(error: BaseException, driver: Driver, *, alone: bool) -> str:
    if isinstance(error, DataLossError):
        # Kafka cannot tell an outdated log, and the target that could may not answer.
        lost = (error.sink or "").partition("-")[0] in driver.audit.lost or driver.store.failovers
        return "" if lost else "8"
    if isinstance(error, FencedError):
        return "" if _is_fenced(driver) or driver.store.failovers else "fence"
    if isinstance(error, LogDamagedError) and driver.store.failovers:
        return ""
    if isinstance(error, EpochConflictError):
        return "5" if alone and not driver.audit.voids else ""
    if isinstance(error, FAULTS) and (error.retryable or not isinstance(error, StoreError)):
        return "" if driver.world.disturbed else "progress"
    return "bug"


def _is_fenced(driver: Driver) -> bool:
    log, token = driver.store.audit, driver.coordinators[-1].writer.token
    return (log.start, log.writer, log.tail) != (token.start, token.writer_id, token.last)
