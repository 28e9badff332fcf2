"""A decision log in the memory of this process, for trials and tests. It ends with the process."""

from __future__ import annotations

from threading import Lock


class MemoryStore:
    """LogStore in a dictionary."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = Lock()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._lock:
            if key in self._values:
                return False
            self._values[key] = data
            return True

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def list_keys(self) -> list[str]:
        with self._lock:
            return sorted(self._values)

    def delete(self, key: str) -> None:
        with self._lock:
            self._values.pop(key, None)

    def describe(self) -> str:
        return "memory of this process"

    @property
    def shared(self) -> bool:
        return False
