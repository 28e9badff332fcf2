# ruff: noqa: ARG001 - the fakes keep the protocols' signatures
"""A store in memory with scripted faults, and committables that no sink has written; for tests of core/ alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.checkpoint import Backoff, CommitPolicy
from onceward.core.contract.transaction import (
    Acknowledgement,
    Committable,
    WriteContext,
)
from onceward.core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryStore:
    """LogStore in a dict. `faults` holds one function per coming put: called with the put's effect as argument."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.put_faults: list[Callable[[Callable[[], bool]], bool] | None] = []
        self.read_faults = 0
        self.delete_faults = 0
        self.before_delete: Callable[[str], None] | None = None

    def put_if_absent(self, key: str, data: bytes) -> bool:
        def effect() -> bool:
            if key in self.entries:
                return False
            self.entries[key] = data
            return True

        fault = self.put_faults.pop(0) if self.put_faults else None
        return effect() if fault is None else fault(effect)

    def get(self, key: str) -> bytes | None:
        self._read()
        return self.entries.get(key)

    def list_keys(self) -> list[str]:
        self._read()
        return sorted(self.entries)

    def delete(self, key: str) -> None:
        if self.delete_faults:
            self.delete_faults -= 1
            raise StoreError("delete failed")
        self.entries.pop(key, None)

    def describe(self) -> str:
        return "memory"

    @property
    def shared(self) -> bool:
        return False

    def _read(self) -> None:
        if self.read_faults:
            self.read_faults -= 1
            raise StoreError("read failed")


def not_written(effect: Callable[[], bool]) -> bool:
    """A put that failed and did not happen."""
    raise StoreError("put failed")


def answer_lost(effect: Callable[[], bool]) -> bool:
    """A put that happened and whose answer was lost."""
    effect()
    raise StoreError("answer lost")


def policy(**changes: object) -> CommitPolicy:
    """A policy without waiting."""
    still = Backoff(attempts=3, sleep=lambda _: None)
    return CommitPolicy(**{"commits": still, "puts": still, "now": lambda: "", **changes})  # type: ignore[arg-type]


def prepared(context: WriteContext, rows: int = 1) -> Committable:
    """The committable that a subtask returns for `context`."""
    return context.committable(kind="fake", transaction=str(context.transaction_name()), rows=rows)


def acknowledgement(*committables: Committable, epoch: int = 0, subtask: int = 0, **changes: object) -> Acknowledgement:
    """The acknowledgement of a subtask that serves sink `a` only."""
    values: dict[str, object] = {"epoch": epoch, "subtask": subtask, "attempt": 0, "sinks": ("a",), **changes}
    return Acknowledgement(committables=committables, **values)  # type: ignore[arg-type]
