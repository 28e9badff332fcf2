"""SIGKILL at each durable step and around each call of a sink, in a process of its own.

That process, `python -m onceward.testing.killing FOLDER`, runs the sink in an embedded pipeline in forks of itself.
The first run is clean and tells which durable steps are passed, which methods are called and which modules are
imported: these are imported before the other forks are made, so that each of some forty need not do it again. Then each
run goes on where the one before was killed, and is killed at the next of these points; when a run comes to its end all
the same, a new pipeline begins with new rows. The last run is not killed.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from onceward.core import CheckpointConfig, Pipeline, RestartStrategy, open_store
from onceward.core.errors import ConfigurationError
from onceward.core.steps import Step, hooked, kill_at
from onceward.sources import SequenceSource

from .faults import Faults, die, die_after
from .wrappers import FaultySink

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from onceward.sinks import TwoPhaseCommitSink

TASK: Final = "task"
REPORT: Final = "report"
MOST_SECONDS: Final = 120
ONLY_LATER: Final = (Step.ABORT_BEFORE, Step.ABORT_AFTER, "abort().before", "abort().after")
"""What a clean run does not pass, and one after a crash does."""
UNPREDICTABLE: Final = frozenset({"validate", "discard"})
"""Calls that change nothing in a target, or come only after a failure."""


class Task(NamedTuple):
    """What to run."""

    sink: TwoPhaseCommitSink[Any]
    pipeline: str
    parts: list[pa.Table]
    """Rows for one pipeline each, as many as may be needed."""


class Report(msgspec.Struct):
    """What was done.

    Attributes:
        killed: At these points, in order.
        missed: These points were not reached.
        used: So many of the parts were written.
        errors: What failed.
    """

    killed: list[str] = []
    missed: list[str] = []
    used: int = 0
    errors: list[str] = []


class Seen(msgspec.Struct):
    """What the clean run passed and imported."""

    points: list[str] = []
    modules: list[str] = []


def main(folder: Path) -> None:
    """Run the task in the folder and leave a report there."""
    task: Task = pickle.loads((folder / TASK).read_bytes())  # noqa: S301 - written by killing.py
    (folder / REPORT).write_bytes(msgspec.json.encode(_Killer(task, folder).all()))


class _Killer:
    def __init__(self, task: Task, folder: Path) -> None:
        self._task = task
        self._folder = folder
        self._report = Report()
        self._part = -1

    def all(self) -> Report:
        points = self._clean()
        fresh = True
        for point in points:
            if fresh:
                self._part += 1
            done = self._fork(point)
            if done and not fresh:  # it came to its end first: once more from the beginning
                self._part += 1
                done = self._fork(point)
            fresh = done
            (self._report.missed if done else self._report.killed).append(point)
            if self._report.errors:
                break
        if not fresh and not self._report.errors:
            self._fork(None)
        self._report.used = self._part + 1
        return self._report

    def _clean(self) -> list[str]:
        """The points of a run without a fault, in order."""
        self._part += 1
        if not self._fork(""):
            self._report.errors.append("the clean run was killed")
        path = self._folder / "seen"
        seen = msgspec.json.decode(path.read_bytes(), type=Seen) if path.exists() else Seen()
        for module in seen.modules:
            with suppress(Exception):  # made at run time, or of an extra that is not there
                importlib.import_module(module)
        return [*seen.points, *ONLY_LATER]

    def _fork(self, point: str | None) -> bool:
        """Whether a run came to its end; "" records the points, None is an ordinary run."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(MOST_SECONDS)
                self._run(point)
                code = 0
            except BaseException:  # noqa: BLE001 - told by the file; nothing may get out of the fork
                (self._folder / "error").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return False
        if status:
            error = self._folder / "error"
            told = error.read_text() if error.exists() else f"it did not come to an end in {MOST_SECONDS} s"
            self._report.errors.append(f"run to {point or 'the end'}: {told}")
        return True

    def _run(self, point: str | None) -> None:
        passed: list[Step] = []
        faults = Faults()
        hook: Callable[[Step], None] = passed.append
        if point:
            name, _, when = point.partition("()")
            if when:
                faults = Faults((die if when == ".before" else die_after)(name))
            else:
                hook = kill_at(point)
        with hooked(hook):
            self._pipeline(FaultySink(self._task.sink, faults)).run()
        if point == "":
            calls = [name for name in dict.fromkeys(faults.calls) if name not in UNPREDICTABLE]
            points = [*dict.fromkeys(passed), *(f"{name}(){when}" for name in calls for when in (".before", ".after"))]
            seen = Seen(points, [name for name in sys.modules if not name.startswith("__")])
            (self._folder / "seen").write_bytes(msgspec.json.encode(seen))

    def _pipeline(self, sink: TwoPhaseCommitSink[Any]) -> Pipeline:
        name = f"{self._task.pipeline}-{self._part}"
        pipeline = Pipeline(
            name,
            store=open_store(str(self._folder / "log" / name), pipeline=name),
            checkpoint=CheckpointConfig(interval=0.02),
            restart=RestartStrategy.fixed_delay(attempts=20, delay=0.05),
        )
        rows = SequenceSource(self._task.parts[self._part], units=2, batch_rows=4)
        pipeline.source(rows, parallelism=2).sink(sink, parallelism=2)
        return pipeline


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
        [sys.executable, "-m", "onceward.testing.killing", str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if not (folder / REPORT).exists():
        raise ConfigurationError(f"sink {sink.name} cannot be run in another process:\n{done.stderr[-2000:]}")
    return msgspec.json.decode((folder / REPORT).read_bytes(), type=Report)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
