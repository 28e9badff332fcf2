"""A run: one attempt after another, as the restart strategy says, until it ends, is stopped, or fails for good."""

from __future__ import annotations

import logging
import threading
from enum import StrEnum
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from ..errors import (
    CheckpointFailedError,
    ConfigurationError,
    LifecycleError,
    OncewardError,
    ProtocolError,
    StateError,
    StoreError,
    text_of,
)
from ..log import MemoryStore
from ..log.notes import note_end
from ..run.handover import run_steps
from ..run.keeper import Keeper
from ..run.source_watch import LOOK_SECONDS
from .channels import CheckpointKind
from .completion import as_own_error
from .reentrancy import is_inside, thread_of
from .savepoint_requests import POLL_SECONDS, answer_request
from .start import check_can_start, run_of, start
from .starting_checkpoint import Restore
from .state.storage import CheckpointStorage
from .threads import ThreadedAttempt

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ..log.note_kinds import CheckpointRecord
    from .start import Setup, StartedAttempt

_log = logging.getLogger("onceward.engine")


ANSWER_SECONDS: Final = 10.0
"""Seconds that a run that has ended waits for the answer to its last command."""
_INSIDE: Final = (
    "{} was called by a function, a sink, a source or an observer of the run itself, and the run waits until that "
    "returns. Call it in another thread, and do not wait for that thread"
)


