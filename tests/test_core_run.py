"""One run of a pipeline: what is given up, what is told of it, and what its keeper does between epochs."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from onceward.core.checkpoint import Admission
from onceward.core.contract import events
from onceward.core.errors import (
    DecisionInDoubtError,
    EpochConflictError,
    EpochVoidedError,
    FencedError,
    RetryableSinkError,
)
from onceward.core.log import DirectoryStore, LogWriter, read
from onceward.core.log.note_kinds import FailureNote
from onceward.core.run.keeper import Keeper, StoppedError
from onceward.core.run.pipeline_run import ATTEMPTS, PipelineRun

from .coordinator_kit import about
from .core_fakes import acknowledgement, policy, prepared
from .losses_kit import ABORTED, ABOUT, Case
from .sink_kit import TargetSink
from .status_kit import noted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onceward.core.run.pipeline_run import RunEpoch


class Life:
    """A run with one sink, and what is told of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.sink, self.told = DirectoryStore(folder / "log"), TargetSink(name="a"), list[Any]()
        self.more = list[TargetSink]()
        monkeypatch.setattr(events, "_observers", [self.told.append])
        self.run = self.another()

    def another(self) -> PipelineRun:
        return PipelineRun("p", [self.sink, *self.more], policy(), lambda: self.store)

    def write(self, epoch: RunEpoch) -> None:
        committable = prepared(epoch.context("a", subtask=0))
        epoch.commit([acknowledgement(committable, epoch=epoch.number)])

    def was_given_up(self) -> bool:
        return any(type(event).__name__ == "EpochAbandoned" for event in self.told)

    def failures(self) -> list[tuple[Any, Any]]:
        return [(note.epoch, note.error) for note in noted(self.store.path, FailureNote)]


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Life:
    return Life(tmp_path, monkeypatch)


def test_an_epoch_that_fails_before_its_decision_is_given_up(life: Life) -> None:
    life.run.open()
    with pytest.raises(OSError, match="full"), life.run.epoch(0, about(0)):
        raise OSError("the disk is full")
    assert life.was_given_up()
    assert life.run.coordinator is None


def test_what_was_decided_is_not_given_up_when_something_fails_after_it(life: Life) -> None:
    life.run.open()

    def write() -> None:
        with life.run.epoch(0, about(0)) as epoch:
            life.write(epoch)
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write()
    assert not life.was_given_up()
    assert read(life.store).completed == 0


def test_a_decision_whose_answer_was_lost_is_not_given_up(life: Life) -> None:
    life.run.open()
    with pytest.raises(DecisionInDoubtError), life.run.epoch(0, about(0)):
        raise DecisionInDoubtError("the store did not answer")
    assert not life.was_given_up()


def test_a_replay_has_nothing_to_give_up(life: Life) -> None:
    life.run.open()
    with life.run.epoch(0, about(0)) as epoch:
        life.write(epoch)
    assert life.run.admit(0, about(0)).admission is Admission.REPLAY
    with pytest.raises(OSError, match="away"), life.run.epoch(0, about(0)):
        raise OSError("the source is away")
    assert not life.was_given_up()
    assert life.run.coordinator is not None


@pytest.mark.parametrize("waits", [False, True])
def test_a_target_that_refuses_keeps_no_decision_from_its_commit(life: Life, *, waits: bool) -> None:
    def refuse() -> None:
        raise RetryableSinkError("not ready", sink="a")

    if waits:
        life.run.open()
        writer = life.run.coordinator.writer  # type: ignore[union-attr]
        writer.decide(0, [], sinks=["a"], epoch_input=about(0))
    starts = read(life.store).start
    new = life.another()
    with pytest.raises(RetryableSinkError):
        new.open(check=refuse)
    view = read(life.store)
    assert (view.completed == 0) is waits
    assert (view.start != starts) is waits
    assert new.coordinator is None


@pytest.mark.parametrize("why", ["an older copy", "other input", "another query", "not the first", "another sink"])
def test_a_start_whose_epoch_is_not_admitted_ends_no_run_that_works(life: Life, why: str) -> None:
    """(Rule W) Its START would fence the run."""
    life.run.open()
    for number in range(0 if why == "not the first" else 2):
        with life.run.epoch(number, about(number)) as epoch:
            life.write(epoch)
    offered = {"an older copy": (0, about(0)), "other input": (1, about(7)), "not the first": (3, about(3))}
    number, input_ = offered.get(why, (1, about(1)))
    if why == "another query":
        number, input_ = 2, msgspec.structs.replace(about(2), query="other")
    if why == "another sink":
        life.more = [TargetSink(name="b")]
    starts = read(life.store).start
    with pytest.raises(EpochConflictError):
        life.another().open(epoch=(number, input_))
    assert read(life.store).start == starts
    with life.run.epoch(2 if why != "not the first" else 0, about(2 if why != "not the first" else 0)) as epoch:
        life.write(epoch)


