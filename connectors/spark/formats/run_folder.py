"""The folder in which a batch run without a run key keeps its decision log, and what a failed run leaves there.

Spark kills the other tasks of a failed job late: they may prepare transactions after the job was aborted. Nothing but
this log can end these, so the folder outlives every task that can still prepare:

1. A task holds a lock on a file of its own from before it begins a transaction until it has prepared it and has looked
   at the log again. The system ends the lock with the process, whatever kills it.
2. Whoever aborts first puts a START into the log, and then looks for locks. A task takes its lock first, and then looks
   for a START. So one of them sees the other: a task that finds the START rolls back its own transaction, and the abort
   waits for tasks that hold locks, and sweeps again.
3. The folder is deleted if no lock is left after the START, and all tasks ran on this machine. Otherwise it is kept and
   marked: the next run into the same target sweeps it, or `onceward txn` does.
4. A run that succeeds may leave superseded attempts on other machines, too (speculation, an executor presumed dead).
   They may prepare after the sweep that follows COMPLETED, so the run's folder is kept in the same way, but for a
   shorter time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from onceward.core.checkpoint.recovery import sweep
from onceward.core.contract.names import Scope
from onceward.core.errors import OncewardError
from onceward.core.kit import typed
from onceward.core.kit.folders import sole
from onceward.core.log import DirectoryStore, LogWriter, read
from onceward.sinks.folder_claims import FolderSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from onceward.core.contract.policy import CommitPolicy
    from onceward.sinks import TwoPhaseCommitSink

_log = logging.getLogger("onceward.spark")
PREFIX: Final = "onceward-batch-"
_TASKS, _FAILED, _SWEPT = ".tasks", ".failed", ".swept"  # a store does not list names with a dot
_POLL_SECONDS: Final = 0.05
WAIT_SECONDS: Final = 10.0
"""Seconds that an abort waits for tasks: Spark gives a Python worker 2 seconds (spark.python.task.killTimeout)."""
_OLD_SECONDS: Final = 86400.0
"""Age at which no task of a failed run is taken for alive on another machine."""
_SETTLED_SECONDS: Final = 600.0
"""The same for a run that succeeded: Spark kills superseded attempts at once, and a lost executor exits by itself."""


class FailedRun(msgspec.Struct, frozen=True):
    """The mark of a run that failed, or that succeeded with attempts that may still be at work."""

    pipeline: str
    sink: str
    target: str
    """Kind and dataset of the sink."""
    succeeded: bool = False


def new_folder() -> str:
    """Make a folder that only this user can enter."""
    return tempfile.mkdtemp(prefix=PREFIX)


def target_text(sink: TwoPhaseCommitSink[Any]) -> str:
    """Return a text that identifies the target of a sink; empty if the sink does not say.

    If a sink prepares in a folder, the text names that folder, because it is what a sweep cleans up.
    """
    place = (sink.folder,) if isinstance(sink, FolderSink) else sink.dataset()
    return "" if place is None else " ".join((type(sink).__name__, *place))


@contextmanager
def taking_part(folder: Path, master: str | None) -> Iterator[None]:
    """Hold a task's lock on the folder, which must be there: 1 above."""
    (folder / _TASKS).mkdir(exist_ok=True)
    with (folder / _TASKS / uuid.uuid4().hex).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(master or "local")
        # Flushed now, because a killed task closes no file: `has_ended` takes a run with an empty one for unfinished.
        file.flush()
        yield


def wait_for_tasks(folder: Path, seconds: float = WAIT_SECONDS) -> bool:
    """Wait until no task of this machine holds a lock.

    Returns:
        Whether there was one.
    """
    until, waited = time.monotonic() + seconds, False
    while _is_busy(folder) and time.monotonic() < until:
        waited = True
        time.sleep(_POLL_SECONDS)
    return waited


