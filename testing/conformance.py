"""The conformance suite for sinks: subclass SinkConformance, give one fixture, and pytest runs the cases that apply.

    from onceward.testing.conformance import SinkConformance, SinkUnderTest

    class TestMySink(SinkConformance):
        @pytest.fixture
        def sink_under_test(self, tmp_path):
            return SinkUnderTest(make=lambda: MySink("mine", tmp_path), read=lambda: numbers_in(tmp_path))

The numbers in the tests' names are those of the project's list of a hundred scenarios. Each test works under a
pipeline name of its own and with row numbers of its own, so one target serves all of them. What does not apply to a
sink is skipped, and reported by name and reason at the end (plugin.py). The suite for sources is in source_cases.py,
and that for connectors in connector_cases.py.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import secrets
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest

from onceward.core.checkpoint import Coordinator
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Committable, Observation
from onceward.core.errors import DataLossError, EpochConflictError, OncewardError, SchemaError, text_of
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import MemoryStore
from onceward.core.operations.survey import UNPROVEN
from onceward.sinks import Guarantee, TwoPhaseCommitSink

from .connector_cases import ConnectorConformance, ConnectorUnderTest, Refused
from .direct_cases import DirectCases, check_applies
from .faults import Faults, duplicate, fail, lose_answer
from .interrupting import Interruption
from .killing import kill_everywhere
from .line_kills import ROWS_OF_AN_EPOCH, kill_at_each_line
from .neighbor_cases import NeighborCases
from .row_cases import RowCases
from .sink_case import GOOD, SinkCase, SinkUnderTest, is_direct, not_applicable
from .source_cases import SourceConformance, SourceUnderTest
from .target_cases import TargetCases
from .trace_cases import TraceCases
from .watch import time_limit
from .wrappers import FaultySink, FaultyStore

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ConnectorConformance",
    "ConnectorUnderTest",
    "Refused",
    "SinkCase",
    "SinkConformance",
    "SinkUnderTest",
    "SourceConformance",
    "SourceUnderTest",
]

MANY: Final = 40
SINK_CALLS: Final = ("begin", "write", "pre_commit", "commit_many", "abort", "lingering", "claim", "completed")
AT_STARTS: Final = ("abort", "lingering", "claim")
OF_A_SESSION: Final = ("begin", "write", "pre_commit")
"""Calls of a session, which no network repeats."""
PAUSE: Final = 0.015
MOST_MISSED: Final = 3
"""Points that a run may happen not to reach again, out of some forty."""
KILLED_ROWS: Final = 200
MANY_ROWS: Final = 900
MOST_GROWN: Final = 3000
MOST_INTERRUPTED: Final = 300
MAY_BE_VISIBLE: Final = frozenset({Observation.BEGUN, Observation.COMMITTED, *UNPROVEN})
"""Answers of `inspect_many` that are allowed for a transaction some of whose rows are visible."""
PARTS: Final = 60
MOST_LINES: Final = 400
SHARE_OF_LINES: Final = 0.2
"""Share of a case's limit of time that kills at lines get; the rest is for the first and the last of them."""
OVERDUE: Final = 10
"""A transaction that has not ended after so many of its timeouts never will."""


@contextlib.contextmanager
def _refuses(what: str, remedy: str, *, match: str = "") -> Iterator[None]:
    try:
        yield
    except EpochConflictError as error:
        refusal = str(error)
    else:
        pytest.fail(f"{what}: {remedy}")
    assert match in refusal


def _sent(sink: TwoPhaseCommitSink[object]) -> TwoPhaseCommitSink[object]:
    """Return a sink as another process gets it."""
    try:
        return pickle.loads(pickle.dumps(sink))  # type: ignore[no-any-return]  # noqa: S301 - made right here
    except Exception as error:  # noqa: BLE001 - a member's
        pytest.fail(
            f"the sink cannot be sent to another process: {text_of(error)}. It holds configuration only: open "
            "connections in begin and in commit"
        )


