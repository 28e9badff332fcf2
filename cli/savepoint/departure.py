"""Leaving a checkpoint whose decision log is in a store of its own, and admits the restored checkpoint just as well.

MOVED ends a whole log, so it cannot be used here. Instead, a mark in the old checkpoint names the new one. A query
looks for the mark when it puts a START. The mark is written before the START of `restore`: whoever has put a START
before the mark is fenced by that one, and nobody puts one after the mark.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, NamedTuple, Self

from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.errors import OncewardError
from onceward.core.log.store import MOVED_MARK

from .manifest import IDENTITY

if TYPE_CHECKING:
    from .manifest import Manifest

_log = logging.getLogger("onceward.savepoint")


class Departure(NamedTuple):
    """A checkpoint that the query leaves, and the one where it goes on.

    Attributes:
        old: The savepoint's checkpoint, or the one that it was restored to since.
        into: The new checkpoint.
        left: The old checkpoint, if it can be reached and holds this query.
    """

    old: str
    into: CheckpointStorage
    left: CheckpointStorage | None

    @classmethod
    def find(cls, m: Manifest, into: CheckpointStorage) -> Self:
        """Find the checkpoint that the query runs from now: earlier marks lead there."""
        left, place, seen = None, m.checkpoint, set[str]()
        try:
            while place and place not in seen:
                seen.add(place)
                there = CheckpointStorage(place)
                if there.root == into.root or not _holds_query(there, m.query):
                    break  # a restore that was interrupted, or this one, once more
                left = there
                place = there.read_if_there(MOVED_MARK).decode()
        except (OSError, OncewardError):
            pass
        return cls(m.checkpoint if left is None else left.root, into, left)

    def mark(self) -> None:
        """Let no query start from the old checkpoint, or warn that it cannot be kept from it."""
        self.into.delete([MOVED_MARK])
        try:
            if self.left is not None:
                self.left.delete([MOVED_MARK])
                self.left.write(MOVED_MARK, [self.into.root.encode()])
                return
            why = "this query's files are not there"
        except (OSError, OncewardError) as error:
            why = str(error)
        if self.old != self.into.root:
            _log.warning("cannot mark the old checkpoint %s (%s): start no query from it", self.old, why)

    def unmark(self) -> None:
        """Let the query start from the old checkpoint again."""
        if self.left is not None:
            self.left.delete([MOVED_MARK])


def _holds_query(checkpoint: CheckpointStorage, query: str) -> bool:
    try:
        return bool(json.loads(checkpoint.read_if_there(IDENTITY))["id"] == query)
    except (ValueError, LookupError, TypeError):
        return False
