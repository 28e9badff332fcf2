"""The coordinator of barriers, rule by rule. SCENARIOS 51 to 55."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.core import CheckpointConfig
from onceward.core.engine.checkpoints import CheckpointCoordinator, Declined, InDoubtError, Roles
from onceward.core.engine.elements import Barrier, Kind, TaskId
from onceward.core.engine.pending import CheckpointFailedError, Pending, TaskAck
from onceward.core.engine.state.handles import KeyedHandle, ListHandle, SubtaskState
from onceward.core.errors import DecisionInDoubtError, OncewardError, StateError

SOURCE, SUM, SINK = TaskId("source", 0), TaskId("sum", 0), TaskId("sink", 0)
ALL = frozenset({SOURCE, SUM, SINK})


class Recorder:
    """Does nothing, and tells what it was asked to do."""

    def __init__(self) -> None:
        self.idle: set[TaskId] = set()
        self.triggered: list[tuple[TaskId, int]] = []
        self.made: list[int] = []
        self.told: list[tuple[TaskId, int]] = []
        self.dropped: list[int] = []
        self.freed: list[SubtaskState] = []
        self.failures: list[OncewardError] = []
        self.refuse: BaseException | None = None

    def is_running(self, task: TaskId) -> bool:
        return task not in self.idle

    def trigger(self, task: TaskId, barrier: Barrier) -> None:
        self.triggered.append((task, barrier.checkpoint))

    def complete(self, pending: Pending) -> Any:
        if self.refuse is not None:
            raise self.refuse
        self.made.append(pending.checkpoint)
        return f"made {pending.checkpoint}"

    def completed(self, task: TaskId, checkpoint: int) -> None:
        self.told.append((task, checkpoint))

    def given_up(self, checkpoint: int, reason: str) -> None:  # noqa: ARG002 - signature
        self.dropped.append(checkpoint)

    def discard(self, ack: TaskAck) -> None:
        self.freed.append(ack.state)

    def fail(self, error: OncewardError) -> None:
        self.failures.append(error)


class Rig:
    """A coordinator at time 0, whose first checkpoint is number 5."""

    def __init__(self, **config: Any) -> None:
        self.effects = Recorder()
        self.coordinator = CheckpointCoordinator(
            CheckpointConfig(**config).checked(),
            Roles(frozenset({SOURCE}), ALL, ALL),
            first=5,
            effects=self.effects,
            now=0.0,
            first_delay=lambda low, high: (low + high) / 2,
            pipeline="p",
        )

    def ack(self, checkpoint: int, *tasks: TaskId, now: float = 0.0) -> None:
        for task in tasks or sorted(ALL):
            self.coordinator.acknowledge(TaskAck(task, checkpoint, SubtaskState(position=str(task))), now)

    def begun(self) -> list[int]:
        return [checkpoint for _, checkpoint in self.effects.triggered]

    @property
    def statuses(self) -> list[tuple[int, str]]:
        return [(record.checkpoint, record.status) for record in self.coordinator.history]


def test_sources_are_triggered_all_acknowledge_and_all_are_told():
    rig = Rig()
    rig.coordinator.trigger(0.0)
    assert rig.effects.triggered == [(SOURCE, 5)]
    rig.ack(5, SOURCE, SUM)
    assert rig.effects.made == []
    rig.ack(5, SINK)
    assert rig.effects.made == [5]
    assert set(rig.effects.told) == {(task, 5) for task in ALL}


def test_a_trigger_is_declined_with_the_names_of_the_tasks_that_do_not_run():
    rig = Rig()
    rig.effects.idle = {SUM}
    declined = rig.coordinator.trigger(0.0)
    assert declined == Declined("not all required tasks run: sum[0]")
    assert rig.effects.triggered == []
    assert rig.coordinator.next_id == 5


def test_51_a_missing_acknowledgement_expires_and_is_named():
    rig = Rig(timeout=600, tolerable_failures=1)
    rig.coordinator.trigger(0.0)
    rig.ack(5, SOURCE, SINK, now=1.0)
    assert rig.coordinator.deadline(1.0) == 600.0
    rig.coordinator.advance(599.9)
    assert rig.statuses == []
    rig.coordinator.advance(600.0)
    assert rig.statuses == [(5, "failed")]
    assert "missing: sum[0]" in rig.coordinator.history[0].reason
    assert rig.effects.dropped == [5]
    assert [state.position for state in rig.effects.freed] == ["source[0]", "sink[0]"]


def test_52_a_late_acknowledgement_is_ignored_and_what_it_wrote_is_freed():
    rig = Rig(timeout=10, tolerable_failures=1)
    rig.coordinator.trigger(0.0)
    rig.coordinator.advance(10.0)
    rig.ack(5, now=11.0)
    assert rig.effects.made == []
    assert len(rig.effects.freed) == 3


def test_52_a_double_acknowledgement_is_ignored_and_what_counts_is_kept():
    rig = Rig()
    rig.coordinator.trigger(0.0)
    rig.ack(5, SUM)
    rig.ack(5, SUM)
    assert rig.effects.freed == []  # the same state: freeing it would free what counts
    rig.coordinator.acknowledge(TaskAck(SUM, 5, SubtaskState(position="other")), 0.0)
    assert [state.position for state in rig.effects.freed] == ["other"]
    rig.ack(5, SOURCE, SINK)
    assert rig.effects.made == [5]


def test_an_acknowledgement_of_a_task_that_is_not_asked_is_ignored():
    rig = Rig()
    rig.coordinator.trigger(0.0)
    rig.ack(5, TaskId("stranger", 0))
    assert rig.coordinator.pending == [5]


def test_53_a_failure_beyond_the_tolerated_number_fails_the_run():
    rig = Rig(tolerable_failures=2)
    for number in (5, 6, 7):
        assert rig.effects.failures == []
        rig.coordinator.trigger(0.0)
        rig.coordinator.decline(SUM, number, "disk full", 0.0)
    [failure] = rig.effects.failures
    assert isinstance(failure, CheckpointFailedError)
    assert "declined by sum[0]: disk full" in str(failure)
    assert "3 failed in a row, 2 are tolerated" in str(failure)


def test_53_none_is_tolerated_by_default():
    rig = Rig()
    rig.coordinator.trigger(0.0)
    rig.coordinator.decline(SUM, 5, "disk full", 0.0)
    assert len(rig.effects.failures) == 1


def test_53_a_success_resets_the_count():
    rig = Rig(tolerable_failures=1)
    for number in range(5, 15):
        rig.coordinator.trigger(0.0)
        if number % 2:
            rig.coordinator.decline(SUM, number, "now and then", 0.0)
        else:
            rig.ack(number)
    assert rig.effects.failures == []


def test_53_a_failed_savepoint_is_told_to_who_asked_and_does_not_count():
    rig = Rig()
    request = rig.coordinator.request(Kind.SAVEPOINT, 0.0, "somewhere")
    rig.coordinator.decline(SUM, 5, "disk full", 0.0)
    with pytest.raises(CheckpointFailedError, match="disk full"):
        request.wait(0)
    assert rig.effects.failures == []


def test_54_between_a_completion_and_the_next_trigger_lies_the_minimum_pause():
    rig = Rig(interval=10, min_pause=7)
    rig.coordinator.advance(8.5)
    assert rig.begun() == [5]
    rig.ack(5, now=17.0)
    rig.coordinator.advance(18.5)
    assert rig.begun() == [5]
    assert rig.coordinator.deadline(18.5) == 24.0
    rig.coordinator.advance(24.0)
    assert rig.begun() == [5, 6]


def test_54_at_most_so_many_are_under_way():
    rig = Rig(interval=1, max_concurrent=2)
    for tick in range(1, 20):
        rig.coordinator.advance(float(tick))
    assert rig.begun() == [5, 6]
    rig.ack(5, now=20.0)
    assert rig.begun() == [5, 6, 7]


def test_54_periodic_triggers_that_could_not_begin_do_not_pile_up():
    rig = Rig(interval=1)
    rig.coordinator.advance(1.0)
    rig.coordinator.advance(10.0)
    rig.ack(5, now=10.0)
    assert rig.begun() == [5, 6]
    rig.ack(6, now=10.1)
    rig.coordinator.advance(10.2)
    assert rig.begun() == [5, 6]


def test_54_a_savepoint_waits_in_the_queue_until_it_may_begin():
    rig = Rig(min_pause=5)
    rig.coordinator.trigger(0.0)
    request = rig.coordinator.request(Kind.SAVEPOINT, 1.0, "somewhere")
    assert rig.begun() == [5]
    rig.ack(5, now=2.0)
    assert rig.begun() == [5]
    rig.coordinator.advance(7.0)
    assert rig.begun() == [5, 6]
    rig.ack(6, now=8.0)
    assert request.wait(0) == "made 6"


def test_the_first_periodic_one_begins_between_the_minimum_pause_and_the_interval():
    seen = []

    def delay(low: float, high: float) -> float:
        seen.append((low, high))
        return 3.0

    config = CheckpointConfig(interval=10, min_pause=2).checked()
    roles = Roles(frozenset({SOURCE}), ALL, ALL)
    coordinator = CheckpointCoordinator(
        config, roles, first=0, effects=Recorder(), now=100.0, first_delay=delay, pipeline="p"
    )
    assert seen == [(2, 10)]
    assert coordinator.deadline(100.0) == 103.0


def test_without_an_interval_nothing_begins_by_itself():
    rig = Rig()
    rig.coordinator.advance(1e9)
    assert rig.begun() == []
    assert rig.coordinator.deadline(0.0) is None


def test_a_complete_checkpoint_subsumes_the_older_ones_that_are_pending():
    rig = Rig(max_concurrent=3)
    for _ in range(3):
        rig.coordinator.trigger(0.0)
    rig.ack(5, SOURCE)
    rig.ack(6)
    assert rig.effects.made == [6]
    assert rig.statuses == [(6, "completed"), (5, "subsumed")]
    assert [state.position for state in rig.effects.freed] == ["source[0]"]
    assert rig.coordinator.pending == [7]
    assert rig.effects.failures == []


def test_55_if_the_state_cannot_be_stored_nothing_is_committed_and_what_was_written_is_freed():
    rig = Rig(tolerable_failures=1)
    rig.effects.refuse = StateError("no space left on device")
    rig.coordinator.trigger(0.0)
    rig.ack(5)
    assert rig.effects.told == []
    assert rig.statuses == [(5, "failed")]
    assert "no space left" in rig.coordinator.history[0].reason
    assert len(rig.effects.freed) == 3
    rig.effects.refuse = None
    rig.coordinator.trigger(1.0)
    rig.ack(6)
    assert rig.effects.made == [6]


def test_55_if_the_decision_is_in_doubt_nothing_is_freed_and_the_run_fails():
    rig = Rig(tolerable_failures=9)
    rig.effects.refuse = InDoubtError(DecisionInDoubtError("no answer"))
    rig.coordinator.trigger(0.0)
    rig.ack(5)
    assert rig.effects.freed == []
    assert rig.effects.told == []
    [failure] = rig.effects.failures
    assert isinstance(failure, DecisionInDoubtError)


def test_nothing_is_freed_of_a_checkpoint_whose_completion_was_interrupted():
    """Its decision may be durable: what the next start restores must be there, whatever ends this run."""
    rig = Rig(timeout=10)
    rig.effects.refuse = KeyboardInterrupt()
    rig.coordinator.trigger(0.0)
    with pytest.raises(KeyboardInterrupt):
        rig.ack(5)
    rig.coordinator.advance(100.0)
    rig.coordinator.stop("the process ends", 100.0)
    assert rig.effects.freed == []


def test_nothing_begins_beside_a_checkpoint_that_ends_the_run_and_after_it():
    rig = Rig(interval=1, max_concurrent=5)
    rig.coordinator.request(Kind.SUSPEND, 0.0, "somewhere")
    rig.coordinator.advance(5.0)
    assert rig.begun() == [5]
    rig.ack(5, now=6.0)
    rig.coordinator.advance(100.0)
    assert rig.begun() == [5]


def test_when_the_run_stops_what_is_under_way_is_given_up_and_who_waits_is_told():
    rig = Rig()
    rig.coordinator.trigger(0.0)
    request = rig.coordinator.request(Kind.SAVEPOINT, 0.0, "somewhere")
    rig.coordinator.stop("the pipeline is stopping", 1.0)
    with pytest.raises(CheckpointFailedError, match="stopping"):
        request.wait(0)
    assert rig.statuses == [(5, "failed")]
    assert rig.effects.failures == []
    assert rig.coordinator.request(Kind.SAVEPOINT, 2.0).done


def test_the_history_holds_the_last_ten_with_what_each_task_did():
    rig = Rig(tolerable_failures=100)
    for number in range(5, 20):
        rig.coordinator.trigger(float(number))
        for task in sorted(ALL):
            state = SubtaskState(position=1)
            ack = TaskAck(task, number, state, alignment=0.5, buffered=7, sync=0.1, asynchronous=0.2, uploaded=3)
            rig.coordinator.acknowledge(ack, number + 0.25)
    assert [record.checkpoint for record in rig.coordinator.history] == list(range(10, 20))
    [first, *_] = rig.coordinator.history[-1].tasks
    assert first.task == "sink[0]"
    assert (first.acknowledged, first.alignment, first.buffered) == (0.25, 0.5, 7)
    assert (first.sync, first.asynchronous, first.uploaded) == (0.1, 0.2, 3)


def test_retained_of_0_or_less_is_taken_for_1_with_a_warning(caplog: pytest.LogCaptureFixture):
    assert CheckpointConfig(retained=0).checked().retained == 1
    assert "retained=0" in caplog.text


@pytest.mark.parametrize(
    "values", [{"interval": 0}, {"timeout": 0}, {"min_pause": -1}, {"max_concurrent": 0}, {"mode": "twice"}]
)
def test_a_setting_without_sense_is_refused(values: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(values))):
        CheckpointConfig(**values).checked()


def test_a_savepoint_is_never_subsumed_by_a_newer_checkpoint():
    """It is its user's; that a newer checkpoint was faster is no reason to end it."""
    rig = Rig(max_concurrent=3)
    rig.coordinator.trigger(0.0)
    request = rig.coordinator.request(Kind.SAVEPOINT, 0.0, "somewhere")
    rig.coordinator.trigger(0.0)
    rig.ack(6, SOURCE)
    rig.ack(7)
    assert rig.statuses == [(7, "completed"), (5, "subsumed")]
    assert rig.coordinator.pending == [6]
    rig.ack(6, SUM, SINK)
    assert request.wait(0) == "made 6"
    assert rig.effects.freed == []


