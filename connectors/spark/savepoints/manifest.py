"""What a savepoint of a Spark query consists of.

    <savepoint>/begun            written first: whose savepoint it is going to be
    <savepoint>/checkpoint/…     the files of Spark's checkpoint
    <savepoint>/log/…            the entries of the decision log
    <savepoint>/manifest         written last: size and SHA-256 of all of these, and the position of the sinks
    <savepoint>/claimed          where the first restore of a retired one was begun
    <savepoint>/restored         where the last restore was finished

What has no manifest is no savepoint: a copy that was interrupted is never restored. The listing knows the embedded
engine's savepoints, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from onceward.core.contract.names import Progress
from onceward.core.engine.state.handles import FileRef, decode_metadata, is_metadata
from onceward.core.engine.state.storage import METADATA, PROOF, SHARED, CheckpointStorage, inside
from onceward.core.errors import (
    ConfigurationError,
    EpochConflictError,
    NewerFormatError,
    StateDamagedError,
    StateError,
    text_of,
)
from onceward.core.kit.sealed import seal, unseal_as

BEGUN: Final = "begun"
MANIFEST: Final = "manifest"
CLAIMED: Final = "claimed"
RESTORED: Final = "restored"
FILES: Final = "checkpoint"
ENTRIES: Final = "log"
IDENTITY: Final = "metadata"
"""Spark's file with the query's id. Without it a checkpoint is a new query's, which no log of an old one admits."""
_NAME: Final = "onceward-savepoint"
_FIXED: Final = f"{BEGUN}|{MANIFEST}|{CLAIMED}|{RESTORED}|{METADATA}|{PROOF}"
_OWN: Final = re.compile(rf"({FILES}|{ENTRIES}|{SHARED})/|\.?({_FIXED})(\.\w+)?$|\.put-\w+$|[^/]*\[\d+\]")
"""Paths of a savepoint's files, those of interrupted writes included; the engine's subtasks are called `name[0]`."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a savepoint of a Spark query. JSON-serialisable."""

    pipeline: str
    query: str
    """Spark's id of the query."""
    log: str
    """Identity of the decision log."""
    generation: int
    """Position of the START under which the newest epoch was decided."""
    epoch: int
    """The newest epoch that the sinks have."""
    sinks: tuple[str, ...]
    input: Any = None
    """Offsets where that epoch's input ended."""
    made: str = ""
    """Time at which it was made (UTC); empty if it is only planned."""
    checkpoint: str
    """Location of the checkpoint that it is a copy of."""
    store: str | None = None
    """URL of the store that its decision log was in; None if that was the checkpoint."""
    retired: bool = False
    """True if that log has ended with this savepoint."""
    files: tuple[FileRef, ...] = ()
    entries: tuple[FileRef, ...] = ()

    @property
    def position(self) -> Progress:
        """The newest epoch that the sinks had committed, with its generation."""
        return Progress(self.generation, self.epoch)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(ref.size for ref in (*self.files, *self.entries))

    @property
    def place(self) -> str:
        """The location of its decision log."""
        return self.checkpoint if self.store is None else self.store

    def encode(self) -> bytes:
        """Return it as it stands in the savepoint, with its checksum."""
        return seal(_NAME, msgspec.json.encode(self))


@dataclass(frozen=True)
class Savepoint:
    """A complete savepoint of a Spark query."""

    storage: CheckpointStorage
    manifest: Manifest

    @classmethod
    def load(cls, place: str) -> Savepoint:
        """Read a savepoint's manifest.

        Raises:
            ConfigurationError: There is no savepoint of a Spark query, or only a part of one.
            StateDamagedError: The manifest is not what was written.
            NewerFormatError: A newer version of the library wrote it.
        """
        storage = CheckpointStorage(place)
        data = storage.read_if_there(MANIFEST)
        if data:
            what = f"the savepoint's manifest {storage.at(MANIFEST)}"
            return cls(storage, unseal_as(_NAME, data, Manifest, StateDamagedError, what))
        if storage.read_if_there(BEGUN):
            raise ConfigurationError(
                f"{storage.root} holds only a part of a savepoint: the copy was interrupted. Create it again, or "
                "delete it"
            )
        raise ConfigurationError(f"{storage.root} is not a savepoint of a Spark query")

    @property
    def restored_to(self) -> str:
        """The location to which it was last restored; empty if it never was."""
        return self.storage.read_if_there(RESTORED).decode()

    @property
    def claimed_by(self) -> str:
        """The location where a restore was begun that needed no other log; empty if none was."""
        return self.storage.read_if_there(CLAIMED).decode()

    def claim(self, place: str) -> None:
        """Record the one place that may continue from the log in it; refuse any other.

        Raises:
            EpochConflictError: Another one was first.
        """
        if not self.claimed_by:
            self.storage.put_once(CLAIMED, place.encode())
        if self.claimed_by != place:
            raise EpochConflictError(f"{self.storage.root} is being restored to {self.claimed_by}: finish it there")

    def mark_restored(self, place: str) -> None:
        """Remember where the pipeline is now."""
        if self.restored_to != place:
            self.storage.delete([RESTORED])
            self.storage.write(RESTORED, [place.encode()])

    def verify(self) -> None:
        """Read every file.

        Raises:
            StateDamagedError: One is missing, or not what was written.
        """
        for ref in (*self.manifest.files, *self.manifest.entries):
            for _ in self.storage.proven(ref):
                pass


