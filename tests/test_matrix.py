"""`make matrix`: the table that it writes, its environments, and those of the workflow file."""

from __future__ import annotations

import re

from integration.matrix import (
    BEGIN,
    END,
    ENVIRONMENTS,
    ROOT,
    Environment,
    Result,
    key_of,
    result_of,
    row,
    tried_again,
    with_results,
)

REPORT = """<testsuites><testsuite>
<testcase name="passes"/><testcase name="is-skipped"><skipped/></testcase>
<testcase name="fails"><failure/></testcase><testcase name="has-no-session"><error/></testcase>
</testsuite></testsuites>"""


def test_the_workflow_file_has_the_same_environments() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    pairs = re.findall(r'pyspark: "(\S+)", python: "(\S+)"', workflow)
    assert [Environment(*pair) for pair in pairs] == [*ENVIRONMENTS]


def test_every_version_that_is_promised_is_in_the_matrix() -> None:
    assert {one.release for one in ENVIRONMENTS} == {(3, 5), (4, 0), (4, 1), (4, 2), (4, 3)}
    assert {one.python for one in ENVIRONMENTS} == {"3.11", "3.12", "3.13"}


def test_each_test_of_a_slice_exists() -> None:
    for test in {test for one in ENVIRONMENTS for test in one.tests}:
        path, _, name = test.partition("::")
        assert name in (ROOT / path).read_text(), test


def test_a_report_is_counted() -> None:
    assert result_of(REPORT, "3.12.1") == Result("3.12.1", 1, ("fails", "has-no-session"), 1)
    assert result_of("", "3.12.1").failed == ("no report",)


def test_a_row_of_the_table_is_written_anew_and_the_others_stay_in_order() -> None:
    first, *_, last = ENVIRONMENTS
    page = with_results(f"before\n{BEGIN}\n{END}\nafter\n", {last: Result("3.13.0", 9, (), 0)})
    page = with_results(page, {first: Result("3.11.7", 7, ("slow",), 1)})
    page = with_results(page, {first: Result("3.11.8", 8, (), 1)})
    lines = [line for line in page.splitlines() if re.match(r"\| PySpark \d", line)]
    assert [key_of(line) for line in lines] == [first, last]
    assert "Python 3.11.8" in lines[0]
    assert "8 passed" in lines[0]
    assert page.startswith(f"before\n{BEGIN}\n")
    assert page.endswith(f"{END}\nafter\n")


def test_what_failed_is_named() -> None:
    assert "1 failed: slow" in row(ENVIRONMENTS[0], Result("3.11.7", 7, ("slow",), 0))


def test_a_second_run_counts_only_if_it_has_run_all_that_failed() -> None:
    first = Result("3.13.0", 20, ("slow", "late"), 1)
    assert tried_again(first, Result("3.13.0", 1, ("late",), 0)) == Result("3.13.0", 21, ("late",), 1)
    for incomplete in (Result("3.13.0", 0, (), 0), Result("3.13.0", 1, (), 1), result_of("", "3.13.0")):
        assert tried_again(first, incomplete) == first
