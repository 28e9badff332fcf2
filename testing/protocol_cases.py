"""The cases about the protocol itself: what shows when, who may commit and abort what, and in which order."""

from __future__ import annotations

import contextlib
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from onceward.core.checkpoint import Coordinator
from onceward.core.errors import EpochConflictError
from onceward.core.log.memory import MemoryStore
from onceward.core.steps import Step, hooked
from onceward.core.transaction import AbortStatus, CommitStatus, Committable
from onceward.sinks import TwoPhaseCommitSink

from .exam import GOOD, Exam, not_applicable, run

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = 40


class ProtocolCases:
    """A part of SinkConformance."""

    def test_01_rows_written_without_a_checkpoint_do_not_show(self, exam: Exam) -> None:
        writing = exam.begin()
        writing.write(exam.subject.rows(exam.numbers()))
        exam.shows([])
        writing.discard()

    def test_02_rows_prepared_and_not_decided_do_not_show(self, exam: Exam) -> None:
        exam.prepare()
        exam.shows([])

    def test_03_rows_of_a_completed_epoch_show_once(self, exam: Exam) -> None:
        for epoch in range(3):
            exam.finish(epoch, exam.prepare(epoch))
        exam.shows([n for epoch in range(3) for n in exam.numbers(epoch)])

    def test_04_an_empty_epoch_opens_nothing(self, exam: Exam) -> None:
        assert exam.begin().pre_commit() is None
        assert exam.lingering() == []
        exam.finish(0)
        exam.finish(1, exam.prepare(1))
        exam.shows(exam.numbers(1))

    def test_05_what_was_closed_before_it_was_prepared_is_gone(self, exam: Exam) -> None:
        writing = exam.begin()
        writing.write(exam.subject.rows(exam.numbers()))
        writing.discard()
        exam.start()
        exam.shows([])
        assert exam.lingering() == []

    def test_06_and_50_another_process_commits_what_it_never_saw(self, exam: Exam) -> None:
        committable = Committable.from_json(exam.prepare().to_json())
        other = pickle.loads(pickle.dumps(exam.sink))  # noqa: S301 - made right here
        exam.sink.claim(exam.scope)
        assert other.commit(committable).status in GOOD
        exam.shows(exam.numbers())

    def test_07_and_08_a_bounded_pipeline_commits_at_its_end(self, exam: Exam) -> None:
        run(exam, [])

    def test_09_to_15_a_failure_at_each_durable_step_doubles_and_loses_nothing(self, exam: Exam) -> None:
        run(exam, list(exam.subject.steps))

    def test_16_recovery_that_fails_twice_in_a_row_is_done_the_third_time(self, exam: Exam) -> None:
        exam.finish(0, exam.prepare(0))
        committable = exam.prepare(1)
        left = [3]

        def dies(step: Step) -> None:
            if step is Step.COMMIT_AFTER and left[0]:
                left[0] -= 1
                raise KeyboardInterrupt

        with hooked(dies):
            with pytest.raises(KeyboardInterrupt):
                exam.finish(1, committable)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    exam.start()
            exam.start()
        exam.shows(exam.numbers(0) + exam.numbers(1))

    def test_17_starting_again_and_again_changes_nothing(self, exam: Exam) -> None:
        exam.finish(0, exam.prepare())
        for _ in range(3):
            exam.start()
        exam.shows(exam.numbers())

    def test_21_25_and_26_a_commit_can_be_repeated(self, exam: Exam) -> None:
        committable = exam.prepare()
        exam.sink.claim(exam.scope)
        statuses = [exam.subject.make().commit(committable).status for _ in range(3)]
        assert all(status in GOOD for status in statuses), statuses
        exam.shows(exam.numbers())

    def test_22_and_23_what_somebody_else_ended_is_never_taken_for_committed(self, exam: Exam) -> None:
        committable = exam.prepare()
        assert exam.subject.make().abort(committable).status is AbortStatus.ABORTED
        outcome = exam.subject.make().commit(committable)
        assert outcome.status not in GOOD, f"it was aborted, and commit says {outcome.status}"
        exam.shows([])

    def test_27_an_old_commit_after_a_newer_one_changes_nothing(self, exam: Exam) -> None:
        first = exam.prepare(0)
        exam.finish(0, first)
        exam.finish(1, exam.prepare(1))
        pending = exam.prepare(2)
        exam.subject.make().commit(first)
        exam.shows(exam.numbers(0) + exam.numbers(1))
        exam.finish(2, pending)
        exam.shows([n for epoch in range(3) for n in exam.numbers(epoch)])

    def test_28_transactions_of_several_epochs_are_committed_together(self, exam: Exam) -> None:
        committables = [exam.prepare(epoch) for epoch in range(3)]
        exam.sink.claim(exam.scope)
        outcomes = exam.subject.make().commit_many([committables[2], committables[0], committables[1]])
        assert [outcome.status in GOOD for outcome in outcomes] == [True] * 3
        exam.shows([n for epoch in range(3) for n in exam.numbers(epoch)])

    def test_29_and_31_an_abort_can_be_repeated(self, exam: Exam) -> None:
        committable = exam.prepare()
        assert exam.subject.make().abort(committable).status is AbortStatus.ABORTED
        for _ in range(2):
            assert exam.subject.make().abort(committable).status is not AbortStatus.COMMITTED
        exam.shows([])
        assert exam.lingering() == []

    def test_30_what_is_committed_is_not_aborted(self, exam: Exam) -> None:
        committable = exam.prepare()
        exam.finish(0, committable)
        assert exam.subject.make().abort(committable).status is not AbortStatus.ABORTED
        exam.shows(exam.numbers())

    def test_33_of_a_commit_and_an_abort_at_once_one_wins_and_both_are_told(self, exam: Exam) -> None:
        exam.sink.claim(exam.scope)
        for attempt in range(5):
            committable = exam.prepare(attempt)
            said: dict[str, Any] = {}
            ways: dict[str, Callable[[Committable], Any]] = {
                "commit": exam.subject.make().commit,
                "abort": exam.subject.make().abort,
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
            shown = set(exam.numbers(attempt)) <= set(exam.seen())
            if said["commit"] in GOOD:
                assert shown, "commit says that it won, and the rows do not show"
            if said["abort"] is AbortStatus.ABORTED:
                assert not shown, "abort says that it won, and the rows show"

    def test_34_and_35_an_overtaken_writers_late_commit_does_no_harm(self, exam: Exam) -> None:
        committable = exam.prepare()
        exam.finish(0, committable)
        exam.start()
        pending = exam.prepare(1)
        exam.subject.make().commit(committable)
        exam.shows(exam.numbers(0))
        exam.finish(1, pending)
        exam.shows(exam.numbers(0) + exam.numbers(1))

    def test_37_38_and_72_what_carries_another_name_is_not_touched(self, exam: Exam) -> None:
        committable = exam.prepare()
        neighbour = Exam(exam.subject, f"{exam.pipeline}-eu")
        theirs = neighbour.prepare()
        exam.start()
        assert [c.transaction for c in neighbour.lingering()] == [theirs.transaction]
        neighbour.sink.claim(neighbour.scope)
        assert neighbour.subject.make().commit(theirs).status in GOOD
        neighbour.shows(neighbour.numbers())
        assert exam.subject.make().commit(committable).status not in GOOD
        exam.shows([])

    def test_39_of_two_attempts_one_counts_and_the_other_is_swept(self, exam: Exam) -> None:
        numbers = exam.numbers()
        lost, counts = exam.prepare(0, numbers), exam.prepare(0, [n + 50 for n in numbers])
        exam.finish(0, counts)
        exam.start()
        exam.shows([n + 50 for n in numbers])
        assert lost.transaction not in {c.transaction for c in exam.lingering()}
        assert exam.subject.make().commit(lost).status not in GOOD

    def test_44_what_lingers_is_listed_and_gone_after_a_start(self, exam: Exam) -> None:
        committable = exam.prepare()
        assert [c.transaction for c in exam.lingering()] == [committable.transaction]
        exam.start()
        assert exam.lingering() == []
        exam.shows([])

    def test_45_to_49_several_subtasks_come_and_go(self, exam: Exam) -> None:
        for epoch, many in enumerate((3, 1, 2)):
            parts = [exam.prepare(epoch, [exam.first + epoch * 100 + n], subtask=n) for n in range(many)]
            exam.finish(epoch, *parts)
            exam.start()
        exam.shows([exam.first + epoch * 100 + n for epoch, many in enumerate((3, 1, 2)) for n in range(many)])

    @pytest.mark.parametrize("rewound", [False, True])
    def test_91_a_fresh_log_under_an_old_name_is_refused(self, exam: Exam, rewound: bool) -> None:
        exam.finish(0, exam.prepare())
        if rewound:
            exam.coordinator.open(rewind="a test", first_epoch=7)
        exam.store = MemoryStore()
        with pytest.raises(EpochConflictError):
            exam.start()
        exam.shows(exam.numbers())

    def test_91_a_log_that_never_decided_anything_can_be_replaced(self, exam: Exam) -> None:
        exam.prepare()
        exam.start()
        exam.store = MemoryStore()
        exam.start()
        exam.finish(0, exam.prepare())
        exam.shows(exam.numbers())

    def test_91_an_outdated_copy_of_the_log_is_refused_until_it_is_rewound(self, exam: Exam) -> None:
        exam.finish(0, exam.prepare())
        copy = MemoryStore()
        for key in exam.store.list_keys():
            copy.put_if_absent(key, exam.store.get(key) or b"")
        exam.finish(1, exam.prepare(1))
        exam.start()
        exam.store = copy
        if not exam.subject.remembers:
            not_applicable("the target cannot tell how far a decision log had come")
        for _ in range(2):
            with pytest.raises(EpochConflictError, match="outdated copy"):
                exam.start()
        exam.coordinator = Coordinator(exam.pipeline, copy, [exam.sink])
        exam.coordinator.open(rewind="restored", first_epoch=1)
        exam.finish(1, exam.prepare(1, exam.numbers(2)))
        exam.start()
        exam.shows([n for epoch in range(3) for n in exam.numbers(epoch)])

    def test_38_what_a_sink_of_another_name_left_is_found_and_swept(self, exam: Exam) -> None:
        if type(exam.sink).lingering_elsewhere is TwoPhaseCommitSink.lingering_elsewhere:
            not_applicable("the sink lists its own transactions only")
        writing = exam.begin(name="renamed")
        writing.write(exam.subject.rows(exam.numbers()))
        left = writing.pre_commit()
        assert left is not None
        exam.start()
        assert list(exam.subject.make().lingering(exam.scope._replace(sink="renamed"))) == []
        assert exam.subject.make().commit(left).status not in GOOD
        exam.shows([])

    def test_96_a_writer_that_was_swept_and_wakes_up_shows_nothing(self, exam: Exam) -> None:
        writing = exam.begin()
        writing.write(exam.subject.rows(exam.numbers()))
        exam.start()
        late = None
        with contextlib.suppress(Exception):
            writing.write(exam.subject.rows(exam.numbers(5)))
            late = writing.pre_commit()
        exam.start()
        if late is not None:
            assert exam.subject.make().commit(late).status not in GOOD
        with contextlib.suppress(Exception):
            writing.discard()
        exam.finish(0, exam.prepare(0, exam.numbers(7)))
        exam.shows(exam.numbers(7))

    def test_82_many_epochs_leave_nothing_behind(self, exam: Exam) -> None:
        for epoch in range(MANY):
            exam.finish(epoch, exam.prepare(epoch, [exam.first + epoch]))
            assert exam.lingering() == []
        exam.shows([exam.first + epoch for epoch in range(MANY)])
