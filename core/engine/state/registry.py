"""Which checkpoints refer to which shared files: a file is deleted when nobody does any more.

References are counted by (subtask, file), as in "Incremental Checkpointing in Apache Flink" (2018). A file that a given
up checkpoint uploaded was never registered, and is deleted at once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .handles import FileRef, SubtaskState

Reference = tuple[str, int, str]
"""Operator's uid, subtask, path."""


class SharedFiles:
    """Counts references.

    Args:
        delete: Deletes files.
    """

    def __init__(self, delete: Callable[[Iterable[str]], None]) -> None:
        self._delete = delete
        self._counts: Counter[Reference] = Counter()
        self._of: dict[str, list[Reference]] = {}

    def register(self, checkpoint: str, files: Mapping[tuple[str, int], tuple[FileRef, ...]]) -> None:
        """A completed checkpoint refers to these. Registering it again changes nothing."""
        if checkpoint in self._of:
            return
        references = [(*task, ref.path) for task, refs in files.items() for ref in refs if ref.shared]
        self._of[checkpoint] = references
        self._counts.update(references)

    def release(self, checkpoint: str) -> list[str]:
        """A checkpoint is dropped; the files that nobody refers to any more."""
        gone = []
        for reference in self._of.pop(checkpoint, ()):
            self._counts[reference] -= 1
            if not self._counts[reference]:
                del self._counts[reference]
                gone.append(reference[2])
        return [path for path in gone if not self.refers(path)]

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, less what is referred to."""
        self._delete([path for path in paths if not self.refers(path)])

    def discard(self, state: SubtaskState) -> None:
        """Delete what a given up checkpoint's subtask wrote, less what completed checkpoints refer to."""
        self._delete([ref.path for ref in state.files if not (ref.shared and self.refers(ref.path))])

    def refers(self, path: str) -> bool:
        """Whether a completed checkpoint refers to the file."""
        return any(known == path for _, _, known in self._counts)

    def count(self, uid: str, subtask: int, path: str) -> int:
        """References of one subtask's checkpoints to a file."""
        return self._counts[uid, subtask, path]