def test_a_periodic_trigger_that_is_declined_is_remembered_and_logged(caplog: pytest.LogCaptureFixture):
    rig = Rig(interval=10)
    rig.effects.idle = {SUM}
    rig.coordinator.advance(10.0)
    assert rig.begun() == []
    [record] = rig.coordinator.history
    assert (record.status, record.reason) == ("declined", "not all required tasks run: sum[0]")
    assert "checkpoint 5 declined: not all required tasks run: sum[0]" in caplog.text


def test_each_checkpoint_that_ends_logs_one_line(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "onceward.engine")
    rig = Rig(tolerable_failures=10, timeout=10, max_concurrent=2)
    rig.coordinator.trigger(0.0)
    rig.coordinator.trigger(0.0)
    rig.ack(6, now=1.5)
    rig.coordinator.trigger(2.0)
    rig.coordinator.advance(12.0)
    rig.coordinator.trigger(12.0)
    rig.coordinator.decline(SUM, 8, "disk full", 13.0)
    lines = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "onceward.engine"]
    assert lines == [
        ("INFO", "pipeline p: checkpoint 6 completed in 1.500 s, 0 bytes"),
        ("INFO", "pipeline p: checkpoint 5 subsumed: checkpoint 6 was complete first"),
        ("WARNING", "pipeline p: checkpoint 7 failed: expired after 10 s; missing: sink[0], source[0], sum[0]"),
        ("WARNING", "pipeline p: checkpoint 8 failed: declined by sum[0]: disk full"),
    ]


def test_the_size_of_a_task_in_the_history_counts_its_operator_state():
    rig = Rig()
    rig.coordinator.trigger(0.0)
    state = SubtaskState(
        keyed=KeyedHandle(first=0, end=128, inline=b"12345"), lists={"seen": ListHandle("split", [b"1234", b"567"])}
    )
    rig.coordinator.acknowledge(TaskAck(SUM, 5, state), 0.0)
    rig.ack(5, SOURCE, SINK)
    assert [task.state for task in rig.coordinator.history[0].tasks] == [0, 0, 12]
