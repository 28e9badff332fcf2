"""The coordinator of barriers, rule by rule. SCENARIOS 51 to 55."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from onceward.core import CheckpointConfig, MemoryBackend
from onceward.core.contract.policy import CommitPolicy
from onceward.core.engine.attempt import Attempt
from onceward.core.engine.channels import Barrier, CheckpointKind, TaskId
from onceward.core.engine.checkpoints import CheckpointsState, advance, deadline, initial
from onceward.core.engine.coordinator_events import (
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
    Remember,
    Reply,
    Requested,
    Stopping,
    TaskOpened,
    Tick,
    Trigger,
)
from onceward.core.engine.graph import Graph
from onceward.core.engine.start import EngineWorld
from onceward.core.engine.state.handles import KeyedHandle, ListHandle, SubtaskState
from onceward.core.errors import CheckpointFailedError, DecisionInDoubtError, StateError
from onceward.core.log import MemoryStore
from onceward.core.log.note_kinds import CheckpointRecord, TaskRecord

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE, SUM, SINK = TaskId("source", 0), TaskId("sum", 0), TaskId("sink", 0)
ALL = frozenset({SOURCE, SUM, SINK})


class Rig:
    """A coordinator at time 0, whose first checkpoint is number 5, and all its effects."""

    def __init__(self, **config: Any) -> None:
        self.effects: list[Effect] = []
        self.refuse: NotCompleted | None = None
        """The answer to each Complete; None: it is completed."""
        checked = CheckpointConfig(**config)
        self.state = initial(
            checked, frozenset({SOURCE}), ALL, next_id=5, now=0.0, between=lambda low, high: (low + high) / 2
        )
        for task in sorted(ALL):
            self.take(TaskOpened(task))

    def take(self, event: Event, now: float = 0.0) -> None:
        self.state, effects = advance(self.state, event, now)
        self.effects += effects
        for effect in effects:
            if isinstance(effect, Complete):
                self.take(self.refuse or CompletedCheckpoint(f"made {effect.pending.checkpoint}"), now)

    def pass_time(self, now: float) -> None:
        self.take(Tick(), now)

    def trigger(self, now: float = 0.0) -> None:
        self.take(Requested(CheckpointKind.CHECKPOINT), now)

    def request(self, kind: CheckpointKind, now: float, target: str = "somewhere") -> Future[Any]:
        answer: Future[Any] = Future()
        self.take(Requested(kind, target, answer), now)
        return answer

    def decline(self, task: TaskId, checkpoint: int, reason: str, now: float = 0.0) -> None:
        self.take(Declined(task, checkpoint, reason), now)

    def ack(self, checkpoint: int, *tasks: TaskId, now: float = 0.0) -> None:
        for task in tasks or sorted(ALL):
            self.take(Acknowledged(task, checkpoint, SubtaskState(position=str(task))), now)

    def of(self, kind: type[Any]) -> list[Any]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    @property
    def begun(self) -> list[int]:
        return [effect.barrier.checkpoint for effect in self.of(Trigger)]

    @property
    def made(self) -> list[int]:
        return [effect.pending.checkpoint for effect in self.of(Complete)]

    @property
    def freed(self) -> list[str]:
        return [effect.ack.state.position for effect in self.of(Discard)]

    @property
    def pending(self) -> list[int]:
        return [pending.checkpoint for pending in self.state.pending]

    @property
    def history(self) -> list[CheckpointRecord]:
        return [effect.record for effect in self.of(Remember)]

    @property
    def statuses(self) -> list[tuple[int, str]]:
        return [(record.checkpoint, record.status) for record in self.history]

    def answered(self, request: Future[Any]) -> Any:
        [answer] = [effect for effect in self.of(Reply) if effect.to is request]
        return answer.error or answer.result


def test_sources_are_triggered_all_acknowledge_and_all_are_told():
    rig = Rig()
    rig.trigger()
    assert rig.effects == [Trigger(Barrier(5))]
    rig.ack(5, SOURCE, SUM)
    assert rig.made == []
    rig.ack(5, SINK)
    assert rig.made == [5]
    assert rig.effects[-1] == Confirm(5)


def test_a_trigger_is_declined_with_the_names_of_the_tasks_that_do_not_run():
    rig = Rig()
    rig.take(Finished(SUM))
    request = rig.request(CheckpointKind.SAVEPOINT, 0.0)
    assert str(rig.answered(request)) == "not all required tasks run: sum[0]"
    assert rig.begun == []
    assert rig.state.next_id == 5


def test_51_a_missing_acknowledgement_expires_and_is_named():
    rig = Rig(timeout=600, tolerable_failures=1)
    rig.trigger()
    rig.ack(5, SOURCE, SINK, now=1.0)
    assert deadline(rig.state, 1.0) == 600.0
    rig.pass_time(599.9)
    assert rig.statuses == []
    rig.pass_time(600.0)
    assert rig.statuses == [(5, "failed")]
    assert "missing: sum[0]" in rig.history[0].reason
    assert rig.of(GiveUp) == [GiveUp(5)]
    assert rig.freed == ["source[0]", "sink[0]"]


def test_52_a_late_acknowledgement_is_ignored_and_what_it_wrote_is_freed():
    rig = Rig(timeout=10, tolerable_failures=1)
    rig.trigger()
    rig.pass_time(10.0)
    rig.ack(5, now=11.0)
    assert rig.made == []
    assert len(rig.freed) == 3


def test_52_a_double_acknowledgement_is_ignored_and_what_counts_is_kept():
    rig = Rig()
    rig.trigger()
    rig.ack(5, SUM)
    rig.ack(5, SUM)
    assert rig.freed == []  # the same state: freeing it would free what counts
    rig.take(Acknowledged(SUM, 5, SubtaskState(position="other")), 0.0)
    assert rig.freed == ["other"]
    rig.ack(5, SOURCE, SINK)
    assert rig.made == [5]


def test_an_acknowledgement_of_a_task_that_is_not_asked_is_ignored():
    rig = Rig()
    rig.trigger()
    rig.ack(5, TaskId("stranger", 0))
    assert rig.pending == [5]


def test_53_a_failure_beyond_the_tolerated_number_fails_the_run():
    rig = Rig(tolerable_failures=2)
    for number in (5, 6, 7):
        assert rig.state.failure is None
        rig.trigger()
        rig.decline(SUM, number, "disk full", 0.0)
    failure = rig.state.failure
    assert isinstance(failure, CheckpointFailedError)
    assert "declined by sum[0]: disk full" in str(failure)
    assert "3 failed in a row, 2 are tolerated" in str(failure)


def test_53_none_is_tolerated_by_default():
    rig = Rig()
    rig.trigger()
    rig.decline(SUM, 5, "disk full", 0.0)
    assert rig.state.failure is not None


def test_53_a_success_resets_the_count():
    rig = Rig(tolerable_failures=1)
    for number in range(5, 15):
        rig.trigger()
        if number % 2:
            rig.decline(SUM, number, "now and then", 0.0)
        else:
            rig.ack(number)
    assert rig.state.failure is None


def test_53_a_failed_savepoint_is_told_to_who_asked_and_does_not_count():
    rig = Rig()
    request = rig.request(CheckpointKind.SAVEPOINT, 0.0)
    rig.decline(SUM, 5, "disk full", 0.0)
    assert "disk full" in str(rig.answered(request))
    assert rig.state.failure is None


def test_54_between_a_completion_and_the_next_trigger_lies_the_minimum_pause():
    rig = Rig(interval=10, min_pause=7)
    rig.pass_time(8.5)
    assert rig.begun == [5]
    rig.ack(5, now=17.0)
    rig.pass_time(18.5)
    assert rig.begun == [5]
    assert deadline(rig.state, 18.5) == 24.0
    rig.pass_time(24.0)
    assert rig.begun == [5, 6]


def test_54_at_most_so_many_are_under_way():
    rig = Rig(interval=1, max_concurrent=2)
    for tick in range(1, 20):
        rig.pass_time(float(tick))
    assert rig.begun == [5, 6]
    rig.ack(5, now=20.0)
    assert rig.begun == [5, 6, 7]


def test_54_periodic_triggers_that_could_not_begin_do_not_pile_up():
    rig = Rig(interval=1)
    rig.pass_time(1.0)
    rig.pass_time(10.0)
    rig.ack(5, now=10.0)
    assert rig.begun == [5, 6]
    rig.ack(6, now=10.1)
    rig.pass_time(10.2)
    assert rig.begun == [5, 6]


def test_54_a_savepoint_waits_in_the_queue_until_it_may_begin():
    rig = Rig(min_pause=5)
    rig.trigger()
    request = rig.request(CheckpointKind.SAVEPOINT, 1.0, "somewhere")
    assert rig.begun == [5]
    rig.ack(5, now=2.0)
    assert rig.begun == [5]
    rig.pass_time(7.0)
    assert rig.begun == [5, 6]
    rig.ack(6, now=8.0)
    assert rig.answered(request) == "made 6"


def test_the_first_periodic_one_begins_between_the_minimum_pause_and_the_interval():
    seen = []

    def between(low: float, high: float) -> float:
        seen.append((low, high))
        return 3.0

    config = CheckpointConfig(interval=10, min_pause=2)
    state = initial(config, frozenset(), frozenset(), next_id=0, now=100.0, between=between)
    assert seen == [(2, 10)]
    assert deadline(state, 100.0) == 103.0


def test_without_an_interval_nothing_begins_by_itself():
    rig = Rig()
    rig.pass_time(1e9)
    assert rig.begun == []
    assert deadline(rig.state, 0.0) is None


def test_a_complete_checkpoint_subsumes_the_older_ones_that_are_pending():
    rig = Rig(max_concurrent=3)
    for _ in range(3):
        rig.trigger()
    rig.ack(5, SOURCE)
    rig.ack(6)
    assert rig.made == [6]
    assert rig.statuses == [(6, "completed"), (5, "subsumed")]
    assert rig.freed == ["source[0]"]
    assert rig.pending == [7]
    assert rig.state.failure is None


def test_55_if_the_state_cannot_be_stored_nothing_is_committed_and_what_was_written_is_freed():
    rig = Rig(tolerable_failures=1)
    rig.refuse = NotCompleted(StateError("no space left on device"))
    rig.trigger()
    rig.ack(5)
    assert rig.of(Confirm) == []
    assert rig.statuses == [(5, "failed")]
    assert "no space left" in rig.history[0].reason
    assert len(rig.freed) == 3
    rig.refuse = None
    rig.trigger(1.0)
    rig.ack(6)
    assert rig.made == [5, 6]


def test_55_if_the_decision_is_in_doubt_nothing_is_freed_and_the_run_fails():
    rig = Rig(tolerable_failures=9)
    rig.refuse = NotCompleted(DecisionInDoubtError("no answer"), in_doubt=True)
    rig.trigger()
    rig.ack(5)
    assert rig.freed == []
    assert rig.of(Confirm) == []
    failure = rig.state.failure
    assert isinstance(failure, DecisionInDoubtError)


def test_nothing_is_freed_of_a_checkpoint_whose_completion_was_interrupted():
    """Its decision may be durable: what the next start restores must be there, whatever ends this run."""
    rig = Rig(timeout=10)
    rig.trigger()
    state, effects = rig.state, list[Effect]()
    for task in sorted(ALL):
        state, effects = advance(state, Acknowledged(task, 5, SubtaskState()), 0.0)
    assert [type(effect) for effect in effects] == [Complete]
    for event in (Tick(), Declined(SUM, 5, "late"), Stopping("the process ends")):
        state, effects = advance(state, event, 100.0)
        assert effects == []


def test_nothing_begins_beside_a_checkpoint_that_ends_the_run_and_after_it():
    rig = Rig(interval=1, max_concurrent=5)
    rig.request(CheckpointKind.SUSPEND, 0.0, "somewhere")
    rig.pass_time(5.0)
    assert rig.begun == [5]
    rig.ack(5, now=6.0)
    rig.pass_time(100.0)
    assert rig.begun == [5]


def test_when_the_run_stops_what_is_under_way_is_given_up_and_who_waits_is_told():
    rig = Rig()
    rig.trigger()
    request = rig.request(CheckpointKind.SAVEPOINT, 0.0)
    rig.take(Stopping("the pipeline is stopping"), 1.0)
    assert "stopping" in str(rig.answered(request))
    assert rig.statuses == [(5, "failed")]
    assert rig.state.failure is None
    assert "stopping" in str(rig.answered(rig.request(CheckpointKind.SAVEPOINT, 2.0)))


def test_a_checkpoint_that_is_given_up_because_the_run_has_failed_says_why():
    rig = Rig()
    rig.trigger()
    request = rig.request(CheckpointKind.SAVEPOINT, 0.0)
    rig.take(Failed(StateError("table sums does not exist")), 1.0)
    rig.take(Stopping("the pipeline is stopping"), 1.0)
    assert "the run has failed: table sums does not exist" in str(rig.answered(request))


class Shell(Attempt):
    """An attempt without tasks."""

    def __init__(self) -> None:
        coordinator = SimpleNamespace(pipeline="p")
        config, store = CheckpointConfig(), MemoryStore()
        world, policy = EngineWorld(), CommitPolicy()
        setup = SimpleNamespace(
            graph=Graph(1), config=config, world=world, store=store, policy=policy, most_rows=1, linger=0.0
        )
        started: Any = SimpleNamespace(
            setup=setup, backend=MemoryBackend(), coordinator=coordinator, next_id=5, again=None
        )
        super().__init__(started)

    def tell(self, event: Event) -> None:
        """Nobody hears."""

    def wake(self, task: TaskId) -> None:
        """Nobody waits."""

    def run_later(self, work: Callable[[], None]) -> None:
        """There is no work."""

    def perform(self, *effects: Remember) -> None:
        for effect in effects:
            self._perform(effect)


def test_the_history_holds_the_last_ten_with_what_each_task_did():
    rig, shell = Rig(tolerable_failures=100), Shell()
    for number in range(5, 20):
        rig.trigger(float(number))
        for task in sorted(ALL):
            state = SubtaskState(position=1)
            measured = TaskRecord(alignment=0.5, buffered=7, sync=0.1, asynchronous=0.2, uploaded=3)
            ack = Acknowledged(task, number, state, measured=measured)
            rig.take(ack, number + 0.25)
    shell.perform(*rig.of(Remember))
    assert [record.checkpoint for record in shell.history] == list(range(10, 20))
    [first, *_] = shell.history[-1].tasks
    assert first.task == "sink[0]"
    assert (first.acknowledged, first.alignment, first.buffered) == (0.25, 0.5, 7)
    assert (first.sync, first.asynchronous, first.uploaded) == (0.1, 0.2, 3)


def test_a_savepoint_is_never_subsumed_by_a_newer_checkpoint():
    """It is its user's; that a newer checkpoint was faster is no reason to end it."""
    rig = Rig(max_concurrent=3)
    rig.trigger()
    request = rig.request(CheckpointKind.SAVEPOINT, 0.0)
    rig.trigger()
    rig.ack(6, SOURCE)
    rig.ack(7)
    assert rig.statuses == [(7, "completed"), (5, "subsumed")]
    assert rig.pending == [6]
    rig.ack(6, SUM, SINK)
    assert rig.answered(request) == "made 6"
    assert rig.freed == []


