"""The cases about the protocol itself: what shows when, who may commit and abort what, and in which order."""

from __future__ import annotations

import contextlib
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from onceward.core.checkpoint import Coordinator
from onceward.core.errors import EpochConflictError
from onceward.core.log import MemoryStore
from onceward.core.steps import Step, hooked
from onceward.core.transaction import AbortStatus, CommitStatus, Committable
from onceward.sinks import TwoPhaseCommitSink

from .sink_case import GOOD, SinkCase, not_applicable, run

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = 40


class ProtocolCases:
    """A part of SinkConformance."""

    def test_01_rows_written_without_a_checkpoint_do_not_show(self, case: SinkCase) -> None:
        writing = case.begin()
        writing.write(case.sink_under_test.rows(case.numbers()))
        case.shows([])
        writing.discard()

    def test_02_rows_prepared_and_not_decided_do_not_show(self, case: SinkCase) -> None:
        case.prepare()
        case.shows([])

    def test_03_rows_of_a_completed_epoch_show_once(self, case: SinkCase) -> None:
        for epoch in range(3):
            case.finish(epoch, case.prepare(epoch))
        case.shows([n for epoch in range(3) for n in case.numbers(epoch)])

    def test_04_an_empty_epoch_opens_nothing(self, case: SinkCase) -> None:
        assert case.begin().pre_commit() is None
        assert case.lingering() == []
        case.finish(0)
        case.finish(1, case.prepare(1))
        case.shows(case.numbers(1))

    def test_05_what_was_closed_before_it_was_prepared_is_gone(self, case: SinkCase) -> None:
        writing = case.begin()
        writing.write(case.sink_under_test.rows(case.numbers()))
        writing.discard()
        case.start()
        case.shows([])
        assert case.lingering() == []

    def test_06_and_50_another_process_commits_what_it_never_saw(self, case: SinkCase) -> None:
        committable = Committable.from_json(case.prepare().to_json())
        other = pickle.loads(pickle.dumps(case.sink))  # noqa: S301 - made right here
        case.sink.claim(case.scope)
        assert other.commit(committable).status in GOOD
        case.shows(case.numbers())

    def test_07_and_08_a_bounded_pipeline_commits_at_its_end(self, case: SinkCase) -> None:
        run(case, [])

    def test_09_to_15_a_failure_at_each_durable_step_duplicates_and_loses_nothing(self, case: SinkCase) -> None:
        run(case, list(case.sink_under_test.steps))

    def test_16_recovery_that_fails_twice_in_a_row_is_done_the_third_time(self, case: SinkCase) -> None:
        case.finish(0, case.prepare(0))
        committable = case.prepare(1)
        left = [3]

        def dies(step: Step) -> None:
            if step is Step.COMMIT_AFTER and left[0]:
                left[0] -= 1
                raise KeyboardInterrupt

        with hooked(dies):
            with pytest.raises(KeyboardInterrupt):
                case.finish(1, committable)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    case.start()
            case.start()
        case.shows(case.numbers(0) + case.numbers(1))

    def test_17_starting_again_and_again_changes_nothing(self, case: SinkCase) -> None:
        case.finish(0, case.prepare())
        for _ in range(3):
            case.start()
        case.shows(case.numbers())

    def test_21_25_and_26_a_commit_can_be_repeated(self, case: SinkCase) -> None:
        committable = case.prepare()
        case.sink.claim(case.scope)
        statuses = [case.commit(committable).status for _ in range(3)]
        assert all(status in GOOD for status in statuses), statuses
        case.shows(case.numbers())

    def test_22_and_23_what_somebody_else_ended_is_never_taken_for_committed(self, case: SinkCase) -> None:
        committable = case.prepare()
        assert case.abort(committable).status is AbortStatus.ABORTED
        outcome = case.commit(committable)
        assert outcome.status not in GOOD, f"it was aborted, and commit says {outcome.status}"
        case.shows([])

    def test_27_an_old_commit_after_a_newer_one_changes_nothing(self, case: SinkCase) -> None:
        first = case.prepare(0)
        case.finish(0, first)
        case.finish(1, case.prepare(1))
        pending = case.prepare(2)
        case.commit(first)
        case.shows(case.numbers(0) + case.numbers(1))
        case.finish(2, pending)
        case.shows([n for epoch in range(3) for n in case.numbers(epoch)])

    def test_28_transactions_of_several_epochs_are_committed_together(self, case: SinkCase) -> None:
        committables = [case.prepare(epoch) for epoch in range(3)]
        case.sink.claim(case.scope)
        outcomes = case.commit_many([committables[2], committables[0], committables[1]])
        assert [outcome.status in GOOD for outcome in outcomes] == [True] * 3
        case.shows([n for epoch in range(3) for n in case.numbers(epoch)])

    def test_29_and_31_an_abort_can_be_repeated(self, case: SinkCase) -> None:
        committable = case.prepare()
        assert case.abort(committable).status is AbortStatus.ABORTED
        for _ in range(2):
            assert case.abort(committable).status is not AbortStatus.COMMITTED
        case.shows([])
        assert case.lingering() == []

    def test_30_what_is_committed_is_not_aborted(self, case: SinkCase) -> None:
        committable = case.prepare()
        case.finish(0, committable)
        assert case.abort(committable).status is not AbortStatus.ABORTED
        case.shows(case.numbers())

    def test_33_of_a_commit_and_an_abort_at_once_one_wins_and_both_are_told(self, case: SinkCase) -> None:
        case.sink.claim(case.scope)
        for attempt in range(5):
            committable = case.prepare(attempt)
            said: dict[str, Any] = {}
            ways: dict[str, Callable[[Committable], Any]] = {
                "commit": case.sink_under_test.make().commit,
                "abort": case.sink_under_test.make().abort,
            }
            threads = [
                threading.Thread(target=lambda way=way: said.update({way: ways[way](committable).status}))  # noqa: B023
                for way in ways
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert said.keys() == ways.keys(), "commit or abort raised"
            # A target that cannot tell who won says so to both, loudly.
            in_doubt = said == {"commit": CommitStatus.UNKNOWN, "abort": AbortStatus.UNKNOWN}
            assert in_doubt or said["commit"] in GOOD or said["abort"] is AbortStatus.ABORTED, f"nobody won: {said}"
            shown = set(case.numbers(attempt)) <= set(case.seen())
            if said["commit"] in GOOD:
                assert shown, "commit says that it won, and the rows do not show"
            if said["abort"] is AbortStatus.ABORTED:
                assert not shown, "abort says that it won, and the rows show"

    def test_34_and_35_an_overtaken_writers_late_commit_does_no_harm(self, case: SinkCase) -> None:
        committable = case.prepare()
        case.finish(0, committable)
        case.start()
        pending = case.prepare(1)
        case.commit(committable)
        case.shows(case.numbers(0))
        case.finish(1, pending)
        case.shows(case.numbers(0) + case.numbers(1))

    def test_37_38_and_72_what_carries_another_name_is_not_touched(self, case: SinkCase) -> None:
        committable = case.prepare()
        neighbour = SinkCase(case.sink_under_test, f"{case.pipeline}-eu")
        theirs = neighbour.prepare()
        case.start()
        assert [c.transaction for c in neighbour.lingering()] == [theirs.transaction]
        neighbour.sink.claim(neighbour.scope)
        assert neighbour.commit(theirs).status in GOOD
        neighbour.shows(neighbour.numbers())
        assert case.commit(committable).status not in GOOD
        case.shows([])

    def test_39_of_two_attempts_one_counts_and_the_other_is_swept(self, case: SinkCase) -> None:
        numbers = case.numbers()
        lost, counts = case.prepare(0, numbers), case.prepare(0, [n + 50 for n in numbers])
        case.finish(0, counts)
        case.start()
        case.shows([n + 50 for n in numbers])
        assert lost.transaction not in {c.transaction for c in case.lingering()}
        assert case.commit(lost).status not in GOOD

    def test_44_what_lingers_is_listed_and_gone_after_a_start(self, case: SinkCase) -> None:
        committable = case.prepare()
        assert [c.transaction for c in case.lingering()] == [committable.transaction]
        case.start()
        assert case.lingering() == []
        case.shows([])

    def test_45_to_49_several_subtasks_come_and_go(self, case: SinkCase) -> None:
        for epoch, many in enumerate((3, 1, 2)):
            parts = [case.prepare(epoch, [case.first + epoch * 100 + n], subtask=n) for n in range(many)]
            case.finish(epoch, *parts)
            case.start()
        case.shows([case.first + epoch * 100 + n for epoch, many in enumerate((3, 1, 2)) for n in range(many)])

    @pytest.mark.parametrize("rewound", [False, True])
    def test_91_a_fresh_log_under_an_old_name_is_refused(self, case: SinkCase, rewound: bool) -> None:
        case.finish(0, case.prepare())
        if rewound:
            case.coordinator.open(rewind="a test", first_epoch=7)
        case.store = MemoryStore()
        with pytest.raises(EpochConflictError):
            case.start()
        case.shows(case.numbers())

    def test_91_a_log_that_never_decided_anything_can_be_replaced(self, case: SinkCase) -> None:
        case.prepare()
        case.start()
        case.store = MemoryStore()
        case.start()
        case.finish(0, case.prepare())
        case.shows(case.numbers())

    def test_91_an_outdated_copy_of_the_log_is_refused_until_it_is_rewound(self, case: SinkCase) -> None:
        case.finish(0, case.prepare())
        copy = MemoryStore()
        for key in case.store.list_keys():
            copy.put_if_absent(key, case.store.get(key) or b"")
        case.finish(1, case.prepare(1))
        case.start()
        case.store = copy
        if not case.sink_under_test.remembers:
            not_applicable("the target cannot tell how far a decision log had come")
        for _ in range(2):
            with pytest.raises(EpochConflictError, match="outdated copy"):
                case.start()
        case.coordinator = Coordinator(case.pipeline, copy, [case.sink])
        case.coordinator.open(rewind="restored", first_epoch=1)
        case.finish(1, case.prepare(1, case.numbers(2)))
        case.start()
        case.shows([n for epoch in range(3) for n in case.numbers(epoch)])

    def test_38_what_a_sink_of_another_name_left_is_found_and_swept(self, case: SinkCase) -> None:
        if type(case.sink).lingering_elsewhere is TwoPhaseCommitSink.lingering_elsewhere:
            not_applicable("the sink lists its own transactions only")
        writing = case.begin(name="renamed")
        writing.write(case.sink_under_test.rows(case.numbers()))
        left = writing.pre_commit()
        assert left is not None
        case.start()
        assert list(case.sink_under_test.make().lingering(case.scope._replace(sink="renamed"))) == []
        assert case.commit(left).status not in GOOD
        case.shows([])

    def test_96_a_writer_that_was_swept_and_wakes_up_shows_nothing(self, case: SinkCase) -> None:
        writing = case.begin()
        writing.write(case.sink_under_test.rows(case.numbers()))
        case.start()
        late = None
        with contextlib.suppress(Exception):
            writing.write(case.sink_under_test.rows(case.numbers(5)))
            late = writing.pre_commit()
        case.start()
        if late is not None:
            assert case.commit(late).status not in GOOD
        with contextlib.suppress(Exception):
            writing.discard()
        case.finish(0, case.prepare(0, case.numbers(7)))
        case.shows(case.numbers(7))

    def test_82_many_epochs_leave_nothing_behind(self, case: SinkCase) -> None:
        for epoch in range(MANY):
            case.finish(epoch, case.prepare(epoch, [case.first + epoch]))
            assert case.lingering() == []
        case.shows([case.first + epoch for epoch in range(MANY)])
