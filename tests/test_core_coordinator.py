"""Admit, decide, commit, complete, give up: the driver's half, on a store in memory and scripted sinks."""

from __future__ import annotations

import math
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import msgspec
import pytest

from onceward.core.checkpoint import Admission, Backoff, CommitPolicy, Coordinator, OnLost, sweep
from onceward.core.checkpoint.numbering import CHECKPOINTS
from onceward.core.contract.transaction import (
    ANY_EPOCH,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
)
from onceward.core.errors import (
    CommitPendingError,
    ConfigurationError,
    DataLossError,
    DecisionInDoubtError,
    EpochConflictError,
    FencedError,
    ProtocolError,
    RetryableSinkError,
    SinkError,
    StoreError,
)
from onceward.core.log import EpochInput, Rewind, read

from .coordinator_kit import LATER, LOST, UNKNOWN, Bench, about
from .core_fakes import MemoryStore, acknowledgement, answer_lost, not_written, policy, prepared
from .sink_kit import TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class TestAdmission:
    def test_epochs_follow_one_another(self):
        bench = Bench()
        coordinator = bench.opened()
        done = [bench.run(coordinator, epoch).transaction for epoch in range(3)]
        assert bench.sink.target.commits == done
        assert (coordinator.view.decided, coordinator.view.completed) == (2, 2)

    def test_the_newest_epoch_with_the_same_input_is_a_replay(self):
        bench = Bench()
        bench.run(bench.opened(), 0)
        assert bench.opened().admit(0, about(0)) is Admission.REPLAY
        assert len(bench.sink.target.commits) == 1

    @pytest.mark.parametrize("field", ["query", "digest", "start", "end"])
    def test_the_newest_epoch_with_any_other_input_is_refused(self, field: str):
        bench = Bench()
        bench.run(bench.opened(), 0)
        other = msgspec.structs.replace(about(0), **{field: "other"})
        with pytest.raises(EpochConflictError, match="decided with other input"):
            bench.opened().admit(0, other)

    @pytest.mark.parametrize("epoch", [0, 1, 4])
    def test_any_epoch_but_the_next_is_refused(self, epoch: int):
        bench = Bench()
        coordinator = bench.opened()
        for done in range(3):
            bench.run(coordinator, done)
        with pytest.raises(EpochConflictError, match="only epoch 3 can be decided next"):
            bench.opened().admit(epoch, about(epoch))

    def test_the_next_epoch_of_another_query_is_refused(self):
        bench = Bench()
        bench.run(bench.opened(), 0)
        with pytest.raises(EpochConflictError, match="another query"):
            bench.opened().admit(1, about(1, query="other"))

    def test_an_epoch_that_does_not_begin_where_the_last_one_ended_is_refused(self):
        """Invariant 5: a checkpoint of the right number and the wrong offsets skips or doubles rows."""
        bench = Bench()
        bench.run(bench.opened(), 0)
        for start in ([9], [11]):
            with pytest.raises(EpochConflictError, match="does not begin where"):
                bench.opened().admit(1, msgspec.structs.replace(about(1), start=start))
        assert bench.opened().admit(1, about(1)) is Admission.NEW

    def test_an_epoch_whose_offsets_are_not_known_is_judged_by_its_number(self):
        bench = Bench()
        coordinator = bench.opened()
        coordinator.commit(0, [acknowledgement()], EpochInput(query="q"))
        assert coordinator.admit(1, EpochInput(query="q", start=[5])) is Admission.NEW

    def test_an_empty_log_takes_the_first_epoch_only(self):
        bench = Bench()
        with pytest.raises(EpochConflictError, match="adopt=True"):
            bench.opened().admit(3, about(3))
        assert bench.opened().admit(3, about(3), adopt=True) is Admission.NEW

    def test_a_decided_epoch_is_no_replay_until_it_is_completed(self):
        bench = Bench()
        coordinator = bench.opened()
        bench.sink.answers = [LATER] * 4
        with pytest.raises(CommitPendingError):
            bench.run(coordinator, 0)
        with pytest.raises(EpochConflictError, match="must be finished first"):
            coordinator.admit(0, about(0))
        assert bench.opened().admit(0, about(0)) is Admission.REPLAY
        assert len(bench.sink.target.commits) == 1

    def test_a_rewind_left_in_the_command_line_is_done_once(self):
        """Killed between the decision of epoch 3 and Spark's commit log, the same command line offers epoch 3 again."""
        bench = Bench()
        for epoch in range(3):
            bench.run(bench.opened(), epoch)
        for epoch in (1, 2, 3):
            again = bench.coordinator()
            again.open(rewind="wrong code", first_epoch=epoch, query="q", epoch_input=about(epoch))
            bench.run(again, epoch)
            again = bench.coordinator()
            again.open(rewind="wrong code", first_epoch=epoch, query="q", epoch_input=about(epoch))
            assert again.admit(epoch, about(epoch)) is Admission.REPLAY
        assert [e for e in read(bench.store).entries if isinstance(e, Rewind)] == []
        assert bench.sink.calls.count("release") == 1

    @pytest.mark.parametrize("why", [True, 5, "", "  "])
    def test_a_rewind_without_a_reason_is_refused_before_anything_is_written(self, why: Any):
        """An entry that holds something else than text could never be read again, nor the log behind it."""
        bench = Bench()
        with pytest.raises(ConfigurationError, match="rewind"):
            bench.coordinator().open(rewind=why, first_epoch=0, query="q")
        assert list(bench.store.list_keys()) == []

    def test_a_log_that_lost_the_race_for_its_names_can_be_rewound(self):
        """Two fresh logs decide under one name at the same time: the target takes one, the other is told."""
        bench = Bench()
        coordinator = bench.opened()
        bench.sink.late_claim_error = EpochConflictError("claimed by another log")
        with pytest.raises(EpochConflictError, match="claimed by another log"):
            bench.run(coordinator, 0)
        with pytest.raises(EpochConflictError, match="claimed by another log"):
            bench.opened()
        assert bench.sink.target.commits == []

        class Released(TargetSink):
            def release(self, scope: Any) -> None:  # noqa: ARG002
                self.claim_error = None

        released = Released(name="a")
        released.claim_error = bench.sink.claim_error
        bench.sink = released
        bench.coordinator().open(rewind="the other job was a mistake", first_epoch=1, query="q")
        assert len(released.target.commits) == 1

    def test_a_rewind_never_reopens_an_epoch_that_was_decided_from_the_same_input(self):
        """Also where the words are new: somebody adds them to the command line after a crash."""
        bench = Bench()
        bench.run(bench.opened(), 0)
        again = bench.coordinator()
        again.open(rewind="just in case", first_epoch=0, query="q", epoch_input=about(0))
        assert again.admit(0, about(0)) is Admission.REPLAY

    def test_until_the_next_decision_a_rewind_holds_for_whoever_starts(self):
        """The driver dies between REWIND and that decision, and starts again without the words."""
        bench = Bench()
        for epoch in range(3):
            bench.run(bench.opened(), epoch)
        bench.coordinator().open(rewind="wrong code", first_epoch=1, query="q")
        for _ in range(2):
            bench.sink.calls.clear()
            assert bench.opened().admit(1, about(1)) is Admission.NEW
            assert bench.sink.calls == ["release"]
        bench.run(bench.opened(), 1)
        bench.sink.calls.clear()
        bench.opened()
        assert bench.sink.calls[0].startswith("check")

    def test_a_decision_in_doubt_is_finished_and_not_written_again_by_a_rewind(self):
        bench = Bench()
        bench.sink.answers = [SinkError("killed here")]
        with pytest.raises(SinkError):
            bench.run(bench.opened(), 0)
        again = bench.coordinator()
        again.open(rewind="wrong code", first_epoch=0, query="q", epoch_input=about(0))
        assert again.admit(0, about(0)) is Admission.REPLAY

    def test_going_back_twice_to_the_same_epoch_takes_another_reason(self):
        bench = Bench()
        for epoch in range(3):
            bench.run(bench.opened(), epoch)
        back = bench.coordinator()
        back.open(rewind="wrong code", first_epoch=1, query="q")
        bench.run(back, 1)
        bench.run(back, 2)
        starts = len(bench.store.entries)
        with pytest.raises(EpochConflictError, match="give another reason"):
            bench.coordinator().open(rewind="wrong code", first_epoch=1, query="q", epoch_input=about(1))
        assert len(bench.store.entries) == starts  # told before anybody was fenced
        for first, why in ((1, "still wrong"), (0, "wrong from the beginning")):
            back = bench.coordinator()
            back.open(rewind=why, first_epoch=first, query="q", epoch_input=about(first))
            assert back.admit(first, about(first)) is Admission.NEW

    @pytest.mark.parametrize("decided", [0, 1, 3])
    def test_the_words_of_a_rewind_that_was_done_open_the_way_for_no_older_checkpoint(self, decided: int):
        """The words stay in the command line, and the log is in a store of its own."""
        bench = Bench()
        for epoch in range(6):
            bench.run(bench.opened(), epoch)
        back = bench.coordinator()
        back.open(rewind="x", first_epoch=4, query="q", epoch_input=about(4))
        for epoch in range(4, 4 + decided):
            bench.run(back, epoch)
        starts = len(bench.store.entries)
        for query in ("q", "of a checkpoint made anew"):
            with pytest.raises(EpochConflictError, match=r"at epoch 4.*give another reason"):
                bench.coordinator().open(rewind="x", first_epoch=2, query=query, epoch_input=about(2, query=query))
        assert len(bench.store.entries) == starts
        again = bench.coordinator()
        again.open(rewind="y", first_epoch=2, query="q", epoch_input=about(2))
        assert again.admit(2, about(2)) is Admission.NEW

    def test_a_rewind_that_nothing_has_followed_may_be_repeated_with_a_checkpoint_made_anew(self):
        bench = Bench()
        bench.run(bench.opened(), 0)
        for query in ("first", "second"):
            back = bench.coordinator()
            back.open(rewind="from the beginning", first_epoch=0, query=query, epoch_input=about(0, query=query))
            assert back.admit(0, about(0, query=query)) is Admission.NEW

    def test_reasons_are_remembered_whichever_query_gave_them(self):
        bench = Bench()
        for query, why in (("a", "x"), ("b", "y")):
            back = bench.coordinator()
            back.open(rewind=why, first_epoch=0, query=query, epoch_input=about(0, query=query))
            back.commit(0, [acknowledgement()], about(0, query=query))
        with pytest.raises(EpochConflictError, match="give another reason"):
            bench.coordinator().open(rewind="x", first_epoch=0, query="c", epoch_input=about(0, query="c"))
        bench.coordinator().open(rewind="x", first_epoch=1, query="b", epoch_input=about(1, query="b"))

    def test_a_repeated_command_line_never_goes_back_over_what_a_copy_of_the_checkpoint_decided(self):
        """A second job on a copy decides epoch 2; the first one offers its own, and its old rewind is no permission."""
        bench = Bench()
        for epoch in range(3):
            bench.run(bench.opened(), epoch)
        back = bench.coordinator()
        back.open(rewind="wrong code", first_epoch=1, query="q", epoch_input=about(1))
        bench.run(back, 1)
        bench.run(back, 2)
        mine = msgspec.structs.replace(about(2), digest="another time")
        with pytest.raises(EpochConflictError, match="give another reason"):
            bench.coordinator().open(rewind="wrong code", first_epoch=2, query="q", epoch_input=mine)

    def test_an_older_command_line_finds_its_rewind_done(self):
        """A deployment is rolled back to the version that had said rewind="wrong code"."""
        bench = Bench()
        for epoch in range(3):
            bench.run(bench.opened(), epoch)
        for first, why in ((1, "wrong code"), (1, "still wrong")):
            back = bench.coordinator()
            back.open(rewind=why, first_epoch=first, query="q", epoch_input=about(first))
            bench.run(back, 1)
            bench.run(back, 2)
        other = msgspec.structs.replace(about(2), digest="another time")
        for first, offered in ((1, about(1)), (2, other)):
            with pytest.raises(EpochConflictError, match="give another reason"):
                bench.coordinator().open(rewind="wrong code", first_epoch=first, query="q", epoch_input=offered)
        again = bench.coordinator()
        again.open(rewind="wrong code", first_epoch=3, query="q", epoch_input=about(3))
        bench.run(again, 3)

    def test_after_a_rewind_only_the_query_that_went_back_goes_on(self):
        bench = Bench()
        for epoch in range(3):
            bench.run(bench.opened(), epoch)
        bench.coordinator().open(rewind="wrong code", first_epoch=1, query="q", epoch_input=about(1))
        with pytest.raises(EpochConflictError, match="another query"):
            bench.opened().admit(1, about(1, query="other"))
        starts = len(bench.store.entries)
        with pytest.raises(EpochConflictError, match="another query"):
            bench.coordinator().open(first_epoch=1, query="other")
        assert len(bench.store.entries) == starts
        bench.run(bench.opened(), 1)

    def test_a_rewind_is_explicit_and_goes_to_one_epoch(self):
        for epoch in (0, 1):
            bench = Bench()
            coordinator = bench.opened()
            for done in range(3):
                bench.run(coordinator, done)
            back = bench.coordinator()
            back.open(rewind="wrong code", first_epoch=epoch)
            assert "release" in bench.sink.calls
            with pytest.raises(EpochConflictError):
                back.admit(2, about(2))
            again = bench.opened()
            with pytest.raises(EpochConflictError):
                again.admit(2, about(2))
            assert again.admit(epoch, about(epoch, query="new")) is Admission.NEW


