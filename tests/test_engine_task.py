"""What a task does at a barrier, step by step, without threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.core import MemoryBackend, ProcessFunction
from onceward.core.engine.channels import (
    Barrier,
    Cancel,
    Channel,
    CheckpointKind,
    End,
    Gate,
    TaskId,
    TaskOutput,
    forward,
)
from onceward.core.engine.coordinator_events import (
    Acknowledged,
    Confirm,
    Declined,
    Event,
    Exhausted,
    Finished,
    GiveUp,
    Trigger,
)
from onceward.core.engine.functions import ProcessLogic
from onceward.core.engine.logic import Frozen, Guarded, Logic
from onceward.core.engine.source_and_sink import EXHAUSTED, SourceLogic
from onceward.core.engine.state.handles import SubtaskState
from onceward.core.engine.state.keyed import KeyScope
from onceward.core.engine.state.keys import KeyEncoder, encode_key
from onceward.core.engine.task import Task, TaskWorld
from onceward.core.errors import StateError
from onceward.sources import SequenceSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number]})


class Recording(Logic):
    """Notes what is done with it."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes
        self.refuse: Exception | None = None
        self.on_freeze: Callable[[], None] = lambda: None

    def rows(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        self.notes.append(f"row {batch['n'][0].as_py()}")
        return [batch]

    def finish(self) -> Sequence[pa.RecordBatch]:
        return [batch(99)]

    def freeze(self, barrier: Barrier) -> Frozen:
        self.notes.append(f"freeze {barrier.checkpoint}")
        self.on_freeze()

        def write(_storage: Any, _folder: str) -> tuple[SubtaskState, int]:
            if self.refuse is not None:
                raise self.refuse
            self.notes.append(f"write {barrier.checkpoint}")
            return SubtaskState(position=1), 0

        return Frozen(write, discard=lambda: self.notes.append(f"discard {barrier.checkpoint}"))

    def confirm(self, checkpoint: int) -> None:
        self.notes.append(f"confirm {checkpoint}")


class Rig:
    """One task with two inputs and one output, and what it tells."""

    def __init__(self, *, capacity: int = 8) -> None:
        self.notes: list[str] = []
        self.later: list[Callable[[], None]] = []
        self.inputs = [Channel(8), Channel(8)]
        self.output = Channel(capacity)
        world = TaskWorld(self.tell, lambda: 0.0, lambda: 0.0, self.later.append, lambda _: (None, ""))
        gate = Gate(self.inputs, aligned=True, clock=lambda: 0.0)
        self.logic = Recording(self.notes)
        self.task = Task(TaskId("it", 0), self.logic, gate, [TaskOutput([self.output], forward)], world)

    def tell(self, event: Event) -> None:
        match event:
            case Acknowledged():
                self.notes.append(f"ack {event.checkpoint}")
            case Declined():
                self.notes.append(f"declined {event.checkpoint}: {event.reason}")
            case Finished():
                self.notes.append("finished")

    def work(self) -> None:
        while self.task.step():
            pass

    def sent(self) -> list[Any]:
        found: list[Any] = []
        element: Any
        while (element := self.output.take()) is not None:
            found.append(element["n"][0].as_py() if isinstance(element, pa.RecordBatch) else element)
        return found


class Trickle(SourceLogic[Any]):
    """A source that gives what it is told to give."""

    def __init__(self) -> None:
        super().__init__(SequenceSource([]), 0)
        self.next: list[Any] = []
        self.given = 0

    def poll(self) -> Any:
        taken = self.next.pop(0) if self.next else None
        self.given += isinstance(taken, pa.RecordBatch)
        return taken

    def freeze(self, barrier: Barrier) -> Frozen:  # noqa: ARG002 - signature
        position = self.given
        return Frozen(lambda _storage, _folder: (SubtaskState(position=position), 0))


class Lingering:
    """A source's task that waits ten seconds for more rows."""

    def __init__(self) -> None:
        self.seconds, self.told = 0.0, list[Event]()
        self.logic, self.output = Trickle(), Channel(100, most_rows=5)
        self.later: list[Callable[[], None]] = []
        world = TaskWorld(
            *(self.told.append, lambda: self.seconds, lambda: self.seconds, self.later.append, lambda _: (None, "")),
            linger=10.0,
        )
        self.task = Task(TaskId("it", 0), self.logic, None, [TaskOutput([self.output], forward)], world)

    def poll(self, *numbers: int) -> list[Any]:
        """Have the source give these rows; what is passed on."""
        self.logic.next += [batch(number) for number in numbers]
        return self.sent()

    def sent(self) -> list[Any]:
        while self.task.step():
            pass
        taken: Any = iter(self.output.take, None)
        return [part["n"].to_pylist() if isinstance(part, pa.RecordBatch) else part for part in taken]


def test_a_source_waits_for_more_rows_and_no_longer_than_it_may():
    it = Lingering()
    assert it.poll(1, 2) == []
    it.seconds = 9.0
    assert it.poll(3) == []
    assert it.task.wake_at() == 10.0
    it.seconds = 10.0
    assert it.sent() == [[1, 2, 3]]
    assert it.task.wake_at() is None
    assert it.poll(4) == []  # the time begins anew
    it.seconds = 20.0
    assert it.poll(5) == [[4, 5]]


def test_a_source_does_not_wait_for_more_rows_than_its_readers_work_off_soon():
    assert Lingering().poll(1, 2, 3, 4, 5, 6) == [[1, 2, 3, 4, 5]]


def test_rows_for_which_a_source_waits_come_before_the_barrier():
    it = Lingering()
    assert it.poll(1, 2) == []
    it.task.post(Trigger(Barrier(1)))
    assert it.sent() == [[1, 2], Barrier(1)]
    it.later.pop()()
    [ack] = it.told
    assert isinstance(ack, Acknowledged)
    assert ack.state.position == 2
    assert it.poll(3) == []


def test_at_its_end_a_source_waits_for_nothing():
    it = Lingering()
    it.logic.next += [batch(1), EXHAUSTED]
    assert it.sent() == [[1]]
    assert it.told == [Exhausted(TaskId("it", 0))]


def test_rows_of_another_schema_are_another_batch():
    it = Lingering()
    it.logic.next += [batch(1), pa.RecordBatch.from_pydict({"n": ["a"]}), EXHAUSTED]
    assert it.sent() == [[1], ["a"]]


def test_at_a_barrier_the_state_is_frozen_and_written_while_rows_go_on():
    rig = Rig()
    for channel in rig.inputs:
        channel.offer(Barrier(1))
        channel.offer(batch(2))
    rig.work()
    assert rig.sent() == [Barrier(1), 2, 2]
    assert rig.notes == ["freeze 1", "row 2", "row 2"]
    rig.later.pop()()
    assert rig.notes[3:] == ["write 1", "discard 1", "ack 1"]


def test_instead_of_the_barrier_of_a_state_that_cannot_be_frozen_a_cancel_marker_is_sent():
    def refuses() -> None:
        raise StateError("no")

    rig = Rig()
    rig.logic.on_freeze = refuses
    for channel in rig.inputs:
        channel.offer(Barrier(1))
        channel.offer(batch(2))
    rig.work()
    assert rig.sent() == [Cancel(1), 2, 2]
    assert rig.notes == ["freeze 1", "declined 1: no", "row 2", "row 2"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StateError("disk full"), "disk full"),
        (OSError("disk full"), "disk full"),
        (ValueError("too long"), "ValueError: too long"),
    ],
)
def test_a_snapshot_that_cannot_be_written_is_declined_and_rows_go_on(error: Exception, reason: str):
    rig = Rig()
    rig.logic.refuse = error
    for channel in rig.inputs:
        channel.offer(Barrier(1))
    rig.work()
    rig.later.pop()()
    assert rig.notes == ["freeze 1", f"declined 1: {reason}", "discard 1"]
    rig.inputs[0].offer(batch(3))
    rig.work()
    assert rig.sent() == [Barrier(1), 3]