def test_a_periodic_trigger_that_is_declined_is_remembered_and_logged(caplog: pytest.LogCaptureFixture):
    rig = Rig(interval=10)
    rig.take(Finished(SUM))
    rig.pass_time(10.0)
    assert rig.begun == []
    [record] = rig.history
    assert (record.status, record.reason) == ("declined", "not all required tasks run: sum[0]")
    Shell().perform(*rig.of(Remember))
    assert "checkpoint 5 declined: not all required tasks run: sum[0]" in caplog.text


def test_each_checkpoint_that_ends_logs_one_line(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "onceward.engine")
    rig = Rig(tolerable_failures=10, timeout=10, max_concurrent=2)
    rig.trigger()
    rig.trigger()
    rig.ack(6, now=1.5)
    rig.trigger(2.0)
    rig.pass_time(12.0)
    rig.trigger(12.0)
    rig.decline(SUM, 8, "disk full", 13.0)
    Shell().perform(*rig.of(Remember))
    lines = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "onceward.engine"]
    assert lines == [
        ("INFO", "pipeline p: checkpoint 6 completed in 1.500 s, 0 bytes"),
        ("INFO", "pipeline p: checkpoint 5 subsumed: checkpoint 6 was completed first"),
        ("WARNING", "pipeline p: checkpoint 7 failed: expired after 10 s; missing: sink[0], source[0], sum[0]"),
        ("WARNING", "pipeline p: checkpoint 8 failed: declined by sum[0]: disk full"),
    ]


