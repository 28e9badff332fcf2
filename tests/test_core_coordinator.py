"""Admit, decide, commit, complete, abandon: the driver's half, on a store in memory and scripted sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from onceward.core.checkpoint import Admission, Backoff, Coordinator, OnLost, sweep
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
from onceward.core.log import EpochInput, read
from onceward.core.transaction import ANY_EPOCH, AbortStatus, CommitStatus, Committable, ExternalState

from .core_fakes import FakeSink, MemoryStore, acknowledgement, answer_lost, not_written, policy, prepared

if TYPE_CHECKING:
    from collections.abc import Callable

LATER, LOST, UNKNOWN = CommitStatus.RETRY_LATER, CommitStatus.LOST, CommitStatus.UNKNOWN


class Bench:
    """A pipeline `p` with one sink `a`, and epochs whose input is their number."""

    def __init__(self, sink: FakeSink | None = None, **changes: object) -> None:
        self.store = MemoryStore()
        self.sink = sink or FakeSink()
        self.changes = changes

    def coordinator(self, *others: FakeSink) -> Coordinator:
        return Coordinator("p", self.store, [self.sink, *others], policy(**self.changes))

    def opened(self, *others: FakeSink) -> Coordinator:
        coordinator = self.coordinator(*others)
        coordinator.open()
        return coordinator

    def committable(self, coordinator: Coordinator, epoch: int, subtask: int = 0) -> Committable:
        return prepared(coordinator.context("a", epoch, subtask=subtask))

    def run(self, coordinator: Coordinator, epoch: int) -> Committable:
        assert coordinator.admit(epoch, about(epoch)) is Admission.NEW
        committable = self.committable(coordinator, epoch)
        coordinator.commit(epoch, [acknowledgement(committable, epoch=epoch)], about(epoch))
        return committable


def about(epoch: int, query: str = "q") -> EpochInput:
    return EpochInput(query=query, digest=f"digest {epoch}", start=[epoch * 10], end=[epoch * 10 + 10])


class TestAdmission:
    def test_epochs_follow_one_another(self):
        bench = Bench()
        coordinator = bench.opened()
        done = [bench.run(coordinator, epoch).transaction for epoch in range(3)]
        assert bench.sink.committed == done
        assert (coordinator.view.decided, coordinator.view.completed) == (2, 2)

    def test_the_newest_epoch_with_the_same_input_is_a_replay(self):
        bench = Bench()
        bench.run(bench.opened(), 0)
        assert bench.opened().admit(0, about(0)) is Admission.REPLAY
        assert len(bench.sink.committed) == 1

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
        assert len(bench.sink.committed) == 1

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
        for sinks in ([], [FakeSink("a"), FakeSink("a")]):
            with pytest.raises(ConfigurationError, match="at least one sink"):
                Coordinator("p", MemoryStore(), sinks)
        with pytest.raises(ConfigurationError, match="not usable"):
            Coordinator("p p", MemoryStore(), [FakeSink()])

    def test_the_target_is_asked_for_the_name_until_the_log_itself_can_tell(self):
        bench = Bench()
        bench.opened()
        coordinator = bench.opened()
        assert [call for call in bench.sink.calls if call.startswith("claim")] == [f"claim {coordinator.view.log}"] * 2
        bench.run(coordinator, 0)
        bench.sink.calls.clear()
        bench.opened()
        assert not any(call.startswith("claim") for call in bench.sink.calls)

    def test_a_name_that_belongs_to_another_log_stops_the_start(self):
        bench = Bench()
        bench.sink.claim_error = EpochConflictError("known from another log")
        coordinator = bench.coordinator()
        with pytest.raises(EpochConflictError, match="another log"):
            coordinator.open()
        assert not bench.sink.aborted

    def test_a_decision_that_was_not_finished_is_finished_first(self):
        bench = Bench()
        bench.sink.answers = [SinkError("broker is down")]
        with pytest.raises(SinkError):
            bench.run(bench.opened(), 0)
        coordinator = bench.opened()
        assert len(bench.sink.committed) == 1
        assert coordinator.view.completed == 0

    def test_a_decision_that_names_a_sink_that_is_gone_stops_the_start(self):
        bench = Bench()
        bench.sink.answers = [SinkError("broker is down")]
        with pytest.raises(SinkError):
            bench.run(bench.opened(), 0)
        gone = Coordinator("p", bench.store, [FakeSink("b")], policy())
        with pytest.raises(EpochConflictError, match=r"no longer has: \['a'\]"):
            gone.open()

    def test_a_sink_that_wrote_nothing_may_go(self):
        bench = Bench()
        other = FakeSink("b")
        coordinator = bench.opened(other)
        coordinator.admit(0, about(0))
        committable = bench.committable(coordinator, 0)
        bench.sink.answers = [SinkError("broker is down")]
        with pytest.raises(SinkError):
            coordinator.commit(0, [acknowledgement(committable, sinks=("a", "b"))], about(0))
        assert bench.opened().view.completed == 0
        assert bench.sink.committed == [committable.transaction]


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

    @pytest.mark.parametrize("field", ["pipeline", "log", "writer", "epoch", "sink"])
    def test_a_committable_of_another_origin_is_refused(self, field: str):
        bench = Bench()
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        other: dict[str, object] = {"pipeline": "p2", "log": "ffffffff", "writer": 9, "epoch": 9, "sink": "b"}
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
        assert bench.sink.committed == []


class TestAge:
    def bench(self, age: float, state: ExternalState) -> tuple[Bench, Coordinator, Committable]:
        now = [0.0]
        bench = Bench(FakeSink(timeout=40.0), monotonic=lambda: now[0])
        coordinator = bench.opened()
        now[0] = 100.0
        coordinator.admit(0, about(0))
        committable = bench.committable(coordinator, 0)
        bench.sink.states = {committable.transaction: state}
        now[0] += age
        return bench, coordinator, committable

    def test_a_young_transaction_is_not_asked_for(self):
        bench, coordinator, committable = self.bench(10.0, ExternalState.ABORTED)
        coordinator.commit(0, [acknowledgement(committable)], about(0))
        assert bench.sink.committed == [committable.transaction]

    @pytest.mark.parametrize("state", [ExternalState.ABORTED, ExternalState.EXPIRED])
    def test_an_old_one_that_ended_is_not_decided(self, state: ExternalState):
        bench, coordinator, committable = self.bench(10.1, state)
        with pytest.raises(DataLossError, match="ended before they were decided"):
            coordinator.commit(0, [acknowledgement(committable)], about(0))
        assert read(bench.store).decided == -1
        assert bench.sink.committed == []

    @pytest.mark.parametrize("state", [ExternalState.OPEN, ExternalState.PREPARED, ExternalState.UNKNOWN])
    def test_an_old_one_that_may_be_there_is_decided(self, state: ExternalState):
        bench, coordinator, committable = self.bench(30.0, state)
        coordinator.commit(0, [acknowledgement(committable)], about(0))
        assert bench.sink.committed == [committable.transaction]

    def test_an_epoch_without_rows_has_no_age(self):
        _, coordinator, _ = self.bench(1000.0, ExternalState.ABORTED)
        coordinator.commit(0, [acknowledgement()], about(0))
        assert coordinator.view.completed == 0


class TestCommitting:
    def test_an_answer_that_says_later_is_asked_again(self):
        bench = Bench()
        bench.sink.answers = [LATER, LATER, CommitStatus.ALREADY_COMMITTED]
        bench.run(bench.opened(), 0)
        assert len(bench.sink.committed) == 1

    def test_24_and_28_an_epoch_that_has_to_wait_holds_back_the_later_ones_of_its_decision(self):
        """Otherwise an upsert of the earlier one would overwrite the later one's."""
        bench = Bench()
        coordinator = Coordinator("p", bench.store, [bench.sink], policy(), gaps=True)
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
        with pytest.raises(CommitPendingError, match="the decision stands") as caught:
            bench.run(coordinator, 0)
        assert (caught.value.sink, caught.value.epoch) == ("a", 0)
        view = read(bench.store)
        assert view.undone is not None
        assert view.named(view.undone.committables[0])
        assert not view.named(msgspec.structs.replace(view.undone.committables[0], transaction="another"))
        with pytest.raises(EpochConflictError):
            coordinator.admit(1, about(1))

    @pytest.mark.parametrize("status", [LOST, UNKNOWN, CommitStatus.FENCED])
    @pytest.mark.parametrize("epoch", [0, 2])
    def test_data_loss_is_loud(self, status: CommitStatus, epoch: int):
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
        newer = FakeSink()

        def other_driver_starts(*_: object) -> list[object]:
            Coordinator("p", bench.store, [newer], policy()).open()
            bench.sink.answers = [UNKNOWN]
            return [bench.sink._commit(committable)]

        bench.sink.commit_many = other_driver_starts  # type: ignore[assignment,method-assign]
        with pytest.raises(FencedError):
            coordinator.commit(0, [acknowledgement(committable)], about(0))
        assert newer.committed == [committable.transaction]

    def test_skip_leaves_an_audit_record_and_goes_on(self):
        bench = Bench(on_lost=OnLost.SKIP)
        coordinator = bench.opened()
        bench.sink.answers = [UNKNOWN]
        lost = bench.run(coordinator, 0)
        assert coordinator.view.skipped == {lost.transaction}
        assert bench.run(coordinator, 1).transaction in bench.sink.committed

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
        assert bench.sink.committed[-1] == again.transaction

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
            with pytest.raises(DataLossError, match="Replay was asked for and refused"):
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
        assert bench.sink.committed == []

    def test_the_coordinator_goes_on_in_another_process_by_token(self):
        bench = Bench()
        first = bench.opened()
        first.admit(0, about(0))
        committable = bench.committable(first, 0)
        second = bench.coordinator()
        second.resume(first.writer.token)
        second.commit(0, [acknowledgement(committable)], about(0))
        assert bench.sink.committed == [committable.transaction]
        with pytest.raises(FencedError):
            bench.coordinator().resume(first.writer.token)