def test_instead_of_the_barrier_of_a_checkpoint_that_was_given_up_a_cancel_marker_is_sent():
    rig = Rig()
    rig.inputs[0].offer(Barrier(1))
    rig.work()
    rig.inputs[1].offer(Cancel(1))
    rig.work()
    assert rig.sent() == [Cancel(1)]
    assert rig.notes == ["declined 1: its barrier was cancelled upstream"]


def test_a_source_that_hears_too_late_of_a_trigger_sends_a_cancel_marker():
    rig = Rig()
    rig.task.post(GiveUp(1))
    rig.task.post(Trigger(Barrier(1)))
    rig.work()
    assert rig.sent() == [Cancel(1)]
    assert rig.notes == []


def test_after_a_barrier_that_ends_the_run_nothing_is_read_until_it_is_completed_or_given_up():
    rig = Rig()
    barrier = Barrier(1, CheckpointKind.SUSPEND, "somewhere")
    for channel in rig.inputs:
        channel.offer(barrier)
        channel.offer(batch(2))
    rig.work()
    assert rig.sent() == [barrier]
    rig.task.post(GiveUp(1))
    rig.work()
    assert rig.sent() == [2, 2]
    again = Barrier(2, CheckpointKind.SUSPEND, "elsewhere")
    for channel in rig.inputs:
        channel.offer(again)
    rig.work()
    rig.task.post(Confirm(2))
    rig.work()
    assert rig.sent() == [again, End()]
    assert rig.notes[-2:] == ["confirm 2", "finished"]
    assert rig.task.done


