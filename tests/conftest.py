"""Marks `slow` what takes seconds: `make test` runs it, `make check` does not."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import settings
from integration.scheduling import is_left_to_ci, pytest_runtest_setup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

__all__ = ["pytest_runtest_setup"]  # a hook

settings.register_profile("untimed", deadline=None)  # the machine may be busy
settings.load_profile("untimed")

SLOW: Final = (
    "test_what_is_told_is_true_whatever_happens",
    "test_rows_of_a_megabyte_are_read_back_a_few_at_a_time",
    "test_the_epoch_of_a_row_that_was_changed_in_its_file_is_named",
    "test_a_copy_that_readers_of_the_folder_read_is_found_under_any_name",
    "test_a_message_in_the_troubleshooting_page_is_one_of_the_code",
    "test_a_column_whose_type_was_rewritten_differs",
    "test_a_silent_broker_leaves_time_for_the_others",
    "test_a_closed_proxy_leaves_no_socket_open",
    "test_a_run_of_the_engine_that_fails_when_it_is_asked_goes_on_if_its_successor_has_gone",
    "test_help_is_utf8_in_every_locale",
    "test_with_rocksdb_timers_live_outside_of_memory",
    "test_threads_that_are_the_first_to_use_a_class_read_it",
    "test_a_broker_that_is_slower_than_the_first_try_is_heard_in_the_end",
    "test_a_compressed_copy_is_found",
    "test_a_time_of_sqlite_in_another_spelling_differs",
    "test_what_postgresql_needs_is_missed_when_a_sink_is_made",
    "test_each_scenario_has_a_law_and_a_test",
    "test_a_value_of_another_class_in_a_table_of_sqlite_is_named",
    "test_a_long_text_is_searched_in_a_time_that_grows_with_its_length",
    "test_timers_outside_of_memory_fire_in_the_same_order",
    "test_a_crash_while_it_is_written_again_changes_nothing",
    "test_37_38_and_72_what_carries_another_name_is_not_touched",
    "test_22_and_23_what_somebody_else_ended_is_never_taken_for_committed",
    "test_an_epoch_that_another_process_committed_is_proven",
    "test_59_stopping_with_a_savepoint_commits_what_came_before",
    "test_a_bounded_pipeline_commits_everything_once_and_ends",
    "test_no_test_begins_when_no_time_is_left",
    "test_an_answer_that_comes_a_byte_at_a_time_in_time_is_an_answer",
    "test_conformance.py::TestFileSink",
    "a_process_killed_at_each_step_and_call",
    "a_process_killed_before_each_line",
    "a_commit_that_dies_between_its_steps",
    "partitions_have_the_same_names_in_every_locale",
    "test_a_run_of_the_engine_that_still_starts",
    "test_a_run_of_the_engine_that_waits_for_its_next_attempt",
    "test_a_query_that_fails_while_it_is_asked",
    "test_a_query_is_handed_over_after_its_first_epoch",
    "test_authors.py::TestJournal",
    "test_sql_conformance.py::",
    "test_authors.py::TestLetters",
    "test_the_skeleton_passes_the_conformance_suite",
    "test_rows_that_are_in_memory_only_do_not_survive_sigkill",
    "test_every_record_takes_effect_exactly_once",
    "test_the_simulator_catches_each_mutant",
    "test_in_at_least_once_mode_nothing_is_lost",
    "test_a_decision_of_any_size_fits",
    "test_62_and_65_a_process_killed",
    "test_client_libraries_are_quiet",
    "test_the_command_prints_it",
    "test_a_python_that_the_program_may_still_set",
    "test_a_run_with_state_in_rocksdb",
    "test_the_example_",
    "test_the_dead_letter_example",
    "test_cases_on_files_and_sqlite",
    "can_be_repeated[rewound]",
    "can_be_repeated[moved",
    "can_be_repeated[lost]",
    "can_be_repeated[retired]",
    "a_copying_that_dies_anywhere_leaves_the_query_or_a_savepoint[False]",
    "test_dev_commands.py",
    "test_doctor.py",
    "test_signals_are_passed_on_and_one",
    "test_a_signal_in_the_pause_ends_it",
    "a_process_of_a_format_emits",
    "test_one_pass_feeds_several_outputs",
    "test_more_rows_than_are_hashed_at_once",
    "test_a_decision_of_many_transactions_is_added_up_at_once",
    "test_in_every_order_of_events_the_laws_hold[2]",
    "test_nothing_is_imported_under_a_name_that_is_not_installed",
    "test_a_transaction_that_blocks_readers_for_longer",
    "test_a_query_that_was_started_after_an_interrupted_restore",
    "test_old_epochs_are_told_together",
    "test_older_epochs_are_judged_by_their_sum",
    "test_the_trace_changes_nothing",
    "test_the_same_seed_gives_the_same_run",
    "damaged_on_disk_is_detected",
    "test_epochs_that_come_in_while_the_target_is_read",
    "test_82_many_epochs_leave_nothing_behind",
    "rocksdb]",
    "test_what_did_not_change_is_not_sent_again",
    "test_all_subtasks_read_by_the_schema_of_the_oldest_file",
    "test_of_many_processes_exactly_one_wins_each_key",
    "test_a_run_of_the_engine_goes_on_if_its_successor_dies",
    "test_what_is_not_asked_for_is_not_loaded",
    "test_a_worker_that_replaces_one_that_died_runs_the_last_test_there_is",
    "test_each_scenario_has_a_test_that_make_test_runs",
    "test_questions_without_an_answer_leave_no_clients_behind",
    "test_threads_may_import_at_the_same_time",
    "test_a_mistake_is_caught_by_its_case",
    "test_whoever_dies_or_sleeps_the_pipeline_runs_on",
    "test_no_call_takes_longer_than_its_caller_has_said",
    "test_a_broker_that_answers_is_found_whatever_the_other_addresses_do",
    "test_a_planted_change_of_a_folder_is_found",
    "test_a_table_that_changes_takes_rows_unchanged",
    "test_a_query_that_began_without_a_decision_log",
    "test_a_frozen_broker_that_was_connected",
    "test_each_suite_is_run_by_somebody",
    "test_of_any_rows_the_good_ones_are_written",
    "test_http_sink.py::TestConformance",
    "test_conformance.py::TestWriteAheadLogSink",
    "test_a_driver_hands_over_from_its_own_start_on",
    "test_a_pipeline_that_waits_until_its_run_has_ended",
    "test_rows_that_need_or_exclude_earlier_ones",
    "test_a_row_is_refused_only_after_all_accepted_rows_before_it",
)
"""Parts of tests' ids, the conformance suite's among them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew, from what commands print")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(part in item.nodeid for part in SLOW):
            item.add_marker("slow")
        if item.nodeid.startswith("tests/") and item.get_closest_marker("slow") and is_left_to_ci(item.nodeid):
            item.add_marker("by_ci")


def pytest_collection_finish() -> None:
    """Collected modules and tests stay: to search them for garbage took a tenth of the unit tests' CPU time."""
    gc.freeze()


@pytest.fixture
def new_database(tmp_path: Path) -> AbstractContextManager[Any]:
    """What the fixture `database` opens: here a file of SQLite, in integration/ a database of a server."""
    from .sqlite_kit import Database

    return nullcontext(Database(tmp_path / "shop.db"))


@pytest.fixture
def database(new_database: AbstractContextManager[Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty database but for the tables of `pytest.mark.tables("CREATE TABLE …")`; it is dropped after the test."""
    with new_database as fresh:
        for mark in request.node.iter_markers("tables"):
            for statement in mark.args:
                fresh.run(statement)
        yield fresh
