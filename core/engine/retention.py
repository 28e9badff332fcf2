"""The completed checkpoints that are kept, and what is deleted when.

The decision log says which checkpoint counts; a checkpoint's folder that no decision names is a leftover. So the
metadata are written first, then the decision that holds their checksum.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..errors import OncewardError, StateDamagedError
from .reference import Reference, inline, is_decided, load_metadata
from .state.storage import METADATA, PROOF, folder_of, inside

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from .state.handles import FileRef, Metadata, SubtaskState
    from .state.storage import CheckpointStorage

_log = logging.getLogger("onceward.engine")


class SharedFiles:
    """The shared files and the checkpoints that refer to them: a file is deleted when none does any more.

    After "Incremental Checkpointing in Apache Flink" (2018), where references are counted by subtask, too: here a path
    holds the subtask, and a random part. A file that a checkpoint uploaded which was given up was never registered, and
    is deleted at once.
    """

    def __init__(self, delete: Callable[[Iterable[str]], None]) -> None:
        self._delete = delete
        self._uses: dict[str, set[str]] = {}
        """By checkpoint: paths."""

    def register(self, checkpoint: str, files: Iterable[FileRef]) -> None:
        """Register the shared files of a completed checkpoint. Registering it again changes nothing."""
        self._uses.setdefault(checkpoint, {ref.path for ref in files if ref.shared})

    def release(self, checkpoint: str) -> list[str]:
        """Drop a checkpoint; return the files to which no checkpoint refers any more."""
        return [path for path in self._uses.pop(checkpoint, ()) if not self.refers(path)]

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, except those to which a checkpoint refers."""
        self._delete([path for path in paths if not self.refers(path)])

    def refers(self, path: str) -> bool:
        return any(path in uses for uses in self._uses.values())


class Retained:
    """The completed checkpoints in a pipeline's folder, and the files that they refer to.

    Args:
        storage: The folder; None if checkpoints are kept inside the decision log.
        most: Number of checkpoints that are kept.
        generation: Position of the writer's START.
    """

    def __init__(self, storage: CheckpointStorage | None, most: int, generation: int) -> None:
        self._storage = storage
        self._most = most
        self._generation = generation
        self.folders: list[str] = []
        self._claimed: str | None = None
        self._dying: list[tuple[set[int], list[str]]] = []
        """Shared files of dropped checkpoints, and those in progress that may build on them."""
        self.shared = SharedFiles(storage.delete if storage is not None else lambda _paths: None)

    def write(self, metadata: Metadata) -> Reference:
        """Write a checkpoint's metadata, before its decision, and return where they are."""
        if self._storage is None:
            return inline(metadata)
        folder = folder_of(metadata.checkpoint, self._generation)
        self.shared.register(folder, metadata.files)
        try:
            ref = self._storage.write_metadata(metadata, folder)
        except BaseException:
            self.shared.delete(self.shared.release(folder))
            raise
        return Reference(folder=self._storage.at(folder), sha256=ref.sha256)

    def keep(self, checkpoint: int | None, under_way: Collection[int] = ()) -> None:
        """Keep a decided checkpoint, and drop the oldest beyond the number that is kept. Never raises.

        Args:
            checkpoint: Id of the checkpoint; None for a savepoint, which is not kept here.
            under_way: Ids of checkpoints in progress: they may build on files of those that are dropped.
        """
        if checkpoint is not None:
            self.folders.append(folder_of(checkpoint, self._generation))
        self._clean(self.folders[: -self._most] if checkpoint is not None else [], under_way)

    def delete_all(self) -> None:
        self._clean(self.folders)

    def discard(self, checkpoint: int, state: SubtaskState | None = None) -> None:
        """Delete a subtask's files of a checkpoint that was given up, and its folder if no file is left in it."""
        self.shared.delete(ref.path for ref in (state.files if state is not None else ()))
        if self._storage is not None:
            self._storage.delete_empty(folder_of(checkpoint, self._generation))

    def restored(self, reference: Reference, *, up_to: int, clean: bool) -> None:
        """Take over the checkpoints of an earlier run.

        Args:
            reference: Reference to the restored checkpoint, from the decision.
            up_to: Id of the restored checkpoint. Newer ones were left by going back: they do not count among those
                that are kept; but as long as their folders are there, they can be restored, so their files stay.
            clean: Delete files that no checkpoint that counts refers to.
        """
        self._claimed = reference.folder if reference.claimed else None
        if self._storage is None:
            return
        for folder in self._storage.checkpoints():
            try:
                metadata, sha256 = self._storage.read_metadata(folder)
            except StateDamagedError as error:
                if self._storage.read_if_there(inside(folder, PROOF)):  # else it was given up, and never counted
                    _log.warning("checkpoint %s cannot be kept: %s", folder, error)
                continue
            path = self._storage.at(folder)
            if path == reference.folder or is_decided(path, metadata, sha256):
                self.shared.register(folder, metadata.files)
                if metadata.checkpoint <= up_to:
                    self.folders.append(folder)
        if clean:  # only what older runs left: another one may have started since
            older = [name for name in self._storage.checkpoints() if _generation_of_folder(name) < self._generation]
            self._drop([name for name in older if name not in self.folders])
            self._storage.delete(
                path
                for path in self._storage.shared_files()
                if _generation_of_file(path) < self._generation and not self.shared.refers(path)
            )

    def _clean(self, folders: Iterable[str], under_way: Collection[int] = ()) -> None:
        """Drop checkpoints, and a claimed one that is not needed any more; files that cannot be deleted stay."""
        try:
            self._drop(folders, under_way)
            # Forgotten before it is deleted: a folder that cannot be deleted is tried only once, and then stays.
            claimed, self._claimed = self._claimed, None
            if claimed is not None:
                _delete_claimed(claimed)
        except (OSError, OncewardError) as error:
            _log.warning("cannot delete the files of older checkpoints: %s", error)

    def _drop(self, folders: Iterable[str], under_way: Collection[int] = ()) -> None:
        for folder in list(folders):
            self.folders = [kept for kept in self.folders if kept != folder]
            if self._storage is not None:
                self._storage.delete_folder(folder)
                self._dying.append((set(under_way), self.shared.release(folder)))
        ready = [paths for waiting, paths in self._dying if not waiting & set(under_way)]
        self._dying = [(waiting, paths) for waiting, paths in self._dying if waiting & set(under_way)]
        for paths in ready:
            self.shared.delete(paths)


def _generation_of_folder(name: str) -> int:
    """Return the position of the START under which a checkpoint's folder was written."""
    return int(name.split("-")[2])


def _generation_of_file(path: str) -> int:
    """Return the position of the START under which a shared file was written; -1 if its name has none."""
    number = path.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdigit() else -1


def _delete_claimed(folder: str) -> None:
    """Delete a savepoint's files, or a checkpoint's own ones: those that it shares with others stay."""
    metadata, _, storage = load_metadata(folder)
    if metadata.savepoint:
        storage.delete(ref.path for ref in metadata.files)
        storage.delete([METADATA, PROOF])
        if storage.is_empty:
            storage.delete_folder("")
    else:
        storage.delete_folder(folder.rpartition("/")[2])
