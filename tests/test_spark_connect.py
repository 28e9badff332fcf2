"""What a process of foreachBatch does by itself: whose query it writes for, how it ends, and how it reads a checkpoint.

Stand-ins answer for the session. With a real server, integration/test_spark_connect.py asks the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.connectors.spark.session.connect import ConnectSession, read_by_session
from onceward.core.errors import ConfigurationError

from .spark_kit import QUERY, Checkpoint


def session(*queries: str) -> Any:
    active = [SimpleNamespace(id=query, runId=f"run of {query}") for query in queries]
    return SimpleNamespace(streams=SimpleNamespace(active=active))


def test_only_a_query_that_is_active_in_the_session_is_written_for(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    asked = ConnectSession(session("another", QUERY), str(checkpoint.root))
    assert asked.current_run(None).run == f"run of {QUERY}"
    for others in ([], ["another"]):
        with pytest.raises(ConfigurationError, match="does not run in this session"):
            ConnectSession(session(*others), str(checkpoint.root)).current_run(None)


PROCESS = """
    import time
    from onceward.connectors.spark.session.connect import InOrder

    def epoch(frame, batch):
        print("begun", flush=True)
        time.sleep(1)
        print("ended", flush=True)

    InOrder(epoch)(None, 0)
    print("another epoch", flush=True)
"""


def test_sigterm_lets_the_epoch_end_and_no_other_begin(tmp_path: Path) -> None:
    program = tmp_path / "process.py"
    program.write_text(textwrap.dedent(PROCESS))
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[0] == "ended\n"
    assert process.returncode == 128 + signal.SIGTERM


class Reader:
    """Reads a file as Spark's text source does: a row for each line, or one for all of it."""

    def text(self, url: str, *, wholetext: bool = False) -> Any:
        text = Path(url.removeprefix("file:")).read_text()
        return SimpleNamespace(collect=lambda: [(text,)] if wholetext else [(line,) for line in text.splitlines()])


def test_a_file_of_the_checkpoint_is_read_whole(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.plan(0)
    file = checkpoint.root / "offsets/0"
    assert read_by_session(SimpleNamespace(read=Reader()), f"file:{file}") == file.read_text()  # type: ignore[arg-type]
