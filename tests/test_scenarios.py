"""The table of scenarios, conformance cases and promises is complete."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from .scenarios import ROOT, SCENARIOS, SUITES, Collected, collect, document, laws, lost_since, promises

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def tests() -> Collected:
    return collect()


def test_each_scenario_has_a_law_and_a_test(tests: Collected) -> None:
    assert list(laws()) == list(SCENARIOS)
    assert [number for number in SCENARIOS if not tests.of(number)] == []


def test_each_row_of_the_table_names_a_test(tests: Collected) -> None:
    rows = [line for line in document(tests).splitlines() if re.match(r"\| (\d+|[\w-]+\.md) \|", line)]
    shown = re.compile(r"\| `(tests|integration|testing|examples|connectors/testing)/")
    assert len(rows) == len(SCENARIOS) + len(promises())
    assert [row for row in rows if not shown.search(row)] == []


def test_each_suite_is_run_by_somebody(tests: Collected) -> None:
    assert {base for _, _, base in tests.classes} >= set(SUITES)


def test_each_promise_is_made_and_kept(tests: Collected) -> None:
    """Its words are on the page that is named, and each of its tests is there."""
    for promise in promises():
        page = " ".join((ROOT / promise.page).read_text().split())
        assert " ".join(promise.says.split()) in page, f"{promise.page} does not say: {promise.says}"
        assert promise.tests, promise.says
        assert [name for name in promise.tests if not tests.files_of(name)] == [], promise.says


def test_each_sink_and_source_of_the_readme_has_its_guarantee_shown() -> None:
    rows = re.findall(r"^\| (`\w+(?:Sink|Source)`.*?) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    said = [promise.says for promise in promises() if promise.page == "README.md"]
    assert rows
    assert [row for row in rows if not any(says.startswith(f"| {row} |") for says in said)] == []


def test_no_test_is_for_nights_only() -> None:
    """A nightly test is one of several parameters, of which another is run by day."""
    mark = "mark." + "nightly"
    for folder in ("tests", "integration", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            assert text.count(mark) == text.count(f", marks=pytest.{mark})"), path


def test_numbers_come_from_names_and_docstrings(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_it.py").write_text(
        '"""Scenarios 1 to 3, 7."""\n'
        "def test_09_to_11_and_88_a_law(): ...\n"
        "def test_39_89_100_a_law(): ...\n"
        'def test_a_law():\n    """So it is. Scenarios 20, 33 and 72 to 74."""\n'
        "def test_55000_is_a_code_of_the_server(): ...\n"
    )
    found = collect(tmp_path)
    assert [sorted(test.scenarios) for test in found.functions] == [
        [9, 10, 11, 88],
        [39, 89, 100],
        [20, 33, 72, 73, 74],
        [],
    ]
    assert found.modules == {"tests/test_it.py": {1, 2, 3, 7}}
    assert "scenario 9: 1 tests before, 0 now" in lost_since(found, Collected())
    assert lost_since(found, found) == []
