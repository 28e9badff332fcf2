"""Which checkpoint an attempt begins with, before anything is changed.

It is the newest decision's, unless somebody asks for another one. What was asked for takes effect once (rule C): each
decision carries the newest restore on, and a process that is started again with the same arguments goes on from its
newest decision. A folder is restored only if this log decided it (rule D), or as an import by name.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from ..errors import ConfigurationError, EpochConflictError, StateDamagedError, text_of
from ..log.view import NONE
from .reference import Decided, Reference, Restored, is_decided, load_metadata, resolve_reference

if TYPE_CHECKING:
    from ..log import Decide, LogView
    from .reference import Loaded
    from .state.handles import Metadata
    from .state.storage import CheckpointStorage

_log = logging.getLogger("onceward.engine")


class Restore(NamedTuple):
    """A restore that somebody asks for; see Pipeline.start."""

    path: str | None = None
    claim: bool = False
    why: str | None = None
    import_from: str | None = None
    allow_non_restored: bool = False


class Origin(NamedTuple):
    """The checkpoint to begin with."""

    metadata: Metadata | None
    """Metadata of the checkpoint; None if the pipeline begins anew."""
    storage: CheckpointStorage | None
    """Storage of the checkpoint's files; None if it has none."""
    reference: Reference | None
    decided: int
    """Newest decided epoch."""
    goes_on: bool
    """True if it is the checkpoint of the newest decision."""
    restored: Restored | None
    """The newest restore, this one or an earlier one."""

    @property
    def newest(self) -> int:
        return max(self.decided, self.metadata.checkpoint if self.metadata is not None else NONE)

    @property
    def goes_back(self) -> bool:
        """Whether somebody chose to leave what was committed since."""
        return not self.goes_on and self.restored is not None and self.restored.why is not None

    @property
    def identity(self) -> str:
        """The identity of a way back: the folder that was asked for, and when."""
        return f"{self.restored.sha256 if self.restored is not None else ''} after {self.decided}"

    def __str__(self) -> str:
        if self.metadata is None:
            return "no checkpoint"
        folder = self.reference.folder if self.reference is not None else None
        dropped = f", without state ({self.metadata.dropped})" if self.metadata.dropped else ""
        return f"checkpoint {self.metadata.checkpoint} in {folder or 'the decision log'}{dropped}"


def find_origin(view: LogView, restore: Restore, pipeline: str) -> Origin:
    """Find the checkpoint that the run begins with: the newest decided one, or the one that was asked for.

    Raises:
        ConfigurationError: What is asked for is not there, or belongs to another pipeline.
        StateDamagedError: The newest one is damaged; nothing else is restored in its place.
        EpochConflictError: Another one than the newest is asked for, and nobody said why, or it was never decided.
    """
    newest = Decided.of(_in_force(view))
    if restore.path is None and restore.why is None:
        return _newest(view, newest, pipeline)
    if newest is not None and newest.restored is not None and _is_done(restore, newest.restored):
        _log.warning(
            "pipeline %s: restore=%r, rewind=%r has taken effect before, so it continues from its newest checkpoint. "
            "Give another reason to go back again",
            pipeline,
            restore.path,
            restore.why,
        )
        return _newest(view, newest, pipeline)
    if restore.path is None:
        _check_reason(view, restore, pipeline)
        return Origin(None, None, None, view.decided, goes_on=False, restored=Restored(why=restore.why))
    return _asked_for(view, newest, restore.path, restore, pipeline)


def _is_done(restore: Restore, before: Restored) -> bool:
    """Return whether this restore was done before; a folder that was claimed and deleted is known by its path."""
    if before.why != restore.why or restore.path is None:
        return (before.why, before.folder) == (restore.why, restore.path)
    try:
        return load_metadata(restore.path).sha256 == before.sha256
    except StateDamagedError:
        return restore.path == before.folder


def _in_force(view: LogView) -> Decide | None:
    """Return the newest decision; the one before, if that is void."""
    if view.newest is not None or view.rewound:
        return view.newest
    return next((decision for decision, _ in reversed(view.decisions)), None)


