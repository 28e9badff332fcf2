"""Making a savepoint of a Spark query: its checkpoint and decision log, copied when nobody can write to them any more.

1. The copy is consistent because it is made after a START: no epoch can be decided between the log's last entry and the
   end of the copying. That START is still the newest when the manifest is written, and no file of the checkpoint has
   changed since before it, or there is no manifest.
2. The savepoint is of a whole epoch: it is the newest decided one, completed, and Spark has logged it.
3. A pipeline that moves has one log at any time: MOVED ends the old one before the copy can be started.
"""

from __future__ import annotations

import hashlib
import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from onceward.core.checkpoint import CommitPolicy
from onceward.core.engine.reference import Decided
from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.errors import ConfigurationError, EpochConflictError, FencedError, StateDamagedError, text_of
from onceward.core.log import LogWriter
from onceward.core.log.log_copies import entries_of
from onceward.core.log.store import IN_CHECKPOINT
from onceward.core.operations.log_locations import open_log

from .manifest import BEGUN, ENTRIES, FILES, IDENTITY, MANIFEST, Manifest

if TYPE_CHECKING:
    from onceward.core.log import Decide, LogView
    from onceward.core.operations.log_locations import Log

QUIET_SECONDS: Final = 2.0
"""Seconds for which a checkpoint must not change before its query is taken for stopped."""
_STOP: Final = (
    "Stop it (query.stop(), or SIGTERM to its driver, and wait until the process has ended), then repeat this"
)


def plan_savepoint(
    checkpoint: str, place: str, *, store: str | None = None, pipeline: str | None = None, quiet: float = QUIET_SECONDS
) -> Manifest:
    """Return the manifest of the savepoint that `create_savepoint` would make, without its files. Changes nothing.

    Raises:
        ConfigurationError: The log is not this checkpoint's, or the savepoint's folder is in use.
        EpochConflictError: The query runs, or did not end with a whole epoch.
    """
    source, into = CheckpointStorage(checkpoint), CheckpointStorage(place)
    log = open_log(store or source.root, pipeline)
    decision = _check_can_create(source, into, log, quiet=quiet)
    return _manifest(source, log, decision, in_checkpoint=store is None)


def _manifest(source: CheckpointStorage, log: Log, decision: Decide, *, in_checkpoint: bool, **more: Any) -> Manifest:
    return Manifest(
        pipeline=log.pipeline,
        query=decision.input.query,
        log=decision.log,
        generation=decision.start,
        epoch=decision.epoch,
        sinks=decision.sinks,
        input=decision.input.end,
        checkpoint=source.root,
        store=None if in_checkpoint else log.store.describe(),
        **more,
    )


def create_savepoint(
    checkpoint: str,
    place: str,
    *,
    store: str | None = None,
    pipeline: str | None = None,
    retire: bool = False,
    quiet: float = QUIET_SECONDS,
    policy: CommitPolicy | None = None,
) -> Manifest:
    """Copy the checkpoint and decision log of a Spark query that is stopped.

    A driver that is still alive is fenced by it, if it was too idle to be noticed.

    Args:
        checkpoint: Folder of the query's checkpoint: a path, or a URL that fsspec knows.
        place: Folder of the savepoint: new, empty, or with a part of this savepoint.
        store: URL of the decision log's store; None: in the checkpoint.
        pipeline: Name of the pipeline; needed if the store holds the logs of several.
        retire: End the log: the pipeline goes on only where the savepoint is restored. Not for a log in a store of its
            own.
        quiet: Seconds for which nothing may change before the query is taken for stopped.
        policy: Clocks and pauses.

    Raises:
        ConfigurationError: The log is not this checkpoint's, or the savepoint's folder is in use. Nothing was changed.
        EpochConflictError: The query runs, or did not end with a whole epoch.
        FencedError: A driver has started meanwhile. There is no savepoint.
    """
    if retire and store is not None:
        raise ConfigurationError("only a log in the checkpoint is retired: a log in a store of its own stays there")
    source, into = CheckpointStorage(checkpoint), CheckpointStorage(place)
    log = open_log(store or source.root, pipeline, writing=True)
    # Before START, which fences a driver: a savepoint that is refused must not stop a query that runs.
    _check_can_create(source, into, log, quiet=quiet)
    _begin(into, log.pipeline)
    writer = LogWriter(log.store, log.pipeline, policy or CommitPolicy())
    ended = bool(log.view.moved)  # by an earlier try
    # After MOVED no epoch can be decided in this log, so it needs no START.
    view = log.view if ended else writer.start()
    # Looked up again, because an epoch may have been decided between the check and the START.
    decision, before = _newest_decision(source, log, view), _stamps(source)
    files = [into.write(f"{FILES}/{path}", source.chunks(path, "the checkpoint's file")) for path in sorted(before)]
    entries = [into.write(f"{ENTRIES}/{key}", [data]) for key, data in entries_of(log.store, view)]
    if _stamps(source) != before:
        raise EpochConflictError(
            f"the checkpoint {source.root} changed while it was copied, so its query is running. {_STOP}",
            pipeline=log.pipeline,
        )
    if retire and not ended:
        # (3) Before the manifest, without which nobody can start the copy.
        writer.move(into.root)
    elif not ended and not writer.still_newest():
        raise FencedError(f"the query was started while {source.root} was copied. {_STOP}", pipeline=log.pipeline)
    manifest = _manifest(
        source,
        log,
        decision,
        in_checkpoint=store is None,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        retired=retire,
        files=tuple(files),
        entries=tuple(entries),
    )
    # Last, because a folder that has it is taken for a whole savepoint.
    into.write(MANIFEST, [manifest.encode()])
    return manifest


