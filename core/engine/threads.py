"""Runs an attempt in threads: one for each task, some for the asynchronous parts, and the caller's for all events."""

from __future__ import annotations

import logging
import queue
import threading
import time
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointFailedError
from .attempt import Attempt
from .channels import Kind, TaskId
from .checkpoints import deadline
from .completion import unexpected
from .events import Event, Failed, Requested, Stopping, Tick

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..errors import OncewardError
    from .start import Started
    from .task import Task

_log = logging.getLogger("onceward.engine")
IDLE_SECONDS = 0.02
"""How often a source that has nothing is asked again."""
JOIN_SECONDS = 30.0
_ASYNC_THREADS = 4


class ThreadedAttempt(Attempt):
    """An attempt in threads. Whatever goes wrong in one of them ends it, and the restart strategy decides."""

    def __init__(self, started: Started) -> None:
        super().__init__(started)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(_ASYNC_THREADS, thread_name_prefix="onceward-snapshot")
        self._stopping = threading.Event()
        self._closed = threading.Event()
        self._ready = {task: threading.Event() for task in self.tasks}

    def run(self) -> OncewardError | None:
        """Run until all tasks have ended, one has failed, or somebody stops it; the failure."""
        threads = [
            threading.Thread(target=self._work, args=(task,), name=f"onceward-{task.id}", daemon=True)
            for task in self.tasks.values()
        ]
        for thread in threads:
            thread.start()
        try:
            while not self.all_finished and self.failure is None and not self._stopping.is_set():
                now = self.monotonic()
                due = deadline(self.state, now)
                self._hear(1.0 if due is None else min(1.0, max(0.0, due - now)))
        finally:
            self._end(threads)
        return self.failure

    def request(self, kind: Kind, target: str | None) -> Future[Any]:
        """Ask for a checkpoint or savepoint; from any thread."""
        answer: Future[Any] = Future()
        self.tell(Requested(kind, target, answer))
        if self._closed.is_set():  # the event loop has ended
            with suppress(InvalidStateError):  # the request was handled before it ended
                answer.set_exception(CheckpointFailedError("the pipeline has stopped"))
        return answer

    def stop(self) -> None:
        """End it as it is; from any thread."""
        self._stopping.set()
        self.tell(Tick())

    def tell(self, event: Event) -> None:
        self._events.put(event)

    def wake(self, task: TaskId) -> None:
        self._ready[task].set()

    def run_later(self, work: Callable[[], None]) -> None:
        self._pool.submit(self._guarded, work)

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
            self.handle(Failed(unexpected("the coordinator failed", error)))

    def _end(self, threads: list[threading.Thread]) -> None:
        self._stopping.set()
        self._handle(Stopping("the pipeline is stopping"))
        for ready in self._ready.values():
            ready.set()
        until = time.monotonic() + JOIN_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        late = [thread.name for thread in threads if thread.is_alive()]
        if late:
            _log.warning("threads that did not end in %s s are left behind: %s", JOIN_SECONDS, ", ".join(late))
        self._pool.shutdown(wait=True)
        self._handle_the_rest()
        self._closed.set()
        self._handle_the_rest()  # what came in between

    def _handle_the_rest(self) -> None:
        """Late acknowledgements free what they wrote."""
        with suppress(queue.Empty):
            while True:
                self._handle(self._events.get_nowait())

    def _work(self, task: Task) -> None:
        ready = self._ready[task.id]
        try:
            self.open(task)
            while not self._stopping.is_set() and not task.done:
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
        self.tell(Failed(unexpected(f"operator {task.uid}, subtask {task.subtask}", error)))

    def _longest_wait(self, task: Task) -> float:
        at = task.wake_at()
        longest = IDLE_SECONDS if task.gate is None else 1.0
        return longest if at is None else min(longest, max(0.0, at - self.world.now()))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - see above
            self._failed(TaskId("snapshot", 0), error)
