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
    "test_the_simulator_catches[a_savepoint_confirms_what_sinks_prepared]",
    "test_the_example_",
    "test_the_dead_letter_example",
    "test_cases_on_files_and_sqlite",
)
"""Parts of tests' names, the conformance suite's among them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(part in item.name for part in SLOW):
            item.add_marker("slow")