class TestOpening:
    def test_a_pipeline_has_sinks_of_different_names(self):
        for sinks in ([], [TargetSink(name="a"), TargetSink(name="a")]):
            with pytest.raises(ConfigurationError, match="at least one sink"):
                Coordinator("p", MemoryStore(), sinks)
        with pytest.raises(ConfigurationError, match="not usable"):
            Coordinator("p p", MemoryStore(), [TargetSink(name="a")])

    def test_names_are_checked_at_each_start_and_claimed_once_after_the_first_decision(self):
        bench = Bench()
        bench.opened()
        coordinator = bench.opened()
        log = coordinator.view.log
        assert bench.sink.calls == [f"check {log} -1 -1"] * 2  # two starts that decided nothing leave no claim
        bench.sink.calls.clear()
        first = bench.run(coordinator, 0)
        bench.run(coordinator, 1)
        assert bench.sink.calls[:3] == [f"check {log} -1 -1", f"claim {log}", f"commit {first.transaction}"]
        assert bench.sink.calls.count(f"claim {log}") == 1
        bench.sink.calls.clear()
        bench.opened()
        assert bench.sink.calls == [f"check {log} {first.generation} 1"]

    def test_targets_are_asked_before_the_first_decision_too(self):
        """A standby of the log's server has nothing yet, and a target has committed the first epoch."""
        bench = Bench()
        coordinator = bench.opened()
        bench.sink.claim_error = EpochConflictError("this decision log is an outdated copy")
        with pytest.raises(EpochConflictError, match="outdated copy"):
            bench.run(coordinator, 0)
        assert coordinator.view.newest is None

    def test_a_claim_that_was_cut_off_is_made_by_whoever_finishes_the_decision(self):
        bench = Bench()
        bench.sink.answers = [SinkError("broker is down")]
        with pytest.raises(SinkError):
            bench.run(bench.opened(), 0)
        bench.sink.calls.clear()
        log = bench.opened().view.log
        assert bench.sink.calls[:2] == [f"check {log} 0 0", f"claim {log}"]

    def test_a_sink_that_did_not_take_part_in_the_completion_claims_its_names_later(self):
        """An operator's command has only the sinks that had rows, and a renamed sink is another one."""
        bench, other = Bench(), TargetSink(name="b")
        coordinator = bench.opened(other)
        coordinator.admit(0, about(0))
        done = bench.committable(coordinator, 0)
        bench.sink.answers = [SinkError("broker is down")]
        other.late_claim_error = RetryableSinkError("no answer")
        with pytest.raises(SinkError):
            coordinator.commit(0, [acknowledgement(done, sinks=("a", "b"))], about(0))
        view = bench.opened(TargetSink(name="c")).view
        assert view.claimed == {"a"}
        assert bench.opened(TargetSink(name="b")).view.claimed == {"a"}

    def test_a_sink_that_joins_before_a_replay_is_refused(self):
        """It would never get the rows of that epoch."""
        bench = Bench()
        bench.run(bench.opened(), 0)
        with pytest.raises(EpochConflictError, match=r"decided before b took part.*with the sinks as they were \(a\)"):
            bench.opened(TargetSink(name="b")).admit(0, about(0))
        assert bench.opened().admit(0, about(0)) is Admission.REPLAY
        assert bench.opened(TargetSink(name="b")).admit(1, about(1)) is Admission.NEW

    def test_a_sink_that_was_exchanged_before_a_replay_is_refused(self):
        """Its new table would never get the rows of that epoch."""
        bench = Bench()
        bench.sink.place = ("postgres://old:5432", "shop.public.orders")
        bench.run(bench.opened(), 0)
        bench.sink.place = ("postgres://old:5432", "shop.public.bills")
        with pytest.raises(
            EpochConflictError,
            match=r"decided before a writes to shop\.public\.bills.*as they were \(a to shop\.public\.orders\)",
        ):
            bench.opened().admit(0, about(0))
        bench.sink.place = None
        with pytest.raises(EpochConflictError, match="decided before a writes to another target"):
            bench.opened().admit(0, about(0))
        assert bench.opened().admit(1, about(1)) is Admission.NEW
        bench.sink.place = ("postgres://new:6432", "shop.public.orders")  # another address of the same server
        assert bench.opened().admit(0, about(0)) is Admission.REPLAY

    def test_a_decision_of_a_version_that_noted_no_datasets_can_be_replayed(self, monkeypatch: pytest.MonkeyPatch):
        bench = Bench()
        with monkeypatch.context() as patched:
            patched.setattr("onceward.core.checkpoint.coordinator.datasets_of", lambda _: {})
            bench.run(bench.opened(), 0)
        bench.sink.place = ("file", "/data/orders")
        assert bench.opened().admit(0, about(0)) is Admission.REPLAY

    def test_a_sink_that_joins_later_claims_its_names(self):
        bench = Bench()
        bench.run(bench.opened(), 0)
        other = TargetSink(name="b")
        coordinator = bench.opened(other)
        coordinator.admit(1, about(1))
        coordinator.commit(1, [acknowledgement(epoch=1, sinks=("a", "b"))], about(1))
        assert other.calls[1:3] == [f"check {coordinator.view.log} 0 0", f"claim {coordinator.view.log}"]

    def test_a_target_that_cannot_be_asked_for_the_names_delays_no_other(self):
        bench = Bench()
        bench.sink.answers = [SinkError("broker is down")]
        with pytest.raises(SinkError):
            bench.run(bench.opened(), 0)
        other = TargetSink(name="b")
        other.claim_error = RetryableSinkError("no answer")
        with pytest.raises(RetryableSinkError, match="no answer"):
            bench.opened(other)
        assert len(bench.sink.target.commits) == 1

    def test_a_target_that_may_know_more_than_the_log_is_not_swept_until_it_has_said_so(self):
        """An outdated copy of the log calls undecided what is decided; whoever could tell did not answer just now."""
        bench, other = Bench(), TargetSink(name="b")
        of = bench.opened(other)
        bench.sink.target.hold(prepared(of.context("a", 0, subtask=0)))
        other.target.hold(prepared(of.context("b", 0, subtask=0)))
        other.claim_error = RetryableSinkError("no answer")
        with pytest.raises(RetryableSinkError, match="no answer"):
            bench.opened(other)
        assert (len(bench.sink.target.aborted), len(other.target.aborted)) == (1, 0)
        other.claim_error = None
        bench.opened(other)
        assert len(other.target.aborted) == 1

    def test_a_target_that_did_not_answer_a_rewind_is_not_swept_until_it_has_forgotten(self):
        bench = Bench()
        first = bench.opened()
        bench.run(first, 0)
        bench.sink.target.hold(prepared(first.context("a", 1, subtask=0)))
        release = bench.sink.release
        bench.sink.release = Mock(side_effect=RetryableSinkError("no answer"))  # type: ignore[method-assign]
        with pytest.raises(RetryableSinkError, match="no answer"):
            bench.coordinator().open(rewind="wrong code", first_epoch=0, query="q")
        assert not bench.sink.target.aborted
        bench.sink.release = release  # type: ignore[method-assign]
        bench.opened()
        assert len(bench.sink.target.aborted) == 1

    def test_a_name_that_belongs_to_another_log_stops_the_start(self):
        bench = Bench()
        bench.sink.claim_error = EpochConflictError("known from another log")
        coordinator = bench.coordinator()
        with pytest.raises(EpochConflictError, match="another log"):
            coordinator.open()
        assert not bench.sink.target.aborted

    def test_a_decision_that_was_not_finished_is_finished_first(self):
        bench = Bench()
        bench.sink.answers = [SinkError("broker is down")]
        with pytest.raises(SinkError):
            bench.run(bench.opened(), 0)
        coordinator = bench.opened()
        assert len(bench.sink.target.commits) == 1
        assert coordinator.view.completed == 0

    def test_a_decision_that_names_a_sink_that_is_gone_stops_the_start(self):
        bench = Bench()
        bench.sink.answers = [SinkError("broker is down")]
        with pytest.raises(SinkError):
            bench.run(bench.opened(), 0)
        gone = Coordinator("p", bench.store, [TargetSink(name="b")], policy())
        with pytest.raises(EpochConflictError, match=r"no longer has: \['a'\]"):
            gone.open()

    def test_a_sink_that_wrote_nothing_may_go(self):
        bench = Bench()
        other = TargetSink(name="b")
        coordinator = bench.opened(other)
        coordinator.admit(0, about(0))
        committable = bench.committable(coordinator, 0)
        bench.sink.answers = [SinkError("broker is down")]
        with pytest.raises(SinkError):
            coordinator.commit(0, [acknowledgement(committable, sinks=("a", "b"))], about(0))
        assert bench.opened().view.completed == 0
        assert bench.sink.target.commits == [committable.transaction]