def test_what_is_held_back_is_given_before_the_barrier_that_drains():
    rig = Rig()
    for channel in rig.inputs:
        channel.offer(Barrier(1, CheckpointKind.FINAL))
    rig.work()
    assert rig.sent() == [99, Barrier(1, CheckpointKind.FINAL)]


def test_a_full_channel_holds_its_producer_back():
    rig = Rig(capacity=1)
    for n in range(5):
        rig.inputs[0].offer(batch(n))
    rig.work()
    assert rig.notes == ["row 0", "row 1"]
    assert rig.sent() == [0]
    rig.work()
    assert rig.notes == ["row 0", "row 1", "row 2"]


class Ringing(Recording):
    """There is always a timer that is due, and each gives a row."""

    def timers(self, now: float, enough: Callable[[], bool]) -> Sequence[pa.RecordBatch]:  # noqa: ARG002 - signature
        return [batch(7)]

    def next_timer(self) -> float:
        return 0.0


def test_a_barrier_passes_although_timers_are_always_due():
    rig = Rig(capacity=1000)
    rig.task.logic = Ringing(rig.notes)
    for channel in rig.inputs:
        channel.offer(batch(2))
        channel.offer(Barrier(1))
    for _ in range(50):
        rig.task.step()
    sent = rig.sent()
    assert Barrier(1) in sent
    assert sent.index(Barrier(1)) < 10


def test_a_task_whose_outputs_are_full_is_not_woken_by_timers():
    rig = Rig(capacity=1)
    rig.task.logic = Ringing(rig.notes)
    while rig.task.step():
        pass
    assert rig.task.wake_at() is None
    rig.sent()
    rig.work()
    assert rig.sent() == [7]


class Rings(ProcessFunction):
    """Each timer gives a row, and is noted in FIRED."""

    def on_timer(self, at: float, context: Any) -> Sequence[Any]:
        FIRED.append(at)
        return [{"key": context.key, "at": at}]


FIRED: list[float] = []


def ringing(timers: int) -> ProcessLogic:
    scope = KeyScope(MemoryBackend().open(TaskId("it", 0), range(8), [], None), range(8), 8, lambda: 0.0)
    for number in range(timers):
        scope.enter(number % 10, encode_key(number % 10))
        scope.set_timer(float(number))
    keys, guarded = KeyEncoder(["k"]), Guarded(TaskId("it", 0), None)
    return ProcessLogic(Rings(), guarded, keys=keys, scope=scope, parallelism=1, lists={}, now=lambda: 0.0)


def test_timers_that_are_due_are_handled_together_for_a_while():
    logic = ringing(1000)
    made = logic.timers(899.5, lambda: False)
    assert made is not None
    assert [part.num_rows for part in made] == [900]
    assert made[0].column("at").to_pylist() == [float(number) for number in range(900)]
    assert logic.timers(899.5, lambda: False) is None
    few = logic.timers(2000.0, lambda: len(FIRED) % 10 == 0)
    assert few is not None
    assert [part.num_rows for part in few] == [10]
    assert logic.next_timer() == 910.0
