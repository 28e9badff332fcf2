"""Every sink's exam: subclass SinkConformance, give one fixture, and pytest runs the cases that apply.

    from onceward.testing.conformance import SinkConformance, Subject

    class TestMySink(SinkConformance):
        @pytest.fixture
        def subject(self, tmp_path):
            return Subject(make=lambda: MySink("mine", tmp_path), read=lambda: numbers_in(tmp_path))

The numbers in the tests' names are those of the project's list of a hundred scenarios. Each test works under a
pipeline name of its own and with row numbers of its own, so one target serves all of them. The crash tests run the sink
in an embedded pipeline and fail at each durable step (onceward.core.steps.Step) once.
"""

from __future__ import annotations

import pickle
import secrets
import threading
from collections import Counter
from collections.abc import Callable  # noqa: TC003 - a dataclass field's type
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from onceward.core import CheckpointConfig, Pipeline, RestartStrategy
from onceward.core.checkpoint import Backoff, CommitPolicy, Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.errors import EpochConflictError
from onceward.core.log import EpochInput, LogStore
from onceward.core.log.memory import MemoryStore
from onceward.core.names import Scope
from onceward.core.steps import Step, hooked
from onceward.core.transaction import AbortStatus, Acknowledgement, CommitStatus, Committable
from onceward.sinks import Guarantee, TwoPhaseCommitSink
from onceward.sources import SequenceSource

ROWS = 40
ALWAYS = frozenset(
    {
        Step.START_AFTER,
        Step.BEGIN_BEFORE,
        Step.WRITE_AFTER,
        Step.PRE_COMMIT_BEFORE,
        Step.PRE_COMMIT_AFTER,
        Step.ACKNOWLEDGED,
        Step.DECIDE_BEFORE,
        Step.DECIDE_AFTER,
        Step.COMMIT_BEFORE,
        Step.COMMIT_AFTER,
        Step.COMPLETE_BEFORE,
        Step.COMPLETE_AFTER,
    }
)
"""Steps that a run with any sink passes."""
GOOD = (CommitStatus.COMMITTED, CommitStatus.ALREADY_COMMITTED)


def numbered(numbers: list[int]) -> pa.RecordBatch:
    """Rows with a number and a text: n: int64, text: string."""
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "text": [f"row {n}" for n in numbers]})


@dataclass(frozen=True)
class Subject:
    """What the exam needs to know of a sink.

    Attributes:
        make: A new object of the sink, always with the same name and target.
        read: The numbers of all rows that show in the target now, to a reader with the strictest isolation.
        rows: Rows with these numbers, in columns that the sink takes. Default: `n: int64, text: string`.
        steps: Durable steps to fail at; default: all.
    """

    make: Callable[[], TwoPhaseCommitSink[Any]]
    read: Callable[[], list[int]]
    rows: Callable[[list[int]], pa.RecordBatch] = numbered
    steps: tuple[Step, ...] = tuple(Step)


