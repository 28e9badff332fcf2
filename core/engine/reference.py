"""What a decision says of its checkpoint, and the proof beside a checkpoint's metadata that it was decided.

Metadata prove nothing: they are written before the decision, which may never come. Restored from them, sources would
begin behind rows that nobody committed. So a file `decided` is written beside them when the decision is completed, at
the latest by the next start (a crash may come in between), and a restore by folder demands it. The decision log itself
cannot be asked: it is pruned.
"""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..errors import OncewardError, StateDamagedError
from ..kit import typed
from .state.handles import Metadata, decode_metadata, encode_metadata
from .state.storage import PROOF, CheckpointStorage, above

if TYPE_CHECKING:
    from ..log import Decide, LogView

_log = logging.getLogger("onceward.engine")


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """The location of a checkpoint's metadata, and their checksum. JSON-serialisable."""

    folder: str | None = None
    """Folder of the metadata; None if they are in `inline`."""
    sha256: str = ""
    """SHA-256 of the metadata file, in hex digits."""
    inline: str = ""
    """The metadata themselves, in base 64."""
    root: str | None = None
    """Folder that the files of inline metadata are in; None if there are none."""
    claimed: bool = False
    """True if a restore has claimed it: the pipeline may delete it when newer checkpoints are there."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A restore that was asked for and has taken effect (rule C: it does so once)."""

    folder: str | None = None
    """Folder that was restored; None if the pipeline began anew."""
    sha256: str = ""
    why: str | None = None
    """The reason for going back; None if the pipeline did not."""


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's part of a decision: the checkpoint, and savepoints and a restore if any. JSON-serialisable."""

    checkpoint: Reference
    savepoints: tuple[Reference, ...] = ()
    """Savepoints that commit nothing themselves; this decision commits their rows."""
    restored: Restored | None = None
    """The newest restore before it."""

    @classmethod
    def of(cls, decision: Decide | None) -> Decided | None:
        """Read the engine's part of a decision; None if it was not made by the engine."""
        if decision is None or "checkpoint" not in decision.state:
            return None
        return typed.convert(decision.state, cls)


class DecidedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The proof that a decision log decided a checkpoint, and with which epoch."""

    log: str
    epoch: int
    sha256: str


def inline(metadata: Metadata, storage: CheckpointStorage | None = None) -> Reference:
    """Return a reference that holds the metadata itself; their files, if any, are in the storage."""
    root = storage.root if storage is not None else None
    return Reference(inline=base64.b64encode(encode_metadata(metadata)).decode(), root=root)


def resolve_reference(reference: Reference) -> tuple[Metadata, CheckpointStorage | None]:
    """Return the metadata that a decision names, which must be those that were decided, and their files' storage."""
    if reference.folder is None:
        storage = CheckpointStorage(reference.root) if reference.root is not None else None
        return decode_metadata(base64.b64decode(reference.inline), "inside the decision"), storage
    metadata = load_metadata(reference.folder)
    if metadata.sha256 != reference.sha256:
        raise StateDamagedError(f"the checkpoint's metadata in {reference.folder} are not those that were decided")
    return metadata.metadata, metadata.storage


class Loaded(NamedTuple):
    """The content of a checkpoint's or savepoint's folder."""

    metadata: Metadata
    sha256: str
    """SHA-256 of the metadata file, in hex digits."""
    storage: CheckpointStorage
    """Storage of its files."""


def load_metadata(folder: str) -> Loaded:
    """Read a checkpoint's or savepoint's metadata, by its folder."""
    metadata, sha256 = CheckpointStorage(folder).read_metadata("")
    return Loaded(metadata, sha256, CheckpointStorage(folder if metadata.savepoint else above(folder)))


def older_checkpoints(folder: str, epoch: int) -> tuple[str, ...]:
    """Return older decided checkpoints in the same folder, from which a run can be restored on purpose."""
    storage, folders = CheckpointStorage(above(folder)), []
    for name in storage.checkpoints():
        try:
            metadata, sha256, _ = load_metadata(storage.at(name))
        except OncewardError:
            continue  # it is not whole
        if metadata.checkpoint < epoch and is_decided(storage.at(name), metadata, sha256):
            folders.append(storage.at(name))
    return tuple(folders)


def is_decided(folder: str, metadata: Metadata, sha256: str) -> bool:
    """Return whether the log that the metadata name has decided them; `sha256` is that of their file."""
    try:
        proof = typed.decode(CheckpointStorage(folder).read_if_there(PROOF), DecidedCheckpoint)
    except msgspec.MsgspecError:  # missing or damaged
        return False
    return (proof.log, proof.sha256) == (metadata.log, sha256)


def prove(reference: Reference, log: str, epoch: int) -> None:
    """Write the proof of a checkpoint whose decision is completed, unless it is there. Fails nothing."""
    if reference.folder is None:
        return
    try:
        metadata, _ = resolve_reference(reference)
        if metadata.log == log and not is_decided(reference.folder, metadata, reference.sha256):
            storage = CheckpointStorage(reference.folder)
            storage.delete([PROOF])  # a damaged one
            storage.write(
                PROOF, [msgspec.json.encode(DecidedCheckpoint(log=log, epoch=epoch, sha256=reference.sha256))]
            )
    except (OSError, OncewardError) as error:
        _log.warning("checkpoint %s is decided, but cannot be marked as decided: %s", reference.folder, error)


def prove_newest(view: LogView) -> None:
    """Write the proofs that a crash between a decision's end and them has left out."""
    for decision, completed in view.decisions:
        if completed is not None and (decided := Decided.of(decision)) is not None:
            for reference in (decided.checkpoint, *decided.savepoints):
                prove(reference, view.log, completed.epoch)
