"""The completed checkpoints that are kept, what the decision says of the newest, and what is deleted when.

The decision log says which checkpoint counts; a checkpoint's folder without a decision that names it is a leaving. So
the metadata are written first, then the decision that holds their checksum: it is what makes the checkpoint be.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import StateDamagedError
from .state.handles import Metadata, decode_metadata, encode_metadata
from .state.registry import SharedFiles
from .state.storage import CheckpointStorage, folder_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .state.handles import SubtaskState

_log = logging.getLogger("onceward.engine")


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision says of its checkpoint. JSON-serialisable.

    Attributes:
        folder: Where its metadata are; None: here.
        sha256: Of the metadata file.
        inline: The metadata themselves, in base 64.
        owned: Whether the pipeline may delete it when newer ones are there.
    """

    folder: str | None = None
    sha256: str = ""
    inline: str = ""
    owned: bool = True

    def as_state(self) -> dict[str, Any]:
        """For the decision."""
        return {"checkpoint": msgspec.to_builtins(self)}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Reference | None:
        """Out of a decision."""
        found = state.get("checkpoint")
        return msgspec.convert(found, cls) if found is not None else None


def inline(metadata: Metadata) -> Reference:
    """A reference that holds the metadata itself."""
    return Reference(inline=base64.b64encode(encode_metadata(metadata)).decode())


def resolve(reference: Reference) -> tuple[Metadata, CheckpointStorage | None]:
    """The metadata that a decision names, and the storage that its files are in.

    Raises:
        StateDamagedError: They are not what was decided.
    """
    if reference.folder is None:
        return decode_metadata(base64.b64decode(reference.inline), "inside the decision"), None
    metadata, storage = load(reference.folder)
    data = encode_metadata(metadata)
    if _sha256(data) != reference.sha256:
        raise StateDamagedError(f"the checkpoint's metadata in {reference.folder} are not those that were decided")
    return metadata, storage


def reference_to(folder: Path) -> Reference:
    """A reference to a folder's metadata as they are now."""
    metadata, _ = load(folder)
    return Reference(folder=str(folder), sha256=_sha256(encode_metadata(metadata)))


def load(folder: str | Path) -> tuple[Metadata, CheckpointStorage]:
    """A checkpoint's or savepoint's metadata by its folder, and the storage that its files are in."""
    folder = Path(folder)
    metadata = CheckpointStorage(folder).read_metadata("")
    return metadata, CheckpointStorage(folder if metadata.savepoint else folder.parent)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Retained:
    """The completed checkpoints in a pipeline's folder, and the files that they refer to.

    Args:
        storage: The folder; None if checkpoints are kept inside the decision log.
        most: How many are kept.
    """

    def __init__(self, storage: CheckpointStorage | None, most: int) -> None:
        self._storage = storage
        self._most = most
        self.ids: list[int] = []
        self._borrowed: Reference | None = None
        self.shared = SharedFiles(storage.delete if storage is not None else _nothing)

    def write(self, metadata: Metadata) -> Reference:
        """Write a checkpoint's metadata; nothing counts yet.

        Raises:
            StateError: That failed.
        """
        if self._storage is None:
            return inline(metadata)
        self.shared.register(metadata.checkpoint, metadata.files())
        try:
            ref = self._storage.write_metadata(metadata)
        except BaseException:
            self.shared.release(metadata.checkpoint)
            raise
        folder = self._storage.root / folder_of(metadata.checkpoint)
        return Reference(folder=str(folder), sha256=ref.sha256)

    def keep(self, checkpoint: int) -> None:
        """It was decided: keep it, and drop the oldest beyond the number that is kept."""
        self.ids.append(checkpoint)
        self._drop(self.ids[: -self._most])
        self._drop_borrowed()

    def forget(self, checkpoint: int) -> None:
        """It was not decided, and will not be."""
        self._drop([checkpoint])

    def superseded(self) -> None:
        """A savepoint was decided: it is the newest, and belongs to the user; own ones stay as they are."""
        self._drop_borrowed()

    def delete_all(self) -> None:
        """The run ended, and nobody wants to restore it."""
        self._drop(list(self.ids))

    def discard(self, state: SubtaskState) -> None:
        """Free what a task wrote for a checkpoint that was given up."""
        self.shared.discard(state)

    def restored(self, checkpoint: int, reference: Reference | None, *, clean: bool) -> None:
        """Take over what an earlier run left, up to the checkpoint that is restored.

        Args:
            checkpoint: Newest checkpoint that counts.
            reference: What the decision says of it.
            clean: Delete what no checkpoint that counts refers to.
        """
        self._borrowed = reference if reference is not None and reference.owned else None
        if self._storage is None:
            return
        for known in self._storage.checkpoints():
            if known > checkpoint:
                continue
            try:
                metadata = self._storage.read_metadata(folder_of(known))
            except StateDamagedError as error:
                _log.warning("checkpoint %s is not kept: %s", known, error)
                continue
            self.shared.register(known, metadata.files())
            self.ids.append(known)
        if clean:
            self._drop([known for known in self._storage.checkpoints() if known not in self.ids])
            self._storage.delete(path for path in self._storage.shared_files() if not self.shared.refers(path))

    def _drop(self, checkpoints: Iterable[int]) -> None:
        for checkpoint in checkpoints:
            if checkpoint in self.ids:
                self.ids.remove(checkpoint)
            if self._storage is not None:
                self._storage.delete_folder(checkpoint)
                self.shared.release(checkpoint)

    def _drop_borrowed(self) -> None:
        """A savepoint that was claimed at the restore is not needed once a newer checkpoint is there."""
        reference, self._borrowed = self._borrowed, None
        if reference is None or reference.folder is None:
            return
        folder = Path(reference.folder)
        if self._storage is None or folder.parent != self._storage.root:
            metadata, storage = load(folder)
            storage.delete(ref.path for refs in metadata.files().values() for ref in refs)
            storage.delete(["metadata"])
            folder.rmdir()


def _nothing(_paths: Iterable[str]) -> None:
    """Nothing is kept in files."""