class TestAcknowledgements:
    @pytest.mark.parametrize(
        "changes",
        [{"epoch": 1}, {"sinks": ()}, {"sinks": ("a", "b")}, {"sinks": ("b",)}],
        ids=["epoch", "no sink", "too many sinks", "another sink"],
    )
    def test_what_does_not_speak_for_this_epoch_and_these_sinks_is_refused(self, changes: dict[str, Any]):
        bench = Bench()
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        with pytest.raises(ProtocolError, match="nothing was decided"):
            coordinator.commit(0, [acknowledgement(**changes)], about(0))
        assert read(bench.store).decided == -1

    def test_a_subtask_speaks_once(self):
        bench = Bench()
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        with pytest.raises(ProtocolError, match="subtask 0"):
            coordinator.commit(0, [acknowledgement(), acknowledgement()], about(0))

    @pytest.mark.parametrize("field", ["pipeline", "log", "generation", "epoch", "sink"])
    def test_a_committable_of_another_origin_is_refused(self, field: str):
        bench = Bench()
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        other: dict[str, object] = {"pipeline": "p2", "log": "ffffffff", "generation": 9, "epoch": 9, "sink": "b"}
        committable = msgspec.structs.replace(bench.committable(coordinator, 0), **{field: other[field]})
        with pytest.raises(ProtocolError, match="not written for this epoch by this writer"):
            coordinator.commit(0, [acknowledgement(committable)], about(0))
        assert read(bench.store).decided == -1

    def test_one_transaction_cannot_be_acknowledged_twice(self):
        bench = Bench()
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        one = bench.committable(coordinator, 0)
        with pytest.raises(ProtocolError, match="two subtasks acknowledged the same transaction"):
            coordinator.commit(0, [acknowledgement(one), acknowledgement(one, subtask=1)], about(0))

    def test_an_empty_epoch_is_decided_too(self):
        bench = Bench()
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        coordinator.commit(0, [acknowledgement(), acknowledgement(subtask=1)], about(0))
        assert coordinator.view.completed == 0
        assert bench.sink.target.commits == []


