"""What a process keeps between calls: connections and pools. A forked child starts without them.

Sinks hold configuration only; Spark reuses Python workers across epochs, so what is dear is kept here, by settings.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")

_inherited: Final[list[Any]] = []
"""A parent's clients: their threads do not exist in the child, so they must not even be destroyed here."""


class PerProcess(Generic[K, V]):
    """A dictionary that makes missing values and is empty again in a forked child. Thread-safe.

    Args:
        make: Function that makes the value of a key.
    """

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make
        self._clear()
        os.register_at_fork(after_in_child=self._after_fork)

    def get(self, key: K) -> V:
        """Return the value of a key, which is made at the first call."""
        with self._lock:
            if key not in self._values:
                self._values[key] = self._make(key)
            return self._values[key]

    def drain(self) -> list[V]:
        """Forget all values and return them."""
        with self._lock:
            values = list(self._values.values())
            self._values.clear()
            return values

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[K, V] = {}

    def _after_fork(self) -> None:
        _inherited.append(self._values)
        self._clear()
