"""Restore a savepoint of a Spark query into a new folder, if nothing has been written since, or somebody says why not.

In this order, so that an interruption leaves the query startable at one place at most, and repeating the command
finishes it:

1. START in the log that the pipeline uses now fences whoever is at work under it.
2. Its entries are copied to where the log will be; then Spark's files, less the one with the query's id. Until that one
   is there, Spark takes the folder for a new query's, which the log does not admit.
3. MOVED ends the old log, if it has not grown since 1. From here on the new place alone counts.
4. REWIND, if the sinks have gone on since: the next epoch is the savepoint's successor, once more.
5. The file with the query's id.

If the log in use is the one that the restored query will use (a database), it stays: there is nothing to copy or to
end. It would accept the old checkpoint as well as the new one, so the old one is marked first (departure.py), and then
a START fences any driver that opened an epoch before that.

If the log in use cannot be found, nobody knows what was written since: a reason is needed, and a new log begins, which
the targets accept in place of the lost one as after any rewind.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from onceward.core.checkpoint import CommitPolicy
from onceward.core.checkpoint.admission import go_back, goes_back
from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.errors import (
    ConfigurationError,
    EpochConflictError,
    FencedError,
    LogDamagedError,
    NoDecisionLogError,
    StateDamagedError,
    StateError,
)
from onceward.core.log import Decide, LogView, LogWriter, Rewound, open_store, read
from onceward.core.log.log_copies import entries_of, put_entries
from onceward.core.log.store import IN_CHECKPOINT

from .departure import Departure
from .manifest import ENTRIES, FILES, IDENTITY, Savepoint, savepoint_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onceward.core.engine.state.handles import FileRef
    from onceward.core.log import LogStore


_log = logging.getLogger("onceward.savepoint")


class LogAt(NamedTuple):
    """A decision log, and where it is."""

    place: str
    store: LogStore | None
    """Store that holds the log; None if that is a savepoint, which cannot be written to."""
    view: LogView


@dataclass(frozen=True)
class RestorePlan:
    """A plan of `restore_savepoint`.

    Attributes:
        saved: Savepoint that is restored.
        checkpoint: The new folder.
        store: URL of the store where the log will be; None: in the checkpoint.
        back: Identity of the rewind by which the pipeline goes back; None if it does not go back.
        place: Location where the log will be, for people and for the next restore.
        current: The log in use; None if it cannot be found.
        departure: The checkpoint that the query leaves; None unless the log is known and will be in a store of its own.
    """

    saved: Savepoint
    checkpoint: CheckpointStorage
    store: str | None
    back: Rewound | None
    place: str
    current: LogAt | None
    departure: Departure | None = None

    def describe(self) -> str:
        """Return the plan as one sentence, for people."""
        m = self.saved.manifest
        text = f"restore epoch {m.epoch} of pipeline {m.pipeline} to {self.checkpoint.root}"
        if self.back is not None:
            text += f"; epochs from {m.epoch + 1} on are written again"
        if self.current is not None and self.current.store is not None and self.current.place != self.place:
            text += f"; the query can no longer be started from {self.current.place}"
        elif self.departure is not None and self.departure.left is not None:
            text += f"; the query can no longer be started from {self.departure.left.root}"
        return text


def plan_restore(
    place: str, checkpoint: str, *, store: str | None = None, pipeline: str | None = None, rewind: str | None = None
) -> RestorePlan:
    """Return what restoring the savepoint of a Spark query would do, for `restore_savepoint`. Changes nothing.

    Args:
        place: Folder of the savepoint: a path, or a URL that fsspec knows.
        checkpoint: The folder to restore to: new, empty, or with a part of this savepoint.
        store: URL of the store where the decision log will be; None: in the checkpoint.
        pipeline: Name of the pipeline, to be sure; None: whichever it is.
        rewind: Reason why the pipeline goes back although epochs were written since; None if it does not.

    Raises:
        ConfigurationError: The savepoint is not one of a Spark query, or not of this pipeline, or the folder holds
            something else.
        EpochConflictError: The sinks have gone on since, or may have, and nobody said why the pipeline goes back.
        StateDamagedError: The savepoint is damaged.
        StoreError: A store did not answer.
    """
    if rewind is not None and not rewind.strip():
        raise ConfigurationError("rewind is empty: say why the pipeline goes back")
    savepoint = savepoint_at(place)
    if savepoint.kind == "engine":
        raise ConfigurationError(
            f"{savepoint.place} is a savepoint of the embedded engine: its program restores it, with "
            f"pipeline.run(restore={savepoint.place!r})"
        )
    saved = Savepoint.load(place)
    if pipeline not in {None, saved.manifest.pipeline}:
        raise ConfigurationError(
            f"{saved.storage.root} is a savepoint of pipeline {saved.manifest.pipeline!r}, not of {pipeline!r}: give "
            "the folder of the right savepoint"
        )
    return _plan(saved, checkpoint, store, rewind)


def _plan(saved: Savepoint, checkpoint: str, store: str | None, why: str | None) -> RestorePlan:
    m, into = saved.manifest, CheckpointStorage(checkpoint)
    saved.verify()
    _check_folder(saved, into)
    target = _target(into, store, m.pipeline)
    if target.view.moved:
        raise ConfigurationError(f"the pipeline has moved from {into.root} to {target.view.moved}: give another folder")
    if target.view.log not in {"", m.log} and any(isinstance(entry, Decide) for entry in target.view.entries):
        raise ConfigurationError(
            f"{target.place} holds another decision log of {m.pipeline}: give a new or empty place"
        )
    current = _current(saved, target)
    at_it = current is not None and (current.store is None or _is_at(current.view, saved))
    if not at_it and why is None:
        raise EpochConflictError(_refusal(saved, current), pipeline=m.pipeline, epoch=m.epoch)
    if current is not None and current.view.undone is not None:
        raise EpochConflictError(
            f"epoch {current.view.undone.epoch} is decided and not committed everywhere: `onceward txn commit` first",
            pipeline=m.pipeline,
        )
    back = None if at_it or why is None else Rewound(query=m.query, epoch=m.epoch + 1, why=why)
    if current is not None and back is not None:
        goes_back(current.view, back, None)  # or an error: it was done before
    departure = None if store is None or current is None else Departure.find(m, into)
    return RestorePlan(saved, into, store, back, target.place, current, departure)


def restore_savepoint(plan: RestorePlan, *, policy: CommitPolicy | None = None) -> None:
    """Restore a savepoint of a Spark query, which is started at its new checkpoint next.

    Args:
        plan: Plan that `plan_restore` returned. If it does not hold any longer, the restore is refused.
        policy: Clocks and pauses.

    Raises:
        FencedError: The pipeline was started meanwhile, where it was until now. It goes on there.
        EpochConflictError: It has decided another epoch meanwhile.
        StateError: A file could not be written. Repeat it.
    """
    policy = policy or CommitPolicy()
    saved, into = plan.saved, plan.checkpoint
    target = open_store(_log_url(into, plan.store), pipeline=saved.manifest.pipeline)
    place = into.root if plan.store is None else target.describe()
    if plan.departure is not None:
        # Before the START below, which then fences a driver that began at the old checkpoint just before the mark.
        plan.departure.mark()
    try:
        old = _fence_and_copy(plan, target, place, policy)
    except (EpochConflictError, FencedError):
        if plan.departure is not None:
            plan.departure.unmark()  # the query goes on there
        raise
    identity = _put_files(saved, into)
    if old is not None:
        # After the files: until then, an interrupted restore leaves the query where it was.
        old.move(place)
    if plan.current is not None and plan.back is not None:
        go_back(LogWriter(target, saved.manifest.pipeline, policy), plan.back)
    _mark_restored(saved, place)
    _put_file(saved, into, identity)


def _fence_and_copy(plan: RestorePlan, target: LogStore, place: str, policy: CommitPolicy) -> LogWriter | None:
    """Fence a driver that is running, and put the log in its new place; return the writer that will end the old log."""
    saved, current, back, pipeline = plan.saved, plan.current, plan.back, plan.saved.manifest.pipeline
    if current is None and back is not None:
        go_back(LogWriter(target, pipeline, policy), back)
    elif current is not None and current.store is None:
        # Before the entries, so that two restores cannot both continue from the log in this savepoint.
        saved.claim(place)
        put_entries(target, _entries(saved), place)
    elif current is not None and current.store is not None and current.place != place:
        old = LogWriter(current.store, pipeline, policy)
        put_entries(target, entries_of(current.store, _started(old, plan)), place)
        return old
    elif plan.departure is not None and back is None:  # a rewind fences with a START of its own
        _started(LogWriter(target, pipeline, policy), plan)
    return None


def _started(writer: LogWriter, plan: RestorePlan) -> LogView:
    """Append a START to the log in use; raise if the log is no longer as it was when it was examined."""
    view = writer.start()
    if _is_at(view, plan.saved) != (plan.back is None) or view.undone is not None:
        where = plan.current.place if plan.current is not None else plan.place
        raise EpochConflictError(f"the query was started at {where} meanwhile: repeat this")
    return view


def _mark_restored(saved: Savepoint, place: str) -> None:
    try:
        saved.mark_restored(place)
    except (OSError, StateError) as error:
        if saved.manifest.retired:
            raise
        _log.warning("cannot record in the savepoint that it was restored to %s: %s", place, error)


def _is_at(view: LogView, saved: Savepoint) -> bool:
    """Return whether the newest decided epoch is the savepoint's."""
    m = saved.manifest
    return (view.log, view.finished) == (m.log, m.position) and view.undone is None and not view.rewound