class FoundSavepoint(msgspec.Struct, frozen=True, kw_only=True):
    """A savepoint of a Spark query or of the embedded engine, or what an interrupted copy has left of one."""

    place: str
    """Location of its folder."""
    kind: str
    """"spark", "engine", "incomplete", "damaged", or "newer": of a newer version of the library."""
    pipeline: str
    epoch: int | None = None
    made: str = ""
    size: int | None = None
    """Size of its files in bytes; None if it is not known."""
    retired: bool = False
    restored_to: str = ""
    problem: str = ""


def _look(place: str) -> FoundSavepoint | None:
    """Look at a folder; return None if it holds no savepoint."""
    storage = CheckpointStorage(place)
    begun = storage.read_if_there(BEGUN).decode()
    try:
        if not begun:
            return _of_engine(storage)
        if not storage.read_if_there(MANIFEST):
            return FoundSavepoint(place=storage.root, kind="incomplete", pipeline=begun)
        saved = Savepoint.load(place)
    except (StateDamagedError, NewerFormatError) as error:
        kind = "damaged" if isinstance(error, StateDamagedError) else "newer"
        return FoundSavepoint(place=storage.root, kind=kind, pipeline=begun, problem=str(error))
    m = saved.manifest
    return FoundSavepoint(
        place=storage.root,
        kind="spark",
        pipeline=m.pipeline,
        epoch=m.epoch,
        made=m.made,
        size=m.size,
        retired=m.retired,
        restored_to=saved.restored_to,
    )


def _of_engine(storage: CheckpointStorage) -> FoundSavepoint | None:
    data = storage.read_if_there(METADATA)
    if not is_metadata(data):  # a Spark checkpoint has a file of that name too
        return None
    metadata = decode_metadata(data, storage.at(METADATA))
    size = sum(ref.size for ref in metadata.files)
    savepoint = FoundSavepoint(
        place=storage.root, kind="engine", pipeline=metadata.pipeline, epoch=metadata.checkpoint, size=size
    )
    return savepoint if metadata.savepoint else None


def savepoints(place: str) -> list[FoundSavepoint]:
    """List the savepoint in a folder, or those in the folders right below it.

    Args:
        place: The folder: a path, or a URL that fsspec knows.

    Raises:
        ConfigurationError: There is no such folder.
    """
    storage = CheckpointStorage(place)
    names = storage.names()
    if not names:
        raise ConfigurationError(f"{storage.root}: there is no such folder, or it is empty")
    own = _look(storage.root)
    candidates = [own] if own is not None else [_look(inside(storage.root, name)) for name in sorted(names)]
    return [one for one in candidates if one is not None]


def savepoint_at(place: str) -> FoundSavepoint:
    """Look at the savepoint in a folder.

    Args:
        place: The folder: a path, or a URL that fsspec knows.

    Raises:
        ConfigurationError: That is no savepoint.
    """
    savepoint = _look(place)
    if savepoint is None:
        raise ConfigurationError(f"{CheckpointStorage(place).root} is not a savepoint")
    return savepoint


def delete_savepoint(place: str) -> None:
    """Delete a savepoint, or a part of one: first the file without which nobody takes the rest for one.

    Args:
        place: Its folder: a path, or a URL that fsspec knows.

    Raises:
        ConfigurationError: The folder is not a savepoint, or holds other files.
        StateError: Something could not be deleted.
    """
    savepoint, storage = savepoint_at(place), CheckpointStorage(place)
    pipeline, others = savepoint.pipeline, sorted(path for path in storage.walk() if not _OWN.match(path))
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise ConfigurationError(
            f"{storage.root} also holds {others[0]}{more}, which is no part of the savepoint, so nothing was deleted: "
            "move it elsewhere, then repeat this"
        )
    try:
        if not storage.read_if_there(BEGUN):
            storage.write(BEGUN, [pipeline.encode()])  # so that the rest of it is known for what it is
        storage.delete([MANIFEST, METADATA])
        storage.delete(path for path in storage.walk() if path != BEGUN)
        storage.delete_folder("")
    except (OSError, StateError) as error:
        raise StateError(f"{storage.root} is only partly deleted: {text_of(error)}. Repeat this") from error