class TestAge:
    def bench(self, age: float, state: Observation) -> tuple[Bench, Coordinator, Committable]:
        now = [0.0]
        bench = Bench(TargetSink(name="a", timeout=40.0), monotonic=lambda: now[0])
        coordinator = bench.opened()
        now[0] = 100.0
        coordinator.admit(0, about(0))
        committable = bench.committable(coordinator, 0)
        bench.sink.target.states = {committable.transaction: state}
        bench.sink.answers = [CommitStatus.COMMITTED]  # whatever the look has shown
        now[0] += age
        return bench, coordinator, committable

    def test_a_young_transaction_is_not_asked_for(self):
        bench, coordinator, committable = self.bench(10.0, Observation.ABORTED)
        coordinator.commit(0, [acknowledgement(committable)], about(0))
        assert bench.sink.target.commits == [committable.transaction]

    @pytest.mark.parametrize("state", [Observation.ABORTED, Observation.EXPIRED, Observation.ABSENT])
    def test_an_old_one_that_ended_is_not_decided(self, state: Observation):
        bench, coordinator, committable = self.bench(10.1, state)
        with pytest.raises(DataLossError, match="ended before they were decided"):
            coordinator.commit(0, [acknowledgement(committable)], about(0))
        assert read(bench.store).decided == -1
        assert bench.sink.target.commits == []

    def test_one_that_a_newer_writer_has_swept_is_no_loss(self):
        """The driver that slept is fenced, and nobody is alarmed."""
        bench, coordinator, committable = self.bench(10.1, Observation.ABORTED)
        bench.opened()
        with pytest.raises(FencedError, match="a newer writer"):
            coordinator.commit(0, [acknowledgement(committable)], about(0))

    @pytest.mark.parametrize("state", [Observation.OPEN, Observation.PREPARED, Observation.UNKNOWN])
    def test_an_old_one_that_may_be_there_is_decided(self, state: Observation):
        bench, coordinator, committable = self.bench(30.0, state)
        coordinator.commit(0, [acknowledgement(committable)], about(0))
        assert bench.sink.target.commits == [committable.transaction]

    @pytest.mark.parametrize(("own", "told", "asked"), [(0.0, 10.1, True), (30.0, 10.0, False)])
    def test_f_the_age_that_came_with_the_epoch_counts(self, own: float, told: float, asked: bool):
        """Where another process admitted and wrote it, the time since is not known here."""
        bench, coordinator, committable = self.bench(own, Observation.EXPIRED)
        if asked:
            with pytest.raises(DataLossError):
                coordinator.commit(0, [acknowledgement(committable)], about(0), age=told)
        else:
            coordinator.commit(0, [acknowledgement(committable)], about(0), age=told)
        assert len(bench.sink.target.commits) == 1 - asked

    def test_an_epoch_without_rows_has_no_age(self):
        _, coordinator, _ = self.bench(1000.0, Observation.ABORTED)
        coordinator.commit(0, [acknowledgement()], about(0))
        assert coordinator.view.completed == 0