def has_ended(folder: Path) -> bool:
    """Return whether no task can prepare any more: some ran, all of them on this machine, and none holds a lock."""
    masters = [path.read_text() for path in _tasks(folder)]
    return bool(masters) and all(master.startswith("local") for master in masters) and not _is_busy(folder)


def mark_failed(folder: Path, pipeline: str, sink: TwoPhaseCommitSink[Any], *, succeeded: bool = False) -> None:
    """Mark a run that will decide nothing more, so that the next run into the same target sweeps its transactions.

    Args:
        folder: The run's folder, with its decision log.
        pipeline: Name of the run's pipeline.
        sink: The sink that it wrote into.
        succeeded: True if the run's rows are committed; what is left to sweep is then of tasks that were repeated.
    """
    mark = FailedRun(pipeline, sink.name, target_text(sink), succeeded)
    if not mark.target:
        _log.warning(
            "sink %s does not say what its target is (dataset), so no later run will end the transactions that tasks "
            "on other machines may still prepare. End them with `onceward txn abort --store %s`, then delete it",
            sink.name,
            folder,
        )
    (folder / _FAILED).write_bytes(msgspec.json.encode(mark))


def delete_folder(folder: Path, sink: TwoPhaseCommitSink[Any]) -> None:
    """Delete the folder, and the target's memory of its log, unless a decision in it is not completed."""
    view = read(DirectoryStore(folder))
    if view.undone is not None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    if not view.log or not view.pipeline:
        return
    try:  # after the log, which the target must know as long as it exists
        sink.ledger().forget(Scope(view.pipeline, sink.name, view.log))
    except OncewardError as error:
        _log.warning("cannot delete a finished batch write's records in the target of sink %s: %s", sink.name, error)


def end_folder(folder: Path, pipeline: str, sink: TwoPhaseCommitSink[Any]) -> None:
    """Delete the folder of a run that succeeded; keep it for the next run if an attempt may still be at work."""
    if has_ended(folder):
        delete_folder(folder, sink)
    else:
        mark_failed(folder, pipeline, sink, succeeded=True)


def sweep_failed_runs(sink: TwoPhaseCommitSink[Any], policy: CommitPolicy) -> None:
    """Abort transactions of failed runs into the same target, and delete their folders; errors are only logged."""
    for mark in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_FAILED}")):
        try:
            if mark.stat().st_uid == os.geteuid():
                _sweep(mark, sink, policy)
        except (OncewardError, OSError, msgspec.MsgspecError) as error:
            _log.warning("cannot clean up after the failed run in %s: %s", mark.parent, error)


def _sweep(mark: Path, sink: TwoPhaseCommitSink[Any], policy: CommitPolicy) -> None:
    with sole(mark) as there:
        failed = typed.decode(mark.read_bytes(), FailedRun) if there else None
        is_own = failed is not None and failed.target and (failed.sink, failed.target) == (sink.name, target_text(sink))
        store = DirectoryStore(mark.parent) if is_own else None
        if failed is None or store is None or read(store).undone is not None:
            return
        age, swept = time.time() - mark.stat().st_mtime, mark.with_name(_SWEPT)
        ended = has_ended(mark.parent) or age > (_SETTLED_SECONDS if failed.succeeded else _OLD_SECONDS)
        if failed.succeeded and swept.exists() and not ended:
            return  # such a run is swept only twice: once now, and once when its folder is deleted
        writer = LogWriter(store, failed.pipeline, policy)
        writer.start()
        aborted = sweep(writer, [sink]).aborted
        _log.info("aborted %s transactions of a run that has ended, whose log is in %s", len(aborted), mark.parent)
        swept.touch()
        if ended:
            delete_folder(mark.parent, sink)


def _tasks(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return list((folder / _TASKS).iterdir())
    return []


def _is_busy(folder: Path) -> bool:
    return any(_is_locked(path) for path in _tasks(folder))


def _is_locked(path: Path) -> bool:
    with path.open("r") as file:
        try:
            # Shared, so that two processes that look at the same time do not take each other for a task.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