class Exam:
    """One pipeline of one test.

    Args:
        subject: What is examined.
        pipeline: Its name; default: a new one.
    """

    def __init__(self, subject: Subject, pipeline: str | None = None) -> None:
        self.subject = subject
        self.sink = subject.make()
        self.pipeline = pipeline or f"exam-{secrets.token_hex(4)}"
        self.store: LogStore = MemoryStore()
        self.first = secrets.randbelow(1 << 40) * 1000
        self.coordinator = self.start()

    def start(self, sink: TwoPhaseCommitSink[Any] | None = None) -> Coordinator:
        """A new writer: START, finish what is decided, sweep."""
        policy = CommitPolicy(commits=Backoff(first=0.01, most=0.2, attempts=100))
        coordinator = Coordinator(self.pipeline, self.store, [sink or self.subject.make()], policy)
        coordinator.open()
        self.coordinator = coordinator
        return coordinator

    @property
    def scope(self) -> Scope:
        """Whose transactions these are."""
        return Scope(self.pipeline, self.sink.name, self.coordinator.writer.token.log)

    def numbers(self, epoch: int = 0, count: int = 3) -> list[int]:
        """Numbers that no other test writes."""
        return list(range(self.first + epoch * 100, self.first + epoch * 100 + count))

    def begin(self, epoch: int = 0, *, subtask: int = 0) -> SubtaskEpoch:
        """An attempt of a subtask."""
        return SubtaskEpoch(self.sink, self.coordinator.context(self.sink.name, epoch, subtask=subtask))

    def prepare(self, epoch: int = 0, numbers: list[int] | None = None, *, subtask: int = 0) -> Committable:
        """Write and pre-commit."""
        writing = self.begin(epoch, subtask=subtask)
        batch = self.subject.rows(self.numbers(epoch) if numbers is None else numbers)
        self.sink.validate(batch.schema)
        writing.write(batch)
        committable = writing.pre_commit()
        assert committable is not None, "pre_commit of a transaction with rows gave no committable"
        return committable

    def finish(self, epoch: int, *committables: Committable) -> None:
        """Decide and commit an epoch."""
        about = EpochInput(query="exam", start=epoch - 1 if epoch else None, end=epoch)
        acks = [
            Acknowledgement(epoch=epoch, subtask=n, attempt=0, sinks=(self.sink.name,), committables=(c,))
            for n, c in enumerate(committables)
        ]
        self.coordinator.admit(epoch, about)
        self.coordinator.commit(epoch, acks, about)

    def seen(self) -> Counter[int]:
        """This test's numbers that show."""
        return Counter(n for n in self.subject.read() if self.first <= n < self.first + 1000)

    def shows(self, numbers: list[int]) -> None:
        """Exactly these show, each once."""
        assert self.seen() == Counter(numbers)

    def lingering(self) -> list[Committable]:
        """What the sink finds under this pipeline's name."""
        return list(self.subject.make().lingering(self.scope))


class SinkConformance:
    """Subclass it, and give the fixture `subject`."""

    @pytest.fixture
    def subject(self) -> Subject:
        """What is examined."""
        raise NotImplementedError("give the fixture `subject`, which returns a Subject")

    @pytest.fixture
    def exam(self, subject: Subject) -> Exam:
        """A pipeline of its own for each test."""
        return Exam(subject)

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
        outcomes = exam.subject.make().commit_many(committables)
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
            assert said["commit"] in GOOD or said["abort"] is AbortStatus.ABORTED, f"nobody won: {said}"
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

    def test_37_and_72_what_carries_another_name_is_not_touched(self, exam: Exam) -> None:
        committable = exam.prepare()
        neighbour = Exam(exam.subject, f"{exam.pipeline}-eu")
        theirs = neighbour.prepare()
        exam.start()
        assert [c.transaction for c in neighbour.lingering()] == [theirs.transaction]
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


def run(exam: Exam, steps: list[Step]) -> None:
    """Run the sink in an embedded pipeline that fails at each of these steps once."""
    left, lock = list(steps), threading.Lock()

    def fails(step: Step) -> None:
        with lock:
            if step not in left:
                return
            left.remove(step)
        raise ConnectionError(f"told to fail at {step}")

    numbers = list(range(exam.first, exam.first + ROWS))
    rows = pa.Table.from_batches([exam.subject.rows(numbers)])
    pipeline = Pipeline(
        exam.pipeline + "-run",
        store=MemoryStore(),
        checkpoint=CheckpointConfig(interval=0.02, tolerable_failures=1000),
        restart=RestartStrategy.fixed_delay(attempts=1000, delay=0),
    )
    pipeline.source(SequenceSource(rows, units=2, batch_rows=4), parallelism=2).sink(exam.sink, parallelism=2)
    with hooked(fails):
        pipeline.start()
        ended = pipeline.wait(120)
        if not ended:
            pipeline.stop()
    assert ended, f"it did not come to its end; steps that were not reached: {left}"
    missed = [step for step in left if step in ALWAYS]
    assert not missed, f"these steps were never reached, so nothing was shown of them: {missed}"
    if exam.sink.guarantee is Guarantee.EXACTLY_ONCE:
        exam.shows(numbers)
    else:
        assert not Counter(numbers) - exam.seen(), "rows are missing"
