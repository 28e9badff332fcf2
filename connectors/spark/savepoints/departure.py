"""Leave a checkpoint whose decision log is in a store of its own, and would accept the old checkpoint like the new one.

MOVED ends a whole log, so it cannot be used here. Instead, a mark in the old checkpoint names the new one. A query
looks for the mark before it appends a START. `restore` writes the mark before it appends a START of its own, which
fences every driver that appended one before the mark was written; after that, no driver appends one.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, NamedTuple, Self

from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.errors import OncewardError, text_of
from onceward.core.log.store import MOVED_MARK

from .manifest import IDENTITY

if TYPE_CHECKING:
    from .manifest import Manifest

_log = logging.getLogger("onceward.savepoint")


class Departure(NamedTuple):
    """The checkpoint that a query leaves, and the one from which it continues.

    Attributes:
        old: The checkpoint that the savepoint was made of, or the one to which it has been restored since.
        into: The new checkpoint.
        left: The old checkpoint, if it can be reached and holds this query.
    """

    old: str
    into: CheckpointStorage
    left: CheckpointStorage | None

    @classmethod
    def find(cls, m: Manifest, into: CheckpointStorage) -> Self:
        """Find the checkpoint that the query now runs from, by following the marks that earlier restores have left.

        Args:
            m: Manifest of the savepoint, which names the checkpoint that it was made of.
            into: The new checkpoint.
        """
        left, place, visited = None, m.checkpoint, set[str]()
        try:
            while place and place not in visited:
                visited.add(place)
                there = CheckpointStorage(place)
                if there.root == into.root or not _holds_query(there, m.query):
                    break  # the first: an earlier restore into this folder was interrupted, or is repeated
                left = there
                place = there.read_if_there(MOVED_MARK).decode()
        except (OSError, OncewardError):
            pass
        return cls(m.checkpoint if left is None else left.root, into, left)

    def mark(self) -> None:
        """Keep queries from starting from the old checkpoint, or warn that it cannot be marked."""
        self.into.delete([MOVED_MARK])
        try:
            if self.left is not None:
                self.left.delete([MOVED_MARK])
                self.left.write(MOVED_MARK, [self.into.root.encode()])
                return
            why = "this query's files are not there"
        except (OSError, OncewardError) as error:
            why = text_of(error)
        if self.old != self.into.root:
            _log.warning("cannot mark the old checkpoint %s (%s): do not start a query from it", self.old, why)

    def unmark(self) -> None:
        """Let the query start from the old checkpoint again."""
        if self.left is not None:
            self.left.delete([MOVED_MARK])


def _holds_query(checkpoint: CheckpointStorage, query: str) -> bool:
    try:
        return bool(json.loads(checkpoint.read_if_there(IDENTITY))["id"] == query)
    except (ValueError, LookupError, TypeError):
        return False