def test_an_epoch_that_a_decision_waits_for_is_admitted_once_that_is_finished(life: Life) -> None:
    life.run.open()
    writer = life.run.coordinator.writer  # type: ignore[union-attr]
    writer.decide(0, [], sinks=["a"], epoch_input=about(0))
    new = life.another()
    new.open(epoch=(0, about(0)))
    assert new.admit(0, about(0)).admission is Admission.REPLAY


def test_an_epoch_is_written_again_only_so_often(life: Life) -> None:
    tries: list[int] = []

    def lose() -> None:
        tries.append(1)
        raise EpochVoidedError("lost", pipeline="p", epoch=0)

    with pytest.raises(EpochVoidedError):
        life.run.repeat(0, lose)
    assert len(tries) == ATTEMPTS


def test_why_a_run_ended_is_told_once(life: Life) -> None:
    with pytest.raises(OSError, match="lost"), life.run.turn(3):
        raise OSError("the executor is lost")
    life.run.ended_with(OSError("the query ended"))
    assert life.failures() == [(3, "the executor is lost")]
    other = life.another()
    for _ in range(2):
        other.ended_with(OSError("the source is away"))
    assert life.failures()[1:] == [(None, "the source is away")]


def test_a_stop_is_no_failure_and_a_fenced_run_leaves_the_notes_to_the_newer_one(life: Life) -> None:
    for error in (StoppedError(), FencedError("newer", pipeline="p")):
        with pytest.raises(type(error)), life.run.turn(0):
            raise error
    assert life.failures() == []
    assert [type(event).__name__ for event in life.told] == ["EpochFailed"]  # the fenced one


def test_no_epoch_begins_once_the_run_is_handed_over(life: Life) -> None:
    def stopped() -> None:
        raise StoppedError

    life.run.open()
    newer, ended = LogWriter(life.store, "p", policy()), threading.Event()

    def take() -> None:
        life.another().take_over(30.0)

    threading.Thread(target=take, daemon=True).start()
    until = time.monotonic() + 20
    while not ended.is_set() and time.monotonic() < until:
        life.run.hand_over(lambda: True, ended.set)
        time.sleep(0.02)
    with pytest.raises(StoppedError), life.run.turn(0, stopped):
        pytest.fail("it begins")
    assert newer.look().start > 0


def keeper(active: Callable[[], bool], **how: Any) -> Keeper:
    return Keeper("p", is_active=active, every=0.01, **how)


def test_a_duty_that_waits_for_a_system_keeps_no_newer_driver_waiting() -> None:
    looks, waits, over = [], threading.Event(), threading.Event()
    kept = keeper(lambda: not over.is_set(), look=lambda: looks.append(1), duties=[(0.01, waits.wait)])
    kept.start()
    time.sleep(0.3)
    seen = len(looks)
    over.set()
    waits.set()
    assert seen > 5


def test_a_keeper_whose_run_cannot_be_asked_ends_and_says_so() -> None:
    ended = threading.Event()

    def gone() -> bool:
        raise OSError("the session has ended")

    kept = keeper(gone, look=lambda: None, ended=ended.set)
    kept.start()
    assert ended.wait(10)


def test_an_epoch_of_a_run_that_fails_before_its_decision_is_given_up_at_once():
    """What one target has prepared would keep its readers waiting while another one is away."""
    case = Case()
    coordinator = case.opened()
    coordinator.admit(0, ABOUT)
    coordinator.commit(0, case.written(coordinator), ABOUT)
    run = PipelineRun("p", [case.table, case.kafka], policy(), lambda: coordinator.writer.store)
    run.coordinator = coordinator

    def attempt() -> None:
        with run.epoch(1, about(1)) as epoch:
            contexts = [epoch.context(sink, subtask=0) for sink in ("table", "kafka")]
            done = [c.committable(kind="fake", transaction=str(c.transaction_name()), rows=1) for c in contexts]
            case.kafka.target.hold(done[1])
            epoch.commit([acknowledgement(*done, epoch=1, sinks=("table", "kafka"))])

    def away(*_: object) -> None:
        raise RetryableSinkError("the database is away")

    case.table.check_claim = away  # type: ignore[method-assign, assignment]
    with pytest.raises(RetryableSinkError):
        attempt()
    assert read(case.store).decided == 0
    assert case.kafka.target.with_state(ABORTED)
