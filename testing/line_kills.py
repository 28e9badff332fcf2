"""SIGKILL before each line of a sink's own modules: in the middle of its calls, where no test of its own can stop it.

A process started anew runs one epoch after another of one pipeline, each in a fork of itself. The first epoch is clean
and tells which lines are passed; each further one is killed at the next of them. Then another fork starts a new writer,
which finishes the epoch if it was decided, and sweeps it if not. What the decision log says is what must be visible.

There are two ways to reach a line: an epoch from its first row to its completion, and the start of a writer that meets
a decided epoch, which it has to commit, beside transactions that no decision names, which it has to abort.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceward.core.checkpoint import Backoff, CommitPolicy, Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.kit.crash_points import Step, hooked, kill_at
from onceward.core.log import EpochInput, open_store

from .killing import import_all, in_a_new_process
from .watch import files_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from types import FrameType

    import pyarrow as pa

    from onceward.core.contract.transaction import Committable, WriteContext
    from onceward.sinks import TwoPhaseCommitSink

FORK_SECONDS: Final = 20.0
LEAST_LINES: Final = 10
SUBTASKS: Final = 2
BATCHES: Final = 2
ROWS_OF_AN_EPOCH: Final = 3 * SUBTASKS * BATCHES


_ENDING: Final = frozenset({Step.DECIDE_AFTER, Step.SWEEP_BEFORE, Step.COMMIT_BEFORE, Step.ABORT_BEFORE})
"""Steps from which on transactions are committed and aborted, and no longer written."""


class Line(NamedTuple):
    """A line of a sink's module, when it is reached for the nth time, before or after the decision."""

    file: str
    number: int
    function: str
    decided: bool
    nth: int

    def __str__(self) -> str:
        times = "" if self.nth == 1 else ", at the second time"
        return f"{Path(self.file).name}:{self.number} ({self.function}{times})"


@dataclass
class KilledEpoch:
    """One epoch that was killed, and what became of it.

    Attributes:
        where: Text that says before which line, and in which part of the protocol.
        number: Number of the epoch.
        decided: True if the log has a decision of the epoch.
    """

    where: str
    number: int
    decided: bool = False


@dataclass
class LineReport:
    """The result of killing a process before each line.

    Attributes:
        epochs: The epochs that were killed, one for each part of the rows.
        missed: Lines that were not reached again.
        left_out: Lines for which there was no time.
        errors: Messages about all that failed, each with the line.
    """

    epochs: list[KilledEpoch] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    left_out: int = 0
    errors: list[str] = field(default_factory=list)


def kill_at_each_line(
    sink: TwoPhaseCommitSink[Any], pipeline: str, parts: list[pa.RecordBatch], folder: Path, seconds: float
) -> LineReport:
    """Run epochs of a sink that are each killed before another line of its module.

    Args:
        sink: Its class must be importable by name in another process.
        pipeline: Name of the pipeline.
        parts: ROWS_OF_AN_EPOCH rows for one epoch each.
        folder: Empty; for the decision log.
        seconds: No further epoch begins after so many, if ten lines were tried.

    Raises:
        ConfigurationError: The sink does not get into another process.
    """
    return in_a_new_process(sink, _LineKiller(sink, pipeline, parts, folder, seconds).all)


