"""Marks `slow` what takes seconds: `make test` runs it, `make check` does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest

SLOW: Final = (
    "a_process_killed_at_each_step_and_call",
    "test_the_skeleton_passes_the_conformance_suite",
    "test_rows_that_are_in_memory_only_do_not_survive_sigkill",
    "test_every_record_takes_effect_exactly_once",
    "test_the_simulator_catches",
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
)
"""Parts of tests' names, the conformance suite's among them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(part in item.name for part in SLOW):
            item.add_marker("slow")