def test_the_size_of_a_task_in_the_history_counts_its_operator_state():
    rig = Rig()
    rig.trigger()
    state = SubtaskState(
        keyed=KeyedHandle(first=0, end=128, inline=b"12345"), lists={"seen": ListHandle("split", [b"1234", b"567"])}
    )
    rig.take(Acknowledged(SUM, 5, state), 0.0)
    rig.ack(5, SOURCE, SINK)
    assert [task.state for task in rig.history[0].tasks] == [0, 0, 12]


# Every order of events


def events_after(state: CheckpointsState) -> list[tuple[Event, float]]:
    """All that may happen next, of two tasks; the second number is the time that has passed."""
    if state.completing is not None:
        error = StateError("refused")
        return [(CompletedCheckpoint(), 0.0), (NotCompleted(error), 0.0), (NotCompleted(error, in_doubt=True), 0.0)]
    found: list[tuple[Event, float]] = [(Tick(), 3.0), (Stopping("stop"), 0.0)]
    found += [
        (Requested(kind, "folder", Future()), 0.0)
        for kind in (CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT, CheckpointKind.DRAIN)
    ]
    for checkpoint in range(5, state.next_id):
        found += [(Acknowledged(task, checkpoint, SubtaskState()), 0.0) for task in sorted(state.tasks)]
        found.append((Declined(SINK, checkpoint, "no"), 0.0))
    if not state.exhausted:
        found.append((Exhausted(SOURCE), 0.0))
    return found