class TestAbandoning:
    def test_an_undecided_epoch_is_barred_and_then_aborted(self):
        bench = Bench()
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        committable = bench.committable(coordinator, 0)
        assert coordinator.abandon([committable]) is True
        assert bench.sink.aborted == [committable.transaction]
        assert bench.run(bench.opened(), 0).transaction in bench.sink.committed

    def test_decided_transactions_are_not_touched(self):
        bench = Bench()
        coordinator = bench.opened()
        bench.sink.answers = [LATER] * 4
        with pytest.raises(CommitPendingError):
            bench.run(coordinator, 0)
        decided = read(bench.store).undone
        assert decided is not None
        assert coordinator.abandon(decided.committables) is False
        assert bench.sink.aborted == []

    @pytest.mark.parametrize("fault", [not_written, answer_lost])
    def test_nothing_is_aborted_while_the_decision_is_in_doubt(self, fault: Callable[[Callable[[], bool]], bool]):
        bench = Bench(puts=Backoff(attempts=0))
        coordinator = bench.opened()
        coordinator.admit(0, about(0))
        committable = bench.committable(coordinator, 0)
        bench.store.put_faults = [fault, not_written]
        with pytest.raises(DecisionInDoubtError):
            coordinator.commit(0, [acknowledgement(committable)], about(0))
        with pytest.raises((StoreError, FencedError)):
            coordinator.abandon([committable])
        assert bench.sink.aborted == []

    def test_a_fenced_writer_aborts_nothing(self):
        bench = Bench()
        old = bench.opened()
        old.admit(0, about(0))
        bench.opened()
        with pytest.raises(FencedError):
            old.abandon([bench.committable(old, 0)])
        assert bench.sink.aborted == []


