"""Spark and containers: driver, broker and database killed, one at a time and together, or cut off (scenario 88)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from onceward.testing.pipeline import FAULTS, Scene

from ..pipeline_kit import HERE, SparkPipeline, run_pytest

if TYPE_CHECKING:
    from pathlib import Path

PAGE = HERE.parent / "docs" / "testing.md"
pytestmark = [pytest.mark.containers, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def kill_all(scene: Scene) -> None:
    scene.note("SIGKILL to the driver, then to both servers at once")
    scene.supervisor.driver.kill()
    for server in scene.servers.values():
        server.kill()
    for server in scene.servers.values():
        server.start_again()


class TestSparkPipelineInContainers(SparkPipeline):
    services = "containers"
    faults = {"cut-kafka": FAULTS["cut-kafka"], "kill-worker": FAULTS["kill-worker"], "kill-all": kill_all}


def test_the_page_on_testing_works_with_containers(tmp_path: Path) -> None:
    driver, test = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[:2]
    (tmp_path / "driver.py").write_text(driver)
    (tmp_path / "test_orders.py").write_text(test)
    done = run_pytest(tmp_path, "test_orders.py", "-k", "kill-driver")
    assert "1 passed" in done, done
