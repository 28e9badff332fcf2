"""Handles of written state, and the metadata of a checkpoint that holds them. JSON-serialisable."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ...errors import StateDamagedError
from ...kit.sealed import seal, unseal_as


class FileRef(msgspec.Struct, frozen=True):
    """A file of written state; other checkpoints may refer to a shared one too."""

    name: str
    """Name of the file in the state that it belongs to (RocksDB's own name of it, for example)."""
    path: str
    """Path of the file, relative to the checkpoint folder."""
    size: int
    sha256: str
    shared: bool = False

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if {"", ".", ".."} & {self.name, *parts} or "/" in self.name or "\0" in self.path + self.name:
            raise ValueError(f"{self.path!r}, called {self.name!r}, is no file below a folder")


class KeyedHandle(msgspec.Struct, frozen=True, kw_only=True):
    """The keyed state of one subtask, which owns the key groups from `first` to before `end`."""

    first: int
    end: int
    form: str = "rows"
    """Or "rocksdb"; any backend reads rows."""
    files: tuple[FileRef, ...] = ()
    inline: bytes = b""
    """Rows that are kept in the metadata itself (memory backend)."""

    @property
    def size(self) -> int:
        return len(self.inline) + sum(file.size for file in self.files)


class ListHandle(msgspec.Struct, frozen=True):
    """An operator state's items in one subtask, in MessagePack, and how a restore distributes them."""

    redistribute: str
    items: list[bytes]


class SubtaskState(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of one subtask at its barrier: a source's position, keyed state, operator states by name."""

    position: Any = None
    keyed: KeyedHandle | None = None
    lists: dict[str, ListHandle] = {}
    key_types: list[list[str]] = []
    """Types of the keys that its keyed state is under, column by column; none if it has read no row."""

    @property
    def files(self) -> tuple[FileRef, ...]:
        return self.keyed.files if self.keyed is not None else ()

    @property
    def size(self) -> int:
        lists = sum(len(item) for handle in self.lists.values() for item in handle.items)
        return lists + (self.keyed.size if self.keyed is not None else 0)

    @property
    def empty(self) -> bool:
        """Whether the handle has neither a position nor state, so that dropping it loses nothing."""
        return self.position is None and self.keyed is None and not self.lists


class OperatorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stored states of an operator's subtasks, in their order, and the states that its function declares."""

    kind: str
    subtasks: list[SubtaskState]
    states: list[str] = []
    """Names of the states; earlier versions write and read nothing else of them."""
    kinds: dict[str, str] = {}
    """Layouts of the states, by their names."""
    keys: list[str] = []
    """Names of the columns that its keyed state is keyed by; none if it has no keyed state, or in earlier versions."""


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """All that a restore needs: of operators by uid, as the pipeline with this decision log stored them."""

    format: int = 1
    pipeline: str
    log: str = ""
    checkpoint: int
    savepoint: bool = False
    """True for a savepoint, which belongs to the user."""
    commits: bool = True
    """True if the rows that were written before it are committed with it."""
    terminal: bool = False
    """True if the run ended with it."""
    drained: bool = False
    """True if operators emitted the rows that they held back before it."""
    dropped: str = ""
    """Reason why it holds no state, only positions; empty if it holds state."""
    max_parallelism: int
    operators: dict[str, OperatorRecord]

    @property
    def files(self) -> list[FileRef]:
        return [ref for operator in self.operators.values() for state in operator.subtasks for ref in state.files]


_FORMAT: Final = "onceward-checkpoint"


def encode_metadata(metadata: Metadata) -> bytes:
    """Encode metadata as a line with its SHA-256, and a line of JSON."""
    return seal(_FORMAT, msgspec.json.encode(metadata, order="deterministic"))


def is_metadata(data: bytes) -> bool:
    """Return whether these bytes are a checkpoint's metadata, damaged or not."""
    return data.startswith(f"{_FORMAT}/".encode())


def decode_metadata(data: bytes, where: str) -> Metadata:
    """Read it back; a StateDamagedError if it is damaged, a NewerFormatError if a newer version wrote it."""
    return unseal_as(_FORMAT, data, Metadata, StateDamagedError, f"the checkpoint's metadata file {where}")
