"""Cases of the conformance suite about sinks without transactions: DirectSink and IdempotentSink.

They are driven as two-phase sinks whose commit does nothing (DirectlyWritten), so the cases of rows, failures and kills
are the same. Those of transactions do not apply. What remains is here: a write that failed is an error, and of an
IdempotentSink the same rows written again change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from onceward.core.contract.sink import Guarantee

from .sink_case import SinkCase, is_direct, not_applicable
from .target_cases import each_fault, needs_faults

if TYPE_CHECKING:
    from .target_cases import Failing

WITHOUT_TRANSACTIONS: Final = frozenset(
    {
        *("test_03_rows_of_a_completed_epoch_are_visible_once", "test_04_an_empty_epoch_opens_nothing"),
        *(
            "test_06_and_50_another_process_commits_what_it_never_saw",
            "test_17_starting_again_and_again_changes_nothing",
        ),
        "test_07_and_08_a_bounded_pipeline_commits_at_its_end",
        "test_09_to_15_a_failure_at_each_durable_step_duplicates_and_loses_nothing",
        "test_09_to_15_and_88_a_process_killed_at_each_step_and_call",
        "test_09_to_15_and_88_a_process_killed_before_each_line_of_the_sink",
        "test_16_recovery_that_fails_twice_in_a_row_is_done_the_third_time",
        "test_19_20_and_26_a_call_that_fails_loses_its_answer_or_is_repeated",
        *("test_45_to_49_several_subtasks_come_and_go", "test_82_many_epochs_leave_nothing_behind"),
        "test_55_and_95_a_store_that_fails_or_answers_late",
        "test_a_schema_that_does_not_fit_is_refused_before_anything_is_written",
        "test_errors_and_text_forms_show_no_password",
        *("test_equal_rows_are_all_there", "test_rows_of_a_subtask_keep_their_order"),
        *("test_values_are_visible_as_they_were_written", "test_select_and_where_are_passed_on"),
        "test_19_and_26_a_target_that_fails_inside_of_a_direct_write_is_an_error",
        "test_26_rows_that_are_written_again_change_nothing",
    }
)
"""Cases that apply to a sink without transactions."""


def check_applies(case: str, sink: Any) -> None:
    """Skip a case of transactions for a sink that has none."""
    if is_direct(sink) and case not in WITHOUT_TRANSACTIONS:
        not_applicable("the sink is written directly, without transactions")


class DirectCases:
    """Cases of SinkConformance."""

    def test_19_and_26_a_target_that_fails_inside_of_a_direct_write_is_an_error(self, case: SinkCase) -> None:
        if not is_direct(case.sink):
            pytest.skip("for sinks without transactions")

        def attempt(failing: Failing, number: int) -> None:
            def write() -> None:
                writing = case.begin()
                try:
                    writing.write(case.sink_under_test.rows([number, number + 1]))
                    writing.pre_commit()
                finally:
                    writing.discard()

            _, error = failing.during(write)
            failing.check_write_error(error)
            missing = {number, number + 1} - set(case.visible())
            if error is None and (missing or (failing.syncs and failing.struck)):
                failing.wrong(
                    "neither write nor flush raised an error, and the rows are "
                    f"{'missing' if missing else 'not safe'}: raise RetryableSinkError"
                )
            write()
            numbers.extend([number, number + 1])
            case.assert_as_promised(numbers)

        numbers: list[int] = []
        needs_faults(each_fault(case, attempt), "`write`")

    def test_26_rows_that_are_written_again_change_nothing(self, case: SinkCase) -> None:
        if not is_direct(case.sink):
            pytest.skip("for sinks without transactions")
        if case.sink.guarantee is not Guarantee.EFFECTIVELY_ONCE:
            not_applicable("the sink does not promise that rows written again change nothing")
        for epoch, subtask in ((0, 0), (0, 1), (1, 0)):
            case.prepare(epoch, case.numbers(0), subtask=subtask)
        case.assert_visible(case.numbers(0))
        if case.sink_under_test.keyed and case.sink_under_test.read_rows is not None:
            self._check_newest(case)

    @staticmethod
    def _check_newest(case: SinkCase) -> None:
        """Check that a row replaces one with the same number."""
        [old] = case.sink_under_test.rows([case.first]).to_pylist()
        name = next((name for name, value in old.items() if isinstance(value, str)), None)
        if name is None or case.sink_under_test.read_rows is None:
            return
        batch = case.sink_under_test.rows([case.first])
        at = batch.schema.get_field_index(name)
        writing = case.begin(2)
        writing.write(batch.set_column(at, name, pa.array(["newer"], batch.schema.field(name).type)))
        writing.pre_commit()
        [seen] = [row[name] for row in case.sink_under_test.read_rows() if row["n"] == case.first]
        assert seen == "newer", f"a row whose {name} is 'newer' was written, and the target keeps {seen!r}"
