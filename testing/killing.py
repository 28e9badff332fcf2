"""SIGKILL at each durable step and around each call of a sink, in a process of its own.

That process runs the sink in an embedded pipeline in forks of itself. The first run is clean and tells which durable
steps are passed, which methods are called and which modules are imported: these are imported before the other forks are
made, so that each of some forty need not do it again. Then each run goes on where the one before was killed, and is
killed at the next of these points; when a run comes to its end all the same, a new pipeline begins with new rows. The
last run is not killed.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from onceward.core import CheckpointConfig, Pipeline, open_store
from onceward.core.checkpoint.subtask import DirectlyWritten
from onceward.core.errors import ConfigurationError, text_of
from onceward.core.kit.crash_points import Step, hooked, kill_at
from onceward.sources import SequenceSource

from .faults import Faults, die, die_after
from .watch import SinkWatch
from .wrappers import FaultySink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection

    import pyarrow as pa

    from onceward.sinks import TwoPhaseCommitSink

MOST_SECONDS: Final = 40
RESTARTS: Final = 20
RESTART_PAUSE: Final = 0.05
T = TypeVar("T")
ONLY_LATER: Final = (Step.ABORT_BEFORE, Step.ABORT_AFTER, "abort().before", "abort().after")
"""Steps that a clean run does not pass, and one after a crash does."""
UNPREDICTABLE: Final = frozenset({"validate", "discard"})
"""Calls that change nothing in a target, or come only after a failure."""


@dataclass
class Report:
    """The result of killing a process at each point.

    Attributes:
        killed: Points at which the process was killed, in order.
        missed: Points that were not reached.
        used: So many of the parts were written.
        errors: Messages about all that failed.
    """

    killed: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    used: int = 0
    errors: list[str] = field(default_factory=list)


def kill_everywhere(sink: TwoPhaseCommitSink[Any], pipeline: str, parts: list[pa.Table], folder: Path) -> Report:
    """Run a sink in an embedded pipeline that is killed at each point once, and continues each time.

    Args:
        sink: Its class must be importable by name in another process.
        pipeline: Beginning of the pipelines' names.
        parts: Rows for one pipeline each; 60 are enough for any sink.
        folder: Empty; for the decision logs.

    Raises:
        ConfigurationError: The sink does not get into another process.
    """
    return in_a_new_process(sink, _Killer(sink, pipeline, parts, folder).all)


def in_a_new_process(sink: TwoPhaseCommitSink[Any], work: Callable[[], T]) -> T:
    """Return what `work` returns in a process that was started anew, so that it may fork itself safely.

    Raises:
        ConfigurationError: The sink does not get into another process.
    """
    spawn = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, spawn, initializer=_import_from, initargs=(str(Path.cwd()),)) as pool:
            return pool.submit(work).result()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"sink {sink.name} cannot be pickled, so no other process can run it: {text_of(error)}"
        ) from error
    except BrokenProcessPool as error:
        raise ConfigurationError(
            f"sink {sink.name} cannot be run in another process: is its class importable by name? Standard error says "
            "why"
        ) from error


def import_all(modules: Iterable[str]) -> None:
    """Import what a fork has imported, so that the next ones need not."""
    for module in modules:
        if not module.startswith("__"):
            with suppress(Exception):  # made at run time, or of an extra that is not there
                importlib.import_module(module)


def _import_from(folder: str) -> None:
    sys.path.insert(0, folder)


class _Killer:
    def __init__(self, sink: TwoPhaseCommitSink[Any], pipeline: str, parts: list[pa.Table], folder: Path) -> None:
        self._sink, self._name, self._parts, self._folder = sink, pipeline, parts, folder
        self._report, self._part = Report(), 0

    def all(self) -> Report:
        points, modules = self._fork("") or ([], [])
        import_all(modules)
        fresh = True
        later = () if isinstance(self._sink, DirectlyWritten) else ONLY_LATER
        for point in [*points, *later]:
            if self._report.errors:
                break
            if fresh:
                self._part += 1
            if point in ONLY_LATER:  # so that there is something to abort
                fresh = bool(self._fork(Step.PRE_COMMIT_AFTER))
            done = self._fork(point)
            if done and not fresh:  # it came to its end first: once more from the beginning
                self._part += 1
                done = self._fork(point)
            fresh = bool(done)
            (self._report.missed if done else self._report.killed).append(point)
        if not fresh and not self._report.errors:
            self._fork(None)
        self._report.used = self._part + 1
        return self._report

    def _fork(self, point: str | None) -> tuple[list[str], list[str]] | None:
        """Fork a run; return the points and modules that it reached, None if `point` killed it. "" kills none."""
        fork = multiprocessing.get_context("fork")
        here, there = fork.Pipe(duplex=False)
        child = fork.Process(target=self._run, args=(point, there))
        child.start()
        there.close()
        try:
            answer: Any = here.recv() if here.poll(MOST_SECONDS) else f"it did not come to an end in {MOST_SECONDS} s"
        except EOFError:
            answer = None
        if isinstance(answer, str):
            child.kill()
        child.join()
        if answer is None and child.exitcode == -signal.SIGKILL and point != "":
            return None
        if not isinstance(answer, tuple):
            self._report.errors.append(f"run to {point or 'the end'}: {answer or f'exit code {child.exitcode}'}")
            return [], []
        return answer

    def _run(self, point: str | None, parent: Connection) -> None:
        passed: list[Step] = []
        faults = Faults()
        hook: Callable[[Step], None] = passed.append
        if point:
            name, _, when = point.partition("()")
            if when:
                faults = Faults((die if when == ".before" else die_after)(name))
            else:
                hook = kill_at(point)
        try:
            watch = SinkWatch()
            with hooked(hook):
                try:
                    self._pipeline(FaultySink(FaultySink(self._sink, watch), faults), watch).run()
                finally:
                    watch.check()
            calls = [name for name in dict.fromkeys(faults.calls) if name not in UNPREDICTABLE]
            points = [*dict.fromkeys(passed), *(f"{name}(){when}" for name in calls for when in (".before", ".after"))]
            parent.send((points, list(sys.modules)))
        except BaseException:  # noqa: BLE001 - told to the parent
            parent.send(traceback.format_exc())
        finally:
            os._exit(0)  # whatever threads the sink has left

    def _pipeline(self, sink: TwoPhaseCommitSink[Any], watch: SinkWatch) -> Pipeline:
        name = f"{self._name}-{self._part}"
        pipeline = Pipeline(
            name,
            store=open_store(str(self._folder / "log" / name), pipeline=name),
            checkpointing=CheckpointConfig(interval=0.02),
            restart=watch.restarts(RESTARTS, RESTART_PAUSE),
        )
        rows = SequenceSource(self._parts[self._part], units=2, batch_rows=4)
        pipeline.source(rows, parallelism=2).sink(sink, parallelism=2)
        return pipeline