@pytest.mark.parametrize("begun", [1, 2])
def test_in_every_order_of_events_the_laws_hold(begun: int):
    """Of all runs of four events after so many checkpoints have begun; then the run stops.

    A checkpoint is completed only if every task has acknowledged it, and ends once. What was acknowledged is freed,
    unless a decision may name it. Tasks are told of a completion only, or that it was given up. Whoever asked is
    answered once.
    """
    config = CheckpointConfig(timeout=5, max_concurrent=2, tolerable_failures=1)
    tasks = frozenset({SOURCE, SINK})
    begin = initial(config, frozenset({SOURCE}), tasks, next_id=5, now=0.0, between=min)
    first: list[Event] = [
        TaskOpened(SOURCE),
        TaskOpened(SINK),
        *[Requested(CheckpointKind.CHECKPOINT, None, Future())] * begun,
    ]
    done: list[Effect] = []
    for event in first:
        begin, effects = advance(begin, event, 0.0)
        done += effects
    runs: list[tuple[CheckpointsState, float, list[Event], list[Effect]]] = [(begin, 0.0, first, done)]
    for _ in range(4):
        runs = [
            (after, now + passed, [*events, event], [*effects, *more])
            for state, now, events, effects in runs
            for event, passed in events_after(state)
            for after, more in [advance(state, event, now + passed)]
        ]
    assert len(runs) > 3_000
    for state, now, events, effects in runs:
        busy = {p.checkpoint for p in (*state.pending, state.completing) if p is not None}
        assert len(busy) <= config.max_concurrent
        if state.completing is None:
            _, last = advance(state, Stopping("the end"), now)
            check_run(tasks, events, [*effects, *last])