class TestSweeping:
    def listed(self, bench: Bench, **changes: object) -> Committable:
        base = bench.committable(bench.opened(), 0)
        committable = msgspec.structs.replace(base, **changes)
        bench.sink.open.append(committable)
        return committable

    def test_what_older_writers_left_is_aborted(self):
        bench = Bench()
        left = self.listed(bench)
        bench.opened()
        assert bench.sink.aborted == [left.transaction]

    def test_what_a_listing_cannot_date_is_aborted_by_exact_handle(self):
        bench = Bench()
        left = self.listed(bench, writer=ANY_EPOCH, epoch=ANY_EPOCH, handle={"producer": 1, "epoch": 2})
        bench.opened()
        assert bench.sink.aborted == [left.transaction]

    @pytest.mark.parametrize("changes", [{"log": "ffffffff"}, {"writer": 99}], ids=["log", "newer writer"])
    def test_what_is_not_of_this_log_or_is_newer_is_reported_and_left_alone(self, changes: dict[str, Any]):
        bench = Bench()
        left = self.listed(bench, **changes)
        coordinator = bench.opened()
        assert sweep(coordinator.writer, [bench.sink]).reported == (left,)
        assert bench.sink.aborted == []

    def test_a_writers_own_live_epoch_is_left_alone(self):
        bench = Bench()
        coordinator = bench.opened()
        bench.run(coordinator, 0)
        live, lost = bench.committable(coordinator, 1), bench.committable(coordinator, 0)
        undated = msgspec.structs.replace(live, epoch=ANY_EPOCH, transaction="undated")
        bench.sink.open = [live, lost, undated]
        assert sweep(coordinator.writer, [bench.sink]).aborted == (lost,)

    def test_what_a_decision_names_is_never_aborted(self):
        bench = Bench()
        done = bench.run(bench.opened(), 0)
        bench.sink.open = [done]
        bench.opened()
        assert bench.sink.aborted == []

    def test_a_sweeper_that_was_fenced_while_it_listed_aborts_nothing(self):
        bench = Bench()
        self.listed(bench)
        coordinator = bench.coordinator()
        coordinator.writer.start()
        bench.sink.when_listed = lambda: Coordinator("p", bench.store, [FakeSink()], policy()).open()
        assert sweep(coordinator.writer, [bench.sink]).aborted == ()
        assert bench.sink.aborted == []

    def test_what_a_retry_left_behind_is_aborted_after_the_decision(self):
        """In the first epoch and, after the writer's START was pruned, in later ones."""
        bench = Bench()
        coordinator = bench.opened()
        for epoch in range(3):
            coordinator.admit(epoch, about(epoch))
            lost, won = bench.committable(coordinator, epoch), bench.committable(coordinator, epoch)
            bench.sink.open = [lost]
            coordinator.commit(epoch, [acknowledgement(won, epoch=epoch, attempt=1, retried=True)], about(epoch))
            assert bench.sink.aborted[-1:] == [lost.transaction]

    def test_an_attempt_that_prepares_after_its_epochs_sweep_is_aborted_within_a_minute(self):
        now = [0.0]
        bench = Bench(monotonic=lambda: now[0])
        coordinator = bench.opened()
        bench.run(coordinator, 0)
        late = bench.committable(coordinator, 0)
        bench.sink.open = [late]
        for epoch, seconds, aborted in [(1, 59.0, []), (2, 60.0, [late.transaction]), (3, 61.0, [late.transaction])]:
            now[0] = seconds
            bench.run(coordinator, epoch)
            assert bench.sink.aborted == aborted

    def test_an_abort_that_fails_is_tried_again_after_each_epoch(self):
        bench = Bench()
        left = self.listed(bench)
        bench.sink.abort_status = AbortStatus.RETRY_LATER
        bench.sink.keeps_open = True
        coordinator = bench.opened()
        bench.run(coordinator, 0)
        assert bench.sink.aborted == [left.transaction] * 2
        bench.sink.abort_status, bench.sink.keeps_open = AbortStatus.ABORTED, False
        for epoch in (1, 2):
            bench.run(coordinator, epoch)
        assert bench.sink.aborted == [left.transaction] * 3