def _newest(view: LogView, newest: Decided | None, pipeline: str) -> Origin:
    decision = _in_force(view)
    if decision is None and not view.rewound:
        return Origin(None, None, None, view.decided, goes_on=True, restored=None)
    if decision is None:
        raise EpochConflictError(
            "this pipeline was interrupted while it went back to an older state. Pass the same "
            "restore=… and rewind=… again",
            pipeline=pipeline,
        )
    if newest is None:
        raise EpochConflictError(
            "the newest epoch was not decided by the embedded engine: give this pipeline another name",
            pipeline=pipeline,
            epoch=view.decided,
        )
    try:
        metadata, storage = resolve_reference(newest.checkpoint)
    except StateDamagedError as error:
        raise StateDamagedError(
            f"{error}. It is the newest checkpoint, so nothing was started. Bring it back, or pass restore=<its new "
            "location>. Or rewind on purpose, which writes again what was committed since: restore=<an older "
            "checkpoint's folder> and rewind=…, or rewind=… alone to start over, without state"
        ) from error
    return Origin(metadata, storage, newest.checkpoint, view.decided, goes_on=True, restored=newest.restored)


def _asked_for(view: LogView, newest: Decided | None, path: str, restore: Restore, pipeline: str) -> Origin:
    try:
        saved = load_metadata(path)
    except StateDamagedError as error:
        raise ConfigurationError(f"restore={path!r}: {text_of(error)}; nothing was started") from error
    metadata, sha256, storage = saved
    goes_on = newest is not None and newest.checkpoint.sha256 == sha256
    if not goes_on:
        _check_reason(view, restore, pipeline)
        _check_made_here(saved, path, view, restore, pipeline)
        if view.decided != NONE and restore.why is None:
            raise EpochConflictError(
                f"checkpoint {metadata.checkpoint} in {path} is asked for, and this pipeline has decided epoch "
                f"{view.decided}: what was committed since would be written again. Pass rewind=… to go back on "
                "purpose, or omit restore to continue",
                pipeline=pipeline,
                epoch=view.decided,
            )
    reference = Reference(folder=path, sha256=sha256, claimed=restore.claim)
    restored = Restored(folder=path, sha256=sha256, why=restore.why)
    return Origin(metadata, storage, reference, view.decided, goes_on=goes_on, restored=restored)


def _check_reason(view: LogView, restore: Restore, pipeline: str) -> None:
    """Refuse a reason that stayed in the command line from a way back that decisions have followed."""
    done = view.rewind
    if restore.why is None or view.rewound or done is None or restore.why not in (done.why, *done.earlier):
        return
    raise EpochConflictError(
        f"a rewind with this reason ({restore.why!r}) was done before, and epoch {view.decided} was decided since, "
        "whose rows would be written again. Omit restore and rewind to continue; or, to go back once more on purpose, "
        "give another reason",
        pipeline=pipeline,
        epoch=view.decided,
    )


def _check_made_here(loaded: Loaded, path: str, view: LogView, restore: Restore, pipeline: str) -> None:
    """Refuse a checkpoint that this log did not decide: rows before it would be lost."""
    metadata, proven = loaded.metadata, is_decided(path, loaded.metadata, loaded.sha256)
    if metadata.log != view.log:
        if restore.import_from != metadata.pipeline:
            raise ConfigurationError(
                f"restore={path!r}: checkpoint {metadata.checkpoint} was made by pipeline {metadata.pipeline!r} "
                f"under another decision log, which alone knows whether the rows before it are committed. Pass "
                f"import_from={metadata.pipeline!r} if that is intended; nothing was started"
            )
        if not proven:
            _log.warning("pipeline %s imports %s, and nothing shows that it was decided", pipeline, path)
    elif not proven:
        raise EpochConflictError(
            f"checkpoint {metadata.checkpoint} in {path} was written, but it was never decided: rows before it may not "
            "be committed, and would be lost. Restore another one, or omit restore to continue from the newest",
            pipeline=pipeline,
            epoch=view.decided,
        )
