"""A pipeline moves to another place: `onceward savepoint create --retire`, and a restore of what it made.

The commands work on files; this does the same with simulated folders, and with the product's log.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from onceward.core.errors import EpochConflictError
from onceward.core.log import LogWriter, read
from onceward.core.log.log_copies import entries_of

from .pipeline import policy_of

if TYPE_CHECKING:
    from onceward.core.log import LogView

    from .spark import Folder
    from .world import World


class Retirement:
    """A savepoint that ends the log.

    Args:
        folder: The checkpoint.
        place: Root of the folder that it will be restored to.
    """

    def __init__(self, world: World, folder: Folder, place: str) -> None:
        self._world, self._folder = world, folder
        self.restored = folder.older(0, place)
        self.entries: dict[str, bytes] = {}

    def create(self) -> None:
        """Copy the checkpoint and the log under a START, then end the log.

        Raises:
            EpochConflictError: Not every epoch is whole, or a query runs.
        """
        writer = LogWriter(self._folder.store, self._folder.store.audit.audit.pipeline, policy_of(self._world)())
        self._check(read(self._folder.store))
        view = writer.start()
        self._check(view)
        self.restored = self._folder.older(0, self.restored.root)
        self.entries = dict(entries_of(self._folder.store, view))
        self._world.point("copied")
        if (self._folder.offsets, self._folder.commits) != (self.restored.offsets, self.restored.commits):
            raise EpochConflictError("the checkpoint changed")
        writer.move(self.restored.root)

    def _check(self, view: LogView) -> None:
        newest, offsets = view.newest, self._folder.offsets
        if view.undone is not None or view.moved or newest is None or max(self._folder.commits) != newest.epoch:
            raise EpochConflictError("no whole epoch")
        if hashlib.sha256(offsets[newest.epoch].encode()).hexdigest() != newest.input.digest:
            raise EpochConflictError("another checkpoint's log")
