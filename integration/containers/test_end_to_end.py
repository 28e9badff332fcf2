"""Spark in containers, with driver, broker and database killed on the way, one at a time and together (scenario 88)."""

from __future__ import annotations

import pytest

from onceward.testing.pipeline import FAULTS, Scene

from ..pipeline_kit import SparkPipeline

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
    faults = {"kill-driver": FAULTS["kill-driver"], "kill-worker": FAULTS["kill-worker"], "kill-all": kill_all}