def _check_can_create(source: CheckpointStorage, into: CheckpointStorage, log: Log, *, quiet: float) -> Decide:
    """Return the decision of the epoch that a savepoint made now would be of; changes nothing.

    Raises:
        ConfigurationError: The log is not this checkpoint's, or the savepoint's folder is in use.
        EpochConflictError: The query runs, or did not end with a whole epoch.
    """
    _check_free(into, log.pipeline)
    if f"{into.root}/".startswith(f"{source.root}/"):
        raise ConfigurationError(f"the savepoint {into.root} cannot be inside its own checkpoint: give another folder")
    view = log.view
    if view.moved not in {"", into.root}:
        raise EpochConflictError(
            f"the pipeline has moved from {source.root} to {view.moved}: make the savepoint there",
            pipeline=log.pipeline,
        )
    decision, before = _newest_decision(source, log, view), _stamps(source)
    time.sleep(quiet)
    if log.view.tail != view.tail or _stamps(source) != before:
        raise EpochConflictError(
            f"the query of {source.root} is running: it has just written. {_STOP}", pipeline=log.pipeline
        )
    return decision


def _newest_decision(source: CheckpointStorage, log: Log, view: LogView) -> Decide:
    """Return the newest decision, which must be completed and be the newest batch that Spark has logged."""
    if view.undone is not None:
        raise EpochConflictError(
            f"epoch {view.undone.epoch} is decided and not committed everywhere: the query is running, or has died. "
            "Start it once more and stop it again, or end the epoch with `onceward txn commit`; then repeat this",
            pipeline=log.pipeline,
            epoch=view.undone.epoch,
        )
    decision = view.newest
    if decision is None:
        raise ConfigurationError(
            f"the decision log in {log.store.describe()} has no decided epoch: nothing to save yet"
        )
    if Decided.of(decision) is not None:
        raise ConfigurationError(
            f"pipeline {log.pipeline} runs in the embedded engine, not on Spark: ask its run for a savepoint"
        )
    about = decision.input
    try:
        query = str(json.loads(_text(source, IDENTITY))["id"])
        digest = hashlib.sha256(_text(source, f"offsets/{decision.epoch}")).hexdigest()
    except (StateDamagedError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"{source.root} is not the checkpoint of epoch {decision.epoch}, the newest in the decision log in "
            f"{log.store.describe()}: {text_of(error)}"
        ) from error
    if (query, digest) != (about.query, about.digest):
        raise ConfigurationError(
            f"the decision log in {log.store.describe()} does not belong to the checkpoint {source.root}: its newest "
            f"epoch, {decision.epoch}, was decided from other input, or by another query"
        )
    logged = max((int(name) for name in source.names("commits") if name.isdigit()), default=-1)
    if logged != decision.epoch:
        raise EpochConflictError(
            f"Spark has logged batch {logged}, and epoch {decision.epoch} is completed: the query is running, or its "
            "driver died in between. Start it once more and stop it again; then repeat this",
            pipeline=log.pipeline,
            epoch=decision.epoch,
        )
    return decision


def _begin(into: CheckpointStorage, pipeline: str) -> None:
    """Delete the files of an interrupted copying, and mark the folder as this pipeline's."""
    for folder in (FILES, ENTRIES):
        into.delete_folder(folder)
    if not into.read_if_there(BEGUN):
        into.write(BEGUN, [pipeline.encode()])


def _check_free(into: CheckpointStorage, pipeline: str) -> None:
    if into.read_if_there(MANIFEST):
        raise ConfigurationError(f"{into.root} already holds a savepoint: give another folder, or delete it first")
    begun = into.read_if_there(BEGUN).decode()
    if begun != pipeline and not into.is_empty:
        whose = f"a part of a savepoint of pipeline {begun!r}" if begun else "other files"
        raise ConfigurationError(f"{into.root} holds {whose}: give a new or an empty folder")


def _stamps(source: CheckpointStorage) -> dict[str, Any]:
    """Return the checkpoint's files with what shows a change, without the decision log in it."""
    # The START of this savepoint itself goes into that log.
    return {path: stamp for path, stamp in source.walk().items() if not path.startswith(f"{IN_CHECKPOINT}/")}


def _text(source: CheckpointStorage, path: str) -> bytes:
    return b"".join(source.chunks(path, "the checkpoint's file"))
