"""One attempt of a run: from START until it ends, fails or is stopped. Threads, and one loop that hears all of them.

The loop is the only place where checkpoints are coordinated; tasks and users send it messages.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from .completion import unexpected
from .elements import Kind, TaskId
from .machine import EngineWorld, Machine
from .pending import CheckpointFailedError, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..errors import OncewardError
    from .config import CheckpointConfig
    from .pending import CheckpointRecord
    from .start import Started
    from .task import Task

_log = logging.getLogger("onceward.engine")
IDLE_SECONDS = 0.02
"""How often a source that has nothing is asked again."""
JOIN_SECONDS = 30.0
_ASYNC_THREADS = 4


class Attempt:
    """Runs a machine in threads.

    Args:
        started: What it begins with.
        config: Settings of checkpoints.
        world: Clocks.
    """

    def __init__(self, started: Started, config: CheckpointConfig, world: EngineWorld) -> None:
        self._world = world
        self._messages: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(_ASYNC_THREADS, thread_name_prefix="onceward-snapshot")
        self._stopping = threading.Event()
        self._closed = threading.Event()
        self._ready: dict[TaskId, threading.Event] = {}
        self._stop_reason: OncewardError | None = None
        self.machine = Machine(
            started, config, world, run_later=self._run_later, tell=self._messages.put, wake=self._wake
        )
        self._ready |= {task: threading.Event() for task in self.machine.tasks}
        self._threads = [
            threading.Thread(target=self._work, args=(task,), name=f"onceward-{task.id}", daemon=True)
            for task in self.machine.tasks.values()
        ]

    @property
    def history(self) -> list[CheckpointRecord]:
        """The newest checkpoints."""
        return list(self.machine.checkpoints.history)

    def run(self) -> OncewardError | None:
        """Run until all tasks have ended, one has failed, or somebody stops it; the failure."""
        for thread in self._threads:
            thread.start()
        try:
            while not self.machine.all_finished and self.machine.failure is None and not self._stopping.is_set():
                self._hear()
        finally:
            self._end()
        return self.machine.failure

    def request(self, kind: Kind, target: str | None) -> Request:
        """Ask for a savepoint; from any thread."""
        request = Request(kind, target)
        self._messages.put(lambda: self.machine.checkpoints.submit(request, self._world.monotonic()))
        if self._closed.is_set():  # nobody hears any more
            request.fail(CheckpointFailedError("the pipeline has stopped"))
        return request

    def stop(self) -> None:
        """End it as it is; from any thread."""
        self._stopping.set()
        self._messages.put(lambda: None)

    def _hear(self) -> None:
        """Handle a message, or let time pass."""
        now = self._world.monotonic()
        deadline = self.machine.checkpoints.deadline(now)
        wait = 1.0 if deadline is None else min(1.0, max(0.0, deadline - now))
        try:
            message = self._messages.get(timeout=wait) if wait else self._messages.get_nowait()
        except queue.Empty:
            self._do(lambda: self.machine.checkpoints.advance(self._world.monotonic()))
        else:
            self._do(message)

    def _do(self, message: Callable[[], None]) -> None:
        """Whatever goes wrong ends the attempt, and the restart strategy decides."""
        try:
            message()
        except Exception as error:  # noqa: BLE001 - see above
            self.machine.failed(unexpected("the coordinator failed", error))

    def _end(self) -> None:
        self._stopping.set()
        self._do(lambda: self.machine.checkpoints.stop("the pipeline is stopping", self._world.monotonic()))
        for ready in self._ready.values():
            ready.set()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        late = [thread.name for thread in self._threads if thread.is_alive()]
        if late:
            _log.warning("still at work, and left behind: %s", ", ".join(late))
        self._pool.shutdown(wait=True)
        while True:
            try:
                message = self._messages.get_nowait()  # late acknowledgements free what they wrote
            except queue.Empty:
                if self._closed.is_set():
                    return
                self._closed.set()  # and once more, for what came in between
                continue
            self._do(message)

    def _work(self, task: Task) -> None:
        """A task's thread."""
        ready = self._ready[task.id]
        try:
            task.logic.open()
            self.machine.opened(task.id)
            while not self._stopping.is_set() and not task.done:
                ready.clear()
                if not task.step():
                    ready.wait(self._longest_wait(task))
        except BaseException as error:  # noqa: BLE001 - whatever it is, SystemExit too, it ends the attempt
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
        known = unexpected(f"operator {task.uid}, subtask {task.subtask}", error)
        _log.info("task %s failed", task, exc_info=error)
        self._messages.put(lambda: self.machine.failed(known))

    def _longest_wait(self, task: Task) -> float:
        at = task.wake_at()
        longest = IDLE_SECONDS if task.gate is None else 1.0
        return longest if at is None else min(longest, max(0.0, at - self._world.now()))

    def _wake(self, task: TaskId) -> None:
        ready = self._ready.get(task)
        if ready is not None:
            ready.set()

    def _run_later(self, work: Callable[[], None]) -> None:
        self._pool.submit(self._guarded, work)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the attempt
            self._failed(TaskId("snapshot", 0), error)
