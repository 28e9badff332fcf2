"""A run: one attempt after another, as the restart strategy says, until it ends, is stopped, or fails for good."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, OncewardError
from .attempt import Attempt, EngineWorld
from .completion import is_final
from .config import Retention
from .elements import Kind
from .pending import CheckpointFailedError
from .start import Restore

if TYPE_CHECKING:
    from .config import CheckpointConfig
    from .pending import CheckpointRecord
    from .restart import RestartStrategy
    from .retained import Retained
    from .start import Starter

_log = logging.getLogger("onceward.engine")


class JobState(StrEnum):
    """Where a run is."""

    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class Job:
    """A run of a pipeline. Made by Pipeline.start; its methods may be called from any thread.

    Attributes:
        state: Where it is.
        restarts: How often it was started again.
        failure: The newest failure.
    """

    def __init__(
        self,
        starter: Starter,
        config: CheckpointConfig,
        strategy: RestartStrategy,
        world: EngineWorld,
        restore: Restore,
    ) -> None:
        self._starter = starter
        self._config = config
        self._strategy = strategy
        self._world = world
        self._restore = restore
        self._attempt: Attempt | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._cancel = threading.Event()
        self._past: list[CheckpointRecord] = []
        self._retained: Retained | None = None
        self.state = JobState.CREATED
        self.restarts = 0
        self.failure: OncewardError | None = None
        self.restored: int | None = None
        """Id of the checkpoint that the newest attempt began with."""

    def run(self) -> None:
        """Run to the end.

        Raises:
            OncewardError: It failed for good.
        """
        restarts = self._strategy.begin()
        restore = self._restore
        try:
            while True:
                began = self._world.monotonic()
                error = self._one_attempt(restore)
                if error is None or self._cancel.is_set():
                    self.state = JobState.STOPPED if self._cancel.is_set() else JobState.FINISHED
                    return
                self.failure = error
                now = self._world.monotonic()
                pause = None if is_hopeless(error) else restarts.after(now, now - began)
                if pause is None:
                    self.state = JobState.FAILED
                    raise error
                _log.warning("restarting in %.1f s after: %s", pause, error)
                self.state = JobState.RESTARTING
                self.restarts += 1
                self._world.sleep(pause) if pause and not self._cancel.is_set() else None
                restore = replace(Restore(), allow_non_restored=self._restore.allow_non_restored)
        finally:
            self._settle()
            self._ended.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; whether it has."""
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """End it as it is: what is not checkpointed is read again by the next run."""
        self._cancel.set()
        with self._lock:
            if self._attempt is not None:
                self._attempt.stop()

    def checkpoint(self, timeout: float | None = None) -> int:
        """Make a checkpoint now; its id.

        Raises:
            CheckpointFailedError: It was not made.
        """
        return int(self._running().request(Kind.CHECKPOINT, None).wait(timeout))

    def savepoint(self, path: str, timeout: float | None = None) -> str:
        """Make a savepoint while it runs. It commits nothing.

        Raises:
            CheckpointFailedError: It was not made.
        """
        return str(self._running().request(Kind.SAVEPOINT, path).wait(timeout))

    def stop_with_savepoint(self, path: str, *, drain: bool = False, timeout: float | None = None) -> str:
        """Make a savepoint, commit what comes before it, and end.

        Args:
            path: Its folder.
            drain: Have functions give what they hold back first, as at the end of the input.
            timeout: Seconds to wait at most.

        Raises:
            CheckpointFailedError: It was not made; the run goes on, or has failed.
        """
        kind = Kind.DRAIN if drain else Kind.SUSPEND
        made = str(self._running().request(kind, path).wait(timeout))
        self.wait(timeout)
        return made

    @property
    def checkpoints(self) -> list[CheckpointRecord]:
        """The newest checkpoints, of earlier attempts too."""
        attempt = self._attempt
        found = [*self._past, *(attempt.history if attempt is not None else [])]
        return found[-self._config.history :] if self._config.history else []

    def _running(self) -> Attempt:
        with self._lock:
            if self._attempt is None or self._ended.is_set():
                raise CheckpointFailedError(f"the pipeline is {self.state}: only a running one can make a savepoint")
            return self._attempt

    def _one_attempt(self, restore: Restore) -> OncewardError | None:
        self.state = JobState.STARTING
        try:
            started = self._starter.start(restore, again=self.restarts > 0)
            attempt = Attempt(started, self._config, self._world)
        except OncewardError as error:
            return error
        self.restored = started.restored
        with self._lock:
            self._attempt = attempt
            if self._cancel.is_set():
                attempt.stop()
        self.state = JobState.RUNNING
        self._retained = started.retained
        try:
            return attempt.run()
        finally:
            with self._lock:
                self._past += attempt.history
                self._attempt = None

    def _settle(self) -> None:
        """Keep or delete the checkpoints of a run that did not end by itself."""
        policies = {JobState.STOPPED: self._config.on_cancel, JobState.FAILED: self._config.on_failure}
        if policies.get(self.state) is Retention.DELETE and self._retained is not None:
            self._retained.delete_all()


def is_hopeless(error: OncewardError) -> bool:
    """Whether starting again cannot help: the user's mistake, or a newer writer, or lost data."""
    return isinstance(error, ConfigurationError) or is_final(error)