class TestCommitting:
    def test_an_answer_that_says_later_is_asked_again(self):
        bench = Bench()
        bench.sink.answers = [LATER, LATER, CommitStatus.ALREADY_COMMITTED]
        bench.run(bench.opened(), 0)
        assert len(bench.sink.target.commits) == 1

    def test_24_and_28_an_epoch_that_has_to_wait_holds_back_the_later_ones_of_its_decision(self):
        """Otherwise an upsert of the earlier one would overwrite the later one's."""
        bench = Bench()
        coordinator = Coordinator("p", bench.store, [bench.sink], policy(), numbering=CHECKPOINTS)
        coordinator.open()
        early = [bench.committable(coordinator, 4, subtask) for subtask in range(2)]
        late = [bench.committable(coordinator, 5, subtask) for subtask in range(2)]
        pairs = enumerate(zip(early, late, strict=True))
        acks = [acknowledgement(*pair, epoch=5, subtask=n) for n, pair in pairs]
        bench.sink.answers = [CommitStatus.COMMITTED, LATER, CommitStatus.COMMITTED]
        coordinator.commit(5, acks, about(5))
        asked = [call.removeprefix("commit ") for call in bench.sink.calls if call.startswith("commit ")]
        names = [c.transaction for c in (*early, early[1], *late)]
        assert asked == names

    def test_what_cannot_be_committed_yet_stays_decided(self):
        bench = Bench()
        bench.sink.answers = [LATER] * 4
        coordinator = bench.opened()
        with pytest.raises(CommitPendingError, match="The decision remains valid") as caught:
            bench.run(coordinator, 0)
        assert (caught.value.sink, caught.value.epoch) == ("a", 0)
        view = read(bench.store)
        assert view.undone is not None
        assert view.named(view.undone.committables[0])
        assert not view.named(msgspec.structs.replace(view.undone.committables[0], transaction="another"))
        with pytest.raises(EpochConflictError):
            coordinator.admit(1, about(1))

    def test_e_a_large_decision_that_waits_is_compared_in_linear_time(self):
        class Away(TargetSink):
            away = True

            def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
                return [CommitOutcome(LATER if self.away else CommitStatus.COMMITTED) for _ in committables]

        sink = Away(name="a")
        bench = Bench(sink)
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        committables = [bench.committable(coordinator, 0, subtask) for subtask in range(10_000)]
        began = time.process_time()
        with pytest.raises(CommitPendingError):
            coordinator.commit(0, [acknowledgement(*committables)], about(0))
        waiting = read(bench.store)
        assert all(map(waiting.named, committables))
        sink.away = False
        coordinator.open()
        completed = read(bench.store)
        assert all(map(completed.named, committables))
        assert not completed.named(msgspec.structs.replace(committables[0], handle={"another": "one"}))
        assert time.process_time() - began < 5  # what compares each with each takes half a minute

    @pytest.mark.parametrize("status", [LOST, UNKNOWN, CommitStatus.FENCED])
    @pytest.mark.parametrize("epoch", [0, 2])
    def test_a_decided_transaction_that_is_lost_fails_the_commit_and_the_next_start(
        self, status: CommitStatus, epoch: int
    ):
        """Invariant 8. Epoch 2: after the writer's START was pruned, too."""
        bench = Bench()
        coordinator = bench.opened()
        for done in range(epoch):
            bench.run(coordinator, done)
        bench.sink.answers = [status]
        with pytest.raises(DataLossError, match=r"1 decided transactions with 1 rows .* subtask 0 .*on_lost='skip'"):
            bench.run(coordinator, epoch)
        bench.sink.answers = [status]
        with pytest.raises(DataLossError):
            bench.opened()
        assert read(bench.store).completed == epoch - 1

    def test_a_writer_that_is_fenced_meanwhile_does_not_call_it_lost(self):
        bench = Bench()
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        committable = bench.committable(coordinator, 0)
        newer = TargetSink(name="a")

        def other_driver_starts(*_: object) -> list[object]:
            Coordinator("p", bench.store, [newer], policy()).open()
            bench.sink.answers = [UNKNOWN]
            return [bench.sink.commit(committable)]

        bench.sink.commit_many = other_driver_starts  # type: ignore[assignment,method-assign]
        with pytest.raises(FencedError):
            coordinator.commit(0, [acknowledgement(committable)], about(0))
        assert newer.target.commits == [committable.transaction]

    def test_skip_leaves_an_audit_record_and_goes_on(self):
        bench = Bench(on_lost=OnLost.SKIP)
        coordinator = bench.opened()
        bench.sink.answers = [UNKNOWN]
        lost = bench.run(coordinator, 0)
        assert coordinator.view.skipped == {lost.transaction}
        assert bench.run(coordinator, 1).transaction in bench.sink.target.commits

    def test_a_skip_that_was_recorded_is_not_asked_for_again(self):
        bench = Bench(on_lost=OnLost.SKIP)
        coordinator = bench.opened()
        bench.sink.answers = [LOST]
        # START, DECIDE and RESOLVED are put; COMPLETED is not
        bench.store.put_faults = [None, None, *[not_written] * 4]
        with pytest.raises(DecisionInDoubtError):
            bench.run(coordinator, 0)
        calls = len(bench.sink.calls)
        bench.opened()
        assert not [call for call in bench.sink.calls[calls:] if call.startswith("commit")]

    @pytest.mark.parametrize("status", [LOST, CommitStatus.FENCED])
    def test_replay_voids_the_decision_and_the_epoch_is_written_again(self, status: CommitStatus):
        bench = Bench(on_lost=OnLost.REPLAY)
        bench.run(first := bench.opened(), 0)
        bench.sink.answers = [status]
        with pytest.raises(EpochConflictError, match="voided"):
            bench.run(first, 1)
        again = bench.run(bench.opened(), 1)
        assert bench.sink.target.commits[-1] == again.transaction

    def test_the_epoch_that_is_written_again_has_the_voided_ones_query_and_start(self):
        bench = Bench(on_lost=OnLost.REPLAY)
        first = bench.opened()
        bench.run(first, 0)
        bench.sink.answers = [LOST]
        with pytest.raises(EpochConflictError, match="voided"):
            bench.run(first, 1)
        for wrong in (about(1, query="other"), msgspec.structs.replace(about(1), start=[0])):
            with pytest.raises(EpochConflictError):
                bench.opened().admit(1, wrong)
        assert bench.opened().admit(1, msgspec.structs.replace(about(1), end=[30])) is Admission.NEW

    def test_replay_is_refused_unless_everything_is_proven_not_committed(self):
        for answers in ([LOST, CommitStatus.COMMITTED], [UNKNOWN, LOST]):
            bench = Bench(on_lost=OnLost.REPLAY)
            coordinator = bench.opened()
            coordinator.admit(0, about(0))
            acks = [acknowledgement(bench.committable(coordinator, 0, n), subtask=n) for n in (0, 1)]
            bench.sink.answers = list(answers)
            with pytest.raises(
                DataLossError, match=r"Writing it again was refused: (some of the epoch is visible|it cannot be proven)"
            ):
                coordinator.commit(0, acks, about(0))
            assert read(bench.store).undone is not None

    def test_completion_is_put_after_every_answer_and_told_to_the_sink(self):
        bench = Bench()
        coordinator = bench.opened()
        bench.run(coordinator, 0)
        assert bench.sink.calls[-1] == "completed 0"
        bench.sink.completed_error = SinkError("ledger is locked")
        bench.run(coordinator, 1)  # housekeeping may fail

    def test_a_fenced_writer_decides_nothing(self):
        bench = Bench()
        old = bench.opened()
        old.admit(0, about(0))
        bench.opened()
        with pytest.raises(FencedError):
            old.commit(0, [acknowledgement(bench.committable(old, 0))], about(0))
        assert bench.sink.target.commits == []

    def test_the_coordinator_goes_on_in_another_process_by_token(self):
        bench = Bench()
        first = bench.opened()
        first.admit(0, about(0))
        committable = bench.committable(first, 0)
        second = bench.coordinator()
        second.resume(first.writer.token)
        second.commit(0, [acknowledgement(committable)], about(0))
        assert bench.sink.target.commits == [committable.transaction]
        with pytest.raises(FencedError):
            bench.coordinator().resume(first.writer.token)


class TestGivingUp:
    """After an epoch's writing failed: nobody waits for what its subtasks prepared, and no decision can name it."""

    def failed(self, bench: Bench) -> tuple[Coordinator, Committable]:
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        committable = bench.committable(coordinator, 0)
        bench.sink.target.hold(committable)
        return coordinator, committable

    def test_the_decision_is_impossible_before_anything_is_aborted(self):
        """Invariant 4: another process may hold the acknowledgements and be about to decide."""
        bench = Bench()
        coordinator, committable = self.failed(bench)
        other = bench.coordinator()
        other.resume(coordinator.writer.token)
        coordinator.give_up()
        assert bench.sink.target.aborted == [committable.transaction]
        with pytest.raises(FencedError):
            other.commit(0, [acknowledgement(committable)], about(0))
        assert bench.run(bench.opened(), 0).transaction in bench.sink.target.commits

    def test_what_was_decided_meanwhile_is_left_alone(self):
        bench = Bench()
        coordinator, committable = self.failed(bench)
        other = bench.coordinator()
        other.resume(coordinator.writer.token)
        other.commit(0, [acknowledgement(committable)], about(0))
        with pytest.raises(FencedError):
            coordinator.give_up()
        assert bench.sink.target.aborted == []

    def test_decided_transactions_are_not_touched(self):
        """Spark's abort() comes also when commit() raised."""
        bench = Bench()
        coordinator, committable = self.failed(bench)
        bench.sink.answers = [LATER] * 4
        with pytest.raises(CommitPendingError):
            coordinator.commit(0, [acknowledgement(committable)], about(0))
        coordinator.give_up()
        assert bench.sink.target.aborted == []

    @pytest.mark.parametrize("fault", [not_written, answer_lost])
    def test_nothing_is_aborted_while_the_decision_is_in_doubt(self, fault: Callable[[Callable[[], bool]], bool]):
        bench = Bench(puts=Backoff(attempts=0))
        coordinator, committable = self.failed(bench)
        bench.store.put_faults = [fault, not_written]
        with pytest.raises(DecisionInDoubtError):
            coordinator.commit(0, [acknowledgement(committable)], about(0))
        with pytest.raises((StoreError, FencedError)):
            coordinator.give_up()
        assert bench.sink.target.aborted == []

    def test_a_fenced_writer_aborts_nothing(self):
        bench = Bench()
        coordinator, _ = self.failed(bench)
        bench.sink.target.prepared.clear()
        bench.opened()
        with pytest.raises(FencedError):
            coordinator.give_up()
        assert bench.sink.target.aborted == []


