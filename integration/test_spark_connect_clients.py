"""Clients of Spark Connect: one without Java, one that goes away, one that is killed, and one that finds the query."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.dataset as ds
import pyspark
import pytest

from onceward import FileSink, ProgressListener, exactly_once

from .connect_kit import ConnectServer, remote_functions, wait_until
from .pages_kit import build_wheel
from .spark_kit import Feed, once

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [pytest.mark.spark]
ROOT: Final = Path(__file__).parent.parent
CLIENT: Final = Path(__file__).with_name("connect_client.py")


class Clients:
    """What one process after another starts and finds again: a folder of JSON files → files.

    Attributes:
        server: Their server.
        folder: Folder of the query.
    """

    def __init__(self, server: ConnectServer, folder: Path) -> None:
        self.server, self.folder, self.feed = server, folder, Feed(folder)

    def started_by(self, python: str | Path, environment: Mapping[str, str], *more: str) -> subprocess.Popen[bytes]:
        """Start a client, and wait until its query has started."""
        command = [python, CLIENT, self.server.url, str(self.feed.folder), str(self.folder), *more]
        client = subprocess.Popen(command, env=dict(environment), cwd=self.folder)
        wait_until(lambda: self.started.exists() or client.poll() not in {None, 0})
        assert self.started.exists(), f"the client ended with {client.returncode}"
        return client

    @property
    def started(self) -> Path:
        return self.folder / "started"

    def found_again(self) -> tuple[Any, Any]:
        """Connect to the client's session, and return it and the query."""
        from pyspark.sql.connect.session import SparkSession

        session_id, query_id = self.started.read_text().split()
        session = SparkSession.builder.remote(f"{self.server.url}/;session_id={session_id}").create()
        return session, session.streams.get(query_id)

    def ids(self) -> Counter[int]:
        table = ds.dataset(self.folder / "out").to_table(columns=["id"])
        return Counter(table["id"].to_pylist())

    def completed(self, epoch: int) -> Path:
        return self.folder / f"completed-{epoch}"


@pytest.fixture
def clients(connect_server: ConnectServer, tmp_path: Path) -> Iterator[Clients]:
    with remote_functions():
        yield Clients(connect_server, tmp_path)


@pytest.fixture(scope="module")
def client_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel and pyspark-client, and nothing else."""
    folder = tmp_path_factory.mktemp("client")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheel = build_wheel(folder)
    python = folder / "venv/bin/python"
    venv.create(folder / "venv", with_pip=False)
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(line.removesuffix(" \\") for line in lines if re.match(r"[a-z].*==", line)))
    packages = [wheel, f"pyspark-client=={pyspark.__version__}"]
    install = [*pip, "--python", python, "install", "-q", "--no-compile", "-c", constraints, *packages]
    subprocess.run(install, check=True)
    return python


def test_a_client_without_java_and_extras_starts_a_query_and_goes_away(clients: Clients, client_only: Path) -> None:
    clients.feed.add()
    client = clients.started_by(client_only, {"PATH": "/nonexistent", "HOME": str(clients.folder)})
    assert client.wait(60) == 0
    session, query = clients.found_again()
    try:
        wait_until(clients.completed(0).exists)
        clients.feed.add()
        wait_until(clients.completed(1).exists)
        assert query.isActive
        [process] = clients.server.workers()
        assert clients.completed(1).read_text() == str(process.pid)
        pids = ds.dataset(clients.folder / "pids").to_table()["pid"].to_pylist()
        assert set(pids) == {process.pid}
        assert clients.ids() == once(clients.feed.rows)
    finally:
        query.stop()
        session.stop()


def test_a_client_that_is_killed_while_an_epoch_is_written_changes_nothing(clients: Clients) -> None:
    clients.feed.add()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    client = clients.started_by(sys.executable, environment, "hold")
    session, query = clients.found_again()
    try:
        wait_until((clients.folder / "held").exists)
        client.kill()
        client.wait()
        (clients.folder / "free").touch()
        clients.feed.add()
        wait_until((clients.folder / "checkpoint/commits/1").exists)
        assert query.isActive
        assert clients.ids() == once(clients.feed.rows)
    finally:
        query.stop()
        session.stop()


@pytest.fixture
def observed_server(connect_environment: dict[str, str], tmp_path: Path) -> Iterator[ConnectServer]:
    """A server whose environment asks for log records, metrics and lineage."""
    (tmp_path / "metrics").mkdir()
    environment = {
        **connect_environment,
        "ONCEWARD_LOG": "INFO",
        "ONCEWARD_METRICS": "prometheus",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics"),
        "ONCEWARD_LINEAGE": "openlineage",
        "OPENLINEAGE__TRANSPORT__TYPE": "file",
        "OPENLINEAGE__TRANSPORT__LOG_FILE_PATH": str(tmp_path / "lineage"),
    }
    server = ConnectServer(tmp_path / "server", environment, {"spark.ui.enabled": "false"})
    try:
        server.start()
        with remote_functions():
            yield server
    finally:
        server.stop()


def test_log_metrics_and_lineage_are_the_servers_and_progress_is_the_clients(
    observed_server: ConnectServer, tmp_path: Path
) -> None:
    feed, session, listener = Feed(tmp_path), observed_server.session(), ProgressListener()
    session.streams.addListener(listener)
    feed.add()
    query = exactly_once(
        feed.stream(session),
        FileSink("files", tmp_path / "out"),
        checkpoint=str(tmp_path / "checkpoint"),
        pipeline="observed",
    ).start()
    try:
        wait_until((tmp_path / "checkpoint/commits/0").exists)
        progress = wait_until(lambda: listener.last_progress(query.id))
        assert progress["numInputRows"] == feed.rows
        assert "onceward" not in progress["sink"]
        [process] = observed_server.workers()
        assert list((tmp_path / "metrics").glob(f"*_{process.pid}.db"))
        log = (tmp_path / "server/server.log").read_text()
        assert re.search(r"^\d{4}-\d\d-\d\d \S+ INFO .*observed", log, re.MULTILINE)
        assert wait_until(lambda: [file for file in tmp_path.glob("lineage*") if "observed" in file.read_text()])
    finally:
        query.stop()
        session.streams.removeListener(listener)
        session.stop()