class JobState(StrEnum):
    """The state of a run."""

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
        state: Stage of its life that the run is in.
        restarts: Number of attempts after the first one.
        failure: Newest failure of an attempt; None if none has failed.
        error: Error with which the run ended; None while it runs, or if it ended well.
        restored: Id of the checkpoint that the newest attempt began with.
    """

    def __init__(self, setup: Setup, restore: Restore, take_over: float | None = None) -> None:
        self._setup = setup
        self._restore = restore
        self._take_over = take_over
        self._attempt: ThreadedAttempt | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._begun = threading.Event()
        """The first attempt runs, or has failed."""
        self._cancel = threading.Event()
        self._past: list[CheckpointRecord] = []
        """The newest checkpoints of earlier attempts."""
        self._started: StartedAttempt | None = None
        self._life = run_of(setup, self._progress)
        self._keeper = Keeper(
            f"onceward-{setup.pipeline}-keeper",
            is_active=lambda: True,
            look=self._serve,
            duties=[(LOOK_SECONDS, self._ask_sources)],
            every=POLL_SECONDS,
        )
        self._makes_room = False
        """An attempt, or the pause between two, has been ended for that."""
        self._pauses = False
        """Whether no attempt is there until the pause between two of them is over."""
        self._resume = threading.Event()
        """Ends that pause."""
        self.state = JobState.CREATED
        self.restarts = 0
        self.failure: OncewardError | None = None
        self.error: BaseException | None = None
        self.restored: int | None = None

    def start(self) -> None:
        """Run in the background; returns when the first attempt runs, or has failed."""
        thread_of(self, self._run, name=f"onceward-{self._setup.pipeline}").start()
        try:
            self._begun.wait()
        except BaseException:
            self.stop()
            raise

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended or `timeout` seconds are over; return whether it has ended.

        Raises:
            LifecycleError: The run would wait for itself: a function, sink, source or observer of it has called this
                without a timeout.
        """
        if timeout is None and is_inside(self) and not self._ended.is_set():
            raise LifecycleError(f"{_INSIDE.format('wait()')}. To end it, call stop() and return")
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """End the run as it is: rows after the last checkpoint are read again by the next run. Does not wait."""
        # Before the attempt is looked for: one that comes after that look finds this, and is stopped too.
        self._cancel.set()
        self._resume.set()
        with self._lock:
            if self._attempt is not None:
                self._attempt.stop()

    def checkpoint(self, timeout: float | None = None) -> int:
        """Make a checkpoint now, and return its id.

        Raises:
            CheckpointFailedError: It was not made.
        """
        return int(self._ask(CheckpointKind.CHECKPOINT, None, timeout))

    def try_checkpoint(self, timeout: float) -> None:
        """Make a checkpoint if the job runs; log why none could be made, so that its rows will be read again."""
        if self.state is not JobState.RUNNING:
            return
        try:
            self.checkpoint(timeout)
        except OncewardError as error:
            _log.warning("pipeline %s ends without a last checkpoint: %s", self._setup.pipeline, error)

    def savepoint(self, folder: str | Path, timeout: float | None = None) -> str:
        """Make a savepoint while it runs. It commits nothing.

        Raises:
            CheckpointFailedError: It was not made.
        """
        return str(self._ask(CheckpointKind.SAVEPOINT, folder, timeout))

    def stop_with_savepoint(self, folder: str | Path, *, drain: bool = False, timeout: float | None = None) -> str:
        """Make a savepoint, commit what comes before it, and end.

        Args:
            folder: Folder of the savepoint.
            drain: Have functions give what they hold back first, as at the end of the input.
            timeout: Seconds to wait at most.

        Raises:
            CheckpointFailedError: It was not made; the run goes on, or has failed.
        """
        savepoint = str(self._ask(CheckpointKind.DRAIN if drain else CheckpointKind.SUSPEND, folder, timeout))
        self.wait(timeout)
        return savepoint

    @property
    def checkpoints(self) -> list[CheckpointRecord]:
        """The newest checkpoints, of earlier attempts too."""
        attempt = self._attempt
        return self._newest(attempt.history if attempt is not None else ())

    def _newest(self, more: Iterable[CheckpointRecord]) -> list[CheckpointRecord]:
        most = self._setup.config.history
        return [*self._past, *more][-most:] if most else []

    def _ask(self, kind: CheckpointKind, path: str | Path | None, timeout: float | None) -> Any:
        if is_inside(self):
            raise CheckpointFailedError(f"no {kind.name.lower()}: {_INSIDE.format('this')}")
        answer = self._running(timeout).request(kind, _target(path) if path is not None else None)
        try:
            return answer.result(timeout)
        except TimeoutError:
            raise CheckpointFailedError(f"no {kind.name.lower()} after {timeout} s") from None

    def _running(self, timeout: float | None) -> ThreadedAttempt:
        """Return the running attempt; wait for one that starts, for `timeout` seconds at most."""
        deadline = inf if timeout is None else monotonic() + timeout
        while self.state in {JobState.CREATED, JobState.STARTING, JobState.RESTARTING} and monotonic() < deadline:
            if self._ended.wait(0.01):
                break
        with self._lock:
            if self._attempt is None or self._ended.is_set():
                cause = None if self.state in {JobState.FINISHED, JobState.STOPPED} else self.failure
                raise CheckpointFailedError(
                    f"the pipeline is {self.state}{f' ({text_of(cause)})' if cause is not None else ''}: only a "
                    "running one can make a savepoint"
                ) from cause
            return self._attempt

    def _serve(self) -> None:
        """Make the savepoints that `onceward savepoint create` asks for, and make room for a newer driver.

        While an attempt begins, a newer driver is told to wait; between two attempts there is room at once.
        """
        if isinstance(self._setup.store, MemoryStore):  # which no other process reaches
            return
        with self._lock:
            pauses, started = self._pauses, self._started if self.state is JobState.RUNNING else None
        try:
            if started is not None and not self._makes_room:
                start = started.coordinator.writer.token.start
                answer_request(self._setup.store, start, lambda kind, target: str(self._ask(kind, target, None)))
            if not self._makes_room and self._life.asked() is not None:
                if started is not None:
                    self._make_room(started)
                elif pauses:
                    self._end_pause()
        except (StoreError, CheckpointFailedError) as error:
            _log.debug("cannot look for requests: %s", error)

    def _end_pause(self) -> None:
        """Have the run wait for the driver that asks for the pipeline, if it still pauses between two attempts.

        An attempt may have come and gone meanwhile: its START would be taken for that driver's.
        """
        own, successor = self._life.start, self._life.successor
        with self._lock:
            if self._pauses and successor is not None and own in {None, successor.start}:
                self._makes_room = True
                self._resume.set()

    def _pause(self, seconds: float) -> bool:
        """Wait between two attempts; return whether another driver has taken the pipeline over, or it is to end."""
        until = monotonic() + seconds
        while not self._cancel.is_set() and (rest := until - monotonic()) > 0:
            with self._lock:
                self._resume.clear()
                self._pauses = True
            # A stop may have set both events before this one was cleared.
            if not self._cancel.is_set():
                self._resume.wait(rest)
            with self._lock:
                self._pauses = False
            if self._makes_room:
                if self._is_taken_over():
                    return True
                self._makes_room = False
        return self._cancel.is_set()

    def _make_room(self, started: StartedAttempt) -> None:
        """Stop the attempt after a checkpoint, and have the run wait for the driver that asks for the pipeline.

        An attempt that has replaced this one meanwhile goes on: its START would be taken for that driver's.
        """
        with self._lock:
            attempt = self._attempt if self._started is started and self.state is JobState.RUNNING else None
        if attempt is None:
            return
        # Without the lock, which stop() and the end of the attempt need while the checkpoint is made.
        attempt.request(CheckpointKind.CHECKPOINT, None).result()
        with self._lock:
            # Asked again, because the attempt may have ended while the checkpoint was made.
            if self._attempt is attempt:
                self._makes_room = True
                attempt.stop()

    def _is_taken_over(self) -> bool:
        """Wait for the START of the driver that has asked for the pipeline; return whether it has come."""
        assert self._life.successor is not None  # noqa: S101 - it has asked
        self.state = JobState.RESTARTING
        taken = run_steps(self._life.successor.hand_over(), self._cancel.wait)
        if taken:
            _log.info("pipeline %s runs in another driver now", self._setup.pipeline)
        return taken

    def _ask_sources(self) -> None:
        if self.state is JobState.RUNNING:
            self._life.ask_sources()

    def _progress(self) -> object:
        """Return a value that changes with each completed checkpoint, and with each start."""
        done = [one.checkpoint for one in self.checkpoints if one.status == "completed"]
        return self.state, self.restarts, done[-1:]

    def _run(self) -> None:
        try:
            if self._take_over is not None and not isinstance(self._setup.store, MemoryStore):
                self._take(self._take_over)
            self._keeper.start()  # not before: it would answer its own request
            self._run_attempts()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is kept for whoever waits
            _log.error("pipeline %s has failed: %s", self._setup.pipeline, error)
            self.state = JobState.FAILED
            self.error = error
        finally:
            self._keeper.end(ANSWER_SECONDS)  # whoever has asked for the savepoint that ended the run
            self._life.say_ended()
            try:
                self._drop_state()
            finally:
                self._ended.set()
                self._begun.set()

    def _take(self, patience: float) -> None:
        """Take the pipeline over from the driver that runs it; what would be refused at the start is refused first."""
        self.state = JobState.STARTING
        check_can_start(self._setup, self._life.writer().look(), self._restore)
        self._life.take_over(patience, pause=self._cancel.wait)

    def _run_attempts(self) -> None:
        clock, restarts = self._setup.policy.monotonic, self._setup.restart.begin()
        while True:
            if self._cancel.is_set():  # while it asked for the pipeline: a START would fence the driver that runs it
                self.state = JobState.STOPPED
                return
            began = clock()
            error = self._one_attempt()
            made_room = error is None and self._makes_room
            if made_room and self._is_taken_over():
                self.state = JobState.FINISHED
                return
            self._makes_room = False  # until here, the conversation is not the other thread's
            if made_room and not self._cancel.is_set():
                continue
            if error is None or self._cancel.is_set():
                note_end(self._setup.store)
                self.state = JobState.STOPPED if self._cancel.is_set() else JobState.FINISHED
                return
            repeated, self.failure = str(error) == str(self.failure), error
            now = clock()
            pause = None if is_hopeless(error) else restarts(now, now - began)
            self._life.failed(None, error, again=pause is not None)
            if pause is None:
                raise error
            # With the traceback of the user's function, once.
            why = None if repeated else error.__cause__
            name = self._setup.pipeline
            fields = {"pipeline": name}
            _log.warning("pipeline %s restarts in %.1f s after: %s", name, pause, error, exc_info=why, extra=fields)
            self.state = JobState.RESTARTING
            self.restarts += 1
            self._begun.set()
            if self._pause(pause):
                self.state = JobState.STOPPED if self._cancel.is_set() else JobState.FINISHED
                return

    def _one_attempt(self) -> OncewardError | None:
        self.state = JobState.STARTING
        try:
            started = start(self._setup, self._restore, self._life, again=self._started is not None)
            if started.again is None:
                # It is decided now: from here on a restart goes on from the newest decision.
                self._restore = Restore(allow_non_restored=self._restore.allow_non_restored)
            attempt = ThreadedAttempt(started)
        except Exception as error:  # noqa: BLE001 - whatever it is, the restart strategy decides
            return as_own_error("the pipeline could not be started", error)
        self.restored = started.restored
        with self._lock:
            self._attempt = attempt
            # stop() may have come while no attempt was there for it.
            if self._cancel.is_set():
                attempt.stop()
        if started.again is None:
            self._started = started
            self.state = JobState.RUNNING
            self._begun.set()
        try:
            failure = attempt.run()
        finally:
            with self._lock:
                self._past = self._newest(attempt.history)
                self._attempt = None
        if started.again is not None and failure is None and not self._cancel.is_set():
            return self._one_attempt()  # the epoch is completed
        return failure

    def _drop_state(self) -> None:
        """Delete the checkpoints if on_cancel or on_failure asks for it."""
        config, started = self._setup.config, self._started
        policies = {
            JobState.STOPPED: ("on_cancel", config.on_cancel),
            JobState.FAILED: ("on_failure", config.on_failure),
        }
        setting, policy = policies.get(self.state, ("", "keep"))
        if policy != "delete" or started is None:
            return
        try:
            if started.coordinator.writer.still_newest():
                # Decided first: a start must not find a decision that names checkpoints which are gone.
                started.completer.drop_state(f"{setting}='delete'")
                started.completer.retained.delete_all()
        except OncewardError as error:
            _log.warning("cannot delete the checkpoints: %s", error)


def _target(path: str | Path) -> str:
    """Return a savepoint's location; raise ConfigurationError if it cannot be a folder, or is not empty."""
    storage = CheckpointStorage(path)
    try:
        if storage.is_empty:
            return storage.root
    except StateError as error:
        raise ConfigurationError(f"savepoint {storage.root}: the folder cannot be used: {text_of(error)}") from error
    raise ConfigurationError(f"savepoint {storage.root}: the folder is not empty; give a new or an empty one")


def is_hopeless(error: OncewardError) -> bool:
    """Return whether starting again cannot help: a user's mistake, a newer writer, or lost data."""
    return isinstance(error, ConfigurationError) or (isinstance(error, ProtocolError) and not error.retryable)
