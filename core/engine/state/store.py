"""What a state backend offers to a subtask: rows of columns, by key group.

A row is one state of one key; its columns are a map's entries, or the one column b"" of a single value. Keys and values
are bytes, so that every backend holds the same and a savepoint of one can be restored by another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..channels import TaskId
    from .handles import KeyedHandle
    from .storage import CheckpointStorage

Cell: TypeAlias = tuple[bytes, bytes, bytes]
"""Row, column, value."""


class KeyedTable(ABC):
    """The keyed state of one running subtask. One thread uses it; only what `freeze` returns runs elsewhere."""

    @abstractmethod
    def get(self, row: bytes, column: bytes = b"") -> bytes | None:
        """One value."""

    @abstractmethod
    def put(self, row: bytes, value: bytes, column: bytes = b"") -> None:
        """Set one value."""

    @abstractmethod
    def delete(self, row: bytes, column: bytes = b"") -> None:
        """Remove one value, if it is there."""

    @abstractmethod
    def columns(self, row: bytes) -> Iterator[tuple[bytes, bytes]]:
        """A row's columns and values, in order. The row may be changed meanwhile; what then comes is not defined."""

    @abstractmethod
    def scan(self, prefix: bytes) -> Iterator[Cell]:
        """All cells whose row begins so, in order."""

    @abstractmethod
    def load(self, cells: Iterable[Cell]) -> None:
        """Put restored cells."""

    @abstractmethod
    def freeze(self, checkpoint: int, *, full: bool = False) -> Freezing:
        """The synchronous part of a snapshot.

        Args:
            checkpoint: Its id.
            full: Write everything, as rows that any backend reads (savepoints).
        """

    def confirm(self, checkpoint: int) -> None:  # noqa: B027 - only incremental backends care
        """This checkpoint is completed: later ones may build on its files."""

    @abstractmethod
    def close(self) -> None:
        """Give up resources; the working copy is not needed any more."""


class Freezing(NamedTuple):
    """A frozen state: writes it out, in any thread, or gives it up."""

    write: Callable[[CheckpointStorage | None, str], tuple[KeyedHandle, int]]
    """Storage and a folder in it; returns the handle, and how many bytes were written anew."""
    discard: Callable[[], None]
    """Free what the freezing holds; called once, after `write` or instead of it."""


class StateBackend(Protocol):
    """Where keyed state lives while it is worked on, and how it is written out.

    Attributes:
        most: Bytes of one subtask's snapshot at most; None: any number.
    """

    most: int | None

    @property
    def storage(self) -> CheckpointStorage | None:
        """Where checkpoints are; None if they are kept inside the decision log."""
        ...

    def bind(self, name: str) -> StateBackend:
        """This backend in a folder of its own: bound to a pipeline's name, then to its decision log's identity."""
        ...

    def open(
        self,
        task: TaskId,
        groups: range,
        restored: Sequence[KeyedHandle],
        storage: CheckpointStorage | None,
        writer: int = 0,
    ) -> KeyedTable:
        """The table of one subtask.

        Args:
            task: Whose.
            groups: The key groups it owns.
            restored: Handles that overlap its groups; empty for a fresh start.
            storage: Where the handles' files are.
            writer: Position of the run's START, for the names of files that checkpoints share.

        Raises:
            StateDamagedError: A file is not what was written.
        """
        ...