class TestSweeping:
    def listed(self, bench: Bench, **changes: object) -> Committable:
        base = bench.committable(bench.opened(), 0)
        committable = msgspec.structs.replace(base, **changes)
        bench.sink.target.hold(committable)
        return committable

    def test_what_older_writers_left_is_aborted(self):
        bench = Bench()
        left = self.listed(bench)
        bench.opened()
        assert bench.sink.target.aborted == [left.transaction]

    def test_what_a_listing_cannot_date_is_aborted_by_exact_handle(self):
        bench = Bench()
        left = self.listed(bench, generation=ANY_EPOCH, epoch=ANY_EPOCH, handle={"producer": 1, "epoch": 2})
        bench.opened()
        assert bench.sink.target.aborted == [left.transaction]

    @pytest.mark.parametrize("changes", [{"log": "ffffffff"}, {"generation": 99}], ids=["log", "newer writer"])
    def test_what_is_not_of_this_log_or_is_newer_is_reported_and_left_alone(self, changes: dict[str, Any]):
        bench = Bench()
        left = self.listed(bench, **changes)
        coordinator = bench.opened()
        assert sweep(coordinator.writer, [bench.sink]).reported == (left,)
        assert bench.sink.target.aborted == []

    def test_what_a_waiting_decision_names_is_left_alone_though_the_listing_knows_less(self):
        """A target's listing may not have all of a handle; while the decision waits, no name is used again."""
        bench = Bench()
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        committable = msgspec.structs.replace(bench.committable(coordinator, 0), handle={"rows": 7})
        bench.sink.answers = [LATER] * 8
        with pytest.raises(CommitPendingError):
            coordinator.commit(0, [acknowledgement(committable)], about(0))
        bench.sink.target.hold(msgspec.structs.replace(committable, handle={}))
        with pytest.raises(CommitPendingError):
            bench.opened()
        assert bench.sink.target.aborted == []

    def test_a_writers_own_live_epoch_is_left_alone(self):
        bench = Bench()
        coordinator = bench.opened()
        bench.run(coordinator, 0)
        live, lost = bench.committable(coordinator, 1), bench.committable(coordinator, 0)
        bench.sink.target.hold(live, lost)
        assert sweep(coordinator.writer, [bench.sink]).aborted == (lost,)

    @pytest.mark.parametrize("epochs", [0, 1], ids=["before its first epoch", "later"])
    def test_what_a_writer_left_under_a_name_without_epoch_is_aborted_between_its_epochs(self, epochs: int):
        bench = Bench()
        coordinator = bench.opened()
        for epoch in range(epochs):
            bench.run(coordinator, epoch)
        undated = msgspec.structs.replace(bench.committable(coordinator, 1), epoch=ANY_EPOCH)
        bench.sink.target.hold(undated)
        assert sweep(coordinator.writer, [bench.sink], busy=True).aborted == ()
        assert sweep(coordinator.writer, [bench.sink]).aborted == (undated,)

    def test_what_a_decision_names_is_never_aborted(self):
        bench = Bench()
        done = bench.run(bench.opened(), 0)
        bench.sink.target.hold(done)
        bench.opened()
        assert bench.sink.target.aborted == []

    def test_a_sweeper_that_was_fenced_while_it_listed_aborts_nothing(self):
        bench = Bench()
        self.listed(bench)
        coordinator = bench.coordinator()
        coordinator.writer.start()
        bench.sink.when_listed = lambda: Coordinator("p", bench.store, [TargetSink(name="a")], policy()).open()
        assert sweep(coordinator.writer, [bench.sink]).aborted == ()
        assert bench.sink.target.aborted == []

    def test_what_a_retry_left_behind_is_aborted_after_the_decision(self):
        """In the first epoch and, after the writer's START was pruned, in later ones."""
        bench = Bench()
        coordinator = bench.opened()
        for epoch in range(3):
            coordinator.admit(epoch, about(epoch))
            lost, won = bench.committable(coordinator, epoch), bench.committable(coordinator, epoch)
            bench.sink.target.hold(lost)
            coordinator.commit(epoch, [acknowledgement(won, epoch=epoch, attempt=1, retried=True)], about(epoch))
            assert bench.sink.target.aborted[-1:] == [lost.transaction]

    def test_an_attempt_that_prepares_after_its_epochs_sweep_is_aborted_within_a_minute(self):
        now = [0.0]
        bench = Bench(monotonic=lambda: now[0])
        coordinator = bench.opened()
        bench.run(coordinator, 0)
        late = bench.committable(coordinator, 0)
        bench.sink.target.hold(late)
        for epoch, seconds, aborted in [(1, 59.0, []), (2, 60.0, [late.transaction]), (3, 61.0, [late.transaction])]:
            now[0] = seconds
            bench.run(coordinator, epoch)
            assert bench.sink.target.aborted == aborted

    def test_an_abort_that_fails_is_tried_again_after_each_epoch(self):
        bench = Bench()
        left = self.listed(bench)
        bench.sink.abort_answer = AbortStatus.RETRY_LATER
        coordinator = bench.opened()
        bench.run(coordinator, 0)
        assert bench.sink.target.aborted == [left.transaction] * 2
        bench.sink.abort_answer = None
        for epoch in (1, 2):
            bench.run(coordinator, epoch)
        assert bench.sink.target.aborted == [left.transaction] * 3


class TestMistakes:
    def test_a_sweep_that_fails_after_an_epoch_does_not_fail_the_epoch(self):
        def broken() -> None:
            raise RetryableSinkError("a broker is away")

        now = [0.0]
        bench = Bench(monotonic=lambda: now[0])
        coordinator = bench.opened()
        late = bench.committable(coordinator, 0)
        bench.sink.target.hold(late)
        now[0] = 60.0
        bench.sink.when_listed = broken
        bench.run(coordinator, 0)
        assert (coordinator.view.completed, bench.sink.target.aborted) == (0, [])
        bench.sink.when_listed = None
        bench.run(coordinator, 1)
        assert bench.sink.target.aborted == [late.transaction]

    def test_another_query_is_refused_before_it_fences_the_one_that_runs(self):
        bench = Bench()
        healthy = bench.opened()
        bench.run(healthy, 0)
        with pytest.raises(EpochConflictError, match=r"another query \(q, not other\) decided"):
            bench.coordinator().open(query="other")
        bench.run(healthy, 1)
        bench.coordinator().open(query="q")
        bench.coordinator().open(query="other", rewind="on purpose")
        bench.coordinator().open(query="other")

    @pytest.mark.parametrize("rewind", [None, "wrong code"])
    def test_who_is_given_the_log_of_another_pipeline_is_told_so_under_its_own_name(self, rewind: str | None):
        bench = Bench()
        bench.run(bench.opened(), 0)
        bench.coordinator().open(query="q", rewind="wrong code", first_epoch=0, epoch_input=about(0, query="new"))
        bench.run(bench.opened(), 0)
        other = Coordinator("other", bench.store, [TargetSink(name="a")], policy())
        with pytest.raises(EpochConflictError) as refused:
            other.open(query="q" if rewind else "new", rewind=rewind, first_epoch=0)
        assert refused.value.pipeline == "other"