def _refusal(saved: Savepoint, current: LogAt | None) -> str:
    m = saved.manifest
    again = (
        "or, if the targets were reset or should get the rows again, go back on purpose, with a reason for the rewind"
    )
    if current is None:
        return (
            f"the savepoint is of epoch {m.epoch}, and the decision log that was in {m.place} cannot be found, so it "
            f"is unknown whether epochs were written since. Give the location of the log's store, {again}"
        )
    known = "has gone back since" if current.view.rewound else f"has decided epoch {current.view.progress.epoch} since"
    return (
        f"the savepoint is of epoch {m.epoch}, and the pipeline {known} (decision log in {current.place}): continuing "
        f"from the savepoint would write rows twice. Start the query where it is, {again}"
    )


# Where the log is


def _log_url(checkpoint: CheckpointStorage, store: str | None) -> str:
    return store if store is not None else checkpoint.at(IN_CHECKPOINT)


def _target(into: CheckpointStorage, store: str | None, pipeline: str) -> LogAt:
    """Return where the log will be, and what is there now."""
    try:
        there = open_store(_log_url(into, store), pipeline=pipeline, existing=True)
    except NoDecisionLogError:
        return LogAt(into.root if store is None else "the store given", None, LogView())
    try:
        view = read(there)
    except LogDamagedError:  # a part of a copy; if it is not, the copying will meet what is there
        view = LogView()
    return LogAt(into.root if store is None else there.describe(), there, view)


