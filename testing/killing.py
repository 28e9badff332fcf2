"""SIGKILL at each durable step and around each call of a sink, in real processes (child.py)."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from onceward.core.errors import ConfigurationError

from .child import REPORT, TASK, Report, Task

if TYPE_CHECKING:
    import pyarrow as pa

    from onceward.sinks import TwoPhaseCommitSink


def kill_everywhere(sink: TwoPhaseCommitSink[Any], pipeline: str, parts: list[pa.Table], folder: Path) -> Report:
    """Run a sink in an embedded pipeline that is killed at each point once, and goes on each time.

    Args:
        sink: Its class must be importable by name in another process.
        pipeline: Beginning of the pipelines' names.
        parts: Rows for one pipeline each; 60 are enough for any sink.
        folder: Empty; for the decision log and what is told.

    Raises:
        ConfigurationError: The sink does not get into another process.
    """
    try:
        task = pickle.dumps(Task(sink, pipeline, parts))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"sink {sink.name} cannot be pickled, so no other process can run it: {error}"
        ) from error
    (folder / TASK).write_bytes(task)
    path = os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])
    done = subprocess.run(  # noqa: S603 - this Python, this module
        [sys.executable, "-m", "onceward.testing.child", str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if not (folder / REPORT).exists():
        raise ConfigurationError(f"sink {sink.name} cannot be run in another process:\n{done.stderr[-2000:]}")
    return msgspec.json.decode((folder / REPORT).read_bytes(), type=Report)
