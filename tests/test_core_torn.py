"""An epoch some of which can expire: what is committed first, and what becomes of a decision that lost something."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from onceward.core.checkpoint import Admission, Coordinator, OnLost
from onceward.core.checkpoint.recovery import TransactionStatus, status_for_sweeper, status_of
from onceward.core.contract.proof import Proof, total
from onceward.core.contract.targets import sinks_target
from onceward.core.contract.transaction import AbortOutcome, AbortStatus, CommitOutcome, Committable, Observation
from onceward.core.errors import (
    CommitPendingError,
    ConfigurationError,
    DataLossError,
    EpochConflictError,
    EpochTornError,
    EpochVoidedError,
    FencedError,
    OncewardError,
    RetryableSinkError,
    SinkError,
)
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import Replace, audit_records, read
from onceward.core.operations.history import history
from onceward.core.operations.log_locations import Log
from onceward.core.operations.resolve import commit_decided
from onceward.core.operations.survey import survey

from .core_fakes import acknowledgement, policy
from .losses_kit import ABORTED, ABOUT, BEGUN, COMMITTED, EXPIRED, PREPARED, Case, committable
from .sink_kit import TargetSink

if TYPE_CHECKING:
    from collections.abc import Sequence


class TestOrder:
    """Rule A: what can expire goes first, and what cannot waits for it."""

    def test_what_cannot_expire_is_committed_after_what_can(self):
        case = Case()
        order: list[str] = []
        for sink in (case.kafka, case.table):
            sink.calls = order
        coordinator = case.opened()
        coordinator.admit(0, ABOUT)
        order.clear()
        coordinator.commit(0, case.written(coordinator), ABOUT)
        assert [":kafka:" in call for call in order if call.startswith("commit")] == [True, False]

    def test_what_cannot_expire_waits_while_what_can_does_not_answer(self):
        case = Case()
        case.decided()
        case.kafka.target.away = True
        with pytest.raises(CommitPendingError, match="table: not asked before kafka"):
            case.opened()
        assert not case.table.target.with_state(COMMITTED, ABORTED)
        case.kafka.target.away = False
        case.opened()
        assert read(case.store).completed == 0

    def test_what_can_expire_never_waits_for_what_cannot(self):
        case = Case()
        case.decided()
        case.table.target.away = True
        with pytest.raises(CommitPendingError):
            case.opened()
        assert case.kafka.target.with_state(COMMITTED)

    @pytest.mark.parametrize("lost", ["kafka", "table"])
    def test_fail_stops_with_every_choice_still_open(self, lost: str):
        case = Case(OnLost.FAIL)
        named = case.decided()
        sink = getattr(case, lost)
        sink.target.states[case.of(sink, named)[0]] = EXPIRED
        with pytest.raises(DataLossError, match="on_lost='replay'"):
            case.opened()
        assert not case.kafka.target.with_state(COMMITTED) + case.table.target.with_state(COMMITTED)
        case.on_lost = OnLost.REPLAY
        assert case.opened().admit(0, ABOUT) is Admission.NEW

    @pytest.mark.parametrize("lost", ["kafka", "table"])
    def test_skip_is_recorded_before_the_rest_is_committed(self, lost: str):
        case = Case(OnLost.SKIP)
        named = case.decided()
        sink, other = (case.kafka, case.table) if lost == "kafka" else (case.table, case.kafka)
        sink.target.states[case.of(sink, named)[0]] = EXPIRED
        view = case.opened().view
        assert view.completed == 0
        assert other.target.with_state(COMMITTED) == case.of(other, named)
        assert [record.action for record in audit_records(case.store)] == ["skip"]  # type: ignore[union-attr]

    def test_what_expires_is_committed_though_another_share_is_lost_for_good_if_some_is_visible(self):
        case = Case(OnLost.FAIL, subtasks=3)
        named = case.decided()
        first, second, third = case.of(case.kafka, named)
        case.kafka.target.states |= {first: COMMITTED, second: EXPIRED}
        with pytest.raises(DataLossError):
            case.opened()
        assert case.kafka.target.state_of(third) is COMMITTED
        assert not case.table.target.with_state(COMMITTED, ABORTED)

    def test_a_target_that_comes_back_while_a_start_waits_is_swept_before_anything_new(self):
        """It was not swept at first, because it had not said whose its names are."""
        case = Case()
        case.decided()
        [left] = case.written(case.coordinator_of_an_older_start(), ["table"])[0].committables
        case.table.target.hold(left)
        answers = [RetryableSinkError("no answer")]

        def check_claim(*_: object) -> None:
            if answers:
                raise answers.pop()

        case.table.check_claim = check_claim  # type: ignore[method-assign,assignment]
        case.opened()
        assert case.table.target.state_of(left.transaction) is ABORTED
        assert read(case.store).completed == 0


class TestReplay:
    @pytest.mark.parametrize("lost", ["kafka", "table"])
    def test_a_decision_of_which_nothing_is_visible_is_taken_back(self, lost: str):
        case = Case()
        named = case.decided()
        sink, other = (case.kafka, case.table) if lost == "kafka" else (case.table, case.kafka)
        sink.target.states[case.of(sink, named)[0]] = EXPIRED
        coordinator = case.opened()
        assert other.target.with_state(ABORTED) == case.of(other, named)
        assert coordinator.admit(0, ABOUT) is Admission.NEW
        coordinator.commit(0, case.written(coordinator), ABOUT)
        assert len(case.kafka.target.with_state(COMMITTED)) == len(case.table.target.with_state(COMMITTED)) == 1

    def test_a_run_whose_decision_was_taken_back_says_so(self):
        case = Case()
        coordinator = case.opened()
        coordinator.admit(0, ABOUT)
        acks = case.written(coordinator)
        case.kafka.target.states[acks[0].committables[1].transaction] = EXPIRED
        with pytest.raises(EpochVoidedError):
            coordinator.commit(0, acks, ABOUT)
        assert read(case.store).undone is None

    def test_nothing_is_taken_back_while_a_target_does_not_answer(self):
        case = Case()
        named = case.decided()
        case.kafka.target.states[case.of(case.kafka, named)[0]] = EXPIRED
        case.table.target.away = True
        with pytest.raises(CommitPendingError):
            case.opened()
        case.table.target.away = False
        assert case.opened().admit(0, ABOUT) is Admission.NEW

    def test_an_abort_that_loses_against_a_commit_takes_nothing_back(self):
        case = Case()
        named = case.decided()
        [table] = case.of(case.table, named)
        case.kafka.target.states[case.of(case.kafka, named)[0]] = EXPIRED
        real, zombie = case.table.inspect_many, [COMMITTED]

        def inspect_many(committables: Sequence[Committable]) -> Sequence[Observation]:
            seen = real(committables)
            if len(case.table.calls) > 1 and zombie:  # after the look: the old driver wakes up and commits
                case.table.target.states[table] = zombie.pop()
            case.table.calls.append("inspect")
            return seen

        case.table.calls.clear()
        case.table.inspect_many = inspect_many  # type: ignore[method-assign]
        coordinator = case.opened()
        assert coordinator.admit(0, ABOUT) is Admission.HEAL
        assert read(case.store).undone is not None

    def test_a_commit_that_has_begun_is_visible_and_nothing_is_aborted(self):
        """Its first file is there, so the epoch cannot be taken back; the healthy rest of it stays."""
        case = Case(subtasks=2)
        named = case.decided()
        begun, healthy = case.of(case.table, named)
        lost, _ = case.of(case.kafka, named)
        case.table.target.states[begun], case.kafka.target.states[lost] = BEGUN, EXPIRED
        coordinator = case.opened()
        assert coordinator.admit(0, ABOUT) is Admission.HEAL
        assert not case.table.target.with_state(ABORTED) + case.kafka.target.with_state(ABORTED)
        again = committable(coordinator, "kafka", 0, 7)
        coordinator.commit(0, [acknowledgement(again, sinks=("kafka",))], ABOUT)
        assert sorted(case.table.target.with_state(COMMITTED)) == sorted([begun, healthy])

    def test_nothing_is_aborted_if_a_commit_begins_before_all_have_agreed(self):
        case, other = Case(), TargetSink(name="other")
        table, healthy, kafka = case.made(other)
        case.kafka.target.states[kafka.transaction] = EXPIRED
        looks = [PREPARED, BEGUN, BEGUN]  # the old driver wakes up after the first one
        case.table.inspect_many = lambda every: [looks.pop(0)] * len(every)  # type: ignore[method-assign]
        sinks = [case.table, other, case.kafka]
        Coordinator("p", case.store, sinks, policy(on_lost=OnLost.REPLAY), heals=True).open()
        assert other.target.state_of(healthy.transaction) is PREPARED
        assert case.table.target.state_of(table.transaction) is PREPARED

    @pytest.mark.parametrize("heals", [True, False])
    def test_a_commit_that_begins_after_the_look_leaves_alone_what_no_proof_could_replace(self, heals: bool):
        """Its abort is refused; until then only transactions were aborted that can be written again by themselves."""
        case = Case(subtasks=1)
        other = TargetSink(name="other")
        table, begins, kafka = case.made(other)
        case.kafka.target.states[kafka.transaction] = EXPIRED
        real = other.abort

        def abort(aborted: Committable) -> AbortOutcome:
            if other.target.state_of(aborted.transaction) is PREPARED:  # the old driver wakes up
                other.target.states[aborted.transaction] = BEGUN
            return real(aborted)

        other.abort = abort  # type: ignore[method-assign]
        sinks = [case.table, other, case.kafka]
        coordinator = Coordinator("p", case.store, sinks, policy(on_lost=OnLost.REPLAY), heals=heals)
        if heals:
            coordinator.open()
            assert coordinator.lost is not None
            assert coordinator.lost.sinks == {"kafka"}
        else:
            with pytest.raises(DataLossError):
                coordinator.open()
        assert case.table.target.state_of(table.transaction) is PREPARED
        assert other.target.state_of(begins.transaction) is BEGUN

    def test_a_disappeared_transaction_is_no_proof(self):
        case = Case()
        named = case.decided()
        case.kafka.target.states[case.of(case.kafka, named)[0]] = EXPIRED
        case.table.target.states[case.of(case.table, named)[0]] = Observation.ABSENT
        with pytest.raises(DataLossError):
            case.opened(heals=False)
        assert read(case.store).undone is not None

    def test_a_fenced_writer_takes_nothing_back(self):
        case = Case()
        named = case.decided()
        case.kafka.target.states[case.of(case.kafka, named)[0]] = EXPIRED
        late = case.coordinator()
        real = case.kafka.inspect_many

        def inspect_many(committables: Sequence[Committable]) -> Sequence[Observation]:
            case.kafka.inspect_many = real  # type: ignore[method-assign]
            Coordinator("p", case.store, [case.table, case.kafka], policy(on_lost=OnLost.FAIL)).writer.start()
            return real(committables)

        case.kafka.inspect_many = inspect_many  # type: ignore[method-assign]
        with pytest.raises(FencedError):
            late.open()
        assert not case.table.target.with_state(ABORTED)

    @pytest.mark.parametrize("on_lost", [OnLost.FAIL, OnLost.REPLAY])
    def test_what_a_target_refuses_to_tell_is_not_committed_without_having_been_seen(self, on_lost: OnLost):
        """The refusal passes, the commit is answered, and half of an epoch is visible whose other half is lost."""
        case = Case(on_lost=on_lost, subtasks=2)
        named = case.decided()
        case.table.target.states[case.of(case.table, named)[0]] = ABORTED
        real = case.table.inspect_many

        def refuse(_: Sequence[Committable]) -> Sequence[Observation]:
            case.table.inspect_many = real  # type: ignore[method-assign]
            raise SinkError("the server refuses")

        case.table.inspect_many = refuse  # type: ignore[method-assign]
        with pytest.raises(SinkError, match="the server refuses"):
            case.opened()
        assert not case.table.target.with_state(COMMITTED)


class TestHealing:
    """Some of the epoch is visible and some is lost: only that is written again, and proven to be the same."""

    def torn(self, subtasks: int = 1) -> tuple[Case, list[Committable]]:
        case = Case(subtasks=subtasks)
        named = case.decided()
        for name in case.of(case.kafka, named):
            case.kafka.target.states[name] = COMMITTED
        case.table.target.states[case.of(case.table, named)[0]] = ABORTED
        return case, named

    def test_what_is_lost_is_written_again_and_nothing_else(self):
        case, named = self.torn()
        coordinator = case.opened()
        assert coordinator.admit(0, ABOUT) is Admission.HEAL
        assert coordinator.lost is not None
        assert (coordinator.lost.sinks, coordinator.lost.writes("table")) == ({"table"}, None)
        acks = case.written(coordinator, ["table"])
        coordinator.commit(0, acks, ABOUT)
        again = acks[0].committables[0].transaction
        assert case.table.target.with_state(COMMITTED) == [again]
        view = read(case.store)
        assert view.completed == 0
        assert {c.transaction for c in view.newest.committables} == {again, *case.of(case.kafka, named)}  # type: ignore[union-attr]
        assert case.opened().admit(0, ABOUT) is Admission.REPLAY

    def test_other_rows_are_refused_with_both_sums_and_aborted(self):
        case, _ = self.torn()
        coordinator = case.opened()
        coordinator.admit(0, ABOUT)
        acks = case.written(coordinator, ["table"], table=8)
        case.table.target.hold(*(c for ack in acks for c in ack.committables))
        with pytest.raises(DataLossError, match=r"recorded 7 rows with hash \w+, .* gave 8 rows with hash"):
            coordinator.commit(0, acks, ABOUT)
        assert case.table.target.state_of(acks[0].committables[0].transaction) is ABORTED
        assert read(case.store).undone is not None

    def test_only_the_subtasks_that_lost_something_write_again(self):
        case, named = self.torn(subtasks=3)
        first, *others = case.of(case.table, named)
        for name in others:
            case.table.target.states[name] = COMMITTED
        coordinator = case.opened()
        coordinator.admit(0, ABOUT)
        assert coordinator.lost is not None
        assert coordinator.lost.writes("table") == {0}
        assert coordinator.lost.subtasks == 3
        again = committable(coordinator, "table", 0, 7)
        acks = [acknowledgement(*([again] if n == 0 else []), subtask=n, sinks=("table",)) for n in range(3)]
        coordinator.commit(0, acks, ABOUT)
        assert sorted(case.table.target.with_state(COMMITTED)) == sorted([again.transaction, *others])
        assert case.table.target.state_of(first) is ABORTED

    @pytest.mark.parametrize("proof", [None, Proof(total([]), ("id",))])
    def test_a_hash_of_what_can_be_read_back_heals_nothing(self, proof: Proof | None):
        """It leaves columns out, and older decisions hold no other one."""
        case = Case()
        coordinator = case.opened()
        coordinator.admit(0, ABOUT)
        [ack] = case.written(coordinator)
        bare = [msgspec.structs.replace(c, handed=msgspec.UNSET, proof=proof) for c in ack.committables]
        coordinator.writer.decide(0, bare, sinks=["table", "kafka"], epoch_input=ABOUT)
        case.kafka.target.states[bare[1].transaction], case.table.target.states[bare[0].transaction] = (
            COMMITTED,
            ABORTED,
        )
        with pytest.raises(DataLossError, match="holds no hash of all that table was handed") as refused:
            case.opened()
        # What was just refused is no choice.
        assert "on_lost='replay'" not in str(refused.value)
        assert "Choices: rewind='why'" in str(refused.value)

    def test_rows_that_were_written_again_without_a_hash_are_refused(self):
        case, _ = self.torn()
        coordinator = case.opened()
        coordinator.admit(0, ABOUT)
        [ack] = case.written(coordinator, ["table"])
        bare = [msgspec.structs.replace(c, handed=msgspec.UNSET) for c in ack.committables]
        with pytest.raises(DataLossError, match="with hash unknown"):
            coordinator.commit(0, [msgspec.structs.replace(ack, committables=tuple(bare))], ABOUT)

    @pytest.mark.parametrize("seen", [Observation.UNKNOWN, Observation.ABSENT])
    def test_what_turns_out_unproven_in_its_commit_is_not_written_again(self, seen: Observation):
        """The look says nothing of it, and its commit, which is asked for because it could expire, no more."""
        case = Case(subtasks=2)
        named = case.decided()
        visible, unknown = case.of(case.kafka, named)
        case.kafka.target.states |= {visible: COMMITTED, unknown: seen}
        case.table.target.states[case.of(case.table, named)[0]] = ABORTED
        with pytest.raises(DataLossError, match="cannot be proven that what is missing was not committed"):
            case.opened()

    def test_a_driver_that_cannot_compute_the_epoch_again_is_told_the_choices(self):
        case, _ = self.torn()
        with pytest.raises(DataLossError, match="only a pipeline whose sources can be read again"):
            case.opened(heals=False)

    @pytest.mark.parametrize("changes", [{"digest": "other"}, {"end": [11]}, {"query": "another"}])
    def test_only_the_same_input_heals(self, changes: dict[str, Any]):
        case, _ = self.torn()
        with pytest.raises(EpochTornError):
            case.opened().admit(0, msgspec.structs.replace(ABOUT, **changes))
        with pytest.raises(EpochTornError):
            case.opened().admit(1, ABOUT)

    def test_a_crash_before_the_replacement_is_durable_leaves_something_to_sweep(self):
        case, _ = self.torn()
        coordinator = case.opened()
        coordinator.admit(0, ABOUT)
        [ack] = case.written(coordinator, ["table"])
        [left] = ack.committables
        view = read(case.store)
        assert status_for_sweeper(left, view, coordinator.writer.token.start) is TransactionStatus.IN_DOUBT
        assert status_of(left, view) is TransactionStatus.IN_DOUBT
        case.table.target.hold(left)
        assert case.opened().admit(0, ABOUT) is Admission.HEAL
        assert case.table.target.state_of(left.transaction) is ABORTED

    def test_a_crash_after_it_leaves_a_decision_that_anybody_can_finish(self):
        case, named = self.torn()
        coordinator = case.opened()
        coordinator.admit(0, ABOUT)
        [ack] = case.written(coordinator, ["table"])
        lost = [c for c in named if c.sink == "table"]
        coordinator.writer.replace(lost, ack.committables)
        view = read(case.store)
        assert view.named(ack.committables[0]) == ack.committables[0]
        assert view.named(lost[0]) is None
        assert case.opened(heals=False).view.completed == 0
        assert case.table.target.with_state(COMMITTED) == [ack.committables[0].transaction]

    def test_targets_remember_the_generation_of_what_was_written_again(self):
        case, _ = self.torn()
        coordinator = case.opened()
        coordinator.admit(0, ABOUT)
        coordinator.commit(0, case.written(coordinator, ["table"]), ABOUT)
        view = read(case.store)
        assert view.reached["table"].generation == coordinator.writer.token.start
        assert view.reached["kafka"].generation < coordinator.writer.token.start
        assert view.progress >= view.reached["table"].progress

    def test_what_was_written_again_can_be_lost_again(self):
        case, _ = self.torn()
        for _ in range(2):
            coordinator = case.opened()
            assert coordinator.admit(0, ABOUT) is Admission.HEAL
            [ack] = case.written(coordinator, ["table"])
            case.table.target.states[ack.committables[0].transaction] = ABORTED
            with pytest.raises(EpochTornError):
                coordinator.commit(0, [ack], ABOUT)
        coordinator = case.opened()
        coordinator.admit(0, ABOUT)
        coordinator.commit(0, case.written(coordinator, ["table"]), ABOUT)
        records = audit_records(case.store)
        assert [type(record) for record in records] == [Replace] * 3
        assert read(case.store).completed == 0

    def test_a_rewind_to_after_a_torn_epoch_waits_for_it(self):
        case, _ = self.torn()
        with pytest.raises(EpochTornError):
            case.coordinator().open(rewind="because", first_epoch=1, query="other")

    def test_another_process_goes_on_with_what_is_lost(self):
        case, named = self.torn()
        opened = case.opened()
        opened.admit(0, ABOUT)
        acks = case.written(opened, ["table"])
        other = case.coordinator()
        other.resume(opened.writer.token, case.of(case.table, named))
        assert other.admit(0, ABOUT) is Admission.HEAL
        with pytest.raises(EpochConflictError, match="what it lost is to be written first"):
            other.admit(1, ABOUT)
        other.commit(0, acks, ABOUT)
        assert read(case.store).completed == 0


class TestRewind:
    """Going back decides about everything that it covers before anything is committed."""

    @pytest.mark.parametrize("first_epoch", [0, None])
    def test_a_decision_that_a_rewind_covers_is_void_and_what_is_prepared_is_aborted(self, first_epoch: int | None):
        case = Case()
        named = case.decided()
        case.coordinator().open(rewind="emptied the table", first_epoch=first_epoch, query="q")
        assert case.table.target.with_state(ABORTED) == case.of(case.table, named)
        assert case.kafka.target.with_state(ABORTED) == case.of(case.kafka, named)
        coordinator = case.opened()
        assert coordinator.admit(0, ABOUT) is Admission.NEW
        coordinator.commit(0, case.written(coordinator), ABOUT)
        assert len(case.table.target.with_state(COMMITTED)) == len(case.kafka.target.with_state(COMMITTED)) == 1

    def test_what_is_visible_of_it_stays_and_the_rest_is_not_added(self):
        case = Case()
        named = case.decided()
        case.kafka.target.states[case.of(case.kafka, named)[0]] = COMMITTED
        case.coordinator().open(rewind="emptied the table", first_epoch=0, query="q")
        assert case.table.target.with_state(ABORTED) == case.of(case.table, named)
        assert case.kafka.target.with_state(COMMITTED) == case.of(case.kafka, named)

    def test_a_commit_that_has_begun_is_finished(self):
        case = Case()
        named = case.decided()
        case.table.target.states[case.of(case.table, named)[0]] = BEGUN
        case.coordinator().open(rewind="emptied the topic", first_epoch=0, query="q")
        assert case.table.target.with_state(COMMITTED) == case.of(case.table, named)
        assert case.kafka.target.with_state(ABORTED) == case.of(case.kafka, named)

    def test_a_rewind_waits_for_a_target_that_does_not_answer(self):
        case = Case()
        case.decided()
        case.table.target.away = True
        with pytest.raises(CommitPendingError, match="the rewind takes it back"):
            case.coordinator().open(rewind="emptied the table", first_epoch=0, query="q")
        assert not case.kafka.target.with_state(COMMITTED)
        with pytest.raises(CommitPendingError):  # whoever starts next goes on with it, and commits nothing either
            case.opened()
        case.table.target.away = False
        assert case.opened().admit(0, ABOUT) is Admission.NEW
        assert not case.table.target.with_state(COMMITTED)
        assert not case.kafka.target.with_state(COMMITTED)

    def test_an_earlier_decision_than_it_covers_is_finished(self):
        case = Case()
        case.decided()
        case.coordinator().open(rewind="the next one again", first_epoch=1, query="q")
        assert len(case.table.target.with_state(COMMITTED)) == 1

    def test_an_earlier_decision_that_is_voided_is_not_left_out(self):
        case = Case()
        named = case.decided()
        case.table.target.states[case.of(case.table, named)[0]] = ABORTED
        with pytest.raises(EpochConflictError, match=r"epoch 0 was decided, and lost.*would leave it out"):
            case.coordinator().open(rewind="the next one again", first_epoch=1, query="q")
        assert case.opened().admit(0, ABOUT) is Admission.NEW

    @pytest.mark.parametrize("seen", [Observation.UNKNOWN, Observation.ABSENT, PREPARED])
    def test_a_transaction_that_left_no_trace_has_ended(self, seen: Observation):
        """A target that cannot tell how it ended would never give another answer."""
        case = Case()
        named = case.decided()

        class Vague(TargetSink):
            def abort(self, committable: Committable) -> AbortOutcome:  # noqa: ARG002
                return AbortOutcome(AbortStatus.UNKNOWN, "never heard of it")

        case.table = Vague(name="table")
        case.table.target.states = dict.fromkeys(case.of(case.table, named), seen)
        case.coordinator().open(rewind="emptied the table", first_epoch=0, query="q")
        assert case.opened().admit(0, ABOUT) is Admission.NEW

    def test_a_target_that_is_at_work_on_a_transaction_is_asked_again(self):
        case = Case(subtasks=2)
        named = case.decided()
        busy = iter([False, True, True])

        class Busy(TargetSink):
            def abort(self, committable: Committable) -> AbortOutcome:
                if next(busy, False):
                    return AbortOutcome(AbortStatus.RETRY_LATER, "busy")
                return super().abort(committable)

        case.table = Busy(name="table")
        case.coordinator().open(rewind="emptied the table", first_epoch=0, query="q")
        assert sorted(case.table.target.with_state(ABORTED)) == sorted(case.of(case.table, named))
        assert next(busy, None) is None

    @pytest.mark.parametrize("error", [None, SinkError("refused for good"), DataLossError("the server was emptied")])
    def test_what_is_visible_in_part_is_completed_if_it_can_be(self, error: Exception | None):
        """Its commit takes several steps and has begun: what is visible before a rewind stays, whole or as it is."""
        case = Case()
        case.decided()

        class HalfMoved(TargetSink):
            def abort(self, committable: Committable) -> AbortOutcome:  # noqa: ARG002
                return AbortOutcome(AbortStatus.COMMITTED, "it has begun")

            def commit(self, committable: Committable) -> CommitOutcome:
                if error is not None:
                    raise error
                return super().commit(committable)

        case.table = HalfMoved(name="table")
        case.coordinator().open(rewind="emptied the table", first_epoch=0, query="q")
        assert len(case.table.target.with_state(COMMITTED)) == (error is None)
        assert case.opened().admit(0, ABOUT) is Admission.NEW

    @pytest.mark.parametrize("when", ["before", "meanwhile"])
    @pytest.mark.parametrize("what", ["removed", "of another kind"])
    def test_a_program_that_could_not_end_the_decision_is_refused_before_a_target_forgets(self, when: str, what: str):
        """A rewind that did not take place changes nothing, so the next start without it goes on."""
        case = Case()

        class OfAnotherKind(TargetSink):
            def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:  # noqa: ARG002
                raise ConfigurationError("a committable of kind fake is not mine")

        sinks = [case.kafka, *([OfAnotherKind(name="table")] if what == "of another kind" else [])]
        back = Coordinator("p", case.store, sinks, policy())
        words = "no longer has" if what == "removed" else "not mine"

        others = iter([case.decided] if when == "meanwhile" else [])

        def decide(step: Step) -> None:
            if step is Step.START_BEFORE and (decide_now := next(others, None)) is not None:
                decide_now()

        if when == "before":
            case.decided()
        entries = len(case.store.entries)
        with hooked(decide), pytest.raises((EpochConflictError, ConfigurationError), match=words):
            back.open(rewind="emptied the table", first_epoch=0, query="q")
        assert when == "meanwhile" or len(case.store.entries) == entries  # refused before anybody was fenced
        assert "release" not in case.kafka.calls
        assert read(case.store).rewind is None
        case.opened()
        assert len(case.table.target.with_state(COMMITTED)) == len(case.kafka.target.with_state(COMMITTED)) == 1

    @pytest.mark.parametrize("put", [1, 2])
    def test_a_start_that_dies_before_its_rewind_is_written_changes_nothing(self, put: int):
        case = Case()
        case.decided()
        case.opened()
        seen = count(1)

        def die(step: Step) -> None:
            if step is Step.LOG_PUT_BEFORE and next(seen) == put:
                raise KeyboardInterrupt

        with hooked(die), pytest.raises(KeyboardInterrupt):
            case.coordinator().open(rewind="emptied the table", first_epoch=0, query="q")
        assert "release" not in [*case.kafka.calls, *case.table.calls]
        assert not case.opened().view.rewound

    def test_targets_forget_after_the_rewind_is_written_whoever_starts_next(self):
        case = Case()
        case.decided()
        case.opened()

        def die(step: Step) -> None:
            if step is Step.LOG_PUT_AFTER and read(case.store).rewound:
                raise KeyboardInterrupt

        with hooked(die), pytest.raises(KeyboardInterrupt):
            case.coordinator().open(rewind="emptied the table", first_epoch=0, query="q")
        assert "release" not in [*case.kafka.calls, *case.table.calls]
        assert case.opened().admit(0, ABOUT) is Admission.NEW
        assert "release" in case.kafka.calls
        assert "release" in case.table.calls


class TestOperators:
    """`txn` on a decision of which one target does not answer, or was not given."""

    def log_and_targets(self, case: Case) -> tuple[Log, Any, Any]:
        named = case.decided()
        for sink in (case.kafka, case.table):
            sink.target.hold(*(c for c in named if c.sink == sink.name))
        return Log("p", case.store), sinks_target([case.kafka], "kafka"), sinks_target([case.table], "table")

    def test_a_target_that_does_not_answer_hides_no_other_and_is_named(self):
        case = Case()
        log, kafka, table = self.log_and_targets(case)
        case.table.when_listed = _raise_no_answer
        with pytest.raises(RetryableSinkError):
            survey([log], [kafka, table])
        found = survey([log], [kafka, table], must_answer=False)
        assert {(one.committable.sink, one.state) for one in found.transactions} == {
            ("kafka", PREPARED),
            ("table", Observation.NO_ANSWER),
        }
        assert list(found.unanswered) == ["table"]

    def test_what_expires_is_committed_though_another_target_does_not_answer(self):
        case = Case()
        log, kafka, table = self.log_and_targets(case)
        case.table.when_listed, case.table.target.away = _raise_no_answer, True
        decision = log.view.undone
        assert decision is not None
        found = survey([log], [kafka, table], must_answer=False).transactions
        with pytest.raises(CommitPendingError, match="table: RetryableSinkError: no answer"):
            commit_decided(log, decision, found, policy=policy())
        assert len(case.kafka.target.with_state(COMMITTED)) == 1
        assert log.view.undone is not None

    def test_what_expires_is_committed_though_another_target_was_not_given(self):
        case = Case()
        log, kafka, _ = self.log_and_targets(case)
        decision = log.view.undone
        assert decision is not None
        with pytest.raises(SinkError, match="The epoch stays decided, without this part"):
            commit_decided(log, decision, survey([log], [kafka]).transactions, policy=policy())
        assert len(case.kafka.target.with_state(COMMITTED)) == 1

    def test_what_cannot_expire_waits_for_a_target_that_was_not_given(self):
        case = Case()
        log, _, table = self.log_and_targets(case)
        decision = log.view.undone
        assert decision is not None
        with pytest.raises(SinkError):
            commit_decided(log, decision, survey([log], [table]).transactions, policy=policy())
        assert not case.table.target.with_state(COMMITTED)

    def test_the_seconds_that_are_left_are_shown(self):
        case = Case()
        log, kafka, _ = self.log_and_targets(case)
        case.kafka.expires_at = lambda _: time.time() + 90.4  # type: ignore[method-assign]
        [one, _] = sorted(survey([log], [kafka]).transactions, key=lambda one: one.committable.sink)
        assert one.expires_in == 90
        [epoch] = history(log, [one]).epochs
        assert (epoch.completed, epoch.expires_in) == (None, 90)


def _raise_no_answer() -> None:
    raise RetryableSinkError("no answer")


def test_a_sink_that_joins_before_a_torn_epoch_is_healed_is_refused():
    case = Case()
    named = case.decided()
    for name in case.of(case.kafka, named):
        case.kafka.target.states[name] = COMMITTED
    case.table.target.states[case.of(case.table, named)[0]] = ABORTED
    sinks = [case.table, case.kafka, TargetSink(name="audit")]
    coordinator = Coordinator("p", case.store, sinks, policy(on_lost=OnLost.REPLAY), heals=True)
    coordinator.open()
    with pytest.raises(EpochConflictError, match="decided before audit took part"):
        coordinator.admit(0, ABOUT)


@pytest.mark.parametrize("answer", [RuntimeError("a bug"), (True, 3)])
def test_what_one_sink_raises_at_a_start_keeps_no_other_from_committing_what_expires(answer: object):
    case = Case()
    case.decided()

    def asked(*_: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    case.table.check_claim = asked  # type: ignore[method-assign, assignment]
    with pytest.raises(OncewardError):
        case.opened()
    assert case.kafka.target.with_state(COMMITTED)


def test_a_target_that_says_it_gives_no_answer_to_a_look_gets_no_commits():
    """One of two transactions is lost. If the other one were committed, the epoch could not be written again."""
    case = Case(subtasks=2)
    first, _ = case.of(case.table, case.decided())
    case.kafka.target.states.clear()
    case.kafka.timeout = None
    case.table.target.states[first] = ABORTED
    real, silent = case.table.inspect_many, [True]

    def inspect_many(committables: Sequence[Committable]) -> Sequence[Observation]:
        if silent:
            silent.pop()
            return [Observation.NO_ANSWER for _ in committables]
        return real(committables)

    case.table.inspect_many = inspect_many  # type: ignore[method-assign]
    with pytest.raises(DataLossError):
        case.opened(heals=False)
    assert not case.table.target.with_state(COMMITTED)
