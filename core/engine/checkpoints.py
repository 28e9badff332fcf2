"""The coordinator of barriers: when a checkpoint begins, who must acknowledge, when it is complete or given up.

A pure step, `advance(state, event, now) -> (state, effects)`: whoever calls it carries the effects out. It decides
nothing about transactions: `Complete` hands a checkpoint on, whose metadata are then written, and which
core.checkpoint.Coordinator decides and commits. Rules, each with a test of its name:

1. A checkpoint begins only when all its tasks run; otherwise it is declined, and the reason said.
2. It is complete when every task has acknowledged; then all older pending ones are subsumed (they can only have been
   slower), and what their tasks prepared is carried by the newer one's acknowledgements. A savepoint never is: somebody
   waits for it.
3. One that takes longer than the timeout, or that a task declines, is given up; tasks are told, its files are freed.
4. Late and double acknowledgements are ignored and what they wrote is freed.
5. Failures in a row beyond the tolerated number fail the run; a success resets the count.
6. At most `max_concurrent` are in progress, and `min_pause` lies between the end of one and the begin of the next;
   what cannot begin yet waits in a queue, at most one periodic one.
7. If it cannot be completed (the store fails), nothing of it is committed. From `Complete` on until the answer a
   decision may name it: whatever happens meanwhile frees nothing of it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ..errors import CheckpointFailedError, OncewardError
from .channels import Barrier, CheckpointKind, TaskId
from .config import CheckpointConfig
from .coordinator_events import (
    Acknowledged,
    Complete,
    CompletedCheckpoint,
    Confirm,
    Declined,
    Discard,
    Effect,
    Event,
    Exhausted,
    Failed,
    Finished,
    GiveUp,
    NotCompleted,
    Pending,
    Remember,
    Reply,
    Requested,
    Status,
    Stopping,
    TaskOpened,
    Tick,
    Trigger,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


class CheckpointsState(msgspec.Struct, frozen=True):
    """All that is known of an attempt's checkpoints."""

    config: CheckpointConfig
    sources: frozenset[TaskId]
    """Tasks that inject barriers."""
    tasks: frozenset[TaskId]
    """All tasks; they acknowledge checkpoints, and are notified of their completion."""
    next_id: int
    """Id of the next checkpoint: beyond all that were ever decided or restored."""
    last: CheckpointKind = CheckpointKind.FINAL
    """The checkpoint at the end of the input."""
    due: float | None = None
    """Time of the next periodic checkpoint, in seconds on the job's clock; None if there are no periodic ones."""
    opened: frozenset[TaskId] = frozenset()
    """Tasks that have begun. Until all have, requests wait in the queue."""
    exhausted: frozenset[TaskId] = frozenset()
    """Sources without more rows."""
    finished: frozenset[TaskId] = frozenset()
    """Tasks that have ended."""
    pending: tuple[Pending, ...] = ()
    """Checkpoints in progress, oldest first."""
    completing: Pending | None = None
    """The checkpoint that all have acknowledged, until its `Complete` is answered; None if there is none."""
    queue: tuple[Requested, ...] = ()
    """Checkpoints that were requested and have not begun."""
    failures: int = 0
    """Number of checkpoints that failed in a row; savepoints do not count."""
    completed_at: float = -inf
    ending: bool = False
    """True once the last checkpoint, at the end of the input, has been requested."""
    stopped: bool = False
    """True if no checkpoint begins any more."""
    failure: OncewardError | None = None
    """The first failure, which ends the attempt; None if there was none."""

    @property
    def may_begin_at(self) -> float:
        """When the next one may begin; infinity: only after something else has happened."""
        if (
            self.stopped
            or self.opened != self.tasks
            or len(self.pending) >= self.config.max_concurrent
            or any(p.barrier.kind.terminal for p in self.pending)
        ):
            return inf
        return self.completed_at + self.config.min_pause


def initial(
    config: CheckpointConfig,
    sources: frozenset[TaskId],
    tasks: frozenset[TaskId],
    *,
    next_id: int,
    now: float,
    between: Callable[[float, float], float],
    last: CheckpointKind = CheckpointKind.FINAL,
) -> CheckpointsState:
    """Return the state of an attempt that begins now.

    Args:
        config: Settings of the run's checkpoints.
        sources: Tasks that inject barriers.
        tasks: All tasks; they acknowledge checkpoints.
        next_id: Id of the next checkpoint.
        now: Seconds on the job's clock.
        between: Function that chooses the first periodic checkpoint's delay between two numbers of seconds.
        last: The checkpoint at the end of the input; if that of a decided epoch, it is the only one.
    """
    due = None
    if config.interval is not None and not last.again:
        due = now + between(min(config.min_pause, config.interval), config.interval)
    return CheckpointsState(config, sources, tasks, next_id, last, due)