def _current(saved: Savepoint, target: LogAt) -> LogAt | None:
    """Return the log that the pipeline uses now, wherever it has moved to; None if it cannot be found."""
    m, here = saved.manifest, saved.storage.root
    for start in (m.place, here if m.retired else saved.restored_to):
        place, visited = start, set[str]()
        while place and place not in visited:
            visited.add(place)
            if place == here and not saved.restored_to and saved.claimed_by in {"", target.place}:
                return LogAt(here, None, LogView())
            if place == here:
                place = saved.restored_to or saved.claimed_by
            current = target if place == target.place else _look(place, m.pipeline)
            view = current.view if current is not None else LogView()
            if current is None or not view.log or (view.log != m.log and place != saved.restored_to):
                break
            if not view.moved:
                return current
            place = view.moved
    in_one_store = m.store is not None and target.view.log == m.log
    return target if in_one_store else None


def _look(place: str, pipeline: str) -> LogAt | None:
    """Return the log inside a checkpoint; None if there is none, or if the place is the description of a store."""
    if " " in place.partition("/")[0]:
        return None
    try:
        store = open_store(CheckpointStorage(place).at(IN_CHECKPOINT), pipeline=pipeline, existing=True)
    except NoDecisionLogError:
        return None
    return LogAt(place, store, read(store))


# Putting files and entries where they are to be; what is there already is left as it is


def _check_folder(saved: Savepoint, into: CheckpointStorage) -> None:
    """Refuse a folder that holds anything but a part of this savepoint."""
    references = {_path(ref): ref for ref in saved.manifest.files}
    there = [path for path in into.walk() if not path.startswith(f"{IN_CHECKPOINT}/")]
    hidden = [path for path in there if path.rpartition("/")[2].startswith(".")]  # checksums, interrupted writes
    others = [
        path for path in there if (not _holds(into, references[path]) if path in references else path not in hidden)
    ]
    if others:
        raise ConfigurationError(
            f"{into.root} is not empty: it holds {others[0]}{' and more' if len(others) > 1 else ''}. Give a new or an "
            "empty folder; the query's old checkpoint stays as it is"
        )


def _put_files(saved: Savepoint, into: CheckpointStorage) -> FileRef:
    """Put all of Spark's files but the one with the query's id, and return that one."""
    identity = next(ref for ref in saved.manifest.files if _path(ref) == IDENTITY)
    for ref in saved.manifest.files:
        if ref is not identity:
            _put_file(saved, into, ref)
    return identity


def _put_file(saved: Savepoint, into: CheckpointStorage, ref: FileRef) -> None:
    if not _holds(into, ref):
        into.write(_path(ref), saved.storage.proven(ref))


def _holds(into: CheckpointStorage, ref: FileRef) -> bool:
    """Return whether the file is there, just as it is in the savepoint."""
    try:
        # Read to its end, because the checksum is compared only there.
        for _ in into.proven(msgspec.structs.replace(ref, path=_path(ref))):
            pass
    except StateDamagedError:
        return False
    return True


def _path(ref: FileRef) -> str:
    """Return the path of a file in the checkpoint."""
    return ref.path.removeprefix(f"{FILES}/")


def _entries(saved: Savepoint) -> Iterable[tuple[str, bytes]]:
    for ref in saved.manifest.entries:
        yield ref.path.removeprefix(f"{ENTRIES}/"), saved.storage.read(ref)