class _LineKiller:
    def __init__(
        self, sink: TwoPhaseCommitSink[Any], pipeline: str, parts: list[pa.RecordBatch], folder: Path, seconds: float
    ) -> None:
        self._sink, self._name, self._parts, self._folder = sink, pipeline, parts, folder
        self._seconds = seconds
        self._report = LineReport()
        self._killed: KilledEpoch | None = None
        self._imported: set[str] = set()

    def all(self) -> LineReport:
        self._imported = set(sys.modules)
        plans: list[tuple[Line, bool]] = []
        for recovers in (False, True):
            plans += [(line, recovers) for line in self._kill("after a clean run", None, recovers=recovers) or ()]
        plans.sort(key=lambda plan: not plan[0].decided)  # if time is short, it goes to commits
        deadline = time.monotonic() + self._seconds
        for number, (line, recovers) in enumerate(plans):
            late = number >= LEAST_LINES and time.monotonic() > deadline
            if self._report.errors or late or len(self._report.epochs) >= len(self._parts):
                self._report.left_out = len(plans) - number
                break
            where = f"before {line}, while {'a new writer recovered' if recovers else 'an epoch was run'}"
            if self._kill(where, line, recovers=recovers) is not None:
                self._report.missed.append(where)
        self._fork(self._recover, None)
        return self._report

    def _kill(self, where: str, end: Line | None, *, recovers: bool) -> list[Line] | None:
        """Kill one more epoch before a line; return the lines that were passed if it came to its end."""
        if not recovers:
            return self._fork(self._run_epoch, end, where)
        # A decided epoch, and transactions that no decision names.
        self._fork(partial(self._run_epoch, stray=True), Step.DECIDE_AFTER, where)
        return self._fork(partial(self._recover, traced=True), end)

    def _fork(
        self, work: Callable[[_Tracer, Connection], Any], end: Line | Step | None, where: str = ""
    ) -> list[Line] | None:
        """Do the work in a fork until `end`, and note what the log says when it starts.

        Args:
            work: Function that does the work.
            end: Line or step at which the fork is killed; None if it is not.
            where: Text that says where a new epoch is killed; if empty, the fork runs no new epoch.

        Returns:
            The lines that it passed, None if `end` killed it.
        """
        if self._report.errors:
            return []
        fork = multiprocessing.get_context("fork")
        here, there = fork.Pipe(duplex=False)
        child = fork.Process(target=self._do, args=(work, end, there))
        child.start()
        there.close()
        lines, error = None, f"no answer within {FORK_SECONDS:g} s"
        with suppress(EOFError):
            while here.poll(FORK_SECONDS):
                answer: Any = here.recv()
                if isinstance(answer, int):
                    self._settle(answer, where)
                elif isinstance(answer, set):
                    import_all(answer)
                else:
                    lines, error = answer
            child.kill()
        child.join()
        here.close()
        if lines is None and not (child.exitcode == -signal.SIGKILL and end is not None):
            last = self._report.epochs[-1].where if self._report.epochs else "at the first start"
            self._report.errors.append(f"killed {last}; then: {error}")
        return lines

    def _settle(self, decided: int, where: str) -> None:
        """Note what the log says of the epoch that was killed last, and that the next one begins."""
        if self._killed is not None:
            self._killed.decided = self._killed.number <= decided
            self._killed = None
        if where:
            self._killed = KilledEpoch(where, decided + 1)
            self._report.epochs.append(self._killed)

    # In a fork

    def _do(self, work: Callable[[_Tracer, Connection], None], end: Line | Step | None, parent: Connection) -> None:
        tracer = _Tracer(files_of(self._sink), end if isinstance(end, Line) else None)
        try:
            with hooked(kill_at(end) if isinstance(end, Step) else tracer.step):
                work(tracer, parent)
            if end is None:
                parent.send(set(sys.modules) - self._imported)
            parent.send((tracer.lines(), ""))
        except BaseException:  # noqa: BLE001 - told to the parent
            parent.send((None, traceback.format_exc()))
        finally:
            os._exit(0)  # whatever threads the sink has left

    def _recover(self, tracer: _Tracer, parent: Connection, *, traced: bool = False) -> Coordinator:
        """Start a new writer, as after a crash, and tell the parent which epoch was decided last."""
        policy = CommitPolicy(commits=Backoff(first=0.01, most=0.2, attempts=50))
        store = open_store(str(self._folder / "log"), pipeline=self._name)
        coordinator = Coordinator(self._name, store, [self._sink], policy)
        with tracer.tracing() if traced else nullcontext():
            coordinator.open()
        scope = Scope(self._name, self._sink.name, coordinator.writer.token.log)
        left = [one.transaction for one in self._sink.lingering(scope)]
        if left:
            raise AssertionError(f"after a start, these transactions still linger: {', '.join(left)}")
        parent.send(coordinator.view.decided)
        return coordinator

    def _run_epoch(self, tracer: _Tracer, parent: Connection, *, stray: bool = False) -> None:
        coordinator = self._recover(tracer, parent)
        rows, epoch = self._parts[len(self._report.epochs)], coordinator.view.decided + 1
        about = EpochInput(query="conformance", start=epoch - 1 if epoch else None, end=epoch)
        with tracer.tracing():
            self._sink.validate(rows.schema)
            coordinator.admit(epoch, about)
            acks = []
            for subtask in range(SUBTASKS):
                for attempt in range(1 + stray):  # no decision names the first one
                    prepared = self._prepare(
                        coordinator.context(self._sink.name, epoch, subtask=subtask, attempt=attempt), rows
                    )
                acks.append(
                    Acknowledgement(
                        epoch=epoch,
                        subtask=subtask,
                        attempt=attempt,
                        sinks=(self._sink.name,),
                        committables=(prepared,),
                    )
                )
            coordinator.commit(epoch, acks, about)

    def _prepare(self, context: WriteContext, rows: pa.RecordBatch) -> Committable:
        writing, size = SubtaskEpoch(self._sink, context), ROWS_OF_AN_EPOCH // SUBTASKS // BATCHES
        for batch in range(BATCHES):
            writing.write(rows.slice((context.subtask * BATCHES + batch) * size, size))
        prepared = writing.pre_commit()
        assert prepared is not None  # noqa: S101 - rows were written
        return prepared


class _Tracer:
    """Notes the lines of some files that are passed, and kills the process before one of them."""

    def __init__(self, files: set[str], end: Line | None) -> None:
        self._files, self._end = files, end
        self._decided = self._on = False
        self._passed: Counter[tuple[str, int, str, bool]] = Counter()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        threading.settrace(self._enter)  # for threads that the coordinator starts
        sys.settrace(self._enter)
        self._on = True
        try:
            yield
        finally:
            self._on = False
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    def step(self, step: Step) -> None:
        self._decided |= self._on and step in _ENDING

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def lines(self) -> list[Line]:
        """Return the lines in the order in which they were passed first; those of commits and aborts twice.

        A loop over transactions may be correct in its first round only.
        """
        first = [Line(*at, 1) for at in self._passed]
        return first + [line._replace(nth=2) for line in first if line.decided and self._passed[line[:4]] > 1]

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            at = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, self._decided
            self._passed[at] += 1
            if self._end is not None and self._end == (*at, self._passed[at]):
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line