class TestTheWorstCaseOfACommit:
    """commit_timeout, and one call of each sink's client: nothing else adds to it."""

    def commit(self, *, timeout: float, call: float) -> tuple[float, int]:
        """Seconds until CommitPendingError, and calls, of a sink that says "later" after `call` seconds."""
        clock = [0.0]

        def sleep(seconds: float) -> None:
            clock[0] += seconds

        changes = replace(CommitPolicy.of("fail", timeout, 2.0), monotonic=lambda: clock[0])
        bench = Bench(**{**vars(changes), "commits": replace(changes.commits, sleep=sleep)})
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        committable = bench.committable(coordinator, 0)
        real, calls = bench.sink.commit_many, 0

        def commit_many(committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
            nonlocal calls
            calls += 1
            sleep(call)
            bench.sink.answers = [LATER]
            return real(committables)

        bench.sink.commit_many = commit_many  # type: ignore[method-assign]
        with pytest.raises(CommitPendingError):
            coordinator.commit(0, [acknowledgement(committable)], about(0))
        return clock[0], calls

    @pytest.mark.parametrize("timeout", [0.5, 30.0, 300.0])
    @pytest.mark.parametrize("call", [0.0, 5.0])
    def test_it_is_the_timeout_and_one_call(self, timeout: float, call: float):
        waited, calls = self.commit(timeout=timeout, call=call)
        assert timeout <= waited <= timeout + call
        assert calls > 1 or timeout < call

    def test_a_timeout_of_zero_is_one_attempt(self):
        assert self.commit(timeout=0.0, call=5.0) == (5.0, 1)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            (("maybe", 300.0, 2.0), "on_lost is 'maybe'"),
            (("fail", -1.0, 2.0), "commit_timeout is -1"),
            (("fail", math.inf, 2.0), "commit_timeout is inf"),
            (("fail", math.nan, 2.0), "commit_timeout is nan"),
            (("fail", 300.0, 0.0), "commit_backoff is 0"),
        ],
    )
    def test_a_setting_that_makes_no_sense_is_refused(self, settings: tuple[str, float, float], words: str):
        with pytest.raises(ConfigurationError, match=words):
            CommitPolicy.of(*settings)


def test_pauses_grow_are_jittered_and_end():
    slept: list[float] = []
    backoff = Backoff(first=1.0, factor=2.0, most=5.0, attempts=4, sleep=slept.append, fraction=lambda: 0.5)
    assert [backoff.pause(n) for n in range(5)] == [True, True, True, True, False]
    assert slept == [0.75, 1.5, 3.0, 3.75]
    assert backoff.pause(0, left=0.1)
    assert slept[4:] == [0.1]
    assert not backoff.pause(0, left=0.0)
    forever = Backoff(first=1.0, most=5.0, sleep=slept.append, fraction=lambda: 0.5)
    assert forever.pause(10**6)
    assert slept[5:] == [3.75]
    assert policy().token() != policy().token()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux")
def test_ages_count_the_time_for_which_the_machine_was_suspended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 7.0}.__getitem__)
    assert CommitPolicy().monotonic() == 7.0


class TestSinksAreIndependent:
    """Rule A: a sink that is away, refuses or has lost its data delays no other."""

    def both(self, bench: Bench, other: TargetSink) -> tuple[Coordinator, Committable, Committable]:
        coordinator = bench.opened(other)
        coordinator.admit(0, about(0))
        mine = bench.committable(coordinator, 0)
        theirs = prepared(coordinator.context("b", 0, subtask=0))
        return coordinator, mine, theirs

    def commit(self, coordinator: Coordinator, *committables: Committable) -> None:
        coordinator.commit(0, [acknowledgement(*committables, sinks=("a", "b"))], about(0))

    @pytest.mark.parametrize(
        "answers",
        [[LATER] * 9, [RetryableSinkError("no answer")] * 9, [SinkError("it was refused")] * 2, [LOST], [OSError()]],
        ids=["away", "no answer", "refused", "lost", "not ours"],
    )
    def test_the_others_are_committed_whatever_one_says(self, answers: list[CommitStatus | Exception]):
        for broken_first in (True, False):
            broken, well = TargetSink(name="a"), TargetSink(name="b")
            bench = Bench(broken if broken_first else well)
            bench.sink.name, other = "a", well if broken_first else broken
            other.name = "b"
            broken.answers = list(answers)
            with pytest.raises(Exception):  # noqa: B017, PT011 - each its own
                self.commit(*self.both(bench, other))
            assert len(well.target.commits) == 1
            assert not broken.target.commits
            assert read(bench.store).undone is not None
            broken.answers = []
            bench.opened(other)
            assert read(bench.store).completed == 0

    @pytest.mark.parametrize(("refusals", "settled"), [(1, True), (2, False)])
    def test_what_a_target_refuses_is_asked_for_again_when_another_has_committed(self, refusals: int, settled: bool):
        """As of two tables, where a foreign key of one names the other; no order serves both inserts and deletes."""
        first, second = TargetSink(name="a"), TargetSink(name="b")
        first.answers = [SinkError("violates foreign key constraint")] * refusals
        bench = Bench(first)
        with nullcontext() if settled else pytest.raises(SinkError, match="foreign key"):
            self.commit(*self.both(bench, second))
        assert (len(first.target.commits), len(second.target.commits)) == (int(settled), 1)

    def test_all_are_asked_at_the_same_time(self):
        met = threading.Barrier(2, timeout=10)

        class Meets(TargetSink):
            def commit(self, committable: Committable) -> CommitOutcome:
                met.wait()
                return super().commit(committable)

        one, other = Meets(name="a"), Meets(name="b")
        self.commit(*self.both(Bench(one), other))
        assert len(one.target.commits) == len(other.target.commits) == 1

    def test_a_decision_is_finished_at_the_next_start_where_it_can_be(self):
        """PostgreSQL is away for hours; Kafka's transactions expire in minutes."""
        database, kafka = TargetSink(name="a"), TargetSink(name="b", timeout=20.0)
        bench = Bench(database)
        database.answers, kafka.answers = [LATER] * 9, [LATER] * 4
        with pytest.raises(CommitPendingError):
            self.commit(*self.both(bench, kafka))
        assert not kafka.target.commits
        with pytest.raises(CommitPendingError, match="nothing is lost"):
            bench.opened(kafka)
        assert len(kafka.target.commits) == 1

    def test_those_whose_transactions_expire_are_asked_first(self):
        order: list[str] = []

        class Noting(TargetSink):
            def commit_many(self, committables: Any) -> Any:
                order.append(self.name)
                return super().commit_many(committables)

            def lingering(self, scope: Any) -> Any:
                order.append(f"list {self.name}")
                return super().lingering(scope)

        bench = Bench(Noting(name="a"), make_all=lambda calls: [call() for call in calls])
        coordinator, mine, theirs = self.both(bench, Noting(name="b", timeout=60.0))
        assert order == ["list b", "list a"]
        self.commit(coordinator, mine, theirs)
        assert order[2:] == ["b", "a"]

    def test_what_lingers_is_swept_before_a_sick_sink_is_waited_for(self):
        sick, well = TargetSink(name="a"), TargetSink(name="b")
        bench = Bench(sick)
        sick.answers = [SinkError("refused")] * 2
        with pytest.raises(SinkError):
            self.commit(*self.both(bench, well))
        left = msgspec.structs.replace(well_committable(bench, well), epoch=7, transaction="left")
        well.target.hold(left)
        sick.answers = [SinkError("still refused")] * 2
        with pytest.raises(SinkError, match="still refused"):
            bench.opened(well)
        assert well.target.aborted == ["left"]

    def test_a_sink_that_cannot_be_listed_leaves_no_other_unswept(self):
        for sick_first in (True, False):
            sick, well = TargetSink(name="a" if sick_first else "b"), TargetSink(name="b" if sick_first else "a")
            bench = Bench(sick if sick_first else well)
            other = well if sick_first else sick
            coordinator = bench.opened(other)
            well.target.hold(prepared(coordinator.context(well.name, 0, subtask=0)))
            sick.when_listed = raise_sink_error
            with pytest.raises(SinkError, match="cannot list"):
                bench.opened(other)
            assert len(well.target.aborted) == 1

    def test_an_abort_that_raises_leaves_nothing_else_unswept(self):
        class Raising(TargetSink):
            def abort(self, committable: Any) -> Any:
                super().abort(committable)
                raise SinkError("another role prepared it")

        sick, well = Raising(name="a"), TargetSink(name="b")
        bench = Bench(sick)
        coordinator = bench.opened(well)
        for sink in (sick, well):
            sink.target.hold(*(prepared(coordinator.context(sink.name, 0, subtask=n)) for n in range(2)))
        with pytest.raises(SinkError, match="another role"):
            bench.opened(well)
        assert [len(sick.target.aborted), len(well.target.aborted)] == [2, 2]

    def test_all_problems_are_told_and_a_loss_first(self):
        lost, away = TargetSink(name="a"), TargetSink(name="b")
        lost.answers, away.answers = [LOST], [LATER] * 9
        with pytest.raises(DataLossError) as caught:
            self.commit(*self.both(Bench(lost), away))
        assert any("sink b has not committed its part: scripted" in note for note in caught.value.__notes__)

    def test_the_message_names_the_clock_that_runs(self):
        bench = Bench(TargetSink(name="a", timeout=900.0))
        bench.sink.answers = [LATER] * 9
        with pytest.raises(CommitPendingError, match="aborts a transaction 900 s after it began"):
            bench.run(bench.opened(), 0)