def deadline(state: CheckpointsState, now: float) -> float | None:
    """Return when a Tick has something to do if nothing else happens; None: never."""
    times = [pending.triggered + state.config.timeout for pending in state.pending]
    wait = max(now, state.may_begin_at)
    if wait < inf:
        times += [max(wait, state.due)] if state.due is not None else []
        times += [wait] if state.queue else []
    return min(times, default=None)


def advance(state: CheckpointsState, event: Event, now: float) -> tuple[CheckpointsState, list[Effect]]:
    """Apply an event; return the new state and the effects: `Complete` comes last, its answer is the next event."""
    step = _Step(state, now)
    step.take(event)
    return step.state, step.effects


class _Step:
    def __init__(self, state: CheckpointsState, now: float) -> None:
        self.state = state
        self.now = now
        self.effects: list[Effect] = []

    def take(self, event: Event) -> None:  # noqa: C901 - one case for each event
        match event:
            case Tick():
                self.pass_time()
            case TaskOpened(task):
                self.set(opened=self.state.opened | {task})
                self.pass_time()
                self.end_if_exhausted()
            case Exhausted(task):
                self.set(exhausted=self.state.exhausted | {task})
                self.end_if_exhausted()
            case Finished(task):
                self.set(finished=self.state.finished | {task})
            case Requested():
                self.request(event)
            case Acknowledged():
                self.acknowledge(event)
            case Declined():
                for pending in [p for p in self.state.pending if p.checkpoint == event.checkpoint]:
                    self.give_up(pending, f"declined by {event.task}: {event.reason}")
                    self.pass_time()
            case CompletedCheckpoint() | NotCompleted():
                self.answered(event)
            case Failed(error):
                self.fail(error)
            case Stopping(reason):
                failure = self.state.failure
                self.stop(f"the run has failed: {failure.message}" if failure is not None else reason)

    def set(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def fail(self, error: OncewardError) -> None:
        if self.state.failure is None:
            self.set(failure=error)

    def answer(self, to: Future[Any] | None, result: Any = None, error: OncewardError | None = None) -> None:
        if to is not None:
            self.effects.append(Reply(to, result, error))

    def request(self, request: Requested) -> None:
        if self.state.stopped:
            self.answer(request.answer, error=CheckpointFailedError("the pipeline is stopping"))
        elif self.state.last.again and not request.kind.again:
            why = "a decided epoch is computed again, because some of it was lost: ask again when that is done"
            self.answer(request.answer, error=CheckpointFailedError(why))
        else:
            self.set(queue=(*self.state.queue, request))
            self.pass_time()

    def end_if_exhausted(self) -> None:
        """Request the last checkpoint if every source has ended; it commits the rest and ends the tasks."""
        state = self.state
        if state.exhausted == state.sources and state.opened == state.tasks and not state.ending:
            self.set(ending=True)
            self.request(Requested(state.last))

    def pass_time(self) -> None:
        timeout = self.state.config.timeout
        for pending in self.state.pending:
            if self.now - pending.triggered >= timeout:
                missing = ", ".join(map(str, sorted(pending.missing)))
                self.give_up(pending, f"expired after {timeout:g} s; missing: {missing}")
        while self.state.may_begin_at <= self.now:
            if self.state.queue:
                request, *later = self.state.queue
                self.set(queue=tuple(later))
                self.begin(request)
            elif self.state.due is not None and self.state.due <= self.now:
                interval = self.state.config.interval or 0.0
                due = self.state.due + interval
                # What should have begun meanwhile is not made up for.
                self.set(due=due if due > self.now else self.now + interval)
                self.begin(Requested(CheckpointKind.CHECKPOINT))
            else:
                return

    def begin(self, request: Requested) -> None:
        state = self.state
        barrier = Barrier(state.next_id, request.kind, request.target)
        pending = Pending(barrier, self.now, state.tasks, request.answer)
        idle = sorted(state.tasks - (state.opened - state.finished))
        if idle:
            reason = f"not all required tasks run: {', '.join(map(str, idle))}"
            self.remember(pending, Status.DECLINED, reason)
            self.answer(request.answer, error=CheckpointFailedError(reason))
        else:
            self.set(next_id=state.next_id + 1, pending=(*state.pending, pending))
            self.effects.append(Trigger(barrier))

    def acknowledge(self, ack: Acknowledged) -> None:
        pending = next((p for p in self.state.pending if p.checkpoint == ack.checkpoint), None)
        if pending is None or ack.task not in pending.missing:
            known = pending is not None and ack.task in pending.acks and pending.acks[ack.task][0] == ack
            # If the same one comes twice, its files are those of the pending checkpoint and must stay.
            if not known:
                self.effects.append(Discard(ack))
            return
        acks = {**pending.acks, ack.task: (ack, self.now)}
        after = replace(pending, missing=pending.missing - {ack.task}, acks=acks)
        if after.missing:
            self.set(pending=tuple(after if p is pending else p for p in self.state.pending))
            self.pass_time()
        else:
            others = tuple(p for p in self.state.pending if p is not pending)
            # No longer pending, so that nothing frees it before the answer: a decision may name it.
            self.set(pending=others, completing=after)
            self.effects.append(Complete(after, tuple(p.checkpoint for p in others)))

    def answered(self, event: CompletedCheckpoint | NotCompleted) -> None:
        pending = self.state.completing
        if pending is None:
            return
        self.set(completing=None)
        if isinstance(event, CompletedCheckpoint):
            self.completed(pending, event.result)
        elif event.in_doubt:
            # It is not given up, for that would free files which a decision may name.
            self.remember(pending, Status.FAILED, str(event.error))
            self.answer(pending.answer, error=event.error)
            self.fail(event.error)
        else:
            self.give_up(pending, f"could not be completed: {event.error}")
        self.pass_time()

    def completed(self, pending: Pending, result: Any) -> None:
        kind = pending.barrier.kind
        self.set(failures=0, completed_at=self.now, stopped=self.state.stopped or kind.terminal)
        self.remember(pending, Status.COMPLETED)
        if kind.commits:  # else sinks keep what they prepared, and older ones are still needed
            older = [p for p in self.state.pending if p.checkpoint < pending.checkpoint]
            for slower in [p for p in older if not p.barrier.kind.savepoint]:
                self.end(slower, Status.SUBSUMED, f"checkpoint {pending.checkpoint} was completed first")
            self.effects.append(Confirm(pending.checkpoint))
        self.answer(pending.answer, result)

    def stop(self, reason: str) -> None:
        # First, because those that the end interrupts do not count as failures.
        self.set(stopped=True)
        for pending in self.state.pending:
            self.give_up(pending, reason)
        for request in self.state.queue:
            self.answer(request.answer, error=CheckpointFailedError(reason))
        self.set(queue=())
        interrupted = self.state.completing
        if interrupted is not None:  # by an error of the engine itself: a decision may name it
            error = CheckpointFailedError(
                f"checkpoint {interrupted.checkpoint} was interrupted: {self.state.failure or reason}. The next start "
                "finds out whether it was decided"
            )
            self.answer(interrupted.answer, error=error)
            # It is answered now, and the outcome, if it still comes, must not answer again.
            self.set(completing=replace(interrupted, answer=None))

    def remember(self, pending: Pending, status: Status, reason: str = "") -> None:
        bad = status in {Status.FAILED, Status.DECLINED} and not self.state.stopped
        self.effects.append(Remember(pending.record(self.now, status, reason), bad))

    def give_up(self, pending: Pending, reason: str) -> None:
        self.end(pending, Status.FAILED, reason)
        self.effects.append(GiveUp(pending.checkpoint))
        what = f"checkpoint {pending.checkpoint}"
        if pending.barrier.kind.drains or pending.barrier.kind.again:
            # Operators have given what they held back, or all there is: only a restart goes on from here.
            self.fail(CheckpointFailedError(f"{what}, which was to end the run, {reason}"))
        if pending.barrier.kind.savepoint or self.state.stopped:
            return  # whoever asked for a savepoint is told; it is no sign of the run's health
        tolerated, failures = self.state.config.tolerable_failures, self.state.failures + 1
        self.set(failures=failures)
        if failures > tolerated:
            why = f"{what} {reason}; {failures} failed in a row, {tolerated} are tolerated"
            self.fail(CheckpointFailedError(why))

    def end(self, pending: Pending, status: Status, reason: str) -> None:
        self.set(pending=tuple(p for p in self.state.pending if p.checkpoint != pending.checkpoint))
        self.remember(pending, status, reason)
        self.effects += [Discard(ack) for ack, _ in pending.acks.values()]
        kind = pending.barrier.kind.name.lower()
        self.answer(pending.answer, error=CheckpointFailedError(f"{kind} {reason}"))
