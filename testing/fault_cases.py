"""The cases about faults: lost answers, SIGKILL, a target that restarts, times out or refuses."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest

from onceward.core.errors import DataLossError, OncewardError, SchemaError
from onceward.core.log import MemoryStore
from onceward.core.steps import Step, hooked
from onceward.core.transaction import Observation

from .faults import Faults, duplicate, fail, lose_answer
from .killing import kill_everywhere
from .sink_case import GOOD, SinkCase, not_applicable, run
from .wrappers import FaultySink, FaultyStore

if TYPE_CHECKING:
    from onceward.sinks import TwoPhaseCommitSink

SINK_CALLS: Final = ("begin", "write", "pre_commit", "commit_many", "abort", "lingering", "claim", "completed")
PAUSE: Final = 0.015
AT_STARTS: Final = ("abort", "lingering", "claim")
MOST_MISSED: Final = 3
"""Points that a run may happen not to reach again, out of some forty."""
KILLED_ROWS: Final = 200
PARTS: Final = 60
OVERDUE: Final = 10
"""A transaction that has not ended after so many of its timeouts never will."""


class FaultCases:
    """A part of SinkConformance."""

    @pytest.mark.parametrize("call", SINK_CALLS)
    def test_19_20_and_26_a_call_that_fails_loses_its_answer_or_is_repeated(self, case: SinkCase, call: str) -> None:
        """Not made, made unheard, made twice."""
        orders = [fail(call, nth=1), lose_answer(call, nth=2), duplicate(call, nth=3)]
        if call == "begin":  # who begins and does not tell keeps a connection or file open: not a fault of the target
            del orders[1]
        faults = Faults(*orders)
        # What comes at a start only comes more often if something is left to sweep each time.
        steps = [Step.PRE_COMMIT_AFTER] * len(orders) if call in AT_STARTS else []
        run(case, steps, sink=FaultySink(case.sink, faults), pause=PAUSE)
        assert not faults.left(), "these faults did not happen, so nothing was shown of them"

    def test_24_an_epoch_that_cannot_be_committed_holds_back_the_later_ones(self, case: SinkCase) -> None:
        faults = Faults(fail("commit_many", nth=1, times=4))
        case.coordinator = case.start(FaultySink(case.sink_under_test.make(), faults))
        for epoch in range(3):
            case.finish(epoch, case.prepare(epoch))
            case.shows([n for earlier in range(epoch + 1) for n in case.numbers(earlier)])
        assert not faults.left()

    @pytest.mark.parametrize("call", ["put_if_absent", "get", "list_keys"])
    def test_55_and_95_a_store_that_fails_or_answers_late(self, case: SinkCase, call: str) -> None:
        faults = Faults(lose_answer(call, nth=2), fail(call, nth=3))
        run(case, [Step.PRE_COMMIT_AFTER] * 2, store=FaultyStore(MemoryStore(), faults))
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
        case.shows_as_promised([n for part in numbers[: report.used] for n in part])

    def test_13_and_77_what_is_prepared_survives_a_restart_of_the_target(self, case: SinkCase) -> None:
        if case.sink_under_test.restart is None:
            not_applicable("no SinkUnderTest.restart: the target is not a server of the test's own")
        committable = case.prepare()
        case.sink_under_test.restart()
        case.shows([])
        case.finish(0, committable)
        case.shows(case.numbers())
        case.sink_under_test.restart()
        case.shows(case.numbers())

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
        case.shows([])

    def test_44_what_timed_out_leaves_readers_free(self, case: SinkCase) -> None:
        sink = self._hasty(case)
        mine, case.sink = case.sink, sink
        case.prepare()
        self._wait_until_ended(case, sink)
        case.sink = mine
        case.start()
        case.finish(0, case.prepare(0, case.numbers(1)))
        case.shows(case.numbers(1))

    def test_74_and_81_rows_that_the_target_refuses_fail_the_epoch(self, case: SinkCase) -> None:
        if case.sink_under_test.refused is None:
            not_applicable("no SinkUnderTest.refused: there are no rows that pass validate and fail later")
        writing = case.begin()
        with pytest.raises(Exception) as caught:  # noqa: PT011 - its kind is looked at below
            writing.write(case.sink_under_test.rows(case.numbers()))
            writing.write(case.sink_under_test.refused(case.numbers(1)))
            writing.pre_commit()
        assert isinstance(caught.value, OncewardError), f"{type(caught.value).__name__} tells the user nothing"
        writing.discard()
        case.start()
        case.shows([])
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
