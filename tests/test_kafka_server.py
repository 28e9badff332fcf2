"""The test kit's broker: what comes before its JVM starts."""

from __future__ import annotations

from subprocess import CompletedProcess
from typing import TYPE_CHECKING

import pytest

from onceward.testing.services import KafkaServer, kafka

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tool_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cluster ids that Kafka's own tool was called with; it writes into the folder of the broker that it is for."""
    runs: list[str] = []

    def run(command: list[str]) -> CompletedProcess[str]:
        folder, cluster = command[0], command[-1]
        runs.append(cluster)
        data = tmp_path / folder / "data"
        data.mkdir()
        (data / "bootstrap.checkpoint").write_bytes(b"features")
        (data / "meta.properties").write_text(f"cluster.id={cluster}\n")
        return CompletedProcess(command, 0, "")

    (tmp_path / "jars").mkdir()
    monkeypatch.setattr(kafka, "run_program", run)
    monkeypatch.setattr(kafka, "jars_folder", lambda _: tmp_path / "jars")
    return runs


def formatted(tmp_path: Path, name: str, **config: str) -> tuple[KafkaServer, dict[str, str]]:
    broker = KafkaServer(tmp_path / name, config=config)
    broker.folder.mkdir(exist_ok=True)
    broker._format([name])
    data = broker.folder / "data"
    assert (data / "bootstrap.checkpoint").read_bytes() == b"features"
    lines = (data / "meta.properties").read_text().splitlines()
    return broker, dict(line.split("=") for line in lines)


def test_after_the_first_broker_none_needs_the_tool(tmp_path: Path, tool_runs: list[str]):
    first, _ = formatted(tmp_path, "first")
    second, told = formatted(tmp_path, "second", **{"node.id": "7"})
    _, other = formatted(tmp_path, "third")
    assert tool_runs == [first.settings["cluster_id"]]
    assert told["cluster.id"] == second.settings["cluster_id"]
    assert (told["version"], told["node.id"], other["node.id"]) == ("1", "7", "1")
    assert told["directory.id"] != other["directory.id"]


def test_settings_that_change_what_is_written_need_the_tool(tmp_path: Path, tool_runs: list[str]):
    formatted(tmp_path, "first")
    formatted(tmp_path, "second", **{"unstable.feature.versions.enable": "true"})
    assert len(tool_runs) == 2


def test_a_cache_that_may_only_be_read_is_no_error(
    tmp_path: Path, tool_runs: list[str], monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> bool:
        raise PermissionError("read-only")

    monkeypatch.setattr(kafka, "put_once", refuse)
    formatted(tmp_path, "first")
    formatted(tmp_path, "second")
    assert len(tool_runs) == 2