class TestMistakes:
    def test_a_sweep_that_fails_after_an_epoch_does_not_fail_the_epoch(self):
        def broken() -> None:
            raise RetryableSinkError("a broker is away")

        now = [0.0]
        bench = Bench(monotonic=lambda: now[0])
        coordinator = bench.opened()
        late = bench.committable(coordinator, 0)
        bench.sink.open = [late]
        now[0] = 60.0
        bench.sink.when_listed = broken
        bench.run(coordinator, 0)
        assert (coordinator.view.completed, bench.sink.aborted) == (0, [])
        bench.sink.when_listed = None
        bench.run(coordinator, 1)
        assert bench.sink.aborted == [late.transaction]

    def test_another_query_is_refused_before_it_fences_the_one_that_runs(self):
        bench = Bench()
        healthy = bench.opened()
        bench.run(healthy, 0)
        with pytest.raises(EpochConflictError, match=r"by another query \(q, not other\)"):
            bench.coordinator().open(query="other")
        bench.run(healthy, 1)
        bench.coordinator().open(query="q")
        bench.coordinator().open(query="other", rewind="on purpose")
        bench.coordinator().open(query="other")


def test_pauses_grow_are_jittered_and_end():
    slept: list[float] = []
    backoff = Backoff(first=1.0, factor=2.0, most=5.0, attempts=4, sleep=slept.append, fraction=lambda: 0.5)
    assert [backoff.pause(n) for n in range(5)] == [True, True, True, True, False]
    assert slept == [0.75, 1.5, 3.0, 3.75]
    assert policy().token() != policy().token()
