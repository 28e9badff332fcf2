"""Runs an attempt in threads: one for each task, some for the asynchronous parts, and the caller's for all events."""

from __future__ import annotations

import logging
import queue
import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointFailedError
from .attempt import Attempt
from .channels import CheckpointKind, TaskId
from .checkpoints import deadline
from .completion import as_own_error
from .coordinator_events import Event, Failed, Requested, Stopping, Tick
from .reentrancy import thread_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..errors import OncewardError
    from .start import StartedAttempt
    from .task import Task

_log = logging.getLogger("onceward.engine")
IDLE_SECONDS = 0.02
"""Longest pause in seconds before a source that has nothing is asked again."""
JOIN_SECONDS = 30.0
"""Seconds that an attempt that ends waits for its tasks, and then for the state that they still write out."""
MEASURE_SECONDS = 1.0
"""Seconds between two reports of the subtasks' counts to observers."""
_ASYNC_THREADS = 4


class ThreadedAttempt(Attempt):
    """An attempt in threads. Whatever goes wrong in one of them ends it, and the restart strategy decides.

    All are daemon threads, those of the asynchronous parts too (a ThreadPoolExecutor has no such): one that hangs, in a
    user's function or in an upload, keeps neither the next attempt nor the end of the process waiting.
    """

    def __init__(self, started: StartedAttempt) -> None:
        super().__init__(started)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._asynchronous: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._closed = threading.Event()
        self._ready = {task: threading.Event() for task in self.tasks}

    def run(self) -> OncewardError | None:
        """Run until all tasks have ended, one has failed, or somebody stops it; the failure."""
        writers = [
            thread_of(None, self._write_out, name=f"onceward-snapshot_{number}") for number in range(_ASYNC_THREADS)
        ]
        workers = {
            task.id: thread_of(None, self._work, task, name=f"onceward-{task.id}") for task in self.tasks.values()
        }
        self._start_all(writers, workers)
        measured = self.monotonic()
        try:
            while not self.all_finished and self.failure is None and not self._stopping.is_set():
                now = self.monotonic()
                if now - measured >= MEASURE_SECONDS:
                    measured = now
                    self.measure()
                due = deadline(self.state, now)
                self._hear(1.0 if due is None else min(1.0, max(0.0, due - now)))
        finally:
            self._end(writers, list(workers.values()))
        return self.failure

    def _start_all(self, writers: list[threading.Thread], workers: dict[TaskId, threading.Thread]) -> None:
        try:
            for thread in (*writers, *workers.values()):
                thread.start()
        except RuntimeError as error:  # the system gives no more threads
            self._handle(Failed(as_own_error("a thread could not be started", error)))
            for task, thread in workers.items():
                # A thread that never started does not close its task. The others do so themselves, in `_work`.
                if thread.ident is None:
                    self._close(self.tasks[task])

    def request(self, kind: CheckpointKind, target: str | None) -> Future[Any]:
        """Ask for a checkpoint or savepoint; from any thread."""
        answer: Future[Any] = Future()
        # The event comes before the look at `_closed`: then either the last pass of `_end` handles it, or `_closed` is
        # seen here. In the other order, a request between the two would never be answered.
        self.tell(Requested(kind, target, answer))
        if self._closed.is_set():  # the event loop has ended
            with suppress(InvalidStateError):  # the request was handled before it ended
                answer.set_exception(CheckpointFailedError("the pipeline has stopped"))
        return answer

    def stop(self) -> None:
        """End the attempt without a last checkpoint. Callable from any thread."""
        self._stopping.set()
        # The event loop may be waiting for an event, for up to a second. This one wakes it.
        self.tell(Tick())

    def tell(self, event: Event) -> None:
        self._events.put(event)

    def wake(self, task: TaskId) -> None:
        self._ready[task].set()

    def run_later(self, work: Callable[[], None]) -> None:
        self._asynchronous.put(work)

    def _hear(self, wait: float) -> None:
        """Handle an event, or let time pass."""
        try:
            event = self._events.get(timeout=wait) if wait else self._events.get_nowait()
        except queue.Empty:
            event = Tick()
        self._handle(event)

    def _handle(self, event: Event) -> None:
        try:
            self.handle(event)
        except Exception as error:  # noqa: BLE001 - see above
            self.handle(Failed(as_own_error("the coordinator failed", error)))

    def _end(self, writers: list[threading.Thread], workers: list[threading.Thread]) -> None:
        self._stopping.set()
        self._handle(Stopping("the pipeline is stopping"))
        for ready in self._ready.values():
            ready.set()
        late = _join(workers)
        self.measure()
        # The tasks have ended or are left behind: the queue is in order, so what they queued is written out first.
        for _ in writers:
            self._asynchronous.put(None)
        late += _join(writers)
        if late:
            _log.warning("threads that did not end in %s s are left behind: %s", JOIN_SECONDS, ", ".join(late))
        self._handle_the_rest()
        self._closed.set()
        self._handle_the_rest()  # what came in between

    def _handle_the_rest(self) -> None:
        """Handle late acknowledgements, whose written files are deleted."""
        with suppress(queue.Empty):
            while True:
                self._handle(self._events.get_nowait())

    def _work(self, task: Task) -> None:
        ready = self._ready[task.id]
        try:
            self.open(task)
            while not self._stopping.is_set() and not task.done:
                # Cleared before the step, not after it: a wake that comes during the step must end the wait below.
                ready.clear()
                if not task.step():
                    ready.wait(self._longest_wait(task))
        except BaseException as error:  # noqa: BLE001 - whatever it is, SystemExit too
            self._failed(task.id, error)
        finally:
            self._close(task)

    def _close(self, task: Task) -> None:
        try:
            task.logic.close()
        except BaseException as error:  # noqa: BLE001 - see above
            if task.done:
                _log.warning("task %s has ended, and could not be closed: %s", task.id, error)
            else:
                self._failed(task.id, error)

    def _failed(self, task: TaskId, error: BaseException) -> None:
        _log.info("task %s failed", task, exc_info=error)
        self.tell(Failed(as_own_error(f"operator {task.uid}, subtask {task.subtask}", error)))

    def _longest_wait(self, task: Task) -> float:
        at = task.wake_at()
        longest = IDLE_SECONDS if task.gate is None else 1.0
        return longest if at is None else min(longest, max(0.0, at - self.world.now()))

    def _write_out(self) -> None:
        """Run the asynchronous parts, until there are no more; one that was left behind begins nothing new."""
        while (work := self._asynchronous.get()) is not None and not self._closed.is_set():
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - see above
                self._failed(TaskId("snapshot", 0), error)


def _join(threads: list[threading.Thread]) -> list[str]:
    """Wait for those that were started; the names of those that do not end."""
    started = [thread for thread in threads if thread.ident is not None]
    until = time.monotonic() + JOIN_SECONDS
    for thread in started:
        thread.join(max(0.0, until - time.monotonic()))
    return [thread.name for thread in started if thread.is_alive()]
