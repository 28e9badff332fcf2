"""The coordinator of barriers: when a checkpoint begins, who must acknowledge, when it is complete or given up.

It decides nothing about transactions: a complete checkpoint is handed to `Effects.complete`, which writes the metadata
and has core.checkpoint.Coordinator decide and commit. Rules, each with a test of its name:

1. A checkpoint begins only when all its tasks run; otherwise it is declined, and the reason said.
2. It is complete when every task has acknowledged; then all older pending ones are subsumed (they can only have been
   slower), and what their tasks prepared is carried by the newer one's acknowledgements. A savepoint never is: somebody
   waits for it.
3. One that takes longer than the timeout, or that a task declines, is given up; tasks are told, its files are freed.
4. Late and double acknowledgements are ignored and what they wrote is freed.
5. Failures in a row beyond the tolerated number fail the run; a success resets the count.
6. At most `max_concurrent` are in progress, and `min_pause` lies between the end of one and the begin of the next;
   what cannot begin yet waits in a queue, at most one periodic one.
7. If it cannot be completed (the store fails), nothing of it is committed.

Everything that happens comes in as a call with the time, so the simulator runs this code as it is.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..errors import OncewardError
from .elements import Barrier, Kind, TaskId
from .pending import CheckpointFailedError, CheckpointRecord, Pending, Request, Status, TaskAck

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .config import CheckpointConfig

_log = logging.getLogger("onceward.engine")


class Roles(NamedTuple):
    """Which tasks do what in a checkpoint."""

    trigger: frozenset[TaskId]
    """Sources: they inject the barrier."""
    acknowledge: frozenset[TaskId]
    confirm: frozenset[TaskId]
    """Those that are told of the completion."""


class Effects(Protocol):
    """What the coordinator has done by others."""

    def is_running(self, task: TaskId) -> bool:
        """Whether a task takes barriers now."""
        ...

    def trigger(self, task: TaskId, barrier: Barrier) -> None:
        """Have a source inject a barrier."""
        ...

    def complete(self, pending: Pending) -> object:
        """Make a checkpoint durable and commit it; what the request gets.

        Raises:
            InDoubtError: It may be durable, or is and could not be committed yet: only a restart finds out.
            OncewardError: It is not durable, and nothing of it is or will be committed.
        """
        ...

    def completed(self, task: TaskId, checkpoint: int) -> None:
        """Tell a task."""
        ...

    def given_up(self, checkpoint: int, reason: str) -> None:
        """Tell all tasks."""
        ...

    def discard(self, ack: TaskAck) -> None:
        """Free what a task wrote for nothing."""
        ...

    def fail(self, error: OncewardError) -> None:
        """Fail the run."""
        ...


class InDoubtError(OncewardError):
    """Whether a checkpoint is durable and committed cannot be said here and now.

    Args:
        why: What happened.
    """

    def __init__(self, why: OncewardError) -> None:
        super().__init__(str(why))
        self.why = why


class Declined(NamedTuple):
    """A checkpoint that did not begin, and why."""

    reason: str


class CheckpointCoordinator:
    """Triggers, collects, completes, expires.

    Args:
        config: Settings.
        roles: The tasks.
        first: Id of the next checkpoint: beyond all that were ever decided or restored.
        effects: What is done by others.
        now: Seconds on the clock of all other calls.
        first_delay: Seconds until the first periodic one, between the minimum pause and the interval.
        pipeline: Whose checkpoints, for the log.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        roles: Roles,
        *,
        first: int,
        effects: Effects,
        now: float,
        first_delay: Callable[[float, float], float],
        pipeline: str,
    ) -> None:
        self._config = config
        self._pipeline = pipeline
        self._roles = roles
        self._next = first
        self._effects = effects
        self._pending: dict[int, Pending] = {}
        self._queue: deque[Request] = deque()
        self._failures = 0
        self._completed_at: float | None = None
        self._stopped = False
        self.ready = True
        """Whether tasks have opened; until then what is asked for waits in the queue."""
        self.history: deque[CheckpointRecord] = deque(maxlen=config.history)
        self._due: float | None = None
        if config.interval is not None:
            self._due = now + first_delay(min(config.min_pause, config.interval), config.interval)

    @property
    def pending(self) -> Collection[int]:
        """Ids of those in progress."""
        return list(self._pending)

    @property
    def next_id(self) -> int:
        """Id of the next one."""
        return self._next

    def request(self, kind: Kind, now: float, target: str | None = None) -> Request:
        """Ask for a checkpoint; it begins as soon as it may."""
        request = Request(kind, target)
        self.submit(request, now)
        return request

    def submit(self, request: Request, now: float) -> None:
        if self._stopped:
            request.fail(CheckpointFailedError("the pipeline is stopping"))
        else:
            self._queue.append(request)
            self.advance(now)

    def advance(self, now: float) -> None:
        """Let time pass: give up what is too old, begin what may begin."""
        for pending in list(self._pending.values()):
            if now - pending.triggered >= self._config.timeout:
                missing = ", ".join(map(str, sorted(pending.missing)))
                self._give_up(pending, f"expired after {self._config.timeout} s; missing: {missing}", now)
        while not self._stopped and self._wait_until(now) <= now:
            if self._queue:
                self._begin_requested(self._queue.popleft(), now)
            elif self._due is not None and self._due <= now:
                self._due += self._config.interval or 0.0
                if self._due <= now:  # what should have begun meanwhile is not made up for
                    self._due = now + (self._config.interval or 0.0)
                self.trigger(now)
            else:
                return

    def deadline(self, now: float) -> float | None:
        """When `advance` has something to do, if nothing else happens."""
        times = [pending.triggered + self._config.timeout for pending in self._pending.values()]
        if not self._stopped:
            wait = self._wait_until(now)
            if wait < float("inf"):
                times += [max(wait, self._due)] if self._due is not None else []
                times += [wait] if self._queue else []
        return min(times, default=None)

    def trigger(
        self, now: float, kind: Kind = Kind.CHECKPOINT, target: str | None = None, request: Request | None = None
    ) -> Pending | Declined:
        """Begin a checkpoint, if all tasks run."""
        idle = sorted(t for t in self._roles.trigger | self._roles.acknowledge if not self._effects.is_running(t))
        barrier = Barrier(self._next, kind, target)
        pending = Pending(barrier, now, set(self._roles.acknowledge), request)
        if idle:
            declined = Declined(f"not all required tasks run: {', '.join(map(str, idle))}")
            self._remember(pending.record(now, Status.DECLINED, declined.reason))
            return declined
        self._next += 1
        self._pending[barrier.checkpoint] = pending
        for task in sorted(self._roles.trigger):
            self._effects.trigger(task, barrier)
        return pending

    def acknowledge(self, ack: TaskAck, now: float) -> None:
        """A task has written its snapshot."""
        pending = self._pending.get(ack.checkpoint)
        if pending is None or not pending.accept(ack, now):
            known = pending is not None and ack.task in pending.acks and pending.acks[ack.task][0] == ack
            if not known:
                self._effects.discard(ack)
            return
        if not pending.missing:
            self._complete(pending, now)
        self.advance(now)

    def decline(self, task: TaskId, checkpoint: int, reason: str, now: float) -> None:
        """A task cannot make its snapshot."""
        pending = self._pending.get(checkpoint)
        if pending is not None:
            self._give_up(pending, f"declined by {task}: {reason}", now)
            self.advance(now)

    def stop(self, reason: str, now: float) -> None:
        """Nothing begins any more, and what is in progress is given up."""
        self._stopped = True
        self._config_failures_off()
        for pending in list(self._pending.values()):
            self._give_up(pending, reason, now)
        while self._queue:
            self._queue.popleft().fail(CheckpointFailedError(reason))

    def _config_failures_off(self) -> None:
        self._failures = -(1 << 30)

    def _wait_until(self, now: float) -> float:
        """When the next one may begin; infinity: only after another one has ended."""
        if (
            not self.ready
            or len(self._pending) >= self._config.max_concurrent
            or any(p.barrier.kind.terminal for p in self._pending.values())
        ):
            return float("inf")
        if self._completed_at is None:
            return now
        return max(now, self._completed_at + self._config.min_pause)

    def _begin_requested(self, request: Request, now: float) -> None:
        begun = self.trigger(now, request.kind, request.target, request)
        if isinstance(begun, Declined):
            request.fail(CheckpointFailedError(begun.reason))

    def _complete(self, pending: Pending, now: float) -> None:
        del self._pending[pending.checkpoint]  # from here on a decision may name it: whatever happens frees nothing
        try:
            result = self._effects.complete(pending)
        except InDoubtError as error:
            self._remember(pending.record(now, Status.FAILED, str(error.why)))
            if pending.request is not None:
                pending.request.fail(error.why)
            self._effects.fail(error.why)
            return
        except OncewardError as error:  # before the decision
            self._pending[pending.checkpoint] = pending
            self._give_up(pending, f"could not be completed: {error}", now)
            return
        self._failures = min(self._failures, 0)
        self._completed_at = now
        self._stopped = self._stopped or pending.barrier.kind.terminal
        self._remember(pending.record(now, Status.COMPLETED))
        if pending.barrier.kind.commits:  # else sinks keep what they prepared, and older ones are still needed
            older = [p for p in self._pending.values() if p.checkpoint < pending.checkpoint]
            for slower in [p for p in older if not p.barrier.kind.savepoint]:
                self._end(slower, Status.SUBSUMED, f"checkpoint {pending.checkpoint} was complete first", now)
            for task in sorted(self._roles.confirm):
                self._effects.completed(task, pending.checkpoint)
        if pending.request is not None:
            pending.request.succeed(result)

    def _remember(self, record: CheckpointRecord) -> None:
        self.history.append(record)
        bad = record.status in {Status.FAILED, Status.DECLINED} and not self._stopped
        _log.log(logging.WARNING if bad else logging.INFO, "pipeline %s: %s", self._pipeline, record)

    def _give_up(self, pending: Pending, reason: str, now: float) -> None:
        self._end(pending, Status.FAILED, reason, now)
        self._effects.given_up(pending.checkpoint, reason)
        if pending.barrier.kind.savepoint:
            return  # whoever asked for it is told; it is no sign of the run's health
        self._failures += 1
        if self._failures > self._config.tolerable_failures:
            self._effects.fail(
                CheckpointFailedError(
                    f"checkpoint {pending.checkpoint} {reason}; {self._failures} failed in a row, "
                    f"{self._config.tolerable_failures} are tolerated"
                )
            )

    def _end(self, pending: Pending, status: Status, reason: str, now: float) -> None:
        del self._pending[pending.checkpoint]
        self._remember(pending.record(now, status, reason))
        for ack, _ in pending.acks.values():
            self._effects.discard(ack)
        if pending.request is not None:
            pending.request.fail(CheckpointFailedError(f"{pending.barrier.kind.name.lower()} {reason}"))