def raise_sink_error() -> None:
    raise SinkError("cannot list")


def well_committable(bench: Bench, sink: TargetSink) -> Committable:
    view = read(bench.store)
    assert view.undone is not None
    return next(c for c in view.undone.committables if c.sink == sink.name)


class TestSweepingWhileAtWork:
    def test_only_what_an_older_writer_made_is_touched(self):
        """The engine's subtasks are always at work; only a listed writer proves that it is not one of theirs."""
        bench = Bench(monotonic=lambda: next(clock))
        clock = iter(range(0, 10_000, 100))
        old = Coordinator("p", bench.store, [bench.sink], policy(), numbering=CHECKPOINTS)
        old.open()
        zombie = bench.committable(old, 5)
        now = Coordinator("p", bench.store, [bench.sink], policy(**bench.changes), numbering=CHECKPOINTS)
        now.open()
        live = bench.committable(now, 2)
        unknown = msgspec.structs.replace(zombie, generation=ANY_EPOCH, transaction="x")
        bench.sink.target.hold(zombie, live, unknown)
        now.admit(1, about(1))
        now.commit(1, [acknowledgement(epoch=1)], about(1))
        assert bench.sink.target.aborted == [zombie.transaction]


class TestSinksThatAreGone:
    def left(self, coordinator: Coordinator, sink: str = "renamed") -> Committable:
        return msgspec.structs.replace(prepared(coordinator.context("a", 0, subtask=0)), sink=sink)

    def test_what_a_renamed_sink_left_is_aborted_and_told(self, caplog: pytest.LogCaptureFixture):
        """Scenario 38. Its rows would block their own retry at each start, for ever."""
        bench = Bench()
        left = self.left(bench.opened())
        bench.sink.target.hold(left)
        bench.opened()
        assert bench.sink.target.aborted == [left.transaction]
        assert "of sink renamed, which this pipeline no longer has" in caplog.text

    def test_what_a_zombie_prepares_for_a_renamed_sink_after_the_first_decision_is_aborted_at_the_next_start(self):
        bench = Bench()
        bench.run(bench.opened(), 0)
        left = self.left(bench.opened())
        bench.sink.target.hold(left)
        bench.opened()
        assert bench.sink.target.aborted == [left.transaction]

    def test_a_start_asks_for_them_first(self):
        """A sink may wait longer for this answer than for those that an epoch waits for."""
        bench, asked = Bench(), list[str]()
        bench.sink.when_listed = lambda: asked.append("this sink's")
        elsewhere = bench.sink.lingering_elsewhere
        bench.sink.lingering_elsewhere = lambda *of: asked.append("other sinks'") or elsewhere(*of)  # type: ignore[method-assign]
        bench.run(bench.opened(), 0)
        assert asked == ["other sinks'", "this sink's"]

    def test_another_pipelines_or_logs_and_a_present_sinks_are_left_alone(self):
        bench = Bench()
        other = TargetSink(name="b")
        left = self.left(bench.opened(other))
        for number, changes in enumerate(({"log": "ffffffff"}, {"pipeline": "p2"}, {"sink": "b"})):
            bench.sink.target.hold(msgspec.structs.replace(left, transaction=str(number), **changes))
        bench.opened(other)
        assert bench.sink.target.aborted == []


class Mute(TargetSink):
    """A user's sink whose target cannot be asked, and lists nothing."""

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        return [Observation.UNKNOWN for _ in committables]


def test_a_rewind_ends_what_is_prepared_in_a_target_that_cannot_be_asked():
    store, sink = MemoryStore(), Mute(name="a")
    coordinator = Coordinator("p", store, [sink], policy())
    coordinator.open()
    coordinator.admit(0, about(0))
    decided = prepared(coordinator.context("a", 0, subtask=0))
    coordinator.writer.decide(0, [decided], sinks=["a"], epoch_input=about(0), subtasks=1)
    Coordinator("p", store, [sink], policy()).open(rewind="x", first_epoch=0, query="q")
    assert decided.transaction in sink.target.aborted


def test_a_start_after_a_rewind_sweeps_without_asking_how_far_the_target_had_come():
    """What the rewind took back may have been committed meanwhile: each start was refused as an outdated copy."""
    store, sink = MemoryStore(), TargetSink(name="a")
    first = Coordinator("p", store, [sink], policy())
    first.open()
    first.admit(0, about(0))
    first.commit(0, [acknowledgement(sinks=("a",))], about(0))
    rewound = Coordinator("p", store, [sink], policy())
    rewound.open(rewind="x", first_epoch=0, query="q")
    rewound.admit(0, about(0))
    left = prepared(rewound.context("a", 0, subtask=0))
    sink.target.hold(left)
    sink.claim_error = EpochConflictError("this decision log is an outdated copy")
    Coordinator("p", store, [sink], policy()).open(rewind="x", first_epoch=0, query="q")
    assert sink.target.aborted == [left.transaction]
