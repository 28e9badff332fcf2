"""Which test shows that a way to write from Spark keeps its promise through a fault: a table of faces and faults.

Each cell names a test, or says why the fault does not apply, or what nobody has tried. tests/test_faces.py checks that
the tests exist and that no cell is missing.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Never(NamedTuple):
    """A cell to which the fault does not apply."""

    because: str


class Untried(NamedTuple):
    """A cell without a test."""

    left: str


Cell = str | Never | Untried
FAULTS: Final = (
    "kill",  # the driver, the JVM or a worker dies
    "retry",  # a task or an attempt fails and runs again
    "replay",  # Spark runs a decided micro-batch again
    "stop",  # the query is stopped in an epoch
    "empty batch",
    "schema change",
    "refused start",
)
_HERE: Final = "integration/test_faces.py::test_"
_CONNECT: Final = "integration/test_spark_connect.py::test_"
_FUNCTIONS: Final = "integration/test_spark_functions.py::test_"
_HANDOVER: Final = "integration/test_handover.py::test_"
REPLAY: Final = f"{_HERE}a_micro_batch_that_spark_replays_is_written_once"
STOP: Final = f"{_HERE}a_query_that_is_stopped_in_an_epoch_writes_it_at_its_next_start"
EMPTY: Final = f"{_HERE}a_micro_batch_without_rows_is_an_epoch_like_any_other"

TABLE: Final[dict[str, dict[str, Cell]]] = {
    "Output": {
        "kill": "integration/test_spark_outputs.py::"
        "test_values_that_differ_in_each_attempt_tear_no_epoch_when_the_driver_dies",
        "retry": "integration/test_spark_outputs.py::test_a_task_that_is_tried_again_with_other_values_is_written_once",
        "replay": REPLAY,
        "stop": STOP,
        "empty batch": EMPTY,
        "schema change": "integration/test_spark_outputs.py::"
        "test_other_columns_than_when_the_query_was_described_are_refused_before_the_epoch",
        "refused start": "integration/test_spark_outputs.py::"
        "test_what_cannot_be_written_is_refused_by_name_before_anything_is_written",
    },
    "dead letters": {
        "kill": "integration/test_dead_letters.py::"
        "test_a_driver_that_dies_at_any_step_loses_and_doubles_no_dead_letter",
        "retry": "integration/test_dead_letters.py::"
        "test_a_task_that_is_killed_after_its_dead_letters_and_tried_again_writes_them_once",
        "replay": REPLAY,
        "stop": STOP,
        "empty batch": EMPTY,
        "schema change": Never("a dead letter holds its row as JSON, whatever its columns are"),
        "refused start": "integration/test_dead_letters.py::test_what_cannot_take_dead_letters_is_refused_at_once",
    },
    "take-over": {
        "kill": f"{_HANDOVER}a_new_driver_that_dies_while_it_takes_over_leaves_a_pipeline_that_goes_on",
        "retry": Never("the change is between two epochs, when no task runs"),
        "replay": f"{_HANDOVER}a_new_driver_goes_on_where_the_old_one_ends_between_two_epochs",
        "stop": "tests/test_handover.py::test_a_successor_that_is_stopped_while_it_waits_takes_its_request_back",
        "empty batch": f"{_HANDOVER}a_driver_that_has_run_no_epoch_since_its_start_hands_over",
        "schema change": f"{_FUNCTIONS}a_query_that_cannot_continue_from_the_checkpoint_takes_nothing_over",
        "refused start": f"{_FUNCTIONS}no_start_that_is_refused_ends_a_run_that_works",
    },
    "ForeachBatch": {
        "kill": "integration/test_foreach_batch.py::test_a_driver_that_dies_at_any_step_loses_and_doubles_nothing",
        "retry": "tests/test_foreach_batch.py::"
        "test_a_block_that_failed_and_is_opened_again_writes_only_what_it_describes_then",
        "replay": REPLAY,
        "stop": STOP,
        "empty batch": EMPTY,
        "schema change": "tests/test_foreach_batch.py::test_other_columns_in_a_later_epoch_are_validated_before_it",
        "refused start": f"{_FUNCTIONS}a_foreach_batch_whose_target_is_not_ready_ends_no_run_that_works",
    },
    "Connect": {
        "kill": f"{_CONNECT}a_process_of_foreach_batch_that_dies_at_any_step_loses_and_doubles_nothing",
        "retry": f"{_CONNECT}a_python_worker_that_dies_is_replaced_and_its_attempt_does_not_count",
        "replay": f"{_CONNECT}a_stateful_query_goes_on_after_a_replay",
        "stop": f"{_CONNECT}stop_lets_the_epoch_end_that_is_under_way",
        "empty batch": Untried("a micro-batch without rows, in the server's process of foreachBatch"),
        "schema change": Untried("a function of an Output that returns other columns, in the server's process"),
        "refused start": f"{_CONNECT}what_the_server_refuses_is_an_error_of_start",
    },
    "formats": {
        "kill": "integration/test_spark_torn.py::test_14_what_a_format_has_lost_of_a_visible_epoch_is_written_again_"
        "and_nothing_else",
        "retry": "integration/test_spark_formats.py::test_slow_tasks_beside_one_that_fails_leave_nothing_prepared",
        "replay": REPLAY,
        "stop": STOP,
        "empty batch": EMPTY,
        "schema change": "tests/test_spark_formats.py::TestValidation::"
        "test_a_target_that_has_changed_since_the_last_run_is_refused",
        "refused start": "integration/test_spark_formats.py::test_an_old_name_with_a_new_checkpoint_is_refused",
    },
    "batch": {
        "kill": "tests/test_spark_batches.py::"
        "test_a_task_that_is_killed_after_it_has_prepared_is_swept_without_any_answer",
        "retry": "integration/test_spark_cluster.py::test_batch_writes_that_fail_on_a_cluster_leave_nothing_prepared",
        "replay": "integration/test_spark_formats.py::"
        "test_a_batch_with_a_run_key_is_written_once_however_often_it_is_run",
        "stop": Never("a batch write is no query; one that is cancelled fails, as one whose task fails"),
        "empty batch": f"{_HERE}a_batch_write_without_rows_ends_and_its_run_key_counts",
        "schema change": Never("each run of a batch has a decision log, and is validated with its own columns"),
        "refused start": "tests/test_spark_batches.py::test_a_run_that_cannot_be_opened_leaves_nothing",
    },
    "3.5": {
        "kill": "integration/test_spark_older.py::TestSparksOwnKafkaSource",
        "retry": Untried("a task that Spark 3.5 runs again; the matrix kills drivers, and no tasks"),
        "replay": "integration/test_spark_exactly_once.py::"
        "test_87_a_replayed_batch_is_recognised_and_not_written_again",
        "stop": "tests/test_spark_handover.py::"
        "test_a_query_that_was_stopped_while_it_waited_has_not_failed_in_any_version_of_spark",
        "empty batch": EMPTY,
        "schema change": Untried("state of other columns on Spark 3.5, which compares it only in its tasks"),
        "refused start": "integration/test_spark_older.py::"
        "test_what_needs_data_sources_in_python_is_refused_with_the_version",
    },
}

SHORT: Final = (REPLAY, EMPTY, STOP)
"""Tests of several faces that `make matrix` runs on each version of Spark."""
