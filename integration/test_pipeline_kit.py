"""The kit for pipelines: exact ones pass under the faults of the smoke selection, a loose one is found guilty."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from onceward.testing.pipeline import FAULTS, KafkaTopic, PipelineTest, Table

from .pipeline_kit import HERE, run_pytest
from .pipeline_programs import copy_exactly_once, is_big

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.slow]


class TestEnginePipeline(PipelineTest):
    command = copy_exactly_once
    services = "local"
    inputs = KafkaTopic("orders", partitions=3)
    outputs = (KafkaTopic("big", partitions=2), Table("big_orders", "id bigint, amount bigint"))
    faults = {name: fault for name, fault in FAULTS.items() if name not in ("kill-worker", "kill-jvm")}
    uses_onceward = True
    max_blocked_seconds = 30.0
    feed_seconds = 2.0

    def row(self, number: int) -> dict[str, int]:
        return {"id": number, "amount": number * 37 % 100}

    def expected(self, rows: list[dict[str, int]]) -> list[dict[str, int]]:
        return [row for row in rows if is_big(row)]


LOOSE = f"""
import sys
from onceward.testing.pipeline import KafkaTopic, PipelineTest, Table

class TestLoose(PipelineTest):
    command = [sys.executable, {str(HERE / "pipeline_programs.py")!r}, "copy_at_least_once"]
    services = "local"
    inputs = KafkaTopic("orders", partitions=2)
    outputs = [KafkaTopic("copies"), Table("copies", "id bigint")]
    row_count, feed_seconds = 120, 1.0

    def row(self, number):
        return {{"id": number}}
"""


def test_a_pipeline_that_is_at_least_once_is_found_guilty_with_the_rows_and_their_source(tmp_path: Path) -> None:
    (tmp_path / "test_loose.py").write_text(LOOSE)
    done = run_pytest(tmp_path, "test_loose.py", "-k", "clean or kill-jvm or cut")
    assert "3 failed, 1 passed" in done, done
    counts = r": 120 rows expected, \d+ found: 0 missing, [1-9]\d* duplicated, 0 wrong"
    source = "; input orders-[01]@\\d+"
    for evidence in (
        "TestLoose is not exactly once",
        r"SIGKILL to JVM \d+",
        "network to kafka: connections are reset, new ones refused",
        "network to postgres: connections are reset, new ones refused",
        f"topic copies{counts}",
        r'duplicated: {"id": \d+}, at copies-0@\d+, copies-0@\d+' + source,
        f"table copies{counts}",
        r'duplicated: {"id": \d+}, at copies@\d+, copies@\d+' + source,
        re.escape("repeat it: pytest 'test_loose.py::TestLoose::test_exactly_once[kill-jvm-1]' --faults smoke"),
    ):
        assert re.search(evidence, done), f"{evidence}\n{done}"