def check_run(tasks: frozenset[TaskId], events: list[Event], effects: list[Effect]) -> None:
    def of(kind: type[Any]) -> list[Any]:
        return [effect for effect in effects if isinstance(effect, kind)]

    begun = [effect.barrier.checkpoint for effect in of(Trigger)]
    given_up = {effect.checkpoint for effect in of(GiveUp)}
    named = [effect.pending for effect in of(Complete)]
    assert all(pending.acks.keys() == tasks for pending in named)
    assert begun == sorted(effect.record.checkpoint for effect in of(Remember))
    assert {effect.checkpoint for effect in of(Confirm)} <= {
        p.checkpoint for p in named if p.barrier.kind.commits
    } - given_up
    asked = [event.answer for event in events if isinstance(event, Requested)]
    assert sorted(map(id, asked)) == sorted(id(effect.to) for effect in of(Reply))
    acks = [event for event in events if isinstance(event, Acknowledged)]
    freed = {id(effect.ack) for effect in of(Discard)}
    kept = {id(ack) for p in named if p.checkpoint not in given_up for ack, _ in p.acks.values()}
    assert not freed & kept
    assert all(id(ack) in freed | kept or ack in acks[:n] for n, ack in enumerate(acks))


def test_the_first_failure_counts():
    rig = Rig()
    for words in ("first", "second"):
        rig.take(Failed(StateError(words)))
    assert str(rig.state.failure) == "first"


def test_a_checkpoint_that_drains_and_is_given_up_fails_the_run():
    """Functions have given what they held back: only a restart brings them back to where they were."""
    rig = Rig(tolerable_failures=9)
    rig.request(CheckpointKind.DRAIN, 0.0)
    rig.decline(SUM, 5, "disk full")
    assert "which was to end the run, declined by sum[0]: disk full" in str(rig.state.failure)


def test_at_the_end_of_all_sources_one_last_checkpoint_begins():
    rig = Rig()
    for _ in range(2):
        rig.take(Exhausted(SOURCE))
    assert [effect.barrier.kind for effect in rig.of(Trigger)] == [CheckpointKind.FINAL]
