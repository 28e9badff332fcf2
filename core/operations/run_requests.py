"""What a run of the embedded engine is asked for from outside, through the store of its decision log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.channels import CheckpointKind
from ..engine.savepoint_requests import send_savepoint_request
from ..engine.state.storage import locate

if TYPE_CHECKING:
    from .log_locations import Log


def request_savepoint(log: Log, place: str, *, stop: bool = False, drain: bool = False, timeout: float = 60.0) -> str:
    """Ask the run of the embedded engine that uses this log for a savepoint, wait for it, and return its location.

    Args:
        log: The pipeline's decision log.
        place: An empty or new folder, as the run's machine sees it: a path, or a URL that fsspec knows.
        stop: Commit the rows before the savepoint, and end the run.
        drain: Do the same as `stop`, after functions have emitted the rows that they hold.
        timeout: Seconds to wait.

    Raises:
        ConfigurationError: The log is not one of the embedded engine.
        CheckpointFailedError: The savepoint was not made, or not in time.
        StoreError: The store did not answer.
    """
    kind = CheckpointKind.DRAIN if drain else CheckpointKind.SUSPEND if stop else CheckpointKind.SAVEPOINT
    return send_savepoint_request(log.store, kind, locate(place), timeout=timeout)