class SinkConformance(TraceCases, TargetCases, RowCases, NeighborCases, DirectCases):
    """Subclass it, and give the fixture `sink_under_test`."""

    @pytest.fixture
    def sink_under_test(self) -> SinkUnderTest:
        """Return the sink to test; a subclass overrides this fixture."""
        raise NotImplementedError("give the fixture `sink_under_test`, which returns a SinkUnderTest")

    @pytest.fixture
    def case(self, sink_under_test: SinkUnderTest, request: pytest.FixtureRequest) -> SinkCase:
        """Return a pipeline of its own for each test."""
        case = SinkCase(sink_under_test)
        check_applies(request.node.originalname, case.sink)
        return case

    @pytest.fixture(autouse=True)
    def _in_time(self, sink_under_test: SinkUnderTest) -> Iterator[None]:
        with time_limit(sink_under_test.time_limit, sink_under_test.make()):
            yield

    # The protocol: what becomes visible when, who may commit and abort what, and in which order.

    def test_01_rows_written_without_a_checkpoint_are_not_visible(self, case: SinkCase) -> None:
        writing = case.write()
        case.assert_visible([])
        writing.discard()

    def test_02_rows_prepared_and_not_decided_are_not_visible(self, case: SinkCase) -> None:
        case.prepare()
        case.assert_visible([])

    def test_03_rows_of_a_completed_epoch_are_visible_once(self, case: SinkCase) -> None:
        for epoch in range(3):
            case.finish(epoch, case.prepare(epoch))
        case.assert_visible(case.numbers(0, 1, 2))

    def test_04_an_empty_epoch_opens_nothing(self, case: SinkCase) -> None:
        assert case.begin().pre_commit() is None
        assert case.lingering() == []
        case.finish(0)
        case.finish(1, case.prepare(1))
        case.assert_visible(case.numbers(1))

    def test_05_what_was_closed_before_it_was_prepared_is_gone(self, case: SinkCase) -> None:
        writing = case.write()
        writing.discard()
        case.start()
        case.assert_visible([])
        assert case.lingering() == []

    def test_06_and_50_another_process_commits_what_it_never_saw(self, case: SinkCase) -> None:
        other = _sent(case.sink)  # before the rows: a process that commits has not seen them
        committable = Committable.from_json(case.prepare().to_json())
        _sent(case.sink)
        case.sink.ledger().claim(case.scope)
        assert other.commit(committable).status in GOOD
        case.assert_visible(case.numbers())

    def test_07_and_08_a_bounded_pipeline_commits_at_its_end(self, case: SinkCase) -> None:
        case.run([])

    def test_09_to_15_a_failure_at_each_durable_step_duplicates_and_loses_nothing(self, case: SinkCase) -> None:
        case.run(list(case.sink_under_test.steps))

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
        case.assert_visible(case.numbers(0, 1))

    def test_17_starting_again_and_again_changes_nothing(self, case: SinkCase) -> None:
        case.finish(0, case.prepare())
        for _ in range(3):
            case.start()
        case.assert_visible(case.numbers())

    def test_21_25_and_26_a_commit_can_be_repeated(self, case: SinkCase) -> None:
        committable = case.prepare()
        case.sink.ledger().claim(case.scope)
        statuses = [case.commit(committable).status for _ in range(3)]
        assert all(status in GOOD for status in statuses), statuses
        case.assert_visible(case.numbers())

    def test_22_and_23_what_somebody_else_ended_is_never_taken_for_committed(self, case: SinkCase) -> None:
        committable = case.prepare()
        assert case.abort(committable).status is AbortStatus.ABORTED
        outcome = case.commit(committable)
        assert outcome.status not in GOOD, f"it was aborted, and commit says {outcome.status}"
        case.assert_visible([])

    def test_27_an_old_commit_after_a_newer_one_changes_nothing(self, case: SinkCase) -> None:
        first = case.prepare(0)
        case.finish(0, first)
        case.finish(1, case.prepare(1))
        pending = case.prepare(2)
        case.commit(first)
        case.assert_visible(case.numbers(0, 1))
        case.finish(2, pending)
        case.assert_visible(case.numbers(0, 1, 2))

    def test_28_transactions_of_several_epochs_are_committed_together(self, case: SinkCase) -> None:
        committables = [case.prepare(epoch) for epoch in range(3)]
        case.sink.ledger().claim(case.scope)
        outcomes = case.commit_many([committables[2], committables[0], committables[1]])
        assert [outcome.status in GOOD for outcome in outcomes] == [True] * 3
        case.assert_visible(case.numbers(0, 1, 2))

    def test_29_and_31_an_abort_can_be_repeated(self, case: SinkCase) -> None:
        committable = case.prepare()
        assert case.abort(committable).status is AbortStatus.ABORTED
        for _ in range(2):
            assert case.abort(committable).status is not AbortStatus.COMMITTED
        case.assert_visible([])
        assert case.lingering() == []

    def test_30_what_is_committed_is_not_aborted(self, case: SinkCase) -> None:
        committable = case.prepare()
        case.finish(0, committable)
        assert case.abort(committable).status is not AbortStatus.ABORTED
        case.assert_visible(case.numbers())

    def test_33_of_a_commit_and_an_abort_at_once_one_wins_and_both_are_told(self, case: SinkCase) -> None:
        case.sink.ledger().claim(case.scope)
        for attempt in range(5):
            committable = case.prepare(attempt)
            make = case.make
            with ThreadPoolExecutor() as pool:
                answers = pool.submit(make().commit, committable), pool.submit(make().abort, committable)
            commit, abort = (answer.result().status for answer in answers)
            # A target that cannot tell who won says so to both, loudly.
            in_doubt = (commit, abort) == (CommitStatus.UNKNOWN, AbortStatus.UNKNOWN)
            assert in_doubt or commit in GOOD or abort is AbortStatus.ABORTED, f"nobody won: {commit}, {abort}"
            visible = set(case.numbers(attempt)) <= set(case.visible())
            if commit in GOOD:
                assert visible, "commit says that it won, and the rows are invisible"
            if abort is AbortStatus.ABORTED:
                assert not visible, "abort says that it won, and the rows are visible"

    def test_34_and_35_an_overtaken_writers_late_commit_does_no_harm(self, case: SinkCase) -> None:
        committable = case.prepare()
        case.finish(0, committable)
        case.start()
        pending = case.prepare(1)
        case.commit(committable)
        case.assert_visible(case.numbers(0))
        case.finish(1, pending)
        case.assert_visible(case.numbers(0, 1))

    def test_37_38_and_72_what_carries_another_name_is_not_touched(self, case: SinkCase) -> None:
        committable = case.prepare()
        longer = case.prepare(1, name=f"{case.sink.name}-eu")
        assert [c.transaction for c in case.lingering()] == [committable.transaction]
        assert longer.transaction != committable.transaction
        neighbour = SinkCase(case.sink_under_test, f"{case.pipeline}-eu")
        theirs = neighbour.prepare()
        case.start()
        assert [c.transaction for c in neighbour.lingering()] == [theirs.transaction]
        neighbour.sink.ledger().claim(neighbour.scope)
        assert neighbour.commit(theirs).status in GOOD
        neighbour.assert_visible(neighbour.numbers())
        assert case.commit(committable).status not in GOOD
        case.assert_visible([])

    def test_39_of_two_attempts_one_counts_and_the_other_is_swept(self, case: SinkCase) -> None:
        numbers = case.numbers()
        lost, counts = case.prepare(0, numbers), case.prepare(0, [n + 50 for n in numbers])
        case.finish(0, counts)
        case.start()
        case.assert_visible([n + 50 for n in numbers])
        assert lost.transaction not in {c.transaction for c in case.lingering()}
        assert case.commit(lost).status not in GOOD

    def test_44_what_lingers_is_listed_and_gone_after_a_start(self, case: SinkCase) -> None:
        committable = case.prepare()
        assert [c.transaction for c in case.lingering()] == [committable.transaction]
        case.start()
        assert case.lingering() == []
        case.assert_visible([])

    def test_45_to_49_several_subtasks_come_and_go(self, case: SinkCase) -> None:
        for epoch, many in enumerate((3, 1, 2)):
            parts = [case.prepare(epoch, [case.first + epoch * 100 + n], subtask=n) for n in range(many)]
            case.finish(epoch, *parts)
            case.start()
        case.assert_visible([case.first + epoch * 100 + n for epoch, many in enumerate((3, 1, 2)) for n in range(many)])

    def test_a_handle_does_not_grow_with_the_rows(self, case: SinkCase) -> None:
        few, many = case.prepare(), case.prepare(0, [case.first + n for n in range(MANY_ROWS)], subtask=1)
        case.start()
        grown = len(many.to_json()) - len(few.to_json())
        assert grown < MOST_GROWN, (
            f"the committable of {MANY_ROWS} rows is {grown} characters longer than that of {few.rows}. The decision "
            "log keeps it: leave the rows in the target, and put only what finds them into the handle"
        )

    @pytest.mark.parametrize("rewound", [False, True])
    def test_91_a_fresh_log_under_an_old_name_is_refused(self, case: SinkCase, rewound: bool) -> None:
        case.finish(0, case.prepare())
        if rewound:
            case.coordinator.open(rewind="a test", first_epoch=7)
        case.store = MemoryStore()
        method = "release must keep what the sink's own log has claimed" if rewound else "claim must record the log"
        with _refuses(
            "another decision log was accepted under these names",
            f"{method}, so that check_claim refuses it: return such a Ledger from the sink's ledger()",
        ):
            case.start()
        case.assert_visible(case.numbers())
        case.coordinator = Coordinator(case.pipeline, case.store, [case.sink])
        case.coordinator.open(rewind="the log is lost", first_epoch=0)
        case.finish(0, case.prepare(0, case.numbers(1)))
        case.start()
        case.assert_visible(case.numbers(0, 1))

    def test_91_a_log_that_never_decided_anything_can_be_replaced(self, case: SinkCase) -> None:
        case.prepare()
        case.start()
        case.store = MemoryStore()
        case.start()
        case.finish(0, case.prepare())
        case.assert_visible(case.numbers())

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
            with _refuses(
                "an outdated copy of the decision log was accepted",
                "check_claim must raise outdated_log if the target knows a commit that is newer than `newest`. If it "
                "cannot know one, say SinkUnderTest(remembers=False)",
                match="outdated copy",
            ):
                case.start()
        case.coordinator = Coordinator(case.pipeline, copy, [case.sink])
        case.coordinator.open(rewind="restored", first_epoch=1)
        case.finish(1, case.prepare(1, case.numbers(2)))
        case.start()
        case.assert_visible(case.numbers(0, 1, 2))

    def test_38_what_a_sink_of_another_name_left_is_found_and_swept(self, case: SinkCase) -> None:
        if type(case.sink).lingering_elsewhere is TwoPhaseCommitSink.lingering_elsewhere:
            not_applicable("the sink lists its own transactions only")
        left = case.prepare(name="renamed")
        case.start()
        assert list(case.make().lingering(case.scope._replace(sink="renamed"))) == []
        assert case.commit(left).status not in GOOD
        case.assert_visible([])

    def test_96_a_writer_that_was_swept_and_wakes_up_makes_nothing_visible(self, case: SinkCase) -> None:
        writing = case.write()
        case.start()
        late = None
        with contextlib.suppress(Exception):
            writing.write(case.rows(5))
            late = writing.pre_commit()
        case.start()
        if late is not None:
            assert case.commit(late).status not in GOOD
        with contextlib.suppress(Exception):
            writing.discard()
        case.finish(0, case.prepare(0, case.numbers(7)))
        case.assert_visible(case.numbers(7))

    def test_82_many_epochs_leave_nothing_behind(self, case: SinkCase) -> None:
        for epoch in range(MANY):
            case.finish(epoch, case.prepare(epoch, [case.first + epoch]))
            assert case.lingering() == []
        case.assert_visible([case.first + epoch for epoch in range(MANY)])

    # Faults: lost answers, SIGKILL, a target that restarts, times out or refuses.

    def test_a_commit_that_dies_between_its_steps_is_seen_to_have_begun(self, case: SinkCase) -> None:
        """Interrupt a commit before each line of the sink's own code: what is visible in part is never taken back."""
        if not case.sink_under_test.kill:
            not_applicable("SinkUnderTest.kill is not set: the target is inside the process of the tests")
        case.sink.ledger().claim(case.scope)
        numbers: list[int] = []
        for at in range(MOST_INTERRUPTED):
            own = [case.first + len(numbers) + n for n in range(3)]
            numbers += own
            committable = case.prepare_in_pieces(at, own)
            sink = case.sink_under_test.make()
            with warnings.catch_warnings(), Interruption(sink, at) as interruption:
                warnings.simplefilter("ignore", ResourceWarning)  # who dies closes no file
                sink.commit_many([committable])
            gc.collect(0)  # nor does a connection of the dead hold its locks
            where, seen = interruption.line or "the end", case.visible()
            [state] = case.sink_under_test.make().inspect_many([committable])
            if any(seen[n] for n in own):
                assert state in MAY_BE_VISIBLE, (
                    f"{sum(seen[n] for n in own)} of 3 rows were visible when a commit died before {where}, and "
                    f"inspect_many said {state}: return Observation.BEGUN for a commit that has begun"
                )
            if state in (Observation.BEGUN, Observation.COMMITTED):
                status = case.abort(committable).status
                assert status is not AbortStatus.ABORTED, f"{state} at {where}, and abort says that it is gone"
            assert case.commit(committable).status in GOOD, f"it could not be finished after a death before {where}"
            if not interruption.line:
                break
        case.assert_as_promised(numbers)

    @pytest.mark.parametrize("call", SINK_CALLS)
    def test_19_20_and_26_a_call_that_fails_loses_its_answer_or_is_repeated(self, case: SinkCase, call: str) -> None:
        """Check calls that are not made, made without an answer, and made twice where a network could repeat them."""
        if is_direct(case.sink) and call not in OF_A_SESSION:
            not_applicable(f"the sink is written directly: it has no {call}")
        planned = [fail(call, nth=1), lose_answer(call, nth=2)]
        planned += [duplicate(call, nth=3)] if call not in OF_A_SESSION else []
        if call == "begin":  # who begins and does not tell keeps a connection or file open: not a fault of the target
            del planned[1]
        faults = Faults(*planned)
        # What comes at a start only comes more often if something is left to sweep each time.
        steps = [Step.PRE_COMMIT_AFTER] * len(planned) if call in AT_STARTS else []
        case.run(steps, faults=faults, pause=PAUSE)
        assert not faults.left(), "these faults did not happen, so nothing was shown of them"

    def test_24_an_epoch_that_cannot_be_committed_holds_back_the_later_ones(self, case: SinkCase) -> None:
        faults = Faults(fail("commit_many", nth=1, times=4))
        case.coordinator = case.start(FaultySink(case.make(), faults))
        for epoch in range(3):
            case.finish(epoch, case.prepare(epoch))
            case.assert_visible(case.numbers(*range(epoch + 1)))
        assert not faults.left()

    @pytest.mark.parametrize("call", ["put_if_absent", "get", "list_keys"])
    def test_55_and_95_a_store_that_fails_or_answers_late(self, case: SinkCase, call: str) -> None:
        faults = Faults(lose_answer(call, nth=2), fail(call, nth=3))
        case.run([Step.PRE_COMMIT_AFTER] * 2, store=FaultyStore(MemoryStore(), faults))
        assert not faults.left(), "these faults did not happen, so nothing was shown of them"

    def test_09_to_15_and_88_a_process_killed_at_each_step_and_call(
        self, case: SinkCase, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        if not case.sink_under_test.kill:
            not_applicable("SinkUnderTest.kill is not set: the target is inside the process of the tests")
        base = secrets.randbelow(1 << 40) * 100_000
        numbers = [range(base + part * KILLED_ROWS, base + (part + 1) * KILLED_ROWS) for part in range(PARTS)]
        parts = [pa.Table.from_batches([case.sink_under_test.rows(list(part))]) for part in numbers]
        report = kill_everywhere(case.sink, case.pipeline, parts, tmp_path_factory.mktemp("killed"))
        assert not report.errors, "\n".join(report.errors)
        assert any("pre_commit()" in point for point in report.killed), "it was never killed at its own calls"
        assert len(report.missed) <= MOST_MISSED, f"it was killed at {report.killed} only, not at {report.missed}"
        case.assert_as_promised([n for part in numbers[: report.used] for n in part])

    def test_09_to_15_and_88_a_process_killed_before_each_line_of_the_sink(
        self, case: SinkCase, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        if not case.sink_under_test.kill:
            not_applicable("SinkUnderTest.kill is not set: the target is inside the process of the tests")
        base, size = secrets.randbelow(1 << 40) * 100_000, ROWS_OF_AN_EPOCH
        numbers = [list(range(base + part * size, base + (part + 1) * size)) for part in range(MOST_LINES)]
        parts = [case.sink_under_test.rows(part) for part in numbers]
        folder, seconds = tmp_path_factory.mktemp("killed"), case.sink_under_test.time_limit * SHARE_OF_LINES
        report = kill_at_each_line(case.sink, case.pipeline, parts, folder, seconds)
        assert not report.errors, report.errors[0]
        seen = Counter(n for n in case.sink_under_test.read() if base <= n < base + MOST_LINES * size)
        once = case.sink.guarantee is not Guarantee.AT_LEAST_ONCE
        for epoch, part in zip(report.epochs, numbers, strict=False):
            if is_direct(case.sink) and not epoch.decided:
                continue  # its rows show as they are written
            expected = Counter(part if epoch.decided else [])
            shown = Counter({n: seen[n] for n in part if seen[n]})
            missing, more = (expected - shown).total(), (shown - expected).total()
            what = "was decided" if epoch.decided else "was not decided"
            assert not missing, f"killed {epoch.where}: the epoch {what}, and {missing} of its {size} rows are missing"
            too_often = more if once or not epoch.decided else 0
            assert not too_often, f"killed {epoch.where}: the epoch {what}, and {more} of its rows are there too often"
        assert len(report.epochs) > 2, "no line of the sink's own module was passed"  # noqa: PLR2004 - the clean runs

    def test_13_and_77_what_is_prepared_survives_a_restart_of_the_target(self, case: SinkCase) -> None:
        if case.sink_under_test.restart is None:
            not_applicable("no SinkUnderTest.restart: the target is not a server of the test's own")
        committable = case.prepare()
        case.sink_under_test.restart()
        case.assert_visible([])
        case.finish(0, committable)
        case.assert_visible(case.numbers())
        case.sink_under_test.restart()
        case.assert_visible(case.numbers())

    def test_40_41_and_43_a_decided_transaction_that_timed_out_is_a_loud_loss(self, case: SinkCase) -> None:
        sink = self._hasty(case)
        case.sink = sink
        case.start(sink)
        committable = case.prepare()
        decided = []

        def outage(step: Step) -> None:
            if step is Step.DECIDE_AFTER:
                decided.append(step)
                self._wait_until_ended(case, sink)

        with hooked(outage), pytest.raises(DataLossError):
            case.finish(0, committable)
        assert decided, "it was refused before it was decided"
        assert sink.inspect_many([committable])[0] not in (Observation.PREPARED, Observation.COMMITTED)
        assert sink.commit(committable).status not in GOOD
        case.assert_visible([])

    def test_44_what_timed_out_leaves_readers_free(self, case: SinkCase) -> None:
        sink = self._hasty(case)
        mine, case.sink = case.sink, sink
        case.prepare()
        self._wait_until_ended(case, sink)
        case.sink = mine
        case.start()
        case.finish(0, case.prepare(0, case.numbers(1)))
        case.assert_visible(case.numbers(1))

    def test_74_and_81_rows_that_the_target_refuses_fail_the_epoch(self, case: SinkCase) -> None:
        if case.sink_under_test.refused is None:
            not_applicable("no SinkUnderTest.refused: there are no rows that pass validate and fail later")
        writing = case.begin()
        with pytest.raises(Exception) as caught:  # noqa: PT011 - its kind is looked at below
            writing.write(case.rows())
            writing.write(case.sink_under_test.refused(case.numbers(1)))
            writing.pre_commit()
        assert isinstance(caught.value, OncewardError), f"{type(caught.value).__name__} tells the user nothing"
        writing.discard()
        case.start()
        case.assert_visible([])
        assert case.lingering() == []

    def test_a_schema_that_does_not_fit_is_refused_before_anything_is_written(self, case: SinkCase) -> None:
        if case.sink_under_test.misfit is None:
            not_applicable("no SinkUnderTest.misfit: the target takes any schema")
        with pytest.raises(SchemaError):
            case.sink.validate(case.sink_under_test.misfit)

    def test_errors_and_text_forms_show_no_password(self, case: SinkCase, caplog: pytest.LogCaptureFixture) -> None:
        secret = case.sink_under_test.secret
        if not secret:
            not_applicable("no SinkUnderTest.secret: the sink is given no password")
        with caplog.at_level("DEBUG", logger="onceward"):
            committable = case.prepare()
            case.finish(0, committable)
            words = [repr(case.sink), committable.to_json(), caplog.text]
        if case.sink_under_test.misfit is not None:
            with pytest.raises(SchemaError) as caught:
                case.sink.validate(case.sink_under_test.misfit)
            words += [str(caught.value), repr(caught.value)]
        assert not [text for text in words if secret in text]

    def _hasty(self, case: SinkCase) -> TwoPhaseCommitSink[object]:
        if case.sink.transaction_timeout is None:
            not_applicable("the target never ends a transaction by itself (transaction_timeout is None)")
        if case.sink_under_test.hasty is None:
            not_applicable("no SinkUnderTest.hasty: the test cannot wait for the sink's own timeout")
        return case.sink_under_test.hasty()

    def _wait_until_ended(self, case: SinkCase, sink: TwoPhaseCommitSink[object]) -> None:
        """Wait until the target has ended all that lingers."""
        timeout = sink.transaction_timeout or 1
        deadline = time.monotonic() + OVERDUE * timeout
        open_ = case.lingering()
        while open_ and time.monotonic() < deadline:
            time.sleep(timeout / 10)
            open_ = case.lingering()
        assert not open_, f"still there after {OVERDUE} timeouts of {timeout} s: {open_}"
